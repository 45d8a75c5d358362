/* kube_pods.h: pods of Kubernetes as texts: made from a template, and read back. Pure.
 *
 * The templates are one JSON file (a ConfigMap of the chart, mounted):
 *   {"install": "kubeml", "namespace"?: "ml", "port"?: 10200, "slots"?: 4, "slots_resource"?:
 *   "nvidia.com/gpu", "gpu_resource"?: "nvidia.com/gpu",
 *    "rank_ports"?: {"first": 50000, "last": 59999},
 *    "owner"?: {"apiVersion": "v1", "kind": "ConfigMap", "plural": "configmaps", "name":
 *    "kubeml-pods"}, "function": {"metadata"?: {...}, "spec": {...}}, "ps": {...}}
 * `function` and `ps` are pod templates whose first container is the program. What Pod Security
 * "restricted" wants, a read-only root and no service account's token are set on every pod, and a
 * template that contradicts (host namespaces, hostPath, privileged) is refused.
 *
 * `rank_ports` are those that programs in a function's pod are given when they ask for any (its
 * sysctl net.ipv4.ip_local_port_range): the functions of a job may then be let reach each other
 * there alone. `owner` is what the pods go with when it is deleted: uninstalling leaves nothing
 * behind. */
#ifndef KUBEML_KUBE_PODS_H
#define KUBEML_KUBE_PODS_H

#include <jansson.h>

#include "common/base/err.h"
#include "pod.h"

#define KUBE_LABEL_INSTALL     "kubeml.dev/install"
#define KUBE_LABEL_ROLE        "kubeml.dev/role"
#define KUBE_LABEL_STATE       "kubeml.dev/state" /* warm, job */
#define KUBE_LABEL_JOB         "kubeml.dev/job"
#define KUBE_LABEL_FUNCTION    "kubeml.dev/function" /* not on kubeml-ps */
#define KUBE_LABEL_INCARNATION "kubeml.dev/incarnation"
#define KUBE_LABEL_GPU         "kubeml.dev/gpu" /* which it has shown; on functions alone */
#define KUBE_LABEL_GPU_BYTES   "kubeml.dev/gpu-bytes"
#define KUBE_LABEL_GPU_MPS     "kubeml.dev/gpu-mps" /* "true", where MPS runs */

enum { KUBE_PODS_PORT = 10200, KUBE_UID_BYTES = 64, KUBE_INSTALL_BYTES = 48 };

typedef struct kube_templates {
    json_t *function, *ps; /* new references */
    json_t *owner;         /* NULL: none */
    char install[KUBE_INSTALL_BYTES], namespace_name[64], slots_resource[128], gpu_resource[128];
    char container[2][64]; /* the program's, by pod_role */
    int port, slots;
    int first_rank_port, last_rank_port; /* 0: none are kept for them */
} kube_templates;

/* ERR_INVALID naming the field. */
int kube_templates_read(const char *path, kube_templates *out, err *e);
void kube_templates_free(kube_templates *t);

/* The object to create; `owner_uid` "": without an owner. New reference. */
json_t *kube_pod_build(const kube_templates *t, const char *name, pod_role role,
                       const char *owner_uid);
/* JSON patch that gives a warm pod to a job; it fails where the pod is warm no longer. `gpu`: NULL,
 * or what it has shown; a name that no label takes is left out. `owner`: the job's reference, NULL
 * to leave the owner as it is. New reference. */
json_t *kube_pod_assignment(const char *job, int function, int incarnation, const cluster_gpu *gpu,
                            const json_t *owner);
bool kube_pod_is_given(const json_t *object, const char *job, int function, int incarnation);

/* What an object says: phase, address, labels, and in words why it waits or how it ended.
 * ERR_INVALID when it is no pod of ours. */
int kube_pod_read(const json_t *object, int port, pod *out, err *e);
/* of the metadata; never NULL */
const char *kube_object_text(const json_t *object, const char *key);
const char *kube_object_label(const json_t *object, const char *key);

/* A list of one owner, as the one that makes others in the place of what is deleted: `kubectl
 * drain` takes no pod without such from its node. New reference. */
json_t *kube_owner_reference(const char *version, const char *kind, const char *name,
                             const char *uid);
/* Prefers other nodes than those: a pod is not to be put where another has just been lost. */
void kube_pod_avoid(json_t *object, json_t *nodes);
const char *kube_pod_node(const json_t *object); /* "" while it has none */

/* How many of `gpu_resource`, or without it of the first in the function's limits that is named as
 * GPUs are (nvidia.com/gpu, .shared, a MIG slice, ...), one pod asks for; `resource` is "" and the
 * count 0 where there is none. */
int kube_templates_gpu(const kube_templates *t, char *resource, size_t bytes);
/* The CPUs of one function's pod: its limit, or, since without one it is sure of no more, what it
 * requests; rounded down, at least 1. */
int kube_templates_cpus(const kube_templates *t);

#endif
