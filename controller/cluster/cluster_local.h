/* cluster_local.h: pods as local processes. The "local" of cluster_open.
 *
 * A pod is a session of its own (`setsid`) whose leader is kubeml-function or kubeml-ps from the
 * controller's own folder. HOME/run/pods has for each pod NAME the files NAME.json (pid, start
 * time, labels; replaced atomically), NAME.log (its output) and NAME.sock (its control socket; for
 * a long HOME in a folder of /tmp that only this user can use). A process is identified by pid and
 * start time, so that another process with the same pid is never taken for a pod. When the leader
 * ends, its whole group is killed.
 *
 * It is started as `PROGRAM --listen ADDRESS` with the pool's token file in KUBEML_POOL_TOKEN_FILE
 * and an environment cut down to what the programs read. A pod for a certain GPU has that GPU alone
 * in CUDA_VISIBLE_DEVICES, and KUBEML_WARM_GPU, which makes it prepare the GPU at once. Limits are
 * set before the program starts, so before any user code runs. */
#ifndef KUBEML_CLUSTER_LOCAL_H
#define KUBEML_CLUSTER_LOCAL_H

#include "cluster.h"

enum {
    CLUSTER_LOCAL_PODS_MAX = 1024,  /* living pods; more are ERR_LIMIT */
    CLUSTER_LOCAL_ENDED_MAX = 256,  /* ended pods whose log is kept; the oldest goes first */
    CLUSTER_LOCAL_CLOSE_MS = 8000,  /* close(stop_all): until living pods are killed */
};

/* What cluster_open("local", ...) takes. */
typedef struct cluster_local_config {
    const char *home;       /* run/pods is in it */
    const char *bin_dir;    /* the folder of kubeml-function and kubeml-ps */
    const char *token_file; /* of the pool */
    int slots;
    bool gpus;      /* functions are placed on the GPUs that NVML knows */
    bool gpus_must; /* an error where a GPU or NVML does not answer, or there is no usable GPU */
} cluster_local_config;

int cluster_local_open(const void *config, cluster **out, err *e);

#endif
