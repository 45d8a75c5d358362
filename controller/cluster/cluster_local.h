/* cluster_local.h: pods as local processes. The "local" of cluster_open.
 *
 * A pod is a session of its own (`setsid`) whose leader is kubeml-function or kubeml-ps from the
 * controller's own folder. In HOME/run/pods lie, per pod NAME, NAME.json (pid, start time, labels;
 * replaced atomically), NAME.log (what it wrote) and NAME.sock (its control socket; for a long HOME
 * in a folder of /tmp that is ours alone). A process is known again by pid and start time, so that
 * a pid that was used again is never taken for a pod. When the leader ends, all of its group is
 * killed.
 *
 * It is started as `PROGRAM --listen ADDRESS` with the pool's token file in KUBEML_POOL_TOKEN_FILE
 * and an environment cut down to what the programs read; one of a certain GPU has that one alone in
 * CUDA_VISIBLE_DEVICES, and KUBEML_WARM_GPU, upon which it makes it ready. Limits are set from
 * outside, before any user's code is there. */
#ifndef KUBEML_CLUSTER_LOCAL_H
#define KUBEML_CLUSTER_LOCAL_H

#include "cluster.h"

enum {
    CLUSTER_LOCAL_PODS_MAX = 1024,  /* living ones; more are ERR_LIMIT */
    CLUSTER_LOCAL_ENDED_MAX = 256,  /* ended ones whose log is kept; the oldest goes first */
    CLUSTER_LOCAL_CLOSE_MS = 8000,  /* close(stop_all): until what is left is killed */
};

/* What cluster_open("local", ...) takes. */
typedef struct cluster_local_config {
    const char *home;       /* run/pods is made in it */
    const char *bin_dir;    /* where kubeml-function and kubeml-ps are */
    const char *token_file; /* of the pool */
    int slots;
    bool gpus;      /* functions are placed on the GPUs that NVML knows */
    bool gpus_must; /* or it is an error: one, or NVML, does not answer, or none can be used */
} cluster_local_config;

int cluster_local_open(const void *config, cluster **out, err *e);

#endif
