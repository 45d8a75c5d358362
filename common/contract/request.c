/* request.c: see request.h. One table a level; a field is read by its kind and checked by its
 * range. */
#include "request.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tensor_filter.h"

typedef enum field_kind { FIELD_NAME, FIELD_PATH, FIELD_INT, FIELD_REAL, FIELD_BOOL, FIELD_WORD,
                          FIELD_SEED, FIELD_IGNORED, FIELD_OPTIONS, FIELD_MODE, FIELD_GPU,
                          FIELD_MEMORY, FIELD_PRECISION, FIELD_TENSORS } field_kind;

typedef struct field {
    const char *name, *alias;
    field_kind kind;
    bool required;
    size_t at;           /* in request */
    double low, high;    /* INT: both included; REAL: low excluded */
    const char *words[3]; /* WORD: the names of 0, 1 and, where there is one, 2 */
} field;

#define AT(member) offsetof(request, member)

static const field top_fields[] = {
    {.name = "model_type", .kind = FIELD_IGNORED},
    {.name = "function_name", .kind = FIELD_NAME, .required = true, .at = AT(function_name)},
    {.name = "dataset", .kind = FIELD_NAME, .required = true, .at = AT(dataset)},
    {.name = "init", .kind = FIELD_PATH, .at = AT(init)},
    {.name = "init_without", .kind = FIELD_TENSORS, .at = AT(init_without)},
    {.name = "epochs", .kind = FIELD_INT, .required = true, .at = AT(epochs), .low = 1,
     .high = REQUEST_EPOCHS_MAX},
    {.name = "batch_size", .kind = FIELD_INT, .required = true, .at = AT(batch_size), .low = 1,
     .high = REQUEST_BATCH_MAX},
    {.name = "lr", .kind = FIELD_REAL, .required = true, .at = AT(lr), .low = 0, .high = 1e6},
    {.name = "options", .kind = FIELD_OPTIONS},
};

static const field option_fields[] = {
    {.name = "default_parallelism", .kind = FIELD_INT, .at = AT(default_parallelism), .low = 1,
     .high = REQUEST_PARALLELISM_MAX},
    {.name = "static_parallelism", .kind = FIELD_BOOL, .at = AT(static_parallelism)},
    {.name = "k", .alias = "K", .kind = FIELD_INT, .at = AT(k), .low = -1, .high = REQUEST_K_MAX},
    {.name = "validate_every", .kind = FIELD_INT, .at = AT(validate_every), .low = 0,
     .high = REQUEST_EPOCHS_MAX},
    {.name = "goal_accuracy", .kind = FIELD_REAL, .at = AT(goal_accuracy), .low = 0, .high = 100},
    {.name = "merge", .kind = FIELD_WORD, .at = AT(merge), .words = {"database", "server", "nccl"}},
    {.name = "mode", .kind = FIELD_MODE},
    {.name = "priority", .kind = FIELD_INT, .at = AT(priority), .low = -REQUEST_PRIORITY_MAX,
     .high = REQUEST_PRIORITY_MAX},
    {.name = "seed", .kind = FIELD_SEED, .at = AT(seed)},
    {.name = "optimizer_state", .kind = FIELD_WORD, .at = AT(optimizer_state),
     .words = {"average", "reset"}},
    {.name = "device", .kind = FIELD_WORD, .at = AT(device), .words = {"auto", "cpu", "cuda"}},
    {.name = "gpu", .kind = FIELD_GPU},
    {.name = "process", .kind = FIELD_WORD, .at = AT(process), .words = {"own", "shared"}},
    {.name = "on_loss", .kind = FIELD_WORD, .at = AT(on_loss), .words = {"recompute", "continue"}},
    {.name = "active_deadline_seconds", .kind = FIELD_INT, .at = AT(active_deadline_seconds),
     .low = 1, .high = REQUEST_SECONDS_MAX},
    {.name = "backoff_limit", .kind = FIELD_INT, .at = AT(backoff_limit), .low = 0,
     .high = REQUEST_BACKOFF_MAX},
    {.name = "ttl_seconds_after_finished", .kind = FIELD_INT, .at = AT(ttl_seconds_after_finished),
     .low = 0, .high = REQUEST_SECONDS_MAX},
};

static const field gpu_fields[] = {
    {.name = "memory", .kind = FIELD_MEMORY, .at = AT(gpu.memory_bytes)},
    {.name = "threads", .kind = FIELD_INT, .at = AT(gpu.threads), .low = 1, .high = 100},
    {.name = "precision", .kind = FIELD_PRECISION, .at = AT(precision)},
};

