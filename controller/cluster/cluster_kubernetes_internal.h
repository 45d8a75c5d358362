/* cluster_kubernetes_internal.h: what cluster_kubernetes.c and its worker share.
 *
 * Three threads: the owner's, which calls cluster.h; the watch's, which only tells; the worker,
 * which creates and deletes; and any that read logs. What they share is the list of entries, behind
 * `lock`; no request is made while it is held. An entry's `want` is what the worker is still to do
 * for it. */
#ifndef KUBEML_CLUSTER_KUBERNETES_INTERNAL_H
#define KUBEML_CLUSTER_KUBERNETES_INTERNAL_H

#include <pthread.h>

#include "cluster_kubernetes.h"
#include "common/base/buf.h"
#include "controller/kube/kube_client.h"
#include "controller/kube/kube_pods.h"
#include "controller/kube/kube_watch.h"

enum {
    CALL_MS = 5000,
    BESIDE_MS = 1000, /* that the owner's thread waits for what stands beside a kubeml-ps */
    JOB_MANAGER_KNOWN_MS = 1000, /* the pods of a job are given out one after the other */
    LOG_MS = 2000, /* of a pod that is to be deleted: others wait for the worker meanwhile */
    DELETE_AFTER_MS = 100, /* so that the pods in its place are asked for before its log is */
    SLOTS_MS = 10000,
    LOG_LINE_BYTES = 16, /* a guess at the shortest, to ask for enough lines */
    LOG_LINES_MAX = 100000,
    PATH_BYTES = 700,
    NODE_BYTES = 256,
    SUSPECTS_MAX = 16,
    SUSPECT_MS = 120000,  /* in which Kubernetes sees by itself that a node is gone */
    DEAF_AFTER_MS = 1000, /* that a log was waited for in vain: its node does not answer, */
    DEAF_MS = 15000,      /* and is not asked for one for so long */
    READERS_MAX = 2,      /* clients for logs that are kept open */
    POD_OWN_GRACE_S = 30, /* Kubernetes' default */
};

typedef enum want { WANT_NOTHING, WANT_CREATE, WANT_DELETE } want;

typedef struct entry {
    pod seen;
    char uid[KUBE_UID_BYTES], node[NODE_BYTES];
    int64_t create_ms; /* it is kept from the nodes that were suspected then */
    want want;
    int64_t due_ms;       /* of `want` */
    int64_t slow_ms;      /* when to say that it is still being made; INT64_MAX: not to be said */
    kube_backoff backoff;
    int grace_s;          /* of WANT_DELETE; -1: the pod's own */
    bool there;           /* the API server has or may have it */
    bool listed;          /* the watch has shown it */
    bool busy;            /* the worker is at it, without the lock */
    bool asked;           /* by `stop` */
    bool beside;          /* Service and policy of this kubeml-ps are made, or owed */
    bool leaving;         /* somebody has deleted it */
    bool anywhere;        /* it is to avoid no node */
    bool avoids;          /* it was made to avoid some */
    bool late;            /* deleted, and should have ended by `due_ms`; then without grace */
    bool untold;
    bool forgotten;       /* freed as soon as it is deleted */
    cluster_log log;      /* of a deleted pod; .text NULL: none was taken */
    struct entry *next;
} entry;

/* A node whose pod had to be given up, or that did not answer. */
typedef struct suspect {
    char node[NODE_BYTES];
    int64_t since_ms, until_ms; /* new pods better avoid it */
    int64_t deaf_until_ms; /* its pods' logs are not asked for */
} suspect;

typedef struct kube {
    cluster base;
    kube_config access;
    kube_templates templates;
    char owner_uid[KUBE_UID_BYTES];
    int slots, slots_every_ms, late_ms;
    kube_watch *watch;
    kube_client *calls; /* of the owner's thread */
    kube_client *work;  /* of the worker */
    kube_client *readers[READERS_MAX]; /* of those who read logs; idle, behind `lock` */
    int reader_count;
    pthread_t worker;
    bool working;
    int event_fd;
    char job_known[CLUSTER_JOB_BYTES]; /* whose TrainJob `job_owner` is; owner's thread, */
    int64_t job_known_ms;              /* until when */
    json_t *job_owner;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* for the worker */
    entry *entries;         /* the youngest first */
    int living, ended;
    suspect suspects[SUSPECTS_MAX];
    int counted;      /* slots on the nodes; 0: not asked for yet */
    int64_t count_ms; /* when the worker counts again */
    json_t *owed;     /* companion_objects.h's, for the worker */
    int64_t owed_ms;  /* when it tries the first of them; INT64_MAX: there are none */
    kube_backoff owed_backoff;
    bool synced, stopping;
    uint64_t seeds;
} kube;

/* cluster_kubernetes.c; all of it with the lock held */
void kube_note(kube *k, entry *p);      /* it is to be told */
void kube_drop(kube *k, entry *gone);
void kube_has_ended(kube *k, entry *p);
void kube_is_gone(kube *k, entry *p, const pod *last);
json_t *kube_suspected(const kube *k);  /* nodes that new pods better avoid; a new reference */
bool kube_is_deaf(const kube *k, const char *node);
bool kube_lives(const kube *k, const char *name); /* a pod that has not ended */
void kube_set_words(pod *p, const char *reason, const char *message);

/* without it */
void kube_pods_path(const kube *k, const char *name, char out[PATH_BYTES]);
void kube_log_failed(kube *k, const char *node, int64_t began_ms, const err *why);
int kube_count_slots(kube *k, kube_client *c, int *out, err *e);

/* cluster_kubernetes_worker.c */
void *kube_worker(void *k); /* its thread */
int kube_fetch_log(kube *k, kube_client *c, const char *name, pod_role role, size_t bytes_max,
                   int64_t deadline_ms, cluster_log *out, err *e);
/* A copy of its last bytes. */
int kube_tail(const cluster_log *log, size_t bytes_max, cluster_log *out, err *e);

#endif
