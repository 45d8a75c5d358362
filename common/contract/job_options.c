/* job_options.c: see job_options.h. The rows come first, then the rules over several of them. */
#include "job_options.h"

#include <stdint.h>
#include <string.h>

/* The text of a macro, for help that shows a default. */
#define TEXT_OF(value) #value
#define TEXT(value)    TEXT_OF(value)

/* The place of a field in request, if it has that type; any other type does not compile. */
#define AT(type, member) .at = _Generic(&((request *)0)->member, type * : offsetof(request, member))

#define NAME(member)    .kind = VALUE_NAME, AT(char_name, member)
#define PATH(member)    .kind = VALUE_PATH, AT(char_name, member)
#define TENSORS(member) .kind = VALUE_TENSORS, AT(char_tensors, member)
#define MEMORY(member)  .kind = VALUE_MEMORY, AT(uint64_t, member)
#define BOOL(member)    .kind = VALUE_BOOL, AT(bool, member)
#define SEED(member)    .kind = VALUE_SEED, AT(uint64_t, member), .low = 0, .high = REQUEST_SEED_MAX
#define INT(member, least, most, default_)                                                         \
    .kind = VALUE_INT, AT(int, member), .low = (least), .high = (most), .default_value = (default_)
#define REAL(member, above, most, default_)                                                        \
    .kind = VALUE_REAL, AT(double, member), .low = (above), .high = (most),                        \
    .default_value = (default_)
/* The first word is the default. */
#define WORD(type, member, ...) .kind = VALUE_WORD, AT(type, member), .words = {__VA_ARGS__}

_Static_assert(sizeof(merge_place) == sizeof(unsigned), "VALUE_WORD reads enums as unsigned");

typedef char char_name[REQUEST_NAME_BYTES];
typedef char char_tensors[REQUEST_TENSORS_BYTES];