static const char *const precision_names[] = {"fp32", "tf32", "bf16"};

#define SEED_MAX ((json_int_t)1 << 53)
#define COUNT(a) (sizeof(a) / sizeof *(a))

static const char *kind_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a text";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

static int wrong_kind(const char *where, const char *want, const json_t *v, err *e)
{
    return err_set(e, ERR_INVALID, "%s: must be %s, not %s", where, want, kind_name(v));
}

static bool name_byte(char c, bool slash)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || (slash && c == '/');
}

/* Names become keys and file names: a small alphabet, and never a way out of a folder. */
static int read_name(const char *where, const json_t *v, bool slash, char out[REQUEST_NAME_BYTES],
                     err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text", v, e);
    const char *text = json_string_value(v);
    size_t len = json_string_length(v);
    if (len == 0)
        return err_set(e, ERR_INVALID, "%s: must not be empty", where);
    if (len >= REQUEST_NAME_BYTES)
        return err_set(e, ERR_INVALID, "%s: %zu characters, at most %d", where, len,
                       REQUEST_NAME_BYTES - 1);
    for (size_t i = 0; i < len; i++)
        if (!name_byte(text[i], slash))
            return err_set(e, ERR_INVALID, "%s: only letters, digits, '-', '_' and '.'%s", where,
                           slash ? " and '/'" : "");
    if (text[0] == '.' || text[0] == '-' || text[0] == '/' || strstr(text, ".."))
        return err_set(e, ERR_INVALID, "%s: must begin with a letter, digit or '_', without \"..\"",
                       where);
    memcpy(out, text, len + 1);
    return 0;
}

static int read_int(const char *where, const field *f, const json_t *v, int *out, err *e)
{
    if (!json_is_integer(v))
        return wrong_kind(where, "an integer", v, e);
    json_int_t n = json_integer_value(v);
    if (n < (json_int_t)f->low || n > (json_int_t)f->high)
        return err_set(e, ERR_INVALID, "%s: %lld is not within %.0f to %.0f", where, (long long)n,
                       f->low, f->high);
    *out = (int)n;
    return 0;
}

static int read_real(const char *where, const field *f, const json_t *v, double *out, err *e)
{
    if (!json_is_number(v))
        return wrong_kind(where, "a number", v, e);
    double x = json_number_value(v);
    if (!isfinite(x) || x <= f->low || x > f->high)
        return err_set(e, ERR_INVALID, "%s: %g is not above %g and at most %g", where, x, f->low,
                       f->high);
    *out = x;
    return 0;
}

static int read_word(const char *where, const field *f, const json_t *v, unsigned *out, err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text", v, e);
    for (unsigned i = 0; i < COUNT(f->words) && f->words[i]; i++)
        if (strcmp(json_string_value(v), f->words[i]) == 0) {
            *out = i;
            return 0;
        }
    return f->words[2] ? err_set(e, ERR_INVALID, "%s: must be \"%s\", \"%s\" or \"%s\"", where,
                                 f->words[0], f->words[1], f->words[2])
                       : err_set(e, ERR_INVALID, "%s: must be \"%s\" or \"%s\"", where, f->words[0],
                                 f->words[1]);
}

static int read_seed(const char *where, const json_t *v, uint64_t *out, err *e)
{
    if (!json_is_integer(v))
        return wrong_kind(where, "an integer", v, e);
    json_int_t n = json_integer_value(v);
    if (n < 0 || n > SEED_MAX)
        return err_set(e, ERR_INVALID, "%s: %lld is not within 0 to 2^53", where, (long long)n);
    *out = (uint64_t)n;
    return 0;
}

static int read_mode(const char *where, const json_t *v, err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text", v, e);
    if (strcmp(json_string_value(v), "ps") == 0)
        return 0;
    if (strcmp(json_string_value(v), "p2p") == 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: \"p2p\" is not built yet; use \"ps\"", where);
    return err_set(e, ERR_INVALID, "%s: must be \"ps\"", where);
}

static int read_memory(const char *where, const json_t *v, uint64_t *out, err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text such as \"2Gi\"", v, e);
    return gpu_memory_parse(json_string_value(v), out, e) ? err_wrap(e, "%s", where) : 0;
}

int request_precision(const char *text, gpu_precision *out, err *e)
{
    for (unsigned i = 0; i < COUNT(precision_names); i++)
        if (strcmp(text, precision_names[i]) == 0) {
            *out = (gpu_precision)i;
            return 0;
        }
    return err_set(e, ERR_INVALID, "must be \"fp32\", \"tf32\" or \"bf16\"");
}

