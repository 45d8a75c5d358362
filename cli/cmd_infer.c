/* cmd_infer.c: kubeml infer: samples from npy or JSON to the trained model, predictions to
 * stdout. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "cli.h"
#include "fs.h"
#include "npy.h"
#include "request.h"

enum { DATA_BYTES_MAX = 64 << 20 };

/* JSON has no word for it, so that the server could only say that this is no JSON. */
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

static int too_many(const array_head *head, uint64_t fit, err *e)
{
    if (e->code != ERR_LIMIT)
        return -1;
    return err_set(e, ERR_LIMIT,
                   "%llu samples are more than the %d bytes of JSON that a request may have; the "
                   "first %llu fit",
                   (unsigned long long)head->shape[0], REQUEST_INFER_BYTES_MAX,
                   (unsigned long long)fit);
}

/* The numbers [at, at + n) of the array, as nested JSON lists; `dim` is the outermost of them. */
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
            append_nested(head, numbers, dim + 1, at + i * stride, stride, out, e) ||
            (dim == 0 && buf_reserve(out, 2, e))) /* "]}" behind the last sample */
            return dim ? -1 : too_many(head, i, e);
    return buf_append(out, "]", 1, e);
}

static int npy_to_json(const buf *file, buf *out, err *e)
{
    array_head head;
    int found = npy_parse((const uint8_t *)file->bytes, file->len, &head, e);
    if (found < 0)
        return -1;
    if (found == 0 || head.data_offset + head.data_bytes > file->len)
        return err_set(e, ERR_CORRUPT, "the npy file is cut short: %zu bytes", file->len);
    uint64_t n = head.data_bytes / array_dtype_bytes(head.dtype);
    return append_nested(&head, file->bytes + head.data_offset, 0, 0, n, out, e);
}

/* {"model_id": ID, "data": ...} */
static int build_request(const char *id, const char *path, buf *out, err *e)
{
    cleanup_buf buf file;
    buf_init(&file, DATA_BYTES_MAX);
    if (fs_read_file(path, &file, e))
        return -1;
    cleanup_free char *quoted = NULL;
    json_t *name = json_string(id);
    quoted = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
    json_decref(name);
    if (!quoted)
        return err_set(e, ERR_INVALID, "the id is not UTF-8");
    if (buf_printf(out, e, "{\"model_id\":%s,\"data\":", quoted))
        return -1;
    bool npy = file.len >= 6 && npy_is((const uint8_t *)file.bytes, file.len);
    if (!npy && file.len > REQUEST_INFER_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes are over the limit of %d", path, file.len,
                       REQUEST_INFER_BYTES_MAX);
    json_error_t where;
    json_t *list = npy ? NULL : json_loadb(file.bytes ? file.bytes : "", file.len, 0, &where);
    if (!npy && !list)
        return err_set(e, ERR_INVALID, "%s: neither npy nor JSON: line %d, column %d: %s", path,
                       where.line, where.column, where.text);
    json_decref(list);
    int status = npy ? npy_to_json(&file, out, e) : buf_append(out, file.bytes, file.len, e);
    if (status)
        return err_wrap(e, "%s", path);
    return buf_append(out, "}", 1, e);
}

enum { REAL_DIGITS = 12 }; /* as the platform writes them */

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
    const char *id = NULL, *path = NULL, *format = "text";
    const cli_option options[] = {
        {"network", 'n', OPTION_TEXT, "ID", "the job whose model answers", &id, NULL, true, false},
        {"datafile", 0, OPTION_TEXT, "FILE", "samples: npy, or JSON lists", &path, NULL, true,
         false},
        OUTPUT_OPTION("text json yaml", "text, json or yaml; json has the logits too", &format),
        {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    err e = ERR_INIT;
    cleanup_buf buf body;
    buf_init(&body, REQUEST_INFER_BYTES_MAX);
    if (build_request(id, path, &body, &e))
        return cli_fail(&e);
    http_call call = {
        .method = "POST", .body = body.bytes, .body_len = body.len, .idle_s = CLI_BUSY_S};
    http_reply reply;
    int status = cli_call_raw(c, &call, "/infer", &reply, &e);
    json_t *answer = status ? NULL : http_reply_json(&reply, &e);
    http_reply_free(&reply);
    if (!answer)
        return cli_fail(&e);
    if (strcmp(format, "text") == 0)
        print_predictions(answer);
    else
        output_value(answer, format);
    json_decref(answer);
    return CLI_OK;
}
