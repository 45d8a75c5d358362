/* kube_pods.h: pods of Kubernetes as texts: made from a template, and read back. Pure.
 *
 * The templates are one JSON file (a ConfigMap of the chart, mounted):
 *   {"install": "kubeml", "namespace"?: "ml", "port"?: 10200, "slots"?: 4,
 *    "slots_resource"?: "nvidia.com/gpu", "gpu_resource"?: "nvidia.com/gpu",
 *    "rank_ports"?: {"first": 50000, "last": 59999},
 *    "owner"?: {"apiVersion": "v1", "kind": "ConfigMap", "plural": "configmaps",
 *               "name": "kubeml-pods"},
 *    "function": {"metadata"?: {...}, "spec": {...}}, "ps": {...}}
 * `function` and `ps` are pod templates whose first container is the program. Every pod gets what
 * Pod Security "restricted" requires, a read-only root and no service account's token. A template
 * that contradicts (host namespaces, hostPath, privileged) is refused.
 *
 * `rank_ports` are the ports that programs in a function's pod get when they ask for any port (its
 * sysctl net.ipv4.ip_local_port_range), so that a policy can let a job's functions reach each other
 * on these ports alone. `owner` is an object with which Kubernetes deletes the pods: uninstalling
 * leaves nothing behind. */
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
#define KUBE_LABEL_GPU         "kubeml.dev/gpu" /* which it has reported; on functions alone */
#define KUBE_LABEL_GPU_BYTES   "kubeml.dev/gpu-bytes"
#define KUBE_LABEL_GPU_MPS     "kubeml.dev/gpu-mps" /* "true", where MPS runs */

enum { KUBE_PODS_PORT = 10200, KUBE_UID_BYTES = 64, KUBE_INSTALL_BYTES = 48 };

typedef struct kube_templates {
    json_t *function, *ps; /* new references */
    json_t *owner;         /* NULL: none */
    char install[KUBE_INSTALL_BYTES], namespace_name[64], slots_resource[128], gpu_resource[128];
    char container[2][64]; /* the program's, by pod_role */
    int port, slots;
    int first_rank_port, last_rank_port; /* 0: the templates have none */
} kube_templates;

/* ERR_INVALID naming the field. */
int kube_templates_read(const char *path, kube_templates *out, err *e);
void kube_templates_free(kube_templates *t);

/* The object to create; `owner_uid` "": without an owner. New reference. */
json_t *kube_pod_build(const kube_templates *t, const char *name, pod_role role,
                       const char *owner_uid);
/* JSON patch that gives a warm pod to a job; it fails where the pod is not warm any more. `gpu`:
 * NULL, or the GPU that the pod has reported; a name that cannot be a label's value is left out.
 * `owner`: the job's reference, NULL to leave the owner as it is. New reference. */
json_t *kube_pod_assignment(const char *job, int function, int incarnation, const cluster_gpu *gpu,
                            const json_t *owner);
bool kube_pod_is_given(const json_t *object, const char *job, int function, int incarnation);

/* Reads an object: phase, address, labels, and in words why it waits or how it ended. ERR_INVALID
 * where it is no pod of ours. */
int kube_pod_read(const json_t *object, int port, pod *out, err *e);
/* of the metadata; never NULL */
const char *kube_object_text(const json_t *object, const char *key);
const char *kube_object_label(const json_t *object, const char *key);

/* A list of one owner, marked as the controller that replaces deleted pods: `kubectl drain` only
 * removes pods that have one. New reference. */
json_t *kube_owner_reference(const char *version, const char *kind, const char *name,
                             const char *uid);
/* Makes the pod prefer other nodes than these: a pod has just been lost there. */
void kube_pod_avoid(json_t *object, json_t *nodes);
const char *kube_pod_node(const json_t *object); /* "" while it has none */

/* The GPUs that one function's pod asks for: of `gpu_resource`, or without it of the first of its
 * limits with a name of GPUs (nvidia.com/gpu, .shared, a MIG slice, ...). `resource` is "" and the
 * count 0 where there is none. */
int kube_templates_gpu(const kube_templates *t, char *resource, size_t bytes);
/* The CPUs of one function's pod: its limit, or without a limit its request, since it is sure of no
 * more; rounded down, at least 1. */
int kube_templates_cpus(const kube_templates *t);

#endif
