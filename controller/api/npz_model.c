/* npz_model.c: see npz_model.h.
 *
 * The zip file format is that of PKWARE's APPNOTE: a local header before each file, then the
 * central directory. Sizes and offsets over 32 bits are in the zip64 extra field; here they always
 * are. */
#include "npz_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/formats/npy.h"
#include "common/formats/safetensors.h"
#include "weights_model.h"

enum {
    COPY_BYTES = 256 << 10,
    ZIP64_VERSION = 45,
    ENTRY_NAME_BYTES = SAFETENSORS_NAME_BYTES_MAX + 8
};

typedef struct entry {
    char name[ENTRY_NAME_BYTES];
    uint64_t offset, bytes;
    uint32_t crc;
} entry;

typedef struct archive {
    int fd;
    uint64_t at;
    char *copy;
    entry *entries;
    size_t count;
} archive;

static void put(unsigned char **to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *(*to)++ = (unsigned char)(value >> (8 * i));
}

static int append(archive *a, const void *bytes, size_t len, err *e)
{
    if (fs_pwrite_all(a->fd, bytes, len, a->at, "the npz file", e))
        return -1;
    a->at += len;
    return 0;
}

/* The fields that local and central headers share: version to extra length. */
static void put_common(unsigned char **to, const entry *f, size_t extra)
{
    put(to, ZIP64_VERSION, 2);
    put(to, 0x0800, 2); /* names are UTF-8 */
    put(to, 0, 2);      /* stored */
    put(to, 0, 2);
    put(to, 0x21, 2); /* 1980-01-01: the same model gives the same file */
    put(to, f->crc, 4);
    put(to, 0xffffffff, 4);
    put(to, 0xffffffff, 4);
    put(to, strlen(f->name), 2);
    put(to, extra, 2);
}

static int local_header(archive *a, const entry *f, uint64_t offset, err *e)
{
    unsigned char head[64], *to = head;
    put(&to, 0x04034b50, 4);
    put_common(&to, f, 20);
    unsigned char extra[20], *x = extra;
    put(&x, 1, 2);
    put(&x, 16, 2);
    put(&x, f->bytes, 8);
    put(&x, f->bytes, 8);
    uint64_t end = a->at;
    a->at = offset;
    int status = append(a, head, (size_t)(to - head), e) ||
                         append(a, f->name, strlen(f->name), e) || append(a, extra, sizeof extra, e)
                     ? -1
                     : 0;
    if (end > a->at)
        a->at = end;
    return status;
}

static int central_header(archive *a, const entry *f, err *e)
{
    unsigned char head[64], *to = head, extra[28], *x = extra;
    put(&to, 0x02014b50, 4);
    put(&to, ZIP64_VERSION, 2);
    put_common(&to, f, sizeof extra);
    put(&to, 0, 2);
    put(&to, 0, 2);
    put(&to, 0, 2);
    put(&to, 0, 4);
    put(&to, 0xffffffff, 4);
    put(&x, 1, 2);
    put(&x, 24, 2);
    put(&x, f->bytes, 8);
    put(&x, f->bytes, 8);
    put(&x, f->offset, 8);
    return append(a, head, (size_t)(to - head), e) || append(a, f->name, strlen(f->name), e) ||
                   append(a, extra, sizeof extra, e)
               ? -1
               : 0;
}

static int end_of_directory(archive *a, uint64_t start, err *e)
{
    unsigned char tail[98], *to = tail;
    uint64_t bytes = a->at - start, zip64_at = a->at;
    put(&to, 0x06064b50, 4);
    put(&to, 44, 8);
    put(&to, ZIP64_VERSION, 2);
    put(&to, ZIP64_VERSION, 2);
    put(&to, 0, 4);
    put(&to, 0, 4);
    put(&to, a->count, 8);
    put(&to, a->count, 8);
    put(&to, bytes, 8);
    put(&to, start, 8);
    put(&to, 0x07064b50, 4);
    put(&to, 0, 4);
    put(&to, zip64_at, 8);
    put(&to, 1, 4);
    put(&to, 0x06054b50, 4);
    put(&to, 0, 4);
    put(&to, 0xffff, 2);
    put(&to, 0xffff, 2);
    put(&to, 0xffffffff, 4);
    put(&to, 0xffffffff, 4);
    put(&to, 0, 2);
    return append(a, tail, (size_t)(to - tail), e);
}

