/* history.c: see history.h. */
#include "history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/store/store.h"

enum {
    /* What is beside the epochs' lists (plan, conditions, an open epoch) has the rest. */
    EPOCHS_BYTES_MAX = STORE_RECORD_BYTES_MAX - (2 << 20),
    DETAILS_MIN = 16, /* epochs whose details stay: a job goes on from one of the newest */
    LEAVE_OUT = 8,    /* of what there are details of, that part at a time */
};

struct history {
    json_t *record;
    size_t left_out; /* of so many first epochs there are no details */
    size_t bytes;    /* about what the epochs' lists take as text */
};

/* Where each number of an epoch stands in the record: "list" or "object.list". */
static const struct column {
    const char *object, *list;
    enum { REAL, WHOLE, BIG, TEXT } kind;
    size_t offset;
    bool validation; /* null where the epoch was not validated, accuracy of targets always */
} columns[] = {
#define AT(field) offsetof(epoch_result, field)
    {"data", "train_loss", REAL, AT(train_loss), false},
    {"data", "validation_loss", REAL, AT(validation_loss), true},
    {"data", "accuracy", REAL, AT(accuracy), true},
    {"data", "parallelism", WHOLE, AT(parallelism), false},
    {"data", "epoch_duration", REAL, AT(seconds), false},
    {NULL, "versions", BIG, AT(version), false},
    {NULL, "samples", BIG, AT(samples), false},
    {NULL, "ledger", TEXT, AT(ledger), false},
    {"seconds", "fetch", REAL, AT(fetch_s), false},
    {"seconds", "load", REAL, AT(load_s), false},
    {"seconds", "convert", REAL, AT(convert_s), false},
    {"seconds", "train", REAL, AT(train_s), false},
    {"seconds", "publish", REAL, AT(publish_s), false},
    {"seconds", "merge", REAL, AT(merge_s), false},
    {"seconds", "validate", REAL, AT(validate_s), false},
    {"seconds", "checkpoint", REAL, AT(checkpoint_s), false},
    {"usage", "cpu_percent", REAL, AT(cpu_percent), false},
    {"usage", "memory_bytes", BIG, AT(memory_bytes), false},
    {"usage", "gpu_percent", REAL, AT(gpu_percent), false},
    {"usage", "gpu_memory_bytes", BIG, AT(gpu_memory_bytes), false},
    {"usage", "gpu_watts", REAL, AT(gpu_watts), false},
#undef AT
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* What of an epoch is given up where there are too many of them: neither the results nor what tells
 * how many there were. Who contributed what (`shares`) is one, too. */
static bool is_detail(const struct column *c)
{
    return c->kind == TEXT || (c->object && strcmp(c->object, "data") != 0);
}

static json_t *column_list(const json_t *record, const struct column *c)
{
    return json_object_get(c->object ? json_object_get(record, c->object) : record, c->list);
}

static json_t *empty_lists(json_t *record)
{
    for (size_t i = 0; i < COLUMNS; i++) {
        json_t *in = record;
        if (columns[i].object && !(in = json_object_get(record, columns[i].object))) {
            in = json_object();
            json_object_set_new(record, columns[i].object, in);
        }
        if (json_object_set_new(in, columns[i].list, json_array()))
            return NULL;
    }
    return record;
}

static json_t *plan_of(const history_subject *of)
{
    return json_pack("{s:I,s:O,s:O}", "seed", (json_int_t)of->seed, "function",
                     of->function, "dataset", of->dataset);
}

history *history_new(const history_subject *of, err *e)
{
    char now[25];
    clock_rfc3339(clock_wall_ms(), now);
    history *h = calloc(1, sizeof *h);
    if (h)
        h->record = json_pack("{s:s,s:O,s:{},s:s,s:s,s:s,s:s,s:[],s:[],s:o,s:s,s:s}", "id", of->job,
                              "task", of->task, "data", "state", "running", "reason", "", "message",
                              "", "sha256", "", "conditions", "shares", "plan", plan_of(of),
                              "created", now, "updated", now);
    if (!h || !h->record || !empty_lists(h->record)) {
        history_free(h);
        err_set(e, ERR_NOMEM, "no memory for the history");
        return NULL;
    }
    return h;
}

void history_free(history *h)
{
    if (!h)
        return;
    json_decref(h->record);
    free(h);
}

static json_t *number_or_null(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *value_of(const epoch_result *r, const struct column *c)
{
    const char *at = (const char *)r + c->offset;
    uint64_t big;
    int whole;
    double real;
    if (c->validation && !r->validated)
        return json_null();
    switch (c->kind) {
    case TEXT:
        return json_string(at);
    case BIG:
        memcpy(&big, at, sizeof big);
        return big == UINT64_MAX ? json_null() : json_integer((json_int_t)big);
    case WHOLE:
        memcpy(&whole, at, sizeof whole);
        return json_integer(whole);
    case REAL:
    default:
        memcpy(&real, at, sizeof real);
        return number_or_null(real);
    }
}

static void take_value(epoch_result *r, const struct column *c, const json_t *value)
{
    char *at = (char *)r + c->offset;
    if (c->offset == offsetof(epoch_result, validation_loss))
        r->validated = !json_is_null(value);
    if (c->kind == TEXT) {
        const char *text = json_string_value(value);
        size_t len = text ? strnlen(text, DIGEST_HEX_BYTES - 1) : 0;
        memcpy(at, text ? text : "", len);
        at[len] = '\0';
    } else if (c->kind == BIG) {
        uint64_t big = (uint64_t)json_integer_value(value);
        memcpy(at, &big, sizeof big);
    } else if (c->kind == WHOLE) {
        int whole = (int)json_integer_value(value);
        memcpy(at, &whole, sizeof whole);
    } else {
        double real = c->validation && json_is_null(value) ? (double)NAN : json_number_value(value);
        memcpy(at, &real, sizeof real);
    }
}

/* With the comma behind it. */
static size_t bytes_of(const json_t *value)
{
    return json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) + 1;
}

static size_t bytes_in(const json_t *list)
{
    size_t i, bytes = 0;
    json_t *one;
    json_array_foreach (list, i, one) {
        bytes += bytes_of(one);
    }
    return bytes;
}

static size_t bytes_of_epochs(const history *h)
{
    size_t bytes = bytes_in(json_object_get(h->record, "shares"));
    for (size_t i = 0; i < COLUMNS; i++)
        bytes += bytes_in(column_list(h->record, &columns[i]));
    return bytes;
}

/* Gives the bytes that go. */
static size_t drop_first(json_t *list, size_t count)
{
    size_t i, bytes = 0;
    json_t *one, *rest = json_array();
    json_array_foreach (list, i, one) {
        if (i < count)
            bytes += bytes_of(one);
        else
            json_array_append(rest, one);
    }
    json_array_clear(list);
    json_array_extend(list, rest);
    json_decref(rest);
    return bytes;
}

static void set_left_out(history *h, size_t epochs)
{
    h->left_out = epochs;
    if (epochs)
        json_object_set_new(h->record, "left_out", json_integer((json_int_t)epochs));
    else
        json_object_del(h->record, "left_out");
}

/* A job does not end because its record is full: the oldest details go. */
static void thin(history *h)
{
    json_t *shares = json_object_get(h->record, "shares");
    while (h->bytes > EPOCHS_BYTES_MAX && json_array_size(shares) > DETAILS_MIN) {
        size_t part = json_array_size(shares) / LEAVE_OUT,
               spare = json_array_size(shares) - DETAILS_MIN;
        size_t count = part < spare ? part : spare;
        h->bytes -= drop_first(shares, count);
        for (size_t i = 0; i < COLUMNS; i++)
            if (is_detail(&columns[i]))
                h->bytes -= drop_first(column_list(h->record, &columns[i]), count);
        set_left_out(h, h->left_out + count);
    }
}

int history_add(history *h, const epoch_result *r, json_t *shares, err *e)
{
    h->bytes += bytes_of(shares);
    if (json_array_append_new(json_object_get(h->record, "shares"), shares))
        return err_set(e, ERR_NOMEM, "no memory for the history of epoch %d", r->epoch);
    for (size_t i = 0; i < COLUMNS; i++) {
        json_t *value = value_of(r, &columns[i]);
        h->bytes += bytes_of(value);
        if (json_array_append_new(column_list(h->record, &columns[i]), value))
            return err_set(e, ERR_NOMEM, "no memory for the history of epoch %d", r->epoch);
    }
    thin(h);
    return 0;
}

static void cut_list(history *h, json_t *list, size_t count)
{
    for (size_t size; (size = json_array_size(list)) > count;) {
        h->bytes -= bytes_of(json_array_get(list, size - 1));
        json_array_remove(list, size - 1);
    }
}

void history_cut(history *h, int epochs)
{
    if (h->left_out > (size_t)epochs)
        set_left_out(h, (size_t)epochs);
    size_t detailed = (size_t)epochs - h->left_out;
    for (size_t i = 0; i < COLUMNS; i++)
        cut_list(h, column_list(h->record, &columns[i]),
                 is_detail(&columns[i]) ? detailed : (size_t)epochs);
    cut_list(h, json_object_get(h->record, "shares"), detailed);
}

void history_checkpoint_seconds(history *h, int epoch, double seconds)
{
    json_t *list = json_object_get(json_object_get(h->record, "seconds"), "checkpoint");
    if ((size_t)epoch < h->left_out)
        return;
    size_t at = (size_t)epoch - h->left_out;
    h->bytes -= bytes_of(json_array_get(list, at));
    json_array_set_new(list, at, json_real(seconds));
    h->bytes += bytes_of(json_array_get(list, at));
}

int history_epochs(const history *h)
{
    return (int)json_array_size(json_object_get(h->record, "versions"));
}

json_t *history_losses(const history *h, int epochs)
{
    const json_t *all = json_object_get(json_object_get(h->record, "data"), "validation_loss"),
                 *one;
    json_t *out = json_array();
    size_t i;
    json_array_foreach(all, i, one)
    {
        if (i < (size_t)epochs)
            json_array_append(out, (json_t *)one);
    }
    return out;
}

int history_at(const history *h, int epoch, epoch_result *out)
{
    if (epoch < 0 || epoch >= history_epochs(h))
        return -1;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < COLUMNS; i++) {
        size_t first = is_detail(&columns[i]) ? h->left_out : 0;
        const json_t *list = column_list(h->record, &columns[i]);
        take_value(out, &columns[i],
                   (size_t)epoch < first ? NULL : json_array_get(list, (size_t)epoch - first));
    }
    out->epoch = epoch;
    return 0;
}

