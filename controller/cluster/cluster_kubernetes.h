/* cluster_kubernetes.h: pods of Kubernetes. The "kubernetes" of cluster_open.
 *
 * `start` puts a pod into a list and returns. A worker thread creates the pod at the API server,
 * and deletes pods that are to end. It tries again while the server is away or a quota is spent;
 * the pod then waits with that reason. A watch reports each pod's state: an event for every change
 * of phase, address or reason. Only `assign` (5 s at most), `log_tail` (5 s) and the first `slots`
 * (10 s) ask the server in the caller's thread.
 *
 * Pods have random names. Where a try's response was lost, and the pod is there at the next try, it
 * is the same pod: no pod is created twice. A warm pod that the watch shows and this controller has
 * not asked for was created by an earlier controller that lost the response: it is deleted. Pods go
 * on when the handle is closed, whatever `stop_all` says: another replica takes them over. */
#ifndef KUBEML_CLUSTER_KUBERNETES_H
#define KUBEML_CLUSTER_KUBERNETES_H

#include "cluster.h"
#include "common/kube/kube_config.h"

enum {
    CLUSTER_KUBERNETES_PODS_MAX = 4096, /* living pods; more are ERR_LIMIT */
    CLUSTER_KUBERNETES_ENDED_MAX = 64,  /* ended pods whose log is kept; the oldest goes first */
    CLUSTER_KUBERNETES_LOG_BYTES = 256 << 10, /* kept of the log of a job's deleted pod */
    CLUSTER_KUBERNETES_OPEN_MS = 30000,
    CLUSTER_KUBERNETES_SLOW_MS = 3000, /* then a pod that is still being made says so */
    CLUSTER_KUBERNETES_SLOTS_MS = 30000, /* between two counts of the nodes' slots */
    /* A deleted pod that is still there so long after its grace is deleted again without grace: its
     * node is gone, and Kubernetes would keep the pod for many minutes. */
    CLUSTER_KUBERNETES_LATE_MS = 30000,
};

/* What cluster_open("kubernetes", ...) takes. */
typedef struct cluster_kubernetes_config {
    const char *templates;     /* kube_pods.h's file */
    const kube_config *access; /* NULL: the pod's service account or the kubeconfig; copied */
    const char *context;       /* of the kubeconfig; NULL: the current one */
    bool (*may_write)(const void *writer); /* kube_config's */
    const void *writer;
    int slots;                 /* where the templates have neither slots nor a resource */
    /* between two counts of the nodes' slots; 0: CLUSTER_KUBERNETES_SLOTS_MS */
    int slots_every_ms;
    int late_ms;               /* 0: CLUSTER_KUBERNETES_LATE_MS */
} cluster_kubernetes_config;

int cluster_kubernetes_open(const void *config, cluster **out, err *e);

#endif