/* The lines of a row: what the request says; the TrainJob, the group; the flag; the page. */
/* clang-format off */
const job_option job_options[] = {
    {.name = "model_type", .kind = VALUE_IGNORED},
    {.name = "function_name", NAME(function_name), .required = true, .always = true,
     .spec = "function", .group = GROUP_TASK,
     .flag = "function", .letter = 'f', .placeholder = "NAME", .help = "function to train",
     .about = "function to train, in its newest version", .weights = "other"},
    {.name = "dataset", NAME(dataset), .required = true, .always = true,
     .spec = "dataset", .group = GROUP_TASK,
     .flag = "dataset", .letter = 'd', .placeholder = "NAME", .help = "data set to train on",
     .about = "dataset to train on", .weights = "other"},
    {.name = "init", PATH(init), .always = true,
     .spec = "init", .group = GROUP_INIT,
     .flag = "init", .placeholder = "ID|FILE",
     .help = "start from a job's model or a safetensors file",
     .about = "[model to start from](#init)", .weights = "other"},
    {.name = "init_without", TENSORS(init_without),
     .spec = "initWithout", .group = GROUP_INIT,
     .flag = "init-without", .placeholder = "NAMES",
     .help = "without these layers or tensors of --init, with commas between: fc",
     .about = "[layers and tensors not taken from `init`](#init)", .weights = "other"},
    {.name = "epochs", INT(epochs, 1, REQUEST_EPOCHS_MAX, REQUEST_EPOCHS), .required = true,
     .always = true, .spec = "epochs", .group = GROUP_TASK,
     .flag = "epochs", .letter = 'e', .placeholder = "N",
     .help = "passes over the data (" TEXT(REQUEST_EPOCHS) ")",
     .about = "passes over the training data", .weights = "other"},
    {.name = "batch_size", INT(batch_size, 1, REQUEST_BATCH_MAX, REQUEST_BATCH), .required = true,
     .always = true, .spec = "batchSize", .group = GROUP_TASK,
     .flag = "batch", .letter = 'b', .placeholder = "N",
     .help = "samples in a step of one function (" TEXT(REQUEST_BATCH) ")",
     .about = "samples in a step of one function", .weights = "other"},
    {.name = "lr", REAL(lr, 0, 1e6, REQUEST_LR), .required = true, .always = true,
     .spec = "lr", .group = GROUP_TASK,
     .flag = "lr", .placeholder = "RATE",
     .help = "learning rate (" TEXT(REQUEST_LR) ", not the code's own)",
     .about = "learning rate; replaces the rate in the function's code", .weights = "other"},
    {.name = "options", .kind = VALUE_OBJECT, .holds = IN_OPTIONS, .always = true},

    {.in = IN_OPTIONS, .name = "default_parallelism",
     INT(default_parallelism, 1, REQUEST_PARALLELISM_MAX, 4), .always = true,
     .spec = "parallelism", .group = GROUP_ROUNDS,
     .flag = "parallelism", .letter = 'p', .placeholder = "N", .help = "functions at the start (4)",
     .about = "number of functions at the start", .weights = "other"},
    {.in = IN_OPTIONS, .name = "static_parallelism", BOOL(static_parallelism), .always = true,
     .spec = "staticParallelism", .group = GROUP_ROUNDS,
     .flag = "static", .letter = 's', .help = "keep the number of functions",
     .about = "[keeps that number in every epoch](#static_parallelism)",
     .weights = "[repeatable](#static_parallelism) if true"},
    {.in = IN_OPTIONS, .name = "k", .alias = "K", INT(k, -1, REQUEST_K_MAX, REQUEST_K),
     .always = true, .spec = "k", .group = GROUP_ROUNDS,
     .flag = "K", .letter = 'K', .placeholder = "N",
     .help = "steps between two merges; -1: one merge an epoch (" TEXT(REQUEST_K) ")",
     .shortcut = {"sparse-avg", "merge once an epoch, whatever --K says", REQUEST_K},
     .about = "[steps of a function between two merges](#k); -1: one merge an epoch",
     .weights = "other"},
    {.in = IN_OPTIONS, .name = "validate_every", INT(validate_every, 0, REQUEST_EPOCHS_MAX, 1),
     .always = true, .spec = "validateEvery", .group = GROUP_ROUNDS,
     .flag = "validate-every", .placeholder = "N",
     .help = "epochs between validations; 0: at the end (1)",
     .about = "epochs between two validations; 0: validates the last epoch alone",
     .weights = "same, [except plateaus](#validate_every)"},
    {.in = IN_OPTIONS, .name = "goal_accuracy", REAL(goal_accuracy, 0, 100, 100), .always = true,
     .spec = "goalAccuracy", .group = GROUP_ROUNDS,
     .flag = "goal-accuracy", .placeholder = "PERCENT",
     .help = "accuracy that ends the job; not with targets",
     .about = "[accuracy in percent that ends the job](#goal_accuracy)",
     .weights = "those of the last epoch"},
    {.in = IN_OPTIONS, .name = "merge",
     WORD(merge_place, merge, "database", "server", "nccl"), .always = true,
     .spec = "merge", .group = GROUP_ROUNDS,
     .flag = "merge", .placeholder = "WHERE",
     .help = "database, server, or nccl: between the functions' GPUs (database)",
     .about = "[where models are merged](#merge)", .weights = "same, [except `nccl`](#merge)"},
    {.in = IN_OPTIONS, .name = "mode", WORD(train_mode, mode, "ps"), .unbuilt = "p2p",
     .always = true, .spec = "mode", .group = GROUP_ROUNDS,
     .flag = "mode", .placeholder = "MODE", .help = "ps",
     .about = "how models are exchanged; `p2p` is not built"},
    {.in = IN_OPTIONS, .name = "priority",
     INT(priority, -REQUEST_PRIORITY_MAX, REQUEST_PRIORITY_MAX, 0), .always = true,
     .spec = "priority", .group = GROUP_JOB,
     .flag = "priority", .placeholder = "N", .help = "higher is sooner (0)",
     .about = "[place in the queue](#priority); higher is sooner", .weights = "same"},
    {.in = IN_OPTIONS, .name = "seed", SEED(seed), .always = true,
     .spec = "seed", .group = GROUP_JOB,
     .flag = "seed", .placeholder = "N", .help = "seed of all random numbers (0)",
     .about = "seed of [all random numbers](#seed)", .weights = "other"},
    {.in = IN_OPTIONS, .name = "optimizer_state",
     WORD(optimizer_state_rule, optimizer_state, "average", "reset"), .always = true,
     .spec = "optimizerState", .group = GROUP_ROUNDS,
     .flag = "optimizer-state", .placeholder = "RULE", .help = "average or reset (average)",
     .about = "[optimizer state at a merge](#optimizer_state)", .weights = "other"},
    {.in = IN_OPTIONS, .name = "device", WORD(train_device, device, "auto", "cpu", "cuda"),
     .spec = "device", .group = GROUP_DEVICE,
     .flag = "device", .placeholder = "KIND",
     .help = "auto, cpu or cuda (auto: a GPU if the platform has one)",
     .about = "[processor that trains](#device)", .weights = "other on a GPU"},
    {.in = IN_OPTIONS, .name = "gpu", .kind = VALUE_OBJECT, .holds = IN_GPU, .spec = "gpu"},
    {.in = IN_GPU, .name = "memory", MEMORY(gpu.memory_bytes), .group = GROUP_DEVICE,
     .flag = "gpu-memory", .placeholder = "SIZE",
     .help = "GPU memory a function may take, such as 2Gi (an eighth where functions are placed)",
     .about = "[GPU memory a function may take](#gpumemory)"},
    {.in = IN_GPU, .name = "threads", INT(gpu.threads, 1, 100, 0), .group = GROUP_DEVICE,
     .flag = "gpu-threads", .placeholder = "PERCENT",
     .help = "share of the GPU's threads, if MPS runs (no limit)",
     .about = "percent of the GPU's threads, if MPS runs"},
    {.in = IN_GPU, .name = "precision", WORD(gpu_precision, precision, "fp32", "tf32", "bf16"),
     .group = GROUP_DEVICE, .flag = "precision", .placeholder = "KIND",
     .help = "fp32, tf32 or bf16 (fp32)",
     .about = "[number format of the computation](#gpuprecision)", .weights = "other"},
    {.in = IN_OPTIONS, .name = "on_loss", WORD(on_loss, on_loss, "recompute", "continue"),
     .always = true, .spec = "onLoss", .group = GROUP_ROUNDS,
     .flag = "on-loss", .placeholder = "RULE",
     .help = "after the loss of a function: recompute or continue (recompute)",
     .about = "[what follows the loss of a function](#on_loss)",
     .weights = "same, [except `continue`](#on_loss)"},
    {.in = IN_OPTIONS, .name = "active_deadline_seconds",
     INT(active_deadline_seconds, 1, REQUEST_SECONDS_MAX, 0),
     .spec = "activeDeadlineSeconds", .group = GROUP_JOB,
     .flag = "active-deadline", .placeholder = "SECONDS",
     .help = "longest time that the job may be active",
     .about = "[longest time the job may be active](#active_deadline_seconds)",
     .weights = "same"},
    {.in = IN_OPTIONS, .name = "backoff_limit", INT(backoff_limit, 0, REQUEST_BACKOFF_MAX, 0),
     .spec = "backoffLimit", .group = GROUP_JOB,
     .flag = "backoff-limit", .placeholder = "N",
     .help = "retries of a failed job, from its checkpoint (0)",
     .about = "[retries of a failed job](#backoff_limit)", .weights = "same"},
    {.in = IN_OPTIONS, .name = "process", WORD(process_rule, process, "own", "shared"),
     .spec = "process", .group = GROUP_ROUNDS,
     .flag = "process", .placeholder = "RULE",
     .help = "own: a process for each function; shared, with --static: one process for all (own)",
     .about = "[a process for each function, or one for all](#process)", .weights = "same"},
    {.in = IN_OPTIONS, .name = "ttl_seconds_after_finished",
     INT(ttl_seconds_after_finished, 0, REQUEST_SECONDS_MAX, -1),
     .spec = "ttlSecondsAfterFinished", .group = GROUP_JOB,
     .flag = "ttl-after-finished", .placeholder = "SECONDS",
     .help = "in a cluster: time from its end until its TrainJob is deleted",
     .about = "in a cluster: time from the job's end until its TrainJob is deleted",
     .weights = "same"},
    {.name = NULL}};
