/* cluster_kubernetes_internal.h: what cluster_kubernetes.c and its worker share.
 *
 * These threads use it: the job manager's, which calls cluster.h; the watch's, which only reports;
 * the worker, which creates and deletes pods; and any that read logs. They share the list of
 * entries, guarded by `lock`; no thread makes a request while it holds the lock. An entry's `want`
 * is what the worker has still to do. */
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
    COMPANION_OBJECTS_MS = 1000, /* that the job manager waits for the companion objects of a kubeml-ps */
    JOB_OWNER_KNOWN_MS = 1000, /* a job gets its pods one after the other */
    LOG_MS = 2000, /* for the log of a pod that is to be deleted; others wait for the worker */
    DELETE_AFTER_MS = 100, /* so that new pods are asked for before the log of the old one */
    SLOTS_MS = 10000,
    LOG_LINE_BYTES = 16, /* a guess at the shortest line, to ask for enough lines */
    LOG_LINES_MAX = 100000,
    PATH_BYTES = 700,
    NODE_BYTES = 256,
    SUSPECTS_MAX = 16,
    SUSPECT_MS = 120000,  /* in which Kubernetes itself notices a lost node */
    DEAF_AFTER_MS = 1000, /* of waiting for a log in vain: its node does not answer, */
    DEAF_MS = 15000,      /* and is asked for no log for so long */
    READERS_MAX = 2,      /* idle clients for reading logs */
    POD_OWN_GRACE_S = 30, /* Kubernetes' default */
};

typedef enum want { WANT_NOTHING, WANT_CREATE, WANT_DELETE } want;

typedef struct entry {
    pod seen;
    char uid[KUBE_UID_BYTES], node[NODE_BYTES];
    int64_t create_ms; /* it avoids the nodes that were suspected then */
    want want;
    int64_t due_ms;       /* of `want` */
    int64_t slow_ms;      /* when to report that it is still being made; INT64_MAX: never */
    kube_backoff backoff;
    int grace_s;          /* of WANT_DELETE; -1: the pod's own */
    bool there;           /* the API server has or may have it */
    bool listed;          /* the watch has shown it */
    bool busy;            /* the worker handles it, without the lock */
    bool asked;           /* to end, by `stop` */
    bool beside;          /* the companion objects of this kubeml-ps are made, or owed */
    bool leaving;         /* deleted, by whomever */
    bool anywhere;        /* it need avoid no node */
    bool avoids;          /* it was made to avoid some nodes */
    bool late;            /* deleted, and should have ended by `due_ms`; then without grace */
    bool untold;
    bool forgotten;       /* to be freed once it is deleted */
    cluster_log log;      /* of a deleted pod; .text NULL: none was taken */
    struct entry *next;
} entry;

/* A node that did not answer, or whose pod was given up. */
typedef struct suspect {
    char node[NODE_BYTES];
    int64_t since_ms, until_ms; /* new pods avoid it, if they can */
    int64_t deaf_until_ms; /* until then its pods' logs are not asked for */
} suspect;

typedef struct kube {
    cluster base;
    kube_config access;
    kube_templates templates;
    char owner_uid[KUBE_UID_BYTES];
    int slots, slots_every_ms, late_ms;
    kube_watch *watch;
    kube_client *calls; /* of the job manager's thread */
    kube_client *work;  /* of the worker */
    kube_client *readers[READERS_MAX]; /* idle ones, for logs; guarded by `lock` */
    int reader_count;
    pthread_t worker;
    bool working;
    int event_fd;
    char job_known[CLUSTER_JOB_BYTES]; /* the job whose TrainJob `job_owner` is; job manager's, */
    int64_t job_known_ms;              /* until when */
    json_t *job_owner;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* for the worker */
    entry *entries;         /* the youngest first */
    int living, ended;
    suspect suspects[SUSPECTS_MAX];
    int counted;      /* slots of the nodes; 0: not counted yet */
    int64_t count_ms; /* when the worker counts again */
    json_t *owed;     /* companion objects that the worker has to make */
    int64_t owed_ms;  /* when it tries the first; INT64_MAX: there are none */
    kube_backoff owed_backoff;
    bool synced, stopping;
    uint64_t seeds;
} kube;

/* cluster_kubernetes.c; with the lock held */
void kube_note(kube *k, entry *p);      /* next_event is to report it */
void kube_drop(kube *k, entry *gone);
void kube_has_ended(kube *k, entry *p);
void kube_is_gone(kube *k, entry *p, const pod *last);
json_t *kube_suspected(const kube *k);  /* nodes for new pods to avoid; a new reference */
bool kube_is_deaf(const kube *k, const char *node);
bool kube_lives(const kube *k, const char *name); /* a pod that has not ended */
void kube_set_words(pod *p, const char *reason, const char *message);

/* without the lock */
void kube_pods_path(const kube *k, const char *name, char out[PATH_BYTES]);
void kube_log_failed(kube *k, const char *node, int64_t began_ms, const err *why);
int kube_count_slots(kube *k, kube_client *c, int *out, err *e);

/* cluster_kubernetes_worker.c */
void *kube_worker(void *k); /* the worker's thread */
int kube_fetch_log(kube *k, kube_client *c, const char *name, pod_role role, size_t bytes_max,
                   int64_t deadline_ms, cluster_log *out, err *e);
/* Copies the last bytes of a log. */
int kube_tail(const cluster_log *log, size_t bytes_max, cluster_log *out, err *e);

#endif
