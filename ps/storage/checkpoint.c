/* checkpoint.c: see checkpoint.h. */
#include "checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/contract/tensor_filter.h"
#include "common/contract/request.h"
#include "common/formats/safetensors.h"
#include "common/store/model_blob.h"

/* ---- models in memory ------------------------------------------------------------------------ */

static size_t float_bytes(const model *m)
{
    return (size_t)m->layout.shape.floats * sizeof(float);
}

static size_t counter_bytes(const model *m)
{
    return (size_t)m->layout.shape.counters * sizeof(int64_t);
}

int model_new(model *m, const char *layout_text, err *e)
{
    memset(m, 0, sizeof *m);
    if (layout_parse_text(layout_text, strlen(layout_text), &m->layout, e))
        return -1;
    size_t bytes = block_bytes(m->layout.shape);
    if (posix_memalign(&m->memory, BLOCK_ALIGN, bytes)) {
        m->memory = NULL;
        model_free(m);
        return err_set(e, ERR_NOMEM, "no memory for a model of %zu bytes", bytes);
    }
    memset(m->memory, 0, bytes);
    m->block = block_at(m->memory, m->layout.shape);
    return 0;
}

void model_free(model *m)
{
    layout_free(&m->layout);
    free(m->memory);
    memset(m, 0, sizeof *m);
}

int model_digest(const model *m, char out[DIGEST_HEX_BYTES], err *e)
{
    digest_sum *d;
    if (digest_new(&d, e))
        return -1;
    digest_update(d, m->block.floats, float_bytes(m));
    if (counter_bytes(m))
        digest_update(d, m->block.counters, counter_bytes(m));
    digest_finish_hex(d, out);
    digest_free(d);
    return 0;
}

/* ---- names ----------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static int blob_name(char out[STORE_KEY_BYTES], err *e,
                                                           const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(out, STORE_KEY_BYTES, fmt, args);
    va_end(args);
    return len < STORE_KEY_BYTES ? 0 : err_set(e, ERR_LIMIT, "a blob's name is too long: %s", out);
}

int checkpoint_name(char out[STORE_KEY_BYTES], const char *job, int epochs, err *e)
{
    return blob_name(out, e, "models/%s/epoch-%06d", job, epochs);
}

int checkpoint_suspended_name(char out[STORE_KEY_BYTES], const char *job, int generation, err *e)
{
    return blob_name(out, e, "models/%s/suspended-%06d", job, generation);
}

int checkpoint_final_name(char out[STORE_KEY_BYTES], const char *job, err *e)
{
    return blob_name(out, e, "models/%s/final", job);
}

/* ---- writing --------------------------------------------------------------------------------- */

