/* request.h: a train request: the first KubeML's, with the platform's additions.
 *
 * The table of job_options.h has the fields' names, defaults and limits. Every error names the
 * field; an unknown field is an error. The text form is canonical: the same request gives the same
 * bytes, which are in the job's record and in the plan's digest. */
#ifndef KUBEML_REQUEST_H
#define KUBEML_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "gpu.h"
#include "limits.h"

enum {
    REQUEST_NAME_BYTES = 64,
    REQUEST_EPOCHS_MAX = 100000,
    REQUEST_BATCH_MAX = LIMITS_BATCH_MAX,
    REQUEST_PARALLELISM_MAX = 256,
    REQUEST_K_MAX = 1 << 30,
    REQUEST_PRIORITY_MAX = 1000, /* the least is -1000; a higher priority runs sooner */
    REQUEST_SECONDS_MAX = 1000000000,
    REQUEST_BACKOFF_MAX = 100,
    REQUEST_TENSORS_BYTES = 256, /* names, with commas between */
    REQUEST_SHARED_MAX = LIMITS_SHARED_MAX, /* functions of one process */
    REQUEST_INFER_BYTES_MAX = LIMITS_INFER_BYTES_MAX, /* of the body of POST /infer */
};

/* Defaults of `kubeml train` and `kubeml run`: macros, whose text the help shows. A request must
 * have the first three; the last is also a request's default. */
#define REQUEST_EPOCHS 1
#define REQUEST_BATCH  64
#define REQUEST_LR     0.01
#define REQUEST_K      -1

/* Every integer up to this value is a double too: some JSON readers have doubles only. */
#define REQUEST_SEED_MAX ((int64_t)1 << 53)

typedef enum train_mode { MODE_PS } train_mode;
/* MERGE_NCCL: between the functions' GPUs where each function has its own GPU; elsewhere as
 * MERGE_DATABASE. For static jobs only. */
typedef enum merge_place { MERGE_DATABASE, MERGE_SERVER, MERGE_NCCL } merge_place;
typedef enum optimizer_state_rule { STATE_AVERAGE, STATE_RESET } optimizer_state_rule;
typedef enum gpu_precision { GPU_FP32, GPU_TF32, GPU_BF16 } gpu_precision;
typedef enum train_device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } train_device;
typedef enum process_rule { PROCESS_OWN, PROCESS_SHARED } process_rule;
typedef enum on_loss { ON_LOSS_RECOMPUTE, ON_LOSS_CONTINUE } on_loss;

typedef struct request {
    char function_name[REQUEST_NAME_BYTES];
    char dataset[REQUEST_NAME_BYTES];
    char init[REQUEST_NAME_BYTES]; /* ID of the job or upload with the first model; "": a new one */
    /* tensors that are initialised at random all the same (tensor_filter.h); only with init */
    char init_without[REQUEST_TENSORS_BYTES];
    int epochs, batch_size;
    double lr;
    /* options */
    int default_parallelism; /* 1..REQUEST_PARALLELISM_MAX, default 4 */
    bool static_parallelism; /* default false */
    int k;                   /* local steps between merges, >= 1, or -1: once an epoch (default) */
    int validate_every;      /* epochs; 0: only at the end; default 1 */
    /* percent, 0 < x <= 100; default 100: the job never ends early. Below 100 only for datasets
     * with classes. */
    double goal_accuracy;
    train_mode mode;         /* ps is the only mode */
    merge_place merge;       /* default database */
    int priority;            /* default 0 */
    uint64_t seed;           /* default 0; at most 2^53 */
    optimizer_state_rule optimizer_state; /* default average */
    on_loss on_loss;                      /* default recompute */
    /* Default own: each function is a process. Shared: all functions are threads of one process,
     * which averages their models, so that the round has one contribution; for static jobs of at
     * most REQUEST_SHARED_MAX functions. */
    process_rule process;
    /* Named as in Kubernetes' Job. The defaults 0, 0 and -1 mean: none. */
    int active_deadline_seconds;    /* from the first start on; then the job fails */
    int backoff_limit;              /* restarts of a failed job from its last checkpoint */
    /* after these the TrainJob is deleted; model and history stay */
    int ttl_seconds_after_finished;
    train_device device;     /* default auto: a GPU where the platform has one, else the CPU */
    gpu_share gpu;           /* of each function; default no limits */
    gpu_precision precision; /* on a GPU; default fp32 */
} request;

/* Parses and checks; borrows `body`. ERR_INVALID naming the field; ERR_UNSUPPORTED for
 * "mode": "p2p", which is not built, and for "merge": "nccl" of a job that is never on several
 * GPUs. Accepts the first KubeML's "model_type" and "K". */
int request_parse(const json_t *body, request *out, err *e);
/* "fp32", "tf32", "bf16". ERR_INVALID. */
int request_precision(const char *text, gpu_precision *out, err *e);
/* The ID of an ended job or of an upload in `init`, which is "ID", "models/ID/..." or NULL; "" for
 * no ID. */
void request_init_id(const char *init, char out[REQUEST_NAME_BYTES]);
json_t *request_json(const request *r); /* canonical; new reference; NULL when memory is gone */

#endif