/* Without `from`, a list of nulls: a stage that the record's version did not measure. */
static int restore_list(const json_t *from, json_t *to, size_t count, int epochs, const char *name,
                        err *e)
{
    if (from && json_array_size(from) < count)
        return err_set(e, ERR_CORRUPT, "the history's %s ends before epoch %d", name, epochs);
    json_array_clear(to);
    for (size_t n = 0; n < count; n++)
        if (json_array_append_new(to, from ? json_deep_copy(json_array_get(from, n)) : json_null()))
            return err_set(e, ERR_NOMEM, "no memory for the history");
    return 0;
}

int history_restore(history *h, const json_t *record, int epochs, err *e)
{
    json_int_t left_out = epochs ? json_integer_value(json_object_get(record, "left_out")) : 0;
    if (left_out < 0 || (epochs && left_out >= epochs))
        return err_set(e, ERR_CORRUPT, "the history's ledger begins after epoch %d", epochs);
    size_t detailed = (size_t)(epochs - left_out);
    for (size_t i = 0; i < COLUMNS; i++) {
        const json_t *from = column_list(record, &columns[i]);
        const char *object = columns[i].object;
        bool newer = object && (strcmp(object, "seconds") == 0 || strcmp(object, "usage") == 0);
        if (!from && !newer)
            return err_set(e, ERR_CORRUPT, "the history has no %s", columns[i].list);
        if (restore_list(from, column_list(h->record, &columns[i]),
                         is_detail(&columns[i]) ? detailed : (size_t)epochs, epochs,
                         columns[i].list, e))
            return -1;
    }
    if (!json_object_get(record, "shares"))
        return err_set(e, ERR_CORRUPT, "the history has no shares");
    if (restore_list(json_object_get(record, "shares"), json_object_get(h->record, "shares"),
                     detailed, epochs, "shares", e))
        return -1;
    set_left_out(h, (size_t)left_out);
    h->bytes = bytes_of_epochs(h);
    static const char *const kept[] = {"conditions", "lost", "created"};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        if (json_object_get(record, kept[i]))
            json_object_set_new(h->record, kept[i],
                                json_deep_copy(json_object_get(record, kept[i])));
    json_t *plan = json_object_get(h->record, "plan");
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(record, "plan"), key, value)
    {
        if (!json_object_get(plan, key))
            json_object_set_new(plan, key, json_deep_copy(value));
    }
    return 0;
}

