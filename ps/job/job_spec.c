/* job_spec.c: see job_spec.h. */
#include "job_spec.h"

#include <stdlib.h>
#include <string.h>

static int copy_text(char *to, size_t bytes, const char *text, const char *field, err *e)
{
    size_t len = strlen(text);
    if (len == 0 || len >= bytes)
        return err_set(e, ERR_INVALID, "job: %s has %zu bytes, not 1 to %zu", field, len,
                       bytes - 1);
    memcpy(to, text, len + 1);
    return 0;
}

/* The id names files, keys and blobs. */
static int check_id(const char *id, err *e)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    if (strspn(id, allowed) != strlen(id))
        return err_set(e, ERR_INVALID, "job: id has a character outside [a-zA-Z0-9_-]");
    return 0;
}

/* Checked before json_unpack, whose errors do not name the field. */
typedef struct field {
    const char *name;
    json_type type; /* JSON_TRUE: a boolean */
    bool optional;
} field;

static const char *type_name(json_type type)
{
    switch (type) {
    case JSON_STRING:
        return "a text";
    case JSON_INTEGER:
        return "an integer";
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    default:
        return "true or false";
    }
}

static int check_fields(const json_t *object, const field *fields, size_t count, err *e)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        if (!value && fields[i].optional)
            continue;
        if (!value)
            return err_set(e, ERR_INVALID, "job: %s is missing", fields[i].name);
        if (fields[i].type == JSON_TRUE ? !json_is_boolean(value)
                                        : json_typeof(value) != fields[i].type)
            return err_set(e, ERR_INVALID, "job: %s is not %s", fields[i].name,
                           type_name(fields[i].type));
    }
    return 0;
}

static int parse_dataset(job_spec *out, err *e)
{
    static const field fields[] = {{"train_samples", JSON_INTEGER, false},
                                   {"train_chunks", JSON_INTEGER, false},
                                   {"test_samples", JSON_INTEGER, false},
                                   {"test_chunks", JSON_INTEGER, false},
                                   {"chunk_samples", JSON_INTEGER, false}};
    if (check_fields(out->dataset, fields, sizeof fields / sizeof fields[0], e))
        return -1;
    json_int_t train = -1, test = -1, train_chunks = -1, test_chunks = -1, chunk = -1;
    json_error_t problem;
    if (json_unpack_ex(out->dataset, &problem, 0, "{s:I,s:I,s:I,s:I,s:I}", "train_samples", &train,
                       "train_chunks", &train_chunks, "test_samples", &test, "test_chunks",
                       &test_chunks, "chunk_samples", &chunk))
        return err_set(e, ERR_INVALID, "job: dataset: %s", problem.text);
    if (train < 1 || train_chunks < 1 || train_chunks > INT_MAX || test < 0 || test_chunks < 0 ||
        test_chunks > INT_MAX || chunk < 1 || chunk > INT_MAX)
        return err_set(e, ERR_INVALID, "job: dataset: a count out of range");
    out->train_samples = (uint64_t)train;
    out->test_samples = (uint64_t)test;
    out->train_chunks = (int)train_chunks;
    out->test_chunks = (int)test_chunks;
    out->chunk_samples = (int)chunk;
    return 0;
}

static int parse_plan(const json_t *plan, job_spec *out, err *e)
{
    size_t epochs = json_array_size(plan);
    if (!plan || json_is_null(plan) || epochs == 0)
        return 0;
    if (epochs > REQUEST_EPOCHS_MAX)
        return err_set(e, ERR_INVALID, "job: plan has %zu epochs, over %d", epochs,
                       REQUEST_EPOCHS_MAX);
    out->plan = calloc(epochs, sizeof *out->plan);
    if (!out->plan)
        return err_set(e, ERR_NOMEM, "no memory for the plan");
    out->plan_epochs = (int)epochs;
    for (size_t i = 0; i < epochs; i++) {
        json_int_t n = json_integer_value(json_array_get(plan, i));
        if (n < 1 || n > REQUEST_PARALLELISM_MAX)
            return err_set(e, ERR_INVALID, "job: plan: epoch %zu is not 1 to %d", i + 1,
                           REQUEST_PARALLELISM_MAX);
        out->plan[i] = (int)n;
    }
    return 0;
}

static int parse_fields(const json_t *message, job_spec *out, err *e)
{
    const char *type, *id, *secret, *locator, *shm_dir;
    json_t *plan = NULL;
    int resume;
    static const field fields[] = {
        {"id", JSON_STRING, false},           {"secret", JSON_STRING, false},
        {"request", JSON_OBJECT, false},      {"function", JSON_OBJECT, false},
        {"dataset", JSON_OBJECT, false},      {"store", JSON_STRING, false},
        {"shm_dir", JSON_STRING, false},      {"resume", JSON_TRUE, false},
        {"parallelism", JSON_INTEGER, false}, {"slots_max", JSON_INTEGER, false},
        {"plan", JSON_ARRAY, true},           {"generation", JSON_INTEGER, true}};
    out->generation = -1;
    json_error_t problem;
    if (check_fields(message, fields, sizeof fields / sizeof fields[0], e))
        return -1;
    if (json_unpack_ex((json_t *)message, &problem, JSON_STRICT,
                       "{s:s,s:s,s:s,s:O,s:O,s:O,s:s,s:s,s:b,s:i,s:i,s?o,s?i}", "type", &type, "id",
                       &id, "secret", &secret, "request", &out->task, "function", &out->function,
                       "dataset", &out->dataset, "store", &locator, "shm_dir", &shm_dir, "resume",
                       &resume, "parallelism", &out->parallelism, "slots_max", &out->slots_max,
                       "plan", &plan, "generation", &out->generation))
        return err_set(e, ERR_INVALID, "job: %s", problem.text);
    out->resume = resume;
    if (copy_text(out->id, sizeof out->id, id, "id", e) || check_id(id, e) ||
        copy_text(out->secret, sizeof out->secret, secret, "secret", e) ||
        copy_text(out->store, sizeof out->store, locator, "store", e) ||
        copy_text(out->shm_dir, sizeof out->shm_dir, shm_dir, "shm_dir", e))
        return -1;
    if (strlen(out->secret) < JOB_SECRET_BYTES_MIN)
        return err_set(e, ERR_INVALID, "job: secret is shorter than %d", JOB_SECRET_BYTES_MIN);
    if (request_parse(out->task, &out->request, e))
        return err_wrap(e, "job: request");
    if (out->parallelism < 1 || out->parallelism > REQUEST_PARALLELISM_MAX)
        return err_set(e, ERR_INVALID, "job: parallelism is %d, not 1 to %d", out->parallelism,
                       REQUEST_PARALLELISM_MAX);
    if (!json_is_object(out->function) || !json_is_string(json_object_get(out->function, "object")))
        return err_set(e, ERR_INVALID, "job: function has no object");
    return parse_dataset(out, e) || parse_plan(plan, out, e) ? -1 : 0;
}

int job_spec_parse(const json_t *message, job_spec *out, err *e)
{
    memset(out, 0, sizeof *out);
    if (parse_fields(message, out, e) == 0)
        return 0;
    job_spec_free(out);
    return -1;
}

void job_spec_free(job_spec *s)
{
    json_decref(s->task);
    json_decref(s->function);
    json_decref(s->dataset);
    free(s->plan);
    explicit_bzero(s->secret, sizeof s->secret);
    memset(s, 0, sizeof *s);
}
