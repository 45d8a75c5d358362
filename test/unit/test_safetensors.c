/* test_safetensors.c: what is written comes back, and each lie of a header is refused. */
#include "common/base/buf.h"
#include "common/formats/safetensors.h"
#include "common/store/store.h"
#include "test.h"

static int to_buf(void *arg, const void *bytes, size_t len, err *e)
{
    return buf_append(arg, bytes, len, e);
}

static const float weights[6] = {1, 2, 3, 4, 5, 6};
static const int64_t steps = 7;

static void write_model(safetensors_sink sink, void *arg)
{
    err e = ERR_INIT;
    safetensors_writer *w;
    CHECK_OK(safetensors_writer_new(&w, &e), e);
    CHECK_OK(safetensors_writer_metadata(w, "format", "kubeml", &e), e);
    CHECK_OK(safetensors_writer_add(w, "conv.weight", SAFETENSORS_F32, 2, (uint64_t[]){2, 3}, &e),
             e);
    CHECK_OK(safetensors_writer_add(w, "empty", SAFETENSORS_F32, 1, (uint64_t[]){0}, &e), e);
    CHECK_OK(safetensors_writer_add(w, "steps", SAFETENSORS_I64, 0, NULL, &e), e);
    CHECK_ERR(safetensors_writer_add(w, "steps", SAFETENSORS_I64, 0, NULL, &e), e, ERR_EXISTS,
              "steps");
    CHECK_OK(safetensors_writer_begin(w, sink, arg, &e), e);
    CHECK_OK(safetensors_writer_data(w, weights, 10, &e), e);
    CHECK_OK(safetensors_writer_data(w, (const char *)weights + 10, 14, &e), e);
    CHECK_ERR(safetensors_writer_end(w, &e), e, ERR_INVALID, "32 bytes were declared, 24 given");
    CHECK_OK(safetensors_writer_data(w, &steps, 8, &e), e);
    CHECK_ERR(safetensors_writer_data(w, &steps, 1, &e), e, ERR_INVALID, "more bytes");
    CHECK_OK(safetensors_writer_end(w, &e), e);
    safetensors_writer_free(w);
}

static void check_model(safetensors *s)
{
    err e = ERR_INIT;
    CHECK_INT(safetensors_count(s), 3);
    CHECK_STR(safetensors_metadata(s, "format"), "kubeml");
    CHECK(!safetensors_metadata(s, "other") && !safetensors_find(s, "other"));
    const safetensor *t = safetensors_find(s, "conv.weight");
    CHECK(t && t == safetensors_at(s, 0));
    CHECK(t->dtype == SAFETENSORS_F32 && t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 3);
    CHECK_INT(t->offset % 64, 0);
    float got[6];
    CHECK_OK(safetensors_read(s, t, 0, got, sizeof got, &e), e);
    CHECK(memcmp(got, weights, sizeof got) == 0);
    CHECK_ERR(safetensors_read(s, t, 20, got, 5, &e), e, ERR_INVALID, "of a tensor of 24");
    int64_t number;
    t = safetensors_find(s, "steps");
    CHECK(t && t->ndim == 0);
    CHECK_OK(safetensors_read(s, t, 0, &number, sizeof number, &e), e);
    CHECK_INT(number, 7);
}

TEST(a_model_comes_back_from_memory)
{
    err e = ERR_INIT;
    cleanup_buf buf b;
    buf_init(&b, 1 << 20);
    write_model(to_buf, &b);
    safetensors *s;
    CHECK_OK(safetensors_open_memory(b.bytes, b.len, &s, &e), e);
    check_model(s);
    safetensors_close(s);
    /* Cut anywhere, it is refused, and behind the header by the first tensor that is not whole. */
    size_t data = b.len - sizeof weights - sizeof steps;
    for (size_t len = 0; len < b.len; len++) {
        char *cut = malloc(len + 1);
        memcpy(cut, b.bytes, len);
        err_clear(&e);
        CHECK_INT(safetensors_open_memory(cut, len, &s, &e), -1);
        CHECK(e.code == ERR_CORRUPT);
        if (len >= data)
            CHECK_CONTAINS(e.message, len < data + sizeof weights
                                          ? "tensor \"conv.weight\": its bytes lie beyond the end"
                                          : "tensor \"steps\": its bytes lie beyond the end");
        free(cut);
    }
    err_clear(&e);
    CHECK_OK(buf_append(&b, "x", 1, &e), e);
    CHECK_ERR(safetensors_open_memory(b.bytes, b.len, &s, &e), e, ERR_CORRUPT,
              "tensor \"steps\": 1 bytes follow it, the last one");
}

