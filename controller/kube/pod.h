/* pod.h: what the controller knows of a pod, whichever backend of cluster.h runs it.
 *
 * These types are below the backends: kube_pods.h reads Kubernetes' texts into them, and the seam
 * (cluster.h) passes them on. */
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

/* A GPU on which functions are placed, or that a pod has reported. */
typedef struct cluster_gpu {
    char id[CLUSTER_GPU_BYTES]; /* as CUDA_VISIBLE_DEVICES takes it; "": unknown */
    uint64_t memory_bytes;
    bool mps; /* a pod's: MPS runs there, and holds functions to their threads */
} cluster_gpu;

typedef struct pod {
    char name[CLUSTER_NAME_BYTES];
    pod_role role;
    pod_phase phase;
    char address[CLUSTER_ADDRESS_BYTES]; /* wire.h address of its control socket */
    char job[CLUSTER_JOB_BYTES];         /* the job it was given to, or "" */
    int function, incarnation;           /* of the job; -1 */
    cluster_gpu gpu;                     /* with which it was given to the job */
    bool untaken; /* placed on a node that has not accepted it yet */
    /* No node takes it, and because it avoids some nodes the autoscaler may not add one for it:
     * replace it by a pod that may run anywhere. */
    bool kept_back;
    /* After its end: */
    int exit_status, signal;             /* -1 and 0 where unknown (an adopted process) */
    /* no `stop` caused the end; false where unknown */
    bool by_itself;
    char reason[32];                     /* exit_cause.h's, "OutOfMemory", "Pending..." */
    char message[CLUSTER_MESSAGE_BYTES]; /* in words, with evidence */
} pod;

/* The reason of a pod that is being made on a node which does not answer: another pod is to replace
 * it. */
#define CLUSTER_NODE_SILENT "NodeSilent"

#endif
