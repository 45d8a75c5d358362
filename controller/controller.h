/* controller.h: what the files of kubeml-controller share: one process, its parts and its limits.
 *
 * kubeml-controller.c     options, start, signals, end
 * controller_options.c    the command line
 * metrics_controller.c    the families of /metrics
 * sweeper.c               removes what dead writers left in the store
 * api/                    the API: one file a resource; handlers run in HTTP workers
 * functions/              functions: versions by digest, compiled once
 * jobs/                   the job manager, the thread that owns jobs, pods and connections
 * job/                    the pure machine of all jobs
 * cluster/, kube/         how pods are started and watched; Kubernetes
 * operator/               TrainJobs, Functions and Datasets of Kubernetes
 * ha/                     several controllers, of which one leads; whether the store answers
 *
 * Each group of these files has headers of its own. This header includes none of them, so that each
 * group can include it.
 *
 * Handlers use the store by themselves, and ask the job manager (job_manager_run) for everything
 * about jobs and pods. */
#ifndef KUBEML_CONTROLLER_H
#define KUBEML_CONTROLLER_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/compile/builder.h"
#include "common/contract/gpu.h"
#include "common/dataset/spool.h"
#include "common/net/http_server.h"
#include "common/net/metrics.h"
#include "common/store/store.h"

enum {
    CONTROLLER_CODE_BYTES_MAX = BUILDER_SOURCE_BYTES_MAX + (1 << 20), /* a function's upload */
    CONTROLLER_VERSIONS_MAX = 1000,                                   /* of one function */
    CONTROLLER_LOG_BYTES_MAX = 4 << 20,                               /* kept of one pod's log */
    /* Free on a disk that uploads share (scratch_max): below this the kubelet evicts pods, also for
     * the images' file system. */
    CONTROLLER_DISK_KEPT_PERCENT = 15,
};
#define CONTROLLER_UPLOAD_BYTES_MAX ((uint64_t)64 << 30)
#define CONTROLLER_MODEL_BYTES_MAX ((uint64_t)8 << 30)

typedef struct controller_config {
    char home[PATH_MAX / 4];
    char bin_dir[PATH_MAX / 4];
    char include_dir[PATH_MAX / 4]; /* of kubeml.h; "": not found */
    char store_locator[STORE_LOCATOR_BYTES];
    char host[128];
    uint16_t port;
    int slots;
    int pool_functions, pool_ps; /* warm pods to keep */
    uint64_t function_memory;    /* address space of a function; 0: no limit */
    uint64_t scratch_max;        /* of the disk, for uploads on their way in; 0: no limit */
    /* auto: the GPUs that answer, where the CUDA engine was built */
    enum { GPUS_AUTO, GPUS_ALL, GPUS_NONE } gpus;
    gpu_policy gpu_policy;
    tokens *tokens;              /* NULL: the API asks for none */
    const char *cluster;         /* "local", or "kubernetes" with: */
    const char *pods_file;       /* pod templates (kube_pods.h) */
    const char *context;         /* of the kubeconfig; NULL: in a pod its service account */
    const char *builder_url;     /* of a kubeml-builder; NULL: code is compiled here */
    char *builder_token;
    char pool_token_file[PATH_MAX / 4]; /* of the token that warm pods know; "": made in HOME/run */
} controller_config;

typedef struct job_manager job_manager;
typedef struct infer infer;
typedef struct leader leader;
typedef struct store_watch store_watch;
typedef struct sweeper sweeper;

typedef struct controller_metrics {
    metrics *all;
    metric *http_seconds, *http_requests;
    metric *validation_loss, *accuracy, *train_loss, *parallelism, *epoch_seconds, *stage_seconds,
        *averaging, *running;
    metric *cpu_percent, *memory_bytes, *gpu_percent, *gpu_memory_bytes, *gpu_watts;
    metric *gpu_own_bytes, *gpu_own_percent;
    metric *jobs_total, *queue, *slots, *slots_free, *pool_warm, *pods, *start_seconds,
        *leads;
} controller_metrics;

typedef struct controller {
    controller_config config;
    store *store;
    store_watch *watch;
    job_manager *job_manager;
    infer *infer;
    http_server *http;
    builder_config builder;
    controller_metrics metrics;
    int64_t started_wall_ms;
    spool_disk uploads;     /* bytes in use, where config.scratch_max limits them */
    leader *_Atomic leader; /* NULL: the only controller, or none has been started yet */
    atomic_bool leads; /* `job_manager` is set; no thread may use it before */
    atomic_int unseen; /* why TrainJobs are not looked at, an err_code; ERR_NONE: they are */
    atomic_bool no_users; /* the database makes no users for jobs */
    atomic_int lacking;   /* kinds of custom resources whose CRD lacks fields (kube_status.h) */
} controller;

#endif