/* At the place of the one that begins there, and after the last one, whatever their names. */
TEST(empty_tensors_have_no_place)
{
    static const char header[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                 "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}";
    char file[8 + sizeof header + 4] = {(char)(sizeof header - 1)};
    err e = ERR_INIT;
    safetensors *s;
    memcpy(file + 8, header, sizeof header - 1);
    CHECK_OK(safetensors_open_memory(file, 8 + sizeof header - 1 + 4, &s, &e), e);
    CHECK_INT(safetensors_count(s), 3);
    CHECK_INT(safetensors_find(s, "b")->bytes, 4);
    CHECK_INT(safetensors_find(s, "a")->bytes + safetensors_find(s, "c")->bytes, 0);
    safetensors_close(s);
}

enum { MANY = 3000 }; /* more than is converted at a time */

static void check_floats(safetensors_dtype dtype, const void *bytes, const float *want)
{
    err e = ERR_INIT;
    cleanup_buf buf b;
    buf_init(&b, 1 << 20);
    safetensors_writer *w;
    CHECK_OK(safetensors_writer_new(&w, &e), e);
    CHECK_OK(safetensors_writer_add(w, "x", dtype, 2, (uint64_t[]){MANY / 3, 3}, &e), e);
    CHECK_OK(safetensors_writer_begin(w, to_buf, &b, &e), e);
    CHECK_OK(safetensors_writer_data(w, bytes, MANY * safetensors_dtype_bytes(dtype), &e), e);
    CHECK_OK(safetensors_writer_end(w, &e), e);
    safetensors_writer_free(w);
    safetensors *s;
    const safetensor *t;
    float got[MANY];
    CHECK_OK(safetensors_open_memory(b.bytes, b.len, &s, &e), e);
    CHECK_OK(safetensors_require(s, "x", SAFETENSORS_F32, 2, (uint64_t[]){MANY / 3, 3}, &t, &e), e);
    CHECK_OK(safetensors_read_f32(s, t, got, &e), e);
    CHECK(memcmp(got, want, sizeof got) == 0);
    CHECK_ERR(safetensors_require(s, "x", SAFETENSORS_I64, 2, (uint64_t[]){MANY / 3, 3}, &t, &e), e,
              ERR_INVALID, ", not I64");
    safetensors_close(s);
}

TEST(floats_of_every_type_are_read_as_float32)
{
    static const struct {
        uint16_t half, bf16;
        double value;
    } all[] = {
        {0x3C00, 0x3F80, 1},       {0xC000, 0xC000, -2},     {0x0000, 0x0000, 0},
        {0x0001, 0x3380, 0x1p-24}, {0x7800, 0x4700, 0x1p15}, {0x3E00, 0x3FC0, 1.5},
    };
    static uint16_t half[MANY], bf16[MANY];
    static double wide[MANY];
    static float want[MANY];
    for (int i = 0; i < MANY; i++) {
        half[i] = all[i % 6].half;
        bf16[i] = all[i % 6].bf16;
        wide[i] = all[i % 6].value;
        want[i] = (float)all[i % 6].value;
    }
    check_floats(SAFETENSORS_F16, half, want);
    check_floats(SAFETENSORS_BF16, bf16, want);
    check_floats(SAFETENSORS_F64, wide, want);
    check_floats(SAFETENSORS_F32, want, want);
    for (int i = 0; i < MANY; i++) {
        wide[i] = 0.1 * i;
        want[i] = (float)wide[i];
    }
    check_floats(SAFETENSORS_F64, wide, want);
}

TEST(a_model_comes_back_from_a_blob)
{
    err e = ERR_INIT;
    char locator[512];
    snprintf(locator, sizeof locator, "lmdb:%s", test_tmp());
    store *s = store_open(locator, &e);
    CHECK(s);
    blob_writer *w;
    CHECK_OK(store_blob_begin(s, "models/1", &w, &e), e);
    write_model(safetensors_blob_sink, w);
    CHECK_OK(blob_commit(w, &e), e);
    blob *b;
    int fd;
    safetensors *t;
    CHECK_OK(store_blob_open(s, "models/1", &b, &e), e);
    CHECK_OK(blob_fd(b, &fd, &e), e);
    CHECK_OK(safetensors_open(fd, &t, &e), e);
    check_model(t);
    safetensors_close(t);
    blob_close(b);
    store_close(s);
}

static void check_refused(const char *header, size_t data, err_code code, const char *part)
{
    err e = ERR_INIT;
    size_t len = strlen(header);
    uint8_t *file = calloc(1, 8 + len + data);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)len >> (8 * i));
    memcpy(file + 8, header, len);
    safetensors *s;
    CHECK_ERR(safetensors_open_memory(file, 8 + len + data, &s, &e), e, code, part);
    free(file);
}

#define T(shape, from, to)                                                                         \
    "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