static int read_precision(const char *where, const json_t *v, gpu_precision *out, err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text", v, e);
    return request_precision(json_string_value(v), out, e) ? err_wrap(e, "%s", where) : 0;
}

static int read_tensors(const char *where, const json_t *v, char out[REQUEST_TENSORS_BYTES], err *e)
{
    if (!json_is_string(v))
        return wrong_kind(where, "a text", v, e);
    const char *text = json_string_value(v);
    size_t len = json_string_length(v);
    if (len >= REQUEST_TENSORS_BYTES)
        return err_set(e, ERR_INVALID, "%s: %zu characters, at most %d", where, len,
                       REQUEST_TENSORS_BYTES - 1);
    for (size_t i = 0; i < len; i++)
        if (!name_byte(text[i], false) && text[i] != ',')
            return err_set(e, ERR_INVALID, "%s: only letters, digits, '-', '_', '.' and ','",
                           where);
    if (len && tensor_filter_check(text, e) != 0)
        return err_wrap(e, "%s", where);
    memcpy(out, text, len + 1);
    return 0;
}

static int read_object(const json_t *object, const char *prefix, const field *fields, size_t count,
                       request *out, err *e);

static int read_field(const char *where, const field *f, const json_t *v, request *out, err *e)
{
    void *at = (char *)out + f->at;
    switch (f->kind) {
    case FIELD_NAME: return read_name(where, v, false, at, e);
    case FIELD_PATH:
        /* The canonical form writes it always; "" is a fresh model. */
        if (json_is_string(v) && json_string_length(v) == 0)
            return 0;
        return read_name(where, v, true, at, e);
    case FIELD_INT: return read_int(where, f, v, at, e);
    case FIELD_REAL: return read_real(where, f, v, at, e);
    case FIELD_BOOL:
        if (!json_is_boolean(v))
            return wrong_kind(where, "true or false", v, e);
        *(bool *)at = json_is_true(v);
        return 0;
    case FIELD_WORD: {
        unsigned word = 0;
        if (read_word(where, f, v, &word, e) < 0)
            return -1;
        /* The enums of WORD fields number their names from 0. */
        memcpy(at, &word, sizeof word);
        return 0;
    }
    case FIELD_SEED: return read_seed(where, v, at, e);
    case FIELD_MODE: return read_mode(where, v, e);
    case FIELD_OPTIONS:
        if (!json_is_object(v))
            return wrong_kind(where, "an object", v, e);
        return read_object(v, "options.", option_fields, COUNT(option_fields), out, e);
    case FIELD_GPU:
        if (!json_is_object(v))
            return wrong_kind(where, "an object", v, e);
        return read_object(v, "options.gpu.", gpu_fields, COUNT(gpu_fields), out, e);
    case FIELD_MEMORY: return read_memory(where, v, at, e);
    case FIELD_PRECISION: return read_precision(where, v, at, e);
    case FIELD_TENSORS: return read_tensors(where, v, at, e);
    case FIELD_IGNORED:
        return json_is_string(v) ? 0 : wrong_kind(where, "a text", v, e);
    }
    return err_set(e, ERR_INTERNAL, "%s: unknown kind of field", where);
}

static const field *find_field(const field *fields, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(fields[i].name, name) == 0 ||
            (fields[i].alias && strcmp(fields[i].alias, name) == 0))
            return &fields[i];
    return NULL;
}

static int read_object(const json_t *object, const char *prefix, const field *fields, size_t count,
                       request *out, err *e)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, name, v)
        if (!find_field(fields, count, name))
            return err_set(e, ERR_INVALID, "%s%.64s: unknown field", prefix, name);
    for (size_t i = 0; i < count; i++) {
        const field *f = &fields[i];
        const json_t *value = json_object_get(object, f->name);
        const json_t *other = f->alias ? json_object_get(object, f->alias) : NULL;
        const char *called = value ? f->name : f->alias;
        char where[96];
        if (value && other)
            return err_set(e, ERR_INVALID, "%s%s: given as %s too", prefix, f->name, f->alias);
        if (!value)
            value = other;
        if (!value && f->required)
            return err_set(e, ERR_INVALID, "%s%s: missing", prefix, f->name);
        if (!value)
            continue;
        snprintf(where, sizeof where, "%s%s", prefix, called);
        if (read_field(where, f, value, out, e) < 0)
            return -1;
    }
    return 0;
}

