/* cluster.h: the seam behind which pods are started, watched and stopped.
 *
 * A pod is one process tree with a name, a role, a log and an end: a local process, or a pod of
 * Kubernetes. The controller is the only caller, from one thread but for logs. Pods outlive the
 * controller: after a restart `list` finds them by their labels, so that running jobs are adopted.
 * No call blocks longer than its comment says; `next_event` reports what takes longer. */
#ifndef KUBEML_CLUSTER_H
#define KUBEML_CLUSTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "controller/kube/pod.h"

/* What a pod may use. 0: no limit of that kind. */
typedef struct pod_limits {
    uint64_t memory_bytes; /* address space; beyond this it ends as out of memory */
    uint64_t file_bytes;
    int processes;
    bool goes_first; /* it is killed first when the machine's memory is over */
} pod_limits;

typedef struct pod_spec {
    char name[CLUSTER_NAME_BYTES]; /* unique; [a-z0-9-] */
    pod_role role;
    pod_limits limits;
    /* this GPU alone, made ready at once; "": given later, or none */
    char gpu[CLUSTER_GPU_BYTES];
    bool anywhere; /* may run on any node, also on a suspected one */
} pod_spec;

/* The end of what a pod wrote. */
typedef struct cluster_log {
    char *text;    /* NUL-terminated */
    size_t len;    /* without the NUL */
    uint64_t from; /* how much was written before it, or CLUSTER_LOG_FROM_UNKNOWN */
} cluster_log;
#define CLUSTER_LOG_FROM_UNKNOWN UINT64_MAX

typedef struct cluster cluster;

typedef struct cluster_ops {
    const char *name; /* "local", "kubernetes" */
    /* Asks for a pod, and does not wait for it: a pod is ready when its control address answers.
     * ERR_EXISTS, ERR_UNAVAILABLE (cannot be asked now), ERR_LIMIT (a quota), ERR_IO. */
    int (*start)(cluster *c, const pod_spec *spec, pod *out, err *e);
    /* Labels a pod as given to a job (function -1 for kubeml-ps), with the GPU that it has reported
     * (NULL: none, or the GPU is not the pod's own); survives a controller's restart.
     * ERR_UNAVAILABLE (it has ended, another may be had), ERR_CONFLICT (it was given away). */
    int (*assign)(cluster *c, const char *name, const char *job, int function, int incarnation,
                  const cluster_gpu *gpu, err *e);
    /* Publishes how to reach the Redis of a job's kubeml-ps (modelstore_access_json), for those who
     * are allowed to read it. A failure is logged. NULL: the backend has no place for it. */
    void (*publish)(cluster *c, const char *name, const char *job, const json_t *access);
    /* Lets a job's functions reach each other, as NCCL's ranks must, while its kubeml-ps `name`
     * exists. May be called again; a failure is logged. NULL: nothing keeps them apart. */
    void (*let_meet)(cluster *c, const char *name, const char *job);
    /* Ends a pod: asks it to end, and kills it after grace_ms. Returns at once; the end comes as an
     * event. Stopping an unknown pod is no error; stopping an ended pod forgets it and its log.
     * grace_ms 0 is for a pod that does not answer: its node may be gone, and new pods avoid that
     * node for a while where there are others. */
    int (*stop)(cluster *c, const char *name, int grace_ms, err *e);
    /* Fills up to `max` pods; *count is how many exist. */
    int (*list)(cluster *c, pod *out, size_t max, size_t *count, err *e);
    /* A descriptor that polls readable when next_event has something. */
    int (*event_fd)(cluster *c);
    /* Takes one change of a pod: 1; 0: none now; -1. */
    int (*next_event)(cluster *c, pod *out, err *e);
    /* How many function slots there are (cores, shared GPUs). Nodes come and go: the caller asks
     * again whenever event_fd was readable. Only the first call blocks. */
    int (*slots)(cluster *c, int *out, err *e);
    bool slots_stay; /* there will never be more of them */
    /* The CPUs that functions compute on, at least 1: of each function's pod where `pods_own_cpus`,
     * otherwise of all functions together. Does not block. */
    int (*cpus)(cluster *c);
    bool pods_own_cpus;
    /* The GPUs on which the controller places functions, `max` at most; none is no error. NULL: the
     * cluster places functions, and `pod_gpus` is how many GPUs each function's pod has. */
    int (*gpus)(cluster *c, cluster_gpu *out, int max, int *count, err *e);
    int (*pod_gpus)(cluster *c); /* NULL with `gpus` */
    /* The last `bytes_max` bytes of a pod's log, also of an ended pod until the backend forgets it.
     * The caller frees out->text. ERR_NOT_FOUND, ERR_UNAVAILABLE, ERR_IO. From any thread, beside
     * all other calls but `close`; blocks for at most 5 s. */
    int (*log_tail)(cluster *c, const char *name, size_t bytes_max, cluster_log *out, err *e);
    /* Whether jobs can run here at all: ERR_UNSUPPORTED names what is not installed. NULL: only a
     * job's start shows that. */
    int (*can_run)(cluster *c, err *e);
    /* Releases the handle; pods go on unless `stop_all`. Blocks at most 10 s. */
    void (*close)(cluster *c, bool stop_all);
} cluster_ops;

struct cluster {
    const cluster_ops *ops;
};

/* All pods, however many there are by now; the caller frees *out. ERR_NOMEM, and `list`'s. */
int cluster_list(cluster *c, pod **out, size_t *count, err *e);

/* `kind` is a name in the table ("local", "kubernetes"); `config` is the backend's own. */
int cluster_open(const char *kind, const void *config, cluster **out, err *e);

#endif
