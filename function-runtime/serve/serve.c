/* serve.c: see serve.h. */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/contract/infer_answer.h"
#include "common/dataset/dataset.h"
#include "function-runtime/base/crash.h"
#include "function-runtime/base/fetch.h"
#include "function-runtime/base/model_file.h"
#include "function-runtime/base/samples.h"
#include "function-runtime/model/program.h"
#include "function-runtime/sandbox/sandbox.h"

enum { REPLY_MS = 60000 };

typedef struct server {
    dataset_info info;
    program *program;
    engine *engine;
    engine_config config;
    float *scale, *shift; /* (C) */
} server;

static void server_free(server *s)
{
    engine_free(s->engine);
    program_close(s->program);
    dataset_info_free(&s->info);
    free(s->scale);
    free(s->shift);
    crash_over();
}

/* ---- loading --------------------------------------------------------------------------------- */

/* The model and its code: files of this host, or blobs of the store. */
typedef struct places {
    int model_fd, object_fd; /* -1: not open */
    const char *object_path; /* NULL: none */
} places;

static int load_program(server *s, const char *object, const places *p, err *e)
{
    sandbox walls = {.open_files = 64,
                     .file_bytes = SERVE_LOG_BYTES_MAX,
                     .read_folders = {p->object_path, NULL}};
    char report[SANDBOX_REPORT_BYTES];
    crash_watch("the model's code");
    crash_phase("load the code", -1, -1);
    if (sandbox_enter(&walls, report, e) != 0)
        return -1;
    if (object && strncmp(object, "zoo:", 4) == 0)
        return program_open_zoo(object + 4, &s->program, e);
    if (p->object_fd >= 0)
        return program_open_fd(p->object_fd, &s->program, e);
    if (!p->object_path)
        return err_set(e, ERR_INVALID, "serve: field object_path is missing");
    return program_open_object(p->object_path, &s->program, e);
}

static int compile(server *s, err *e)
{
    engine_config *c = &s->config;
    program_warn(s->program);
    program_config(s->program, &s->info, c);
    c->input = (shape){3, (int)s->info.channels, (int)s->info.height, (int)s->info.width};
    c->batch = SERVE_BATCH;
    c->threads = 1;
    c->backend = "cpu"; /* serving has no place on a GPU */
    c->inference = true;
    c->blank = true; /* a trained model is loaded next */
    crash_phase("make the model", -1, -1);
    if (engine_compile(c, &s->engine, e) != 0)
        return -1;
    s->scale = calloc(s->info.channels, sizeof *s->scale);
    s->shift = calloc(s->info.channels, sizeof *s->shift);
    if (!s->scale || !s->shift)
        return err_set(e, ERR_NOMEM, "no memory");
    transform_scale(program_transform(s->program), &s->info, s->scale, s->shift);
    return 0;
}

static int find_places(const json_t *order, const char *object, places *p, err *e)
{
    const char *model_path = json_string_value(json_object_get(order, "model_path"));
    const char *path = json_string_value(json_object_get(order, "object_path"));
    const char *model = json_string_value(json_object_get(order, "model"));
    const char *from = json_string_value(json_object_get(order, "store"));
    if (model_path) {
        p->object_path = path && *path ? path : NULL;
        p->model_fd = open(model_path, O_RDONLY | O_CLOEXEC);
        return p->model_fd < 0 ? err_set_errno(e, errno, "model") : 0;
    }
    if (!model || !from)
        return err_set(e, ERR_INVALID, "serve: there is neither model_path nor store and model");
    cleanup_free char *locator = strdup(from);
    return locator ? fetch(locator, object, &p->object_fd, model, &p->model_fd, e)
                   : err_set(e, ERR_NOMEM, "no memory");
}

static int load(server *s, const json_t *order, err *e)
{
    const char *object = json_string_value(json_object_get(order, "object"));
    places p = {.model_fd = -1, .object_fd = -1};
    if (dataset_info_parse(json_object_get(order, "dataset"), &s->info, e) != 0)
        return err_wrap(e, "serve: field dataset");
    int rc = find_places(order, object, &p, e);
    if (rc == 0 && (rc = load_program(s, object, &p, e)) == 0 && (rc = compile(s, e)) == 0 &&
        (rc = model_file_load(s->engine, p.model_fd, NULL, e)) != 0)
        err_wrap(e, "model");
    if (p.object_fd >= 0)
        close(p.object_fd);
    if (p.model_fd >= 0)
        close(p.model_fd);
    return rc;
}

/* ---- answering ------------------------------------------------------------------------------- */

/* Adds a sample's outputs and its class, or targets. Refuses values that are not finite: JSON
 * cannot have them, and they have no maximum. */
static int add_row(const server *s, const float *logits, int outputs, json_t *rows, json_t *classes,
                   err *e)
{
    cleanup_json json_t *row = json_array();
    int best = 0;
    for (int i = 0; i < outputs; i++) {
        if (!isfinite(logits[i]))
            return err_set(e, ERR_INVALID, "the model's outputs are not finite: sample %zu",
                           json_array_size(rows) + 1);
        best = logits[i] > logits[best] ? i : best;
        if (json_array_append_new(row, json_real((double)logits[i])) != 0)
            return err_set(e, ERR_NOMEM, "no memory for the answer");
    }
    json_t *answer =
        s->config.loss == LOSS_CROSS_ENTROPY ? json_integer(best) : json_deep_copy(row);
    if (json_array_append(rows, row) != 0 || json_array_append_new(classes, answer) != 0)
        return err_set(e, ERR_NOMEM, "no memory for the answer");
    return 0;
}