/* The functions of a shared process are there together or not at all, on one GPU if on any. */
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

/* Where its functions are is known when they are there; what can never be is refused now. */
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

int request_parse(const json_t *body, request *out, err *e)
{
    request r = {.default_parallelism = 4,
                 .k = REQUEST_K,
                 .validate_every = 1,
                 .goal_accuracy = 100,
                 .ttl_seconds_after_finished = -1};
    if (!json_is_object(body))
        return err_set(e, ERR_INVALID, "the request must be a JSON object");
    if (read_object(body, "", top_fields, COUNT(top_fields), &r, e) < 0)
        return -1;
    if (r.init_without[0] && !r.init[0])
        return err_set(e, ERR_INVALID, "init_without: goes with init");
    if (r.k == 0)
        return err_set(e, ERR_INVALID, "options.k: must be 1 or more, or -1 for once an epoch");
    if (r.process == PROCESS_SHARED && check_shared(&r, e) != 0)
        return -1;
    if (r.merge == MERGE_NCCL && check_nccl(&r, e) != 0)
        return -1;
    *out = r;
    return 0;
}

/* What is not asked for is left out: records and digests of before stay as they are. */
static json_t *with_bounds(json_t *body, const request *r)
{
    json_t *options = json_object_get(body, "options");
    if (r->init_without[0])
        json_object_set_new(body, "init_without", json_string(r->init_without));
    if (r->active_deadline_seconds > 0)
        json_object_set_new(options, "active_deadline_seconds",
                            json_integer(r->active_deadline_seconds));
    if (r->backoff_limit > 0)
        json_object_set_new(options, "backoff_limit", json_integer(r->backoff_limit));
    if (r->process == PROCESS_SHARED)
        json_object_set_new(options, "process", json_string("shared"));
    if (r->ttl_seconds_after_finished >= 0)
        json_object_set_new(options, "ttl_seconds_after_finished",
                            json_integer(r->ttl_seconds_after_finished));
    return body;
}

/* Likewise: nothing at all is no "gpu". */
static int add_gpu(const request *r, json_t *options)
{
    static const char *const devices[] = {"auto", "cpu", "cuda"};
    char memory[GPU_MEMORY_TEXT_BYTES];
    if (r->device != DEVICE_AUTO &&
        json_object_set_new(options, "device", json_string(devices[r->device])))
        return -1;
    if (!r->gpu.memory_bytes && !r->gpu.threads && r->precision == GPU_FP32)
        return 0;
    json_t *gpu = json_object();
    int failed = json_object_set_new(options, "gpu", gpu);
    gpu_memory_text(r->gpu.memory_bytes, memory);
    if (!failed && r->gpu.memory_bytes)
        failed = json_object_set_new(gpu, "memory", json_string(memory));
    if (!failed && r->gpu.threads)
        failed = json_object_set_new(gpu, "threads", json_integer(r->gpu.threads));
    if (!failed && r->precision != GPU_FP32)
        failed = json_object_set_new(gpu, "precision", json_string(precision_names[r->precision]));
    return failed;
}

json_t *request_json(const request *r)
{
    static const char *const merges[] = {"database", "server", "nccl"};
    json_t *body = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:f, s:{s:i, s:b, s:i, s:i, s:f, s:s, s:s, s:i, s:I, s:s, s:s}}",
        "function_name", r->function_name, "dataset", r->dataset, "init", r->init, "epochs",
        r->epochs, "batch_size", r->batch_size, "lr", r->lr, "options", "default_parallelism",
        r->default_parallelism, "static_parallelism", (int)r->static_parallelism, "k", r->k,
        "validate_every", r->validate_every, "goal_accuracy", r->goal_accuracy, "merge",
        merges[r->merge], "mode", "ps", "priority", r->priority,
        "seed", (json_int_t)r->seed, "optimizer_state",
        r->optimizer_state == STATE_RESET ? "reset" : "average", "on_loss",
        r->on_loss == ON_LOSS_CONTINUE ? "continue" : "recompute");
    if (body && add_gpu(r, json_object_get(body, "options"))) {
        json_decref(body);
        return NULL;
    }
    return with_bounds(body, r);
}

void request_init_id(const char *init, char out[REQUEST_NAME_BYTES])
{
    static const char folder[] = "models/";
    size_t skip = init && strncmp(init, folder, sizeof folder - 1) == 0 ? sizeof folder - 1 : 0;
    snprintf(out, REQUEST_NAME_BYTES, "%s", init ? init + skip : "");
    if (skip)
        out[strcspn(out, "/")] = '\0';
}
