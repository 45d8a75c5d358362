/* cmd_infer.c: kubeml infer: sends samples from npy, IDX or JSON files to a trained model, and
 * prints the predictions. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "cli.h"
#include "common/base/cleanup.h"
#include "common/contract/limits.h"
#include "common/contract/request.h"
#include "common/formats/idx.h"
#include "common/formats/npy.h"

enum {
    DATA_BYTES_MAX = 1 << 30,
    PIECE_BYTES = 1 << 20,
    /* A request gets no further sample after so many bytes of JSON: the server has room for four
     * such requests, one for each of its runtimes, but not for two of the largest requests. */
    SLICE_BYTES = 2 << 20,
};

/* Sets an error that names the place of a value that is not finite. JSON has no such value, so that
 * the server could only report invalid JSON. */
static int not_finite(const array_head *head, uint64_t at, float value, err *e)
{
    char place[160] = "";
    for (int dim = head->ndim - 1; dim >= 0; dim--) {
        char rest[sizeof place];
        snprintf(rest, sizeof rest, "%s", place);
        snprintf(place, sizeof place, "%s%llu%.120s", dim ? ", " : "",
                 (unsigned long long)(at % head->shape[dim]), rest);
        at /= head->shape[dim];
    }
    return err_set(e, ERR_INVALID, "%s at [%s]", isnan(value) ? "NaN" : "an infinite value", place);
}

/* Appends the numbers [at, at + n) of the array as nested JSON lists, from dimension `dim` on. */
static int append_nested(const array_head *head, const char *numbers, int dim, uint64_t at,
                         uint64_t n, buf *out, err *e)
{
    if (dim == head->ndim) {
        float value;
        array_to_f32(head->dtype, head->swap, numbers + at * array_dtype_bytes(head->dtype), &value,
                     1);
        if (!isfinite(value))
            return not_finite(head, at, value, e);
        return buf_printf(out, e, "%.9g", (double)value);
    }
    uint64_t stride = head->shape[dim] ? n / head->shape[dim] : 0;
    if (buf_append(out, "[", 1, e))
        return -1;
    for (uint64_t i = 0; i < head->shape[dim]; i++)
        if ((i && buf_append(out, ",", 1, e)) ||
            append_nested(head, numbers, dim + 1, at + i * stride, stride, out, e))
            return -1;
    return buf_append(out, "]", 1, e);
}

/* The samples: the array of a file, or the text of a JSON file. */
typedef struct samples {
    buf file;
    bool is_array;
    array_head head;
} samples;

