/* arrays.c: see arrays.h. */
#include "arrays.h"

#include <zip.h>
#include <zlib.h>

#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/dataset/cifar.h"
#include "common/formats/npy.h"
#include "test.h"

void bytes_free(bytes *b)
{
    free(b->at);
    *b = (bytes){0};
}

bytes bytes_copy(const void *at, size_t len)
{
    bytes b = {malloc(len + 1), len};
    CHECK(b.at);
    if (len)
        memcpy(b.at, at, len);
    return b;
}

bytes bytes_join(bytes a, bytes b)
{
    bytes both = {malloc(a.len + b.len + 1), a.len + b.len};
    CHECK(both.at);
    memcpy(both.at, a.at, a.len);
    memcpy(both.at + a.len, b.at, b.len);
    return both;
}

static array_head head_of(array_dtype dtype, const uint64_t *shape)
{
    err e = ERR_INIT;
    array_head head = {.dtype = dtype};
    while (head.ndim < ARRAY_DIMS_MAX && shape[head.ndim] != UINT64_MAX) {
        head.shape[head.ndim] = shape[head.ndim];
        head.ndim++;
    }
    CHECK_OK(array_measure(&head, &e), e);
    return head;
}

bytes make_npy(array_dtype dtype, const uint64_t *shape, const void *data)
{
    err e = ERR_INIT;
    array_head head = head_of(dtype, shape);
    buf b;
    buf_init(&b, (size_t)1 << 30);
    CHECK_OK(npy_header(dtype, head.ndim, head.shape, &b, &e), e);
    CHECK_OK(buf_append(&b, data, (size_t)head.data_bytes, &e), e);
    return (bytes){(uint8_t *)b.bytes, b.len};
}

bytes make_npy_raw(const char *dict, const void *data, size_t len)
{
    size_t header = strlen(dict);
    bytes b = {malloc(10 + header + len + 1), 10 + header + len};
    CHECK(b.at);
    memcpy(b.at, "\x93NUMPY\1\0", 8);
    b.at[8] = (uint8_t)header;
    b.at[9] = (uint8_t)(header >> 8);
    memcpy(b.at + 10, dict, header);
    if (len)
        memcpy(b.at + 10 + header, data, len);
    return b;
}

bytes make_idx(array_dtype dtype, const uint64_t *shape, const void *data)
{
    static const uint8_t types[ARRAY_DTYPES] = {
        [ARRAY_U8] = 8,   [ARRAY_I8] = 9,   [ARRAY_I16] = 11,
        [ARRAY_I32] = 12, [ARRAY_F32] = 13, [ARRAY_F64] = 14,
    };
    array_head head = head_of(dtype, shape);
    size_t start = 4 + 4 * (size_t)head.ndim, number = array_dtype_bytes(dtype);
    bytes b = {malloc(start + head.data_bytes), start + (size_t)head.data_bytes};
    CHECK(b.at && types[dtype]);
    memcpy(b.at, (uint8_t[]){0, 0, types[dtype], (uint8_t)head.ndim}, 4);
    for (int i = 0; i < head.ndim; i++)
        for (int k = 0; k < 4; k++)
            b.at[4 + 4 * i + k] = (uint8_t)(head.shape[i] >> (24 - 8 * k));
    for (size_t i = 0; i < head.data_bytes; i++) /* big-endian */
        b.at[start + i] = ((const uint8_t *)data)[i - i % number + (number - 1 - i % number)];
    return b;
}

/* Records of `label_bytes` labels, of which the last counts, and an image. */
static bytes make_records(size_t label_bytes, size_t n, const uint8_t *labels,
                          const uint8_t *images)
{
    size_t record = label_bytes + CIFAR_IMAGE_BYTES;
    bytes b = {malloc(n * record + 1), n * record};
    CHECK(b.at);
    for (size_t i = 0; i < n; i++) {
        uint8_t *at = b.at + i * record;
        *at = labels[i] % 20;
        at[label_bytes - 1] = labels[i];
        memcpy(at + label_bytes, images + i * CIFAR_IMAGE_BYTES, CIFAR_IMAGE_BYTES);
    }
    return b;
}

bytes make_cifar(size_t n, const uint8_t *labels, const uint8_t *images)
{
    return make_records(1, n, labels, images);
}

bytes make_cifar_100(size_t n, const uint8_t *labels, const uint8_t *images)
{
    return make_records(2, n, labels, images);
}

bytes make_gz(bytes of)
{
    z_stream z = {0};
    CHECK_INT(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t room = deflateBound(&z, of.len);
    bytes b = {malloc(room), 0};
    CHECK(b.at);
    z.next_in = of.at;
    z.avail_in = (uInt)of.len;
    z.next_out = b.at;
    z.avail_out = (uInt)room;
    CHECK_INT(deflate(&z, Z_FINISH), Z_STREAM_END);
    b.len = room - z.avail_out;
    deflateEnd(&z);
    return b;
}

bytes make_npz(const char *const *names, const bytes *arrays, size_t count, bool deflate)
{
    char path[FS_PATH_BYTES];
    int code;
    snprintf(path, sizeof path, "%s/made.npz", test_tmp());
    zip_t *zip = zip_open(path, ZIP_CREATE | ZIP_TRUNCATE, &code);
    CHECK(zip);
    for (size_t i = 0; i < count; i++) {
        char name[200];
        snprintf(name, sizeof name, "%s%s", names[i], strchr(names[i], '.') ? "" : ".npy");
        zip_source_t *source = zip_source_buffer(zip, arrays[i].at, arrays[i].len, 0);
        zip_int64_t at = zip_file_add(zip, name, source, ZIP_FL_ENC_UTF_8);
        CHECK(source && at >= 0);
        CHECK_INT(zip_set_file_compression(zip, (zip_uint64_t)at,
                                           deflate ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0),
                  0);
    }
    CHECK_INT(zip_close(zip), 0);
    err e = ERR_INIT;
    buf b;
    buf_init(&b, (size_t)1 << 30);
    CHECK_OK(fs_read_file(path, &b, &e), e);
    remove(path);
    return (bytes){(uint8_t *)b.bytes, b.len};
}

void write_bytes(const char *path, bytes b)
{
    err e = ERR_INIT;
    CHECK_OK(fs_write_file(path, b.at, b.len, 0600, &e), e);
}
