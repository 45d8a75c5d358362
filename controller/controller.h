/* controller.h: what the files of kubeml-controller share: one process, its parts and its limits.
 *
 * kubeml-controller.c  options, start, signals, end
 * rest*.c              the API: one file a resource; handlers run in HTTP workers
 * registry.c           functions: versions by digest, compiled once
 * build_failure.c            what did not compile, for who asks later
 * code_blob.c          objects and sources that nobody names any more
 * job_manager.c              the one thread that owns jobs, pods and connections to them
 * pool*.c              pods and the pool of warm ones, in the owner's thread
 * store_watch.c        whether the store answers
 * sweeper.c            what dead writers left in it
 * cluster*.c           how pods are started and watched
 * leader.c, forward.c  several controllers: one leads, the others hand on to it
 *
 * Handlers work against the store by themselves and ask the owner (job_manager_run) for whatever is
 * about jobs and pods. */
#ifndef KUBEML_CONTROLLER_H
#define KUBEML_CONTROLLER_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/version.h"
#include "common/compile/builder.h"
#include "common/contract/gpu.h"
#include "common/contract/request.h"
#include "common/dataset/spool.h"
#include "common/net/http_server.h"
#include "common/net/metrics.h"
#include "common/store/list_page.h"
#include "common/store/store.h"
#include "controller/cluster/cluster.h"

enum {
    CONTROLLER_CODE_BYTES_MAX = BUILDER_SOURCE_BYTES_MAX + (1 << 20), /* a function's upload */
    CONTROLLER_VERSIONS_MAX = 1000,                                   /* of one function */
    CONTROLLER_LOG_BYTES_MAX = 4 << 20,                               /* kept of one pod's log */
    /* Of a disk that uploads share (scratch_max): from there on the kubelet evicts pods, images'
     * file system included. */
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
    int pool_functions, pool_ps; /* warm ones to keep */
    uint64_t function_memory;    /* address space of a function; 0: no limit */
    uint64_t scratch_max;        /* of the disk, for uploads on their way in; 0: the disk is ours */
    /* auto: those that answer, where the CUDA engine was built */
    enum { GPUS_AUTO, GPUS_ALL, GPUS_NONE } gpus;
    gpu_policy gpu_policy;
    tokens *tokens;              /* NULL: the API asks for none */
    const char *cluster;         /* "local", or "kubernetes" with: */
    const char *pods_file;       /* pod templates, kube_pods.h */
    const char *context;         /* of the kubeconfig; NULL: in a pod its service account */
    const char *builder_url;     /* of a kubeml-builder; NULL: compiled here */
    char *builder_token;
    char pool_token_file[PATH_MAX / 4]; /* what warm pods know; "": made in HOME/run */
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
    metric *jobs_total, *queue, *slots, *slots_free, *pool_warm, *pods, *start_seconds, *restarts,
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
    spool_disk uploads;     /* what they have, where config.scratch_max says how much that may be */
    leader *_Atomic leader; /* NULL: it is the only one, or has not asked yet */
    atomic_bool leads; /* `owner` is there; it may not be touched before */
    atomic_int unseen; /* why no TrainJob is looked at, an err_code; ERR_NONE: they are */
    atomic_bool no_users; /* the database lets none be made for jobs */
    atomic_int lacking;   /* kinds of custom resources whose CRD lacks fields (kube_status.h) */
} controller;

/* rest.c */
extern const http_route rest_routes[];
extern const size_t rest_route_count;
/* http_config.refuse: what needs the store is not even tried while that is away. */
bool rest_refuse(void *context, const http_route *route, http_request *r);

/* metrics_controller.c */
int controller_metrics_open(controller_metrics *m, err *e);

