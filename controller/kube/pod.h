/* pod.h: what is known of a pod, whichever backend of cluster.h runs it.
 *
 * The types lie below the backends: the texts of Kubernetes are read into them (kube_pods.h), and
 * the seam (cluster.h) hands them on. */
#ifndef KUBEML_POD_H
#define KUBEML_POD_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CLUSTER_NAME_BYTES = 64,
    CLUSTER_ADDRESS_BYTES = 160,
    CLUSTER_JOB_BYTES = 40,
    CLUSTER_MESSAGE_BYTES = 256,
    CLUSTER_GPU_BYTES = 96,
};

typedef enum pod_role { POD_FUNCTION, POD_PS } pod_role;
typedef enum pod_phase { POD_PENDING, POD_RUNNING, POD_ENDED } pod_phase;

/* A GPU that functions are placed on, or that a pod has shown. */
typedef struct cluster_gpu {
    char id[CLUSTER_GPU_BYTES]; /* as CUDA_VISIBLE_DEVICES takes it; "": not known */
    uint64_t memory_bytes;
    bool mps; /* a pod's: MPS runs there, and holds functions to their threads */
} cluster_gpu;

typedef struct pod {
    char name[CLUSTER_NAME_BYTES];
    pod_role role;
    pod_phase phase;
    char address[CLUSTER_ADDRESS_BYTES]; /* wire.h address of its control socket */
    char job[CLUSTER_JOB_BYTES];         /* the job it was given to, or "" */
    int function, incarnation;           /* of that job; -1 */
    cluster_gpu gpu;                     /* that it was given with */
    bool untaken; /* it is placed on a node, which has not said that it makes it */
    /* No node takes it, and that it is to avoid some may keep one from being added for it: another
     * is to start in its place, anywhere. */
    bool kept_back;
    /* After its end: */
    int exit_status, signal;             /* -1 and 0 where unknown (an adopted process) */
    /* no `stop` brought it about; false where that is not known */
    bool by_itself;
    char reason[32];                     /* exit_cause.h's, "OutOfMemory", "Pending..." */
    char message[CLUSTER_MESSAGE_BYTES]; /* in words, with evidence */
} pod;

/* The reason of a pod that is being made on a node which does not answer: another is to start in
 * its place. */
#define CLUSTER_NODE_SILENT "NodeSilent"

#endif