TEST(lies_are_refused)
{
    check_refused("", 0, ERR_CORRUPT, "header");
    check_refused("[]", 0, ERR_CORRUPT, "no object");
    check_refused("{\"a\":1}", 0, ERR_CORRUPT, "tensor \"a\"");
    check_refused("{\"a\":" T("[2]", "0", "8") "}", 7, ERR_CORRUPT, "\"a\": its bytes lie beyond");
    check_refused("{\"a\":" T("[2]", "8", "0") "}", 8, ERR_CORRUPT, "\"a\": its bytes lie beyond");
    check_refused("{\"a\":" T("[3]", "0", "8") "}", 8, ERR_CORRUPT, "\"a\": its shape and dtype");
    check_refused("{\"a\":" T("[-2]", "0", "8") "}", 8, ERR_CORRUPT, "\"a\": its shape has");
    check_refused("{\"a\":" T("[2.0]", "0", "8") "}", 8, ERR_CORRUPT, "\"a\": its shape has");
    check_refused("{\"a\":" T("[4294967296,4294967296,2]", "0", "0") "}", 0, ERR_CORRUPT,
                  "shape and dtype");
    check_refused("{\"a\":" T("[1,1,1,1,1,1,1,1,2]", "0", "8") "}", 8, ERR_CORRUPT, "at most 8");
    check_refused("{\"a\":" T("[1]", "4", "8") "}", 8, ERR_CORRUPT, "\"a\": there is a gap");
    check_refused("{\"a\":" T("[2]", "0", "8") ",\"b\":" T("[2]", "4", "12") "}", 12, ERR_CORRUPT,
                  "\"b\": it overlaps");
    check_refused("{\"a\":" T("[1]", "0", "4") ",\"b\":" T("[1]", "8", "12") "}", 12, ERR_CORRUPT,
                  "\"b\": there is a gap");
    check_refused("{\"a\":" T("[1]", "0", "4") ",\"a\":" T("[1]", "4", "8") "}", 8, ERR_CORRUPT,
                  "duplicate");
    check_refused("{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
                  ERR_CORRUPT, "\"a\": its dtype");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
                  ERR_CORRUPT, "alone");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, ERR_CORRUPT,
                  "two counts");
    check_refused("{\"__metadata__\":{\"a\":1}}", 0, ERR_CORRUPT, "__metadata__");
    check_refused("{}", 3, ERR_CORRUPT, "no tensors, and 3 bytes follow the header");
    check_refused("{\"\":" T("[1]", "0", "4") "}", 4, ERR_CORRUPT, "name is empty");
    check_refused("{\"a\xFF\":1}", 0, ERR_CORRUPT, "header");
    safetensors *s;
    err e = ERR_INIT;
    CHECK_ERR(safetensors_open_memory("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10, &s, &e), e,
              ERR_CORRUPT, "a header of 18446744073709551615 bytes, 2 are there");
    /* What torch.save and np.savez write, and torch.save of before 1.6. */
    err_clear(&e);
    CHECK_ERR(safetensors_open_memory("PK\3\4\0\0\10\10\0\0", 10, &s, &e), e, ERR_CORRUPT,
              "a zip file, as PyTorch's .pt and an .npz are; in Python: "
              "safetensors.torch.save_file(model.state_dict(), F)");
    err_clear(&e);
    CHECK_ERR(safetensors_open_memory("\x80\2\x8a\nl\xfc\x9c"
                                      "F\xf9 ",
                                      10, &s, &e),
              e, ERR_CORRUPT,
              "a pickle, as PyTorch's older .pt are; in Python: safetensors.torch.save_file");
    err_clear(&e);
    CHECK_ERR(safetensors_open_memory("\x80\4\x95\x10\0\0\0\0\0\0\0}", 12, &s, &e), e, ERR_CORRUPT,
              "a pickle, as");
    err_clear(&e); /* of 0x280 bytes, and cut */
    CHECK_ERR(safetensors_open_memory("\x80\2\0\0\0\0\0\0{\"", 10, &s, &e), e, ERR_CORRUPT,
              "cut, or of another format: a header of 640 bytes, 2 are there");
    const size_t large = SAFETENSORS_HEADER_BYTES_MAX + 1;
    char *long_header = calloc(1, 8 + large);
    for (int i = 0; i < 8; i++)
        long_header[i] = (char)(large >> (8 * i));
    err_clear(&e);
    CHECK_ERR(safetensors_open_memory(long_header, 8 + large, &s, &e), e, ERR_LIMIT,
              "a header of 1048577 bytes, more than 1048576");
    free(long_header);
    /* Depth is bounded by the JSON parser. */
    char *deep = malloc(100001);
    memset(deep, '[', 100000);
    deep[100000] = '\0';
    check_refused(deep, 0, ERR_CORRUPT, "header");
    free(deep);
}