/* Checks that the answer fits into a frame, whatever its numbers are. */
static int check_length(const server *s, size_t n, err *e)
{
    bool classes = s->config.loss == LOSS_CROSS_ENTROPY;
    size_t each = infer_sample_bytes((size_t)engine_outputs(s->engine), classes);
    size_t most = (WIRE_FRAME_BYTES_MAX - INFER_HEAD_BYTES) / each;
    return n <= most
               ? 0
               : err_set(e, ERR_LIMIT,
                         "the answer to %zu samples could be over %d MiB: at most %zu samples "
                         "of this model at once",
                         n, WIRE_FRAME_BYTES_MAX >> 20, most);
}

static int compute(server *s, const samples *in, json_t *rows, json_t *classes, err *e)
{
    size_t each = dataset_sample_values(&s->info);
    int outputs = engine_outputs(s->engine);
    cleanup_free float *logits = malloc((size_t)SERVE_BATCH * (size_t)outputs * sizeof *logits);
    if (!logits)
        return err_set(e, ERR_NOMEM, "no memory for the answer");
    for (size_t at = 0; at < in->n; at += SERVE_BATCH) {
        size_t left = in->n - at;
        engine_batch b = {.n = (int)(left < SERVE_BATCH ? left : SERVE_BATCH),
                          .type = INPUT_FLOAT,
                          .x = in->values + at * each,
                          .scale = s->scale,
                          .shift = s->shift};
        if (engine_infer(s->engine, &b, logits, e) != 0)
            return -1;
        for (int i = 0; i < b.n; i++)
            if (add_row(s, logits + (size_t)i * (size_t)outputs, outputs, rows, classes, e) != 0)
                return -1;
    }
    return 0;
}

static json_t *infer(server *s, const json_t *request, err *e)
{
    shape one = {3, (int)s->info.channels, (int)s->info.height, (int)s->info.width};
    samples in;
    if (samples_read(json_object_get(request, "data"), one, LIMITS_INFER_SAMPLES_MAX, &in, e) != 0)
        return NULL;
    cleanup_json json_t *rows = json_array(), *classes = json_array();
    int rc = check_length(s, in.n, e) != 0 ? -1 : compute(s, &in, rows, classes, e);
    free(in.values);
    return rc != 0 ? NULL
                   : json_pack("{s:s,s:{s:O,s:O}}", "type", "predictions", "data", "predictions",
                               classes, "logits", rows);
}

static json_t *failure(const char *reason, const err *e)
{
    return json_pack("{s:s,s:s,s:s,s:s}", "type", "failed", "code", err_name(e->code), "reason",
                     reason, "message", e->message);
}

/* Sends a reply. If it is too long for a frame, sends `failed` instead; none of the reply is sent
 * then. */
static int send_answer(wire *w, const json_t *reply, err *e)
{
    err bad = ERR_INIT;
    if (wire_send_wait(w, reply, clock_deadline_ms(REPLY_MS), &bad) == 0)
        return 0;
    if (bad.code == ERR_LIMIT) {
        cleanup_json json_t *told = failure("Failed", &bad);
        return told ? wire_send_wait(w, told, clock_deadline_ms(REPLY_MS), e) : -1;
    }
    *e = bad;
    return -1;
}

static int answer_all(server *s, wire *w, err *e)
{
    for (;;) {
        cleanup_json json_t *request = NULL, *reply = NULL;
        err bad = ERR_INIT;
        if (wire_receive_wait(w, &request, clock_deadline_ms(-1), e) != 0)
            return e->code == ERR_UNAVAILABLE ? 0 : -1;
        if (strcmp(wire_type(request), "infer") != 0)
            err_set(&bad, ERR_UNSUPPORTED, "a serving runtime answers infer alone");
        else
            reply = infer(s, request, &bad);
        if (!reply)
            reply = failure("Failed", &bad);
        if (!reply || send_answer(w, reply, e) != 0)
            return -1;
    }
}

int serve(const json_t *order, wire *w, err *e)
{
    server s = {0};
    wire_set_limit(w, WIRE_FRAME_BYTES_MAX);
    /* More than the controller accepts: its frame is a little larger than the client's request. */
    wire_set_values_limit(w, json_values_max(LIMITS_INFER_BYTES_MAX) + WIRE_FRAME_BYTES_MAX);
    int rc = load(&s, order, e);
    cleanup_json json_t *told =
        rc == 0 ? json_pack("{s:s,s:i}", "type", "serving", "outputs", engine_outputs(s.engine))
                : failure("LoadFailed", e);
    if (!told || wire_send_wait(w, told, clock_deadline_ms(REPLY_MS), rc == 0 ? e : NULL) != 0)
        rc = -1;
    if (rc == 0) {
        crash_phase("infer", -1, -1);
        log_info("serving %s", program_name(s.program));
        rc = answer_all(&s, w, e);
    }
    server_free(&s);
    return rc;
}
