/* model_file.c: see model_file.h. */
#include "model_file.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/contract/tensor_filter.h"
#include "common/formats/safetensors.h"

static bool in_file(const engine_var *v)
{
    return v->kind != VAR_STATE && strncmp(v->name, "optimizer.", 10) != 0;
}

static int check_tensor(const engine_var *v, const safetensors *file, err *e)
{
    const safetensor *t;
    uint64_t dims[sizeof v->dims / sizeof *v->dims];
    for (int i = 0; i < v->rank; i++)
        dims[i] = (uint64_t)v->dims[i];
    return safetensors_require(file, v->name,
                               v->kind == VAR_COUNTER ? SAFETENSORS_I64 : SAFETENSORS_F32, v->rank,
                               dims, &t, e);
}

/* Checks the whole file before the model changes. A counter may be missing: PyTorch's oldest
 * checkpoints have none. */
static int check_file(const safetensors *file, const engine_var *vars, size_t count,
                      tensor_filter *out, err *e)
{
    for (size_t i = 0; i < count; i++)
        if (in_file(&vars[i]))
            tensor_filter_has(out, vars[i].name);
    if (tensor_filter_end(out, e) != 0)
        return -1;
    for (size_t i = 0; i < count; i++) {
        bool old = vars[i].kind == VAR_COUNTER && !safetensors_find(file, vars[i].name);
        if (in_file(&vars[i]) && !tensor_filter_has(out, vars[i].name) && !old &&
            check_tensor(&vars[i], file, e) != 0)
            return -1;
    }
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const char *name = safetensors_at(file, i)->name;
        bool known = strncmp(name, "optimizer.", 10) == 0 || tensor_filter_has(out, name);
        for (size_t j = 0; j < count && !known; j++)
            known = strcmp(vars[j].name, name) == 0;
        if (!known)
            return err_set(e, ERR_INVALID, "tensor %s is none of the model's", name);
    }
    return 0;
}

static int read_tensors(engine *m, safetensors *file, const engine_var *vars, size_t count,
                        tensor_filter *out, err *e)
{
    float *floats = engine_floats(m, e);
    int64_t *counters = floats ? engine_counters(m, e) : NULL;
    if (!floats || !counters)
        return -1;
    for (size_t i = 0; i < count; i++) {
        const engine_var *v = &vars[i];
        const safetensor *t = safetensors_find(file, v->name);
        if (!in_file(v) || !t || tensor_filter_has(out, v->name))
            continue;
        if (v->kind == VAR_COUNTER
                ? safetensors_read(file, t, 0, counters + v->offset, (size_t)t->bytes, e)
                : safetensors_read_f32(file, t, floats + v->offset, e))
            return -1;
    }
    return engine_state_changed(m, e);
}

int model_file_load(engine *m, int fd, const char *without, err *e)
{
    safetensors *file;
    tensor_filter out = {.list = without};
    if (safetensors_open(fd, &file, e) != 0)
        return -1;
    size_t count;
    const engine_var *vars = engine_layout(m, &count);
    int rc = check_file(file, vars, count, &out, e) || read_tensors(m, file, vars, count, &out, e)
                 ? -1
                 : 0;
    safetensors_close(file);
    return rc;
}

static int sink(void *arg, const void *bytes, size_t len, err *e)
{
    return fs_output_write(arg, bytes, len, e);
}

typedef struct tensors {
    const engine_var *vars;
    size_t count;
    const float *floats;
    const int64_t *counters;
} tensors;

static int add_kind(const tensors *t, bool counters, safetensors_writer *w, err *e)
{
    for (size_t i = 0; i < t->count; i++) {
        const engine_var *v = &t->vars[i];
        uint64_t dims[4] = {0};
        for (int d = 0; d < v->rank; d++)
            dims[d] = (uint64_t)v->dims[d];
        if (in_file(v) && (v->kind == VAR_COUNTER) == counters &&
            safetensors_writer_add(w, v->name, counters ? SAFETENSORS_I64 : SAFETENSORS_F32,
                                   v->rank, dims, e) != 0)
            return -1;
    }
    return 0;
}

static int write_kind(const tensors *t, bool counters, safetensors_writer *w, err *e)
{
    for (size_t i = 0; i < t->count; i++) {
        const engine_var *v = &t->vars[i];
        const void *from =
            counters ? (const void *)(t->counters + v->offset) : t->floats + v->offset;
        size_t each = counters ? sizeof *t->counters : sizeof *t->floats;
        if (in_file(v) && (v->kind == VAR_COUNTER) == counters &&
            safetensors_writer_data(w, from, v->count * each, e) != 0)
            return -1;
    }
    return 0;
}

/* Writes in the order of a job's export: first the counters, so that their eight bytes are aligned,
 * then the floats. */
static int write_tensors(engine *m, safetensors_writer *w, fs_output *to, err *e)
{
    tensors t = {.floats = engine_floats(m, e), .counters = engine_counters(m, e)};
    t.vars = engine_layout(m, &t.count);
    return !t.floats || safetensors_writer_metadata(w, "format", "pt", e) ||
                   add_kind(&t, true, w, e) || add_kind(&t, false, w, e) ||
                   safetensors_writer_begin(w, sink, to, e) || write_kind(&t, true, w, e) ||
                   write_kind(&t, false, w, e) || safetensors_writer_end(w, e)
               ? -1
               : 0;
}

int model_file_save(engine *m, const char *path, err *e)
{
    fs_output to;
    if (fs_output_open(&to, path, e) != 0)
        return -1;
    safetensors_writer *w = NULL;
    int rc = safetensors_writer_new(&w, e);
    if (rc == 0)
        rc = write_tensors(m, w, &to, e);
    safetensors_writer_free(w);
    return fs_output_close(&to, rc == 0, e) != 0 ? -1 : rc;
}
