/* weights_model.c: see weights_model.h. */
#include "weights_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/formats/safetensors.h"

enum { COPY_BYTES = 256 << 10 };

typedef struct target {
    int fd;
    uint64_t at;
} target;

static int append(void *arg, const void *bytes, size_t len, err *e)
{
    target *t = arg;
    if (fs_pwrite_all(t->fd, bytes, len, t->at, "the model's file", e))
        return -1;
    t->at += len;
    return 0;
}

bool weights_model_has(const char *tensor)
{
    return strncmp(tensor, "optimizer.", 10) != 0;
}

static int copy_tensor(safetensors *from, const safetensor *t, safetensors_writer *w, char *copy,
                       err *e)
{
    for (uint64_t at = 0; at < t->bytes;) {
        size_t n = t->bytes - at < COPY_BYTES ? (size_t)(t->bytes - at) : COPY_BYTES;
        if (safetensors_read(from, t, at, copy, n, e) || safetensors_writer_data(w, copy, n, e))
            return -1;
        at += n;
    }
    return 0;
}

static int write_all(safetensors *from, safetensors_writer *w, target *to, err *e)
{
    cleanup_free char *copy = malloc(COPY_BYTES);
    if (!copy)
        return err_set(e, ERR_NOMEM, "no memory for the model's file");
    if (safetensors_writer_metadata(w, "format", "pt", e))
        return -1;
    for (size_t i = 0; i < safetensors_count(from); i++) {
        const safetensor *t = safetensors_at(from, i);
        if (weights_model_has(t->name) &&
            safetensors_writer_add(w, t->name, t->dtype, t->ndim, t->shape, e))
            return -1;
    }
    if (safetensors_writer_begin(w, append, to, e))
        return -1;
    for (size_t i = 0; i < safetensors_count(from); i++) {
        const safetensor *t = safetensors_at(from, i);
        if (weights_model_has(t->name) && copy_tensor(from, t, w, copy, e))
            return -1;
    }
    return safetensors_writer_end(w, e);
}

int weights_model_write(blob *model, const char *dir, int *fd, uint64_t *len, err *e)
{
    safetensors *from = NULL;
    safetensors_writer *w = NULL;
    target to = {.fd = -1};
    int source, status = blob_fd(model, &source, e) || safetensors_open(source, &from, e) ||
                                 safetensors_writer_new(&w, e) || fs_scratch_file(dir, &to.fd, e)
                             ? -1
                             : write_all(from, w, &to, e);
    safetensors_writer_free(w);
    safetensors_close(from);
    if (status && to.fd >= 0)
        close(to.fd);
    *fd = to.fd;
    *len = to.at;
    return status;
}