__attribute__((format(printf, 4, 5))) static int put_meta(safetensors_writer *w, const char *key,
                                                          err *e, const char *fmt, ...)
{
    char text[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return safetensors_writer_metadata(w, key, text, e);
}

static int put_metadata(safetensors_writer *w, const checkpoint_info *info, const model *m, err *e)
{
    return safetensors_writer_metadata(w, "format", "kubeml-checkpoint-1", e) ||
                   safetensors_writer_metadata(w, "job", info->job, e) ||
                   safetensors_writer_metadata(w, "state", info->state, e) ||
                   put_meta(w, "epochs", e, "%d", info->epochs) ||
                   put_meta(w, "version", e, "%" PRId64, info->version) ||
                   put_meta(w, "epoch", e, "%" PRId64, info->epoch) ||
                   put_meta(w, "round", e, "%" PRId64, info->round) ||
                   put_meta(w, "seed", e, "%" PRIu64, info->seed) ||
                   put_meta(w, "parallelism", e, "%d", info->parallelism) ||
                   safetensors_writer_metadata(w, "sha256", info->sha256, e) ||
                   safetensors_writer_metadata(w, "layout", m->layout.text, e)
               ? -1
               : 0;
}

static int by_offset(const void *a, const void *b)
{
    const layout_entry *x = *(const layout_entry *const *)a, *y = *(const layout_entry *const *)b;
    bool x_counter = x->kind == LAYOUT_COUNTER, y_counter = y->kind == LAYOUT_COUNTER;
    if (x_counter != y_counter)
        return x_counter ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The counters first, so that their eight bytes are aligned in the file. */
static int declare(safetensors_writer *w, const layout *l, err *e)
{
    cleanup_free const layout_entry **order = calloc(l->count + 1, sizeof(layout_entry *));
    if (!order)
        return err_set(e, ERR_NOMEM, "no memory for a checkpoint");
    for (size_t i = 0; i < l->count; i++)
        order[i] = &l->entries[i];
    qsort(order, l->count, sizeof *order, by_offset);
    for (size_t i = 0; i < l->count; i++)
        if (safetensors_writer_add(w, order[i]->name,
                                   order[i]->kind == LAYOUT_COUNTER ? SAFETENSORS_I64
                                                                    : SAFETENSORS_F32,
                                   order[i]->rank, order[i]->dims, e))
            return -1;
    return 0;
}

static int write_to(safetensors_writer *w, blob_writer *to, const checkpoint_info *info,
                    const model *m, err *e)
{
    if (put_metadata(w, info, m, e) || declare(w, &m->layout, e) ||
        safetensors_writer_begin(w, safetensors_blob_sink, to, e))
        return -1;
    if (counter_bytes(m) && safetensors_writer_data(w, m->block.counters, counter_bytes(m), e))
        return -1;
    if (safetensors_writer_data(w, m->block.floats, float_bytes(m), e))
        return -1;
    return safetensors_writer_end(w, e);
}

static int write_once(store *s, const char *name, const checkpoint_info *info, const model *m,
                      bool over, err *e)
{
    safetensors_writer *w;
    blob_writer *to;
    if (safetensors_writer_new(&w, e))
        return -1;
    int status = store_blob_begin(s, name, &to, e);
    if (status == 0) {
        status = write_to(w, to, info, m, e);
        failpoint("mid-checkpoint");
        if (status)
            blob_abort(to);
        else
            status = over ? blob_commit_over(to, e) : blob_commit(to, e);
    }
    safetensors_writer_free(w);
    return status;
}

int checkpoint_write(store *s, const char *name, checkpoint_info *info, const model *m, err *e)
{
    if (model_digest(m, info->sha256, e) || write_once(s, name, info, m, false, e))
        return err_wrap(e, "checkpoint %s", name);
    return 0;
}

int checkpoint_replace(store *s, const char *name, checkpoint_info *info, const model *m, err *e)
{
    if (model_digest(m, info->sha256, e) || write_once(s, name, info, m, true, e))
        return err_wrap(e, "checkpoint %s", name);
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static long long meta_number(const safetensors *f, const char *key)
{
    const char *text = safetensors_metadata(f, key);
    return text ? strtoll(text, NULL, 10) : -1;
}

static void get_info(const safetensors *f, checkpoint_info *info)
{
    const char *job = safetensors_metadata(f, "job"), *state = safetensors_metadata(f, "state"),
               *seed = safetensors_metadata(f, "seed"), *sha = safetensors_metadata(f, "sha256");
    memset(info, 0, sizeof *info);
    snprintf(info->job, sizeof info->job, "%s", job ? job : "");
    snprintf(info->state, sizeof info->state, "%s", state ? state : "");
    snprintf(info->sha256, sizeof info->sha256, "%s", sha ? sha : "");
    info->epochs = (int)meta_number(f, "epochs");
    info->version = meta_number(f, "version");
    info->epoch = meta_number(f, "epoch");
    info->round = meta_number(f, "round");
    info->parallelism = (int)meta_number(f, "parallelism");
    info->seed = seed ? strtoull(seed, NULL, 10) : 0;
}

static int read_entry(safetensors *f, const model *m, const layout_entry *at, err *e)
{
    const safetensor *t;
    bool counter = at->kind == LAYOUT_COUNTER;
    if (safetensors_require(f, at->name, counter ? SAFETENSORS_I64 : SAFETENSORS_F32, at->rank,
                            at->dims, &t, e))
        return -1;
    return counter ? safetensors_read(f, t, 0, m->block.counters + at->offset, (size_t)t->bytes, e)
                   : safetensors_read_f32(f, t, m->block.floats + at->offset, e);
}

static int read_all(safetensors *f, checkpoint_info *info, model *out, err *e)
{
    const char *format = safetensors_metadata(f, "format"),
               *text = safetensors_metadata(f, "layout");
    if (!format || strcmp(format, "kubeml-checkpoint-1") != 0 || !text)
        return err_set(e, ERR_CORRUPT, "not a checkpoint");
    get_info(f, info);
    if (info->epochs < 0 || info->version < 0)
        return err_set(e, ERR_CORRUPT, "a checkpoint without its place in the job");
    if (model_new(out, text, e))
        return -1;
    for (size_t i = 0; i < out->layout.count; i++)
        if (read_entry(f, out, &out->layout.entries[i], e))
            return -1;
    char sum[DIGEST_HEX_BYTES];
    if (model_digest(out, sum, e))
        return -1;
    if (strcmp(sum, info->sha256) != 0)
        return err_set(e, ERR_CORRUPT, "the weights are not those of their SHA-256");
    return 0;
}

/* Closes the blob where it is no safetensors file. */
static int open_tensors(blob *b, safetensors **f, err *e)
{
    int fd;
    if (blob_fd(b, &fd, e) == 0 && safetensors_open(fd, f, e) == 0)
        return 0;
    blob_close(b);
    return -1;
}

/* Opens the blob as safetensors; both to be closed. */
static int open_blob(store *s, const char *name, blob **b, safetensors **f, err *e)
{
    return store_blob_open(s, name, b, e) || open_tensors(*b, f, e) ? -1 : 0;
}

int checkpoint_read(store *s, const char *name, checkpoint_info *info, model *out, err *e)
{
    blob *b;
    safetensors *f;
    memset(out, 0, sizeof *out);
    if (open_blob(s, name, &b, &f, e))
        return err_wrap(e, "%s", name);
    int status = read_all(f, info, out, e);
    safetensors_close(f);
    blob_close(b);
    if (status == 0)
        return 0;
    model_free(out);
    return err_wrap(e, "%s", name);
}

bool checkpoint_is_damaged(err_code code, bool last)
{
    return (code == ERR_IO && last) || code == ERR_CORRUPT || code == ERR_NOT_FOUND ||
           code == ERR_UNSUPPORTED || code == ERR_INVALID ||
           code == ERR_LIMIT; /* the last two: of what its header says */
}

/* All checkpoints of that kind in order of age; the caller frees *out. */
static int list(store *s, const char *job, const char *kind, blob_entry **out, size_t *count,
                err *e)
{
    char prefix[STORE_KEY_BYTES];
    return blob_name(prefix, e, "models/%s/%s-", job, kind) ||
                   store_blob_list(s, prefix, NULL, 0, out, count, e)
               ? -1
               : 0;
}

/* How many of those, in order of age, are not beyond `newest`. */
static size_t up_to(const blob_entry *found, size_t count, const char *newest)
{
    while (count > 0 && strcmp(found[count - 1].name, newest) > 0)
        count--;
    return count;
}

int checkpoint_newest(store *s, const char *job, int epochs_max, bool last_try,
                      checkpoint_info *info, model *out, err *e)
{
    cleanup_free blob_entry *found = NULL;
    size_t count = 0;
    char newest[STORE_KEY_BYTES];
    if (list(s, job, "epoch", &found, &count, e) || checkpoint_name(newest, job, epochs_max, e))
        return -1;
    err last = ERR_INIT;
    count = up_to(found, count, newest);
    for (size_t i = count; i-- > 0;) {
        err_clear(&last);
        if (checkpoint_read(s, found[i].name, info, out, &last) == 0)
            return 0;
        if (!checkpoint_is_damaged(last.code, last_try))
            break;
        log_warn("passing over a checkpoint: %s", last.message);
    }
    if (count == 0)
        return err_set(e, ERR_NOT_FOUND, "job %s has no checkpoint", job);
    if (e)
        *e = last;
    return -1;
}

int checkpoint_beyond(store *s, const char *job, int epochs, bool *any, err *e)
{
    cleanup_free blob_entry *found = NULL;
    size_t count = 0;
    char newest[STORE_KEY_BYTES];
    if (list(s, job, "epoch", &found, &count, e) || checkpoint_name(newest, job, epochs, e))
        return -1;
    *any = up_to(found, count, newest) < count;
    return 0;
}

/* Deletes one that may be gone by now. */
static int drop(store *s, const char *name, err *e)
{
    err gone = ERR_INIT;
    if (store_blob_delete(s, name, &gone) == 0 || gone.code == ERR_NOT_FOUND)
        return 0;
    if (e)
        *e = gone;
    return -1;
}

int checkpoint_prune(store *s, const char *job, int epochs_max, size_t keep, err *e)
{
    cleanup_free blob_entry *found = NULL;
    size_t count = 0;
    char newest[STORE_KEY_BYTES];
    if (list(s, job, "epoch", &found, &count, e) || checkpoint_name(newest, job, epochs_max, e))
        return -1;
    count = up_to(found, count, newest);
    for (size_t i = 0; i + keep < count; i++)
        if (drop(s, found[i].name, e))
            return -1;
    return 0;
}

int checkpoint_drop_final(store *s, const char *job, err *e)
{
    char name[STORE_KEY_BYTES];
    return checkpoint_final_name(name, job, e) || drop(s, name, e) ? -1 : 0;
}

int checkpoint_prune_suspended(store *s, const char *job, int generation, err *e)
{
    cleanup_free blob_entry *found = NULL;
    size_t count = 0;
    char kept[STORE_KEY_BYTES] = "";
    if ((generation >= 0 && checkpoint_suspended_name(kept, job, generation, e)) ||
        list(s, job, "suspended", &found, &count, e))
        return -1;
    for (size_t i = 0; i < count; i++)
        if (strcmp(found[i].name, kept) != 0 && drop(s, found[i].name, e))
            return -1;
    return 0;
}

/* ---- another model's weights ----------------------------------------------------------------- */

static bool is_weight(const char *name)
{
    return strncmp(name, "optimizer.", 10) != 0;
}

static int take_weights(safetensors *f, tensor_filter *out, model *m, err *e)
{
    for (size_t i = 0; i < m->layout.count; i++)
        if (m->layout.entries[i].kind != LAYOUT_STATE && is_weight(m->layout.entries[i].name))
            tensor_filter_has(out, m->layout.entries[i].name);
    if (tensor_filter_end(out, e))
        return -1;
    for (size_t i = 0; i < m->layout.count; i++) {
        const layout_entry *at = &m->layout.entries[i];
        bool optional = at->kind == LAYOUT_COUNTER && !safetensors_find(f, at->name);
        if (at->kind != LAYOUT_STATE && is_weight(at->name) && !optional &&
            !tensor_filter_has(out, at->name) && read_entry(f, m, at, e))
            return -1;
    }
    for (size_t i = 0; i < safetensors_count(f); i++) {
        const char *name = safetensors_at(f, i)->name;
        if (is_weight(name) && !layout_find(&m->layout, name) && !tensor_filter_has(out, name))
            return err_set(e, ERR_INVALID, "tensor %s is none of the model's", name);
    }
    return 0;
}

/* Of a model that the job has made itself, these say that it is to be made again. */
static int init_is_not_there(const char *init, err *e)
{
    if (e && (e->code == ERR_NOT_FOUND || e->code == ERR_CONFLICT || e->code == ERR_CORRUPT))
        e->code = ERR_INVALID;
    return err_wrap(e, "init: %s", init);
}

static int open_init(store *s, const char *init, blob **b, safetensors **f, err *e)
{
    char final[STORE_KEY_BYTES], job[REQUEST_NAME_BYTES];
    request_init_id(init, job);
    if (checkpoint_final_name(final, job, e))
        return -1;
    if (strcmp(init, job) == 0 || strcmp(init, final) == 0) {
        if (model_blob_open(s, job, b, e) == 0)
            return open_tensors(*b, f, e);
        if (e->code != ERR_NOT_FOUND)
            return -1;
        err_clear(e);
    }
    return open_blob(s, init, b, f, e);
}

int checkpoint_init(store *s, const char *init, const char *without, model *m, err *e)
{
    tensor_filter out = {.list = without};
    blob *b;
    safetensors *f;
    err why = ERR_INIT;
    if (open_init(s, init, &b, &f, &why)) {
        if (e)
            *e = why;
        return init_is_not_there(init, e);
    }
    int status = take_weights(f, &out, m, e);
    safetensors_close(f);
    blob_close(b);
    return status ? init_is_not_there(init, e) : 0;
}