static int npy_dtype(safetensors_dtype from, array_dtype *out, const char *name, err *e)
{
    switch (from) {
    case SAFETENSORS_F32: *out = ARRAY_F32; return 0;
    case SAFETENSORS_F64: *out = ARRAY_F64; return 0;
    case SAFETENSORS_I64: *out = ARRAY_I64; return 0;
    case SAFETENSORS_I32: *out = ARRAY_I32; return 0;
    case SAFETENSORS_U8: *out = ARRAY_U8; return 0;
    default:
        return err_set(e, ERR_UNSUPPORTED, "tensor %.64s is %s, which has no npy form here", name,
                       safetensors_dtype_name(from));
    }
}

static int copy_tensor(archive *a, safetensors *from, const safetensor *t, entry *f, err *e)
{
    for (uint64_t at = 0; at < t->bytes;) {
        size_t n = t->bytes - at < COPY_BYTES ? (size_t)(t->bytes - at) : COPY_BYTES;
        if (safetensors_read(from, t, at, a->copy, n, e))
            return -1;
        f->crc = (uint32_t)crc32(f->crc, (const Bytef *)a->copy, (uInt)n);
        if (append(a, a->copy, n, e))
            return -1;
        at += n;
    }
    return 0;
}

/* Writes a tensor, and then its header into the room left for it: the header needs the checksum. */
static int add(archive *a, safetensors *from, const safetensor *t, err *e)
{
    entry *f = &a->entries[a->count++];
    array_dtype dtype = ARRAY_F32;
    cleanup_buf buf head;
    buf_init(&head, NPY_HEADER_BYTES_MAX + 16);
    if (npy_dtype(t->dtype, &dtype, t->name, e) || npy_header(dtype, t->ndim, t->shape, &head, e))
        return -1;
    snprintf(f->name, sizeof f->name, "%.*s.npy", SAFETENSORS_NAME_BYTES_MAX, t->name);
    f->offset = a->at;
    f->bytes = head.len + t->bytes;
    a->at += 30 + strlen(f->name) + 20;
    f->crc = (uint32_t)crc32(0, (const Bytef *)head.bytes, (uInt)head.len);
    if (append(a, head.bytes, head.len, e) || copy_tensor(a, from, t, f, e))
        return -1;
    return local_header(a, f, f->offset, e);
}

static int write_all(archive *a, safetensors *from, err *e)
{
    for (size_t i = 0; i < safetensors_count(from); i++)
        if (weights_model_has(safetensors_at(from, i)->name) &&
            add(a, from, safetensors_at(from, i), e))
            return -1;
    uint64_t start = a->at;
    for (size_t i = 0; i < a->count; i++)
        if (central_header(a, &a->entries[i], e))
            return -1;
    return end_of_directory(a, start, e);
}

static int open_model(blob *model, safetensors **out, err *e)
{
    int fd;
    return blob_fd(model, &fd, e) || safetensors_open(fd, out, e) ? -1 : 0;
}

int npz_model_write(blob *model, const char *dir, int *fd, uint64_t *len, err *e)
{
    safetensors *from = NULL;
    if (open_model(model, &from, e))
        return -1;
    archive a = {.fd = -1};
    a.copy = malloc(COPY_BYTES);
    a.entries = calloc(safetensors_count(from) + 1, sizeof *a.entries);
    int status = a.copy && a.entries ? fs_scratch_file(dir, &a.fd, e)
                                     : err_set(e, ERR_NOMEM, "no memory for the npz file");
    if (status == 0)
        status = write_all(&a, from, e);
    safetensors_close(from);
    free(a.copy);
    free(a.entries);
    if (status && a.fd >= 0)
        close(a.fd);
    *fd = a.fd;
    *len = a.at;
    return status;
}

int npz_model_check(blob *model, err *e)
{
    safetensors *from = NULL;
    if (open_model(model, &from, e))
        return -1;
    safetensors_close(from);
    return 0;
}