int history_plan(history *h, const char *key, json_t *value)
{
    json_t *plan = json_object_get(h->record, "plan"), *present = json_object_get(plan, key);
    if (!present)
        return json_object_set_new(plan, key, value);
    int same = json_equal(present, value);
    json_decref(value);
    return same ? 0 : -1;
}

void history_condition(history *h, const char *name, const char *status, const char *reason,
                       const char *message)
{
    char now[25];
    clock_rfc3339(clock_wall_ms(), now);
    json_t *list = json_object_get(h->record, "conditions"), *one;
    size_t i;
    json_array_foreach(list, i, one)
    {
        const char *type = json_string_value(json_object_get(one, "type"));
        if (type && strcmp(type, name) == 0)
            break;
    }
    if (i == json_array_size(list))
        json_array_append_new(list, json_object());
    one = json_array_get(list, i);
    const char *before = json_string_value(json_object_get(one, "status"));
    if (!before || strcmp(before, status) != 0)
        json_object_set_new(one, "lastTransitionTime", json_string(now));
    json_object_set_new(one, "type", json_string(name));
    json_object_set_new(one, "status", json_string(status));
    json_object_set_new(one, "reason", json_string(reason));
    json_object_set_new(one, "message", json_string(message));
}

void history_lost(history *h, int times)
{
    if (times)
        json_object_set_new(h->record, "lost", json_integer(times));
}

static void set_state(json_t *record, const char *state, const char *reason, const char *message,
                      const char *sha256)
{
    json_object_set_new(record, "state", json_string(state));
    json_object_set_new(record, "reason", json_string(reason));
    json_object_set_new(record, "message", json_string(message));
    json_object_set_new(record, "sha256", json_string(sha256));
}

void history_state(history *h, const char *state, const char *reason, const char *message,
                   const char *sha256)
{
    set_state(h->record, state, reason, message, sha256);
}

void history_set_running(json_t *record)
{
    set_state(record, "running", "", "", "");
}

void history_open(history *h, json_t *open)
{
    if (open)
        json_object_set_new(h->record, "open", open);
    else
        json_object_del(h->record, "open");
}

json_t *history_json(const history *h)
{
    char now[25];
    clock_rfc3339(clock_wall_ms(), now);
    json_object_set_new(h->record, "updated", json_string(now));
    return json_deep_copy(h->record);
}