/* Reads a file, and unpacks a .gz; "-" is standard input. */
static int read_whole(const char *path, buf *out, err *e)
{
    int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    gzFile in = fd < 0 ? NULL : gzdopen(fd, "rb");
    int got = -1, number;
    if (!in) {
        err_set_errno(e, errno, "%s", path);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    while (buf_reserve(out, PIECE_BYTES, e) == 0 &&
           (got = gzread(in, out->bytes + out->len, PIECE_BYTES)) > 0)
        out->len += (size_t)got;
    const char *why = gzerror(in, &number);
    if (got > 0)
        err_wrap(e, "%s", path);
    else if (number == Z_ERRNO)
        got = err_set_errno(e, errno, "%s", path);
    else if (number != Z_OK && number != Z_STREAM_END)
        got = err_set(e, ERR_CORRUPT, "%s: %s", path, why);
    gzclose(in);
    return got ? -1 : 0;
}

static int check_json(const char *path, const buf *text, err *e)
{
    json_error_t where;
    if (text->len > REQUEST_INFER_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes are over the limit of %d", path, text->len,
                       REQUEST_INFER_BYTES_MAX);
    json_t *list = json_loadb(text->bytes, text->len, 0, &where);
    if (!list)
        return err_set(e, ERR_INVALID, "%s: neither npy, IDX nor JSON: line %d, column %d: %s",
                       path, where.line, where.column, where.text);
    json_decref(list);
    return 0;
}

static int read_samples(const char *path, samples *s, err *e)
{
    if (read_whole(path, &s->file, e))
        return -1;
    const uint8_t *bytes = (const uint8_t *)s->file.bytes;
    size_t len = s->file.len;
    bool npy = len >= 6 && npy_is(bytes, len), idx = len >= 4 && idx_is(bytes, len);
    s->is_array = npy || idx;
    if (!s->is_array)
        return check_json(path, &s->file, e);
    int found = (npy ? npy_parse : idx_parse)(bytes, len, &s->head, e);
    if (found < 0)
        return err_wrap(e, "%s", path);
    if (found == 0 || s->head.data_offset + s->head.data_bytes > len)
        return err_set(e, ERR_CORRUPT, "%s: the file is cut short: %zu bytes", path, len);
    return s->head.ndim ? 0 : err_set(e, ERR_INVALID, "%s: a single number, and no samples", path);
}

/* The samples of one request: as many as there is room for. */
typedef struct slice {
    uint64_t from, to; /* [from, to); append_samples sets `to` */
    uint64_t most;     /* at most so many samples */
    size_t bytes;      /* no further sample after so many bytes of JSON */
} slice;

static int append_samples(const samples *s, slice *part, buf *out, err *e)
{
    const array_head *head = &s->head;
    uint64_t count = head->shape[0], from = part->from, at = from;
    uint64_t stride = count ? head->data_bytes / array_dtype_bytes(head->dtype) / count : 0;
    if (buf_append(out, "[", 1, e))
        return -1;
    for (; at < count && at - from < part->most && (at == from || out->len < part->bytes); at++) {
        size_t before = out->len;
        err why = ERR_INIT;
        if ((at == from || buf_append(out, ",", 1, &why) == 0) &&
            append_nested(head, s->file.bytes + head->data_offset, 1, at * stride, stride, out,
                          &why) == 0 &&
            buf_reserve(out, 2, &why) == 0) /* "]}" */
            continue;
        if (why.code == ERR_LIMIT && at == from)
            return err_set(e, ERR_LIMIT,
                           "a sample is more than the %d bytes of JSON that a request may have",
                           REQUEST_INFER_BYTES_MAX);
        if (why.code != ERR_LIMIT)
            return err_set(e, why.code, "%s", why.message);
        out->len = before;
        break;
    }
    part->to = at;
    return buf_append(out, "]", 1, e);
}

/* {"model_id": ID, "data": ...} */
static int build_request(const char *id, const samples *s, slice *part, buf *out, err *e)
{
    cleanup_free char *quoted = NULL;
    json_t *name = json_string(id);
    quoted = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
    json_decref(name);
    if (!quoted)
        return err_set(e, ERR_INVALID, "the id is not UTF-8");
    if (buf_printf(out, e, "{\"model_id\":%s,\"data\":", quoted))
        return -1;
    int status = s->is_array ? append_samples(s, part, out, e)
                             : buf_append(out, s->file.bytes, s->file.len, e);
    return status ? -1 : buf_append(out, "}", 1, e);
}

static int ask(const cli *c, const buf *body, json_t **answer, err *e)
{
    http_call call = {
        .method = "POST", .body = body->bytes, .body_len = body->len, .idle_s = CLI_BUSY_S};
    http_reply reply;
    int status = cli_call_raw(c, &call, "/infer", &reply, e);
    *answer = status ? NULL : http_reply_json(&reply, e);
    http_reply_free(&reply);
    return *answer ? 0 : -1;
}

/* Appends the response for the next samples to `*all` (NULL: no response yet). Takes `more`. */
static void add_answer(json_t **all, json_t *more)
{
    static const char *const lists[] = {"predictions", "logits"};
    if (!*all) {
        *all = more;
        return;
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        json_array_extend(json_object_get(*all, lists[i]), json_object_get(more, lists[i]));
    json_decref(more);
}

/* Adds the samples' numbers to the error of a request that has only a part of the samples. */
static int slice_failed(const slice *part, uint64_t count, err *e)
{
    if (part->from)
        err_wrap(e, "samples %llu to %llu", (unsigned long long)part->from + 1,
                 (unsigned long long)part->to);
    else if (e->code == ERR_INVALID && part->to < count)
        err_wrap(e, "%llu of %llu, as a request has %d bytes (a single sample must fit)",
                 (unsigned long long)part->to, (unsigned long long)count, REQUEST_INFER_BYTES_MAX);
    return -1;
}

/* Sends the samples in as many requests as needed. If the server reports that a response has no
 * room (ERR_LIMIT), the next request has half as many samples. If it refuses the first part
 * (ERR_INVALID), the array may be a single sample, which must go as a whole: the next request has
 * as much as fits. */
static int infer_all(const cli *c, const char *id, const char *path, const samples *s, json_t **all,
                     err *e)
{
    uint64_t count = s->is_array ? s->head.shape[0] : 0;
    slice part = {.most = LIMITS_INFER_SAMPLES_MAX, .bytes = SLICE_BYTES};
    do {
        cleanup_buf buf body;
        json_t *answer;
        buf_init(&body, REQUEST_INFER_BYTES_MAX);
        if (build_request(id, s, &part, &body, e))
            return err_wrap(e, "%s", path);
        if (ask(c, &body, &answer, e) == 0) {
            add_answer(all, answer);
            part.from = part.to;
        } else if (e->code == ERR_LIMIT && part.to - part.from > 1) {
            part.most = (part.to - part.from) / 2;
            err_clear(e);
        } else if (e->code == ERR_INVALID && part.from == 0 && part.to < count &&
                   part.bytes < REQUEST_INFER_BYTES_MAX) {
            part.bytes = REQUEST_INFER_BYTES_MAX;
            err_clear(e);
        } else {
            return slice_failed(&part, count, e);
        }
    } while (part.from < count);
    return 0;
}

enum { REAL_DIGITS = 12 }; /* as in the platform's responses */

static void print_predictions(const json_t *answer)
{
    const json_t *predictions = json_object_get(answer, "predictions");
    size_t i;
    json_t *value;
    json_array_foreach(predictions, i, value)
    {
        char *text =
            json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(REAL_DIGITS));
        printf("%s%s", i ? " " : "", text ? text : "?");
        free(text);
    }
    putchar('\n');
}

int cmd_infer(cli *c, int argc, char **argv)
{
    const char *id = NULL, *given = NULL, *path = NULL, *format = "text";
    const cli_option options[] = {
        {"network", 'n', OPTION_TEXT, "ID", "the job whose model answers", &id, NULL, false, false},
        {"datafile", 0, OPTION_TEXT, "FILE", "samples: npy, IDX (also .gz) or JSON lists", &path,
         NULL, true, false},
        OUTPUT_OPTION("text json yaml", "text, json or yaml; json includes the logits", &format),
        {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 1, &given);
    if (given && id)
        return cli_usage(c, "\"%s\" is too much: --network is given", given);
    if (!given && !id)
        return cli_usage(c, "which job?");
    err e = ERR_INIT;
    samples s = {.is_array = false};
    json_t *answer = NULL;
    buf_init(&s.file, DATA_BYTES_MAX);
    int status =
        read_samples(path, &s, &e) || infer_all(c, given ? given : id, path, &s, &answer, &e);
    buf_free(&s.file);
    if (status)
        cli_fail(&e);
    else if (strcmp(format, "text") == 0)
        print_predictions(answer);
    else
        output_value(answer, format);
    json_decref(answer);
    return status ? CLI_FAILED : CLI_OK;
}