/* registry.c: functions by name. Records are JSON, as the API shows them. */
typedef struct registry_upload {
    builder_source files[BUILDER_FILES_MAX];
    size_t count;
    const char *model; /* of the zoo, instead of files; with its options as zoo.h's text */
} registry_upload;
/* Compiles and stores; `update`: a new version of an existing one, otherwise ERR_EXISTS. A compile
 * error is kept (build_failure.h). *out is a new reference, and so is *said, what the compiler said
 * where it was called, well or not: members for an answer. */
int registry_put(controller *c, const char *name, const registry_upload *u, bool update,
                 json_t **out, json_t **said, err *e);
int registry_get(controller *c, const char *name, json_t **out, err *e);
/* `delete_unused` is job_delete_function, which knows what jobs use: ERR_CONFLICT while one uses
 * the function. ERR_NOT_FOUND. */
int registry_delete(controller *c, const char *name,
                    int (*delete_unused)(job_manager *o, const char *name, err *e), err *e);
/* The version in use, and why the last upload was refused. ERR_NOT_FOUND where there is neither. */
int registry_explain(controller *c, const char *name, json_t **out, err *e);

/* zoo_list.c: the models that can be named instead of code: [{"name", "parameters", "summary"}], as
 * `kubeml-function zoo` tells them; asked once. New reference. */
int zoo_list(controller *c, json_t **out, err *e);
/* "resnet34", "resnet34,stem=cifar,crop=4". ERR_NOT_FOUND with the nearest names, ERR_INVALID: an
 * option. */
int zoo_check(controller *c, const char *model, err *e);
/* Its network for that data set's samples. ERR_UNSUPPORTED names the layer that does not take
 * them. */
struct dataset_info;
int zoo_shape_check(controller *c, const char *model, const struct dataset_info *data, err *e);

/* code_shape_check.c: uploaded code's network for that data set's samples and labels.
 * ERR_UNSUPPORTED names the layer or the label; what cannot be known now is logged, and shows when
 * the job starts. May take seconds. */
int code_shape_check(controller *c, const json_t *function, const struct dataset_info *data,
                     err *e);

/* helpers of the handlers, rest.c */
void controller_random_id(char *out, size_t bytes); /* hex digits */

/* rest_list.c: lists, a page an answer. */
/* From `limit` and `continue` of the query. ERR_INVALID. */
int list_page_parse(http_request *r, list_page *out, err *e);
/* Takes `out`. `path` is the list's own, with what else its query says. */
void list_answer(http_request *r, const list_page *p, const char *path, json_t *out);
/* All of it, for a list of one collection. */
void rest_list(http_request *r, const controller *c, const char *path, const char *collection,
               list_show show);

void rest_dataset_list(http_request *r, void *context);
void rest_dataset_get(http_request *r, void *context);
void rest_dataset_create(http_request *r, void *context);
void rest_dataset_delete(http_request *r, void *context);
void rest_function_list(http_request *r, void *context);
void rest_function_get(http_request *r, void *context);
void rest_function_explain(http_request *r, void *context);
void rest_function_create(http_request *r, void *context);
void rest_function_update(http_request *r, void *context);
void rest_function_delete(http_request *r, void *context);
void rest_train(http_request *r, void *context);
void rest_task_list(http_request *r, void *context);
void rest_task_get(http_request *r, void *context);
void rest_usage(http_request *r, void *context);
void rest_task_stop(http_request *r, void *context);
void rest_task_suspend(http_request *r, void *context);
void rest_task_resume(http_request *r, void *context);
void rest_task_logs(http_request *r, void *context);
void rest_task_events(http_request *r, void *context);
void rest_task_explain(http_request *r, void *context);
void rest_history_list(http_request *r, void *context);
void rest_history_get(http_request *r, void *context);
void rest_history_delete(http_request *r, void *context);
void rest_history_prune(http_request *r, void *context);
void rest_model_get(http_request *r, void *context);
void rest_model_create(http_request *r, void *context);
void rest_model_delete(http_request *r, void *context);
void rest_zoo(http_request *r, void *context);
void rest_infer(http_request *r, void *context);

#endif