/* clang-format on */
_Static_assert(sizeof job_options / sizeof *job_options <= JOB_OPTIONS_MAX + 1, "too many rows");

const job_option *job_option_find(option_object in, const char *name)
{
    for (const job_option *o = job_options; o->name; o++)
        if (o->in == in &&
            (strcmp(o->name, name) == 0 || (o->alias && strcmp(o->alias, name) == 0)))
            return o;
    return NULL;
}

const job_option *job_option_of_flag(const char *flag)
{
    for (const job_option *o = job_options; o->name; o++)
        if (o->flag && strcmp(o->flag, flag) == 0)
            return o;
    return NULL;
}

const job_option *job_option_parent(option_object in)
{
    for (const job_option *o = job_options; o->name; o++)
        if (o->kind == VALUE_OBJECT && o->holds == in)
            return o;
    return NULL;
}

/* ---- rules over several options -------------------------------------------------------------- */

/* The functions of a shared process start and end together, on at most one GPU. */
static int check_shared(const request *r, err *e)
{
    int n = r->default_parallelism;
    if (!r->static_parallelism)
        return err_set(e, ERR_INVALID,
                       "options.process: \"shared\" needs options.static_parallelism");
    if (n > REQUEST_SHARED_MAX)
        return err_set(e, ERR_INVALID, "options.process: %d functions in one process, at most %d",
                       n, REQUEST_SHARED_MAX);
    if (r->merge == MERGE_NCCL)
        return err_set(e, ERR_UNSUPPORTED,
                       "options.merge: nccl averages between GPUs, and a shared process has one");
    return 0;
}

/* Refuses what no machine can do. Whether the job's GPUs allow NCCL is known only once its
 * functions have their places. */
static int check_nccl(const request *r, err *e)
{
    if (!r->static_parallelism)
        return err_set(e, ERR_INVALID, "options.merge: \"nccl\" needs options.static_parallelism");
    if (r->optimizer_state == STATE_RESET)
        return err_set(e, ERR_UNSUPPORTED,
                       "options.merge: nccl averages the optimizer's state with the weights, and "
                       "options.optimizer_state is \"reset\"");
    if (r->device == DEVICE_CPU)
        return err_set(e, ERR_UNSUPPORTED,
                       "options.merge: nccl averages between GPUs, and options.device is \"cpu\"");
    return 0;
}

int job_options_check(const request *r, err *e)
{
    if (r->init_without[0] && !r->init[0])
        return err_set(e, ERR_INVALID, "init_without: goes with init");
    if (r->k == 0)
        return err_set(e, ERR_INVALID, "options.k: must be 1 or more, or -1 for once an epoch");
    if (r->process == PROCESS_SHARED && check_shared(r, e) != 0)
        return -1;
    if (r->merge == MERGE_NCCL && check_nccl(r, e) != 0)
        return -1;
    return 0;
}
