/* trainer.c: see trainer.h. */
#include "trainer.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "function-runtime/base/crash.h"
#include "loader.h"

enum {
    /* batches of one call; not more, so that a loss of NaN is found soon */
    SHARE_BATCHES = 64,
};

/* Whether the engine keeps the training set's samples on its device, so that batches are not
 * sent. */
typedef enum share_state { SHARE_UNASKED, SHARE_KEPT, SHARE_NOT } share_state;

struct trainer {
    trainer_config config;
    share_state share;
    engine *engine;
    state *state;
    loader *loader;
    bool regression;
    bool begun; /* it has trained a batch */
    char reason[TRAINER_REASON_BYTES];
    _Atomic uint32_t progress;
};

static void set_reason(char out[TRAINER_REASON_BYTES], const char *reason)
{
    snprintf(out, TRAINER_REASON_BYTES, "%s", reason);
}

/* Checks that the dataset's labels suit the loss and the number of outputs. */
static int check_labels(const dataset_info *d, const engine_config *c, int outputs, err *e)
{
    if (c->loss == LOSS_CROSS_ENTROPY && d->classes == 0)
        return err_set(e, ERR_INVALID,
                       "dataset %s has targets for regression, the function's loss needs labels of "
                       "classes",
                       d->name);
    if (c->loss == LOSS_CROSS_ENTROPY && d->classes > (uint32_t)outputs)
        return err_set(e, ERR_INVALID,
                       "dataset %s has labels up to %u, the model has %d outputs (labels 0 to %d)",
                       d->name, d->classes - 1, outputs, outputs - 1);
    if (c->loss == LOSS_MSE && d->targets == 0)
        return err_set(
            e, ERR_INVALID,
            "dataset %s has labels of classes, the function's loss KML_MSE needs targets "
            "(uploaded with --regression)",
            d->name);
    if (c->loss == LOSS_MSE && d->targets != (uint32_t)outputs)
        return err_set(e, ERR_INVALID,
                       "dataset %s has %u targets a sample, the model has %d outputs", d->name,
                       d->targets, outputs);
    return 0;
}

static shape input_of(const dataset_info *d)
{
    return (shape){3, (int)d->channels, (int)d->height, (int)d->width};
}

static int misfit(const dataset_info *d, err *e)
{
    return err_wrap(e, "model for samples of (%u, %u, %u)", d->channels, d->height, d->width);
}

int trainer_shape_check(program *p, const dataset_info *d, err *e)
{
    engine_config c = {0};
    program_config(p, d, &c);
    if (transform_check(program_transform(p), d, e) != 0)
        return -1;
    graph *g = graph_new(input_of(d));
    if (!g)
        return err_set(e, ERR_NOMEM, "no memory for the model's graph");
    int out = c.build(g, 0, c.outputs, c.user);
    int rc = graph_finish(g, out, c.outputs, e) ? misfit(d, e)
                                                : check_labels(d, &c, graph_shape(g, out).c, e);
    graph_free(g);
    return rc;
}

/* The reason for an error of the GPU itself, which neither the code nor the data has caused; NULL:
 * it is another error. The code alone does not decide: host memory may be gone too, and the store
 * of a dataset may be away. So the text decides, which kernels/cuda writes for errors of the GPU.
 * `m` is NULL if there is no engine. */
static const char *blames_gpu(const engine *m, const err *e)
{
    if (!e || (m && strcmp(engine_backend(m), "cuda") != 0))
        return NULL;
    bool memory = strstr(e->message, " of GPU memory");
    if (!memory && !strstr(e->message, "the GPU says: ") && !strstr(e->message, " on the GPU: "))
        return NULL;
    if (e->code == ERR_LIMIT && memory)
        return "GpuMemory"; /* over the cap */
    return e->code == ERR_UNAVAILABLE ? "GpuFailed" : e->code == ERR_NOMEM ? "GpuMemory" : NULL;
}

static int compile(trainer *t, char *reason, err *e)
{
    const dataset_info *d = dataset_get_info(t->config.data);
    engine_config c = {0};
    program_config(t->config.program, d, &c);
    c.input = input_of(d);
    c.batch = t->config.batch;
    c.backend = t->config.backend;
    c.threads = t->config.threads;
    c.seed = t->config.seed;
    c.blank = t->config.blank;
    c.precision = t->config.precision;
    c.device_memory = t->config.device_memory;
    c.programs = t->config.together;
    c.device = t->config.device;
    t->regression = c.loss == LOSS_MSE;
    set_reason(reason, "ShapeMismatch");
    if (transform_check(program_transform(t->config.program), d, e) != 0)
        return -1;
    crash_phase("make the model", -1, -1);
    if (engine_compile(&c, &t->engine, e) != 0) {
        if (e && e->code != ERR_INVALID)
            set_reason(reason, blames_gpu(NULL, e) ?: "LoadFailed");
        return misfit(d, e);
    }
    if (check_labels(d, &c, engine_outputs(t->engine), e) != 0)
        return -1;
    set_reason(reason, "LoadFailed");
    return state_open(t->engine, !t->config.reset_optimizer, &t->state, e);
}

int trainer_open(const trainer_config *c, trainer **out, char reason[TRAINER_REASON_BYTES], err *e)
{
    set_reason(reason, "LoadFailed");
    trainer *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for the trainer");
    t->config = *c;
    loader_config l = {.data = c->data,
                       .transform = program_transform(c->program),
                       .seed = c->seed,
                       .batch = c->batch};
    int rc = compile(t, reason, e);
    l.regression = t->regression;
    if (rc != 0 || loader_open(&l, &t->loader, e) != 0) {
        trainer_close(t);
        return -1;
    }
    *out = t;
    return 0;
}

void trainer_close(trainer *t)
{
    if (!t)
        return;
    state_close(t->state);
    engine_free(t->engine);
    loader_close(t->loader); /* the engine's share reads from it */
    free(t);
}

int trainer_draw(trainer *t, err *e)
{
    return engine_draw(t->engine, e);
}

state *trainer_state(trainer *t)
{
    return t->state;
}

engine *trainer_engine(trainer *t)
{
    return t->engine;
}

const char *trainer_reason(const trainer *t)
{
    return t->reason;
}

uint32_t trainer_progress(const trainer *t)
{
    return atomic_load_explicit(&t->progress, memory_order_relaxed);
}

static void advance(void *of, uint32_t batches)
{
    trainer *t = of;
    atomic_fetch_add_explicit(&t->progress, batches, memory_order_relaxed);
}

int trainer_batches(trainer *t, uint32_t epoch, int parallelism, int function, uint32_t *out,
                    err *e)
{
    return loader_batches(t->loader, epoch, parallelism, function, out, e);
}

static double seconds_since(int64_t *from_ns)
{
    int64_t now = clock_monotonic_ns();
    double s = (double)(now - *from_ns) * 1e-9;
    *from_ns = now;
    return s;
}

static void count(trainer *t, const engine_result *r, trainer_result *out)
{
    out->samples += (uint64_t)r->n;
    out->loss_sum += r->loss_sum;
    out->correct += r->correct;
    out->batches++;
    out->convert_s += r->convert_s;
    advance(t, 1);
}

static void tell_begun(trainer *t)
{
    if (t->begun)
        return;
    t->begun = true;
    if (t->config.begun)
        t->config.begun(t->config.begun_of);
}

/* Sets the reason if the GPU is at fault. Returns -1. */
static int failed(trainer *t, const err *e)
{
    const char *gpu = blames_gpu(t->engine, e);
    if (gpu)
        set_reason(t->reason, gpu);
    return -1;
}

static int train_batches(trainer *t, const trainer_task *task, uint32_t batches,
                         trainer_result *out, err *e)
{
    engine_batch b;
    int64_t clock_ns = clock_monotonic_ns();
    for (;;) {
        set_reason(t->reason, "DataError");
        int more = loader_next(t->loader, &b, e);
        out->load_s += seconds_since(&clock_ns);
        if (more <= 0)
            return more;
        uint32_t batch = task->batch_begin + out->batches;
        schedule_point at = {.epoch = (int)task->epoch,
                             .step = batch,
                             .steps = batches,
                             .history = task->history,
                             .history_count = task->history_count};
        double lr = program_lr(t->config.program, task->lr, t->config.epochs, &at);
        engine_result r;
        set_reason(t->reason, program_has_step(t->config.program) ? "StepFailed" : "ShapeMismatch");
        if (program_step(t->config.program, t->engine, &b, lr, &r, e) != 0)
            return failed(t, e);
        set_reason(t->reason, "NaNLoss");
        if (!isfinite(r.loss_sum))
            return err_set(
                e, ERR_INVALID,
                "the loss is %s in epoch %u, batch %u of function %d: training diverged at "
                "learning rate %g",
                isnan(r.loss_sum) ? "NaN" : "infinite", task->epoch + 1, batch + 1, task->function,
                lr);
        count(t, &r, out);
        out->train_s += seconds_since(&clock_ns) - r.convert_s;
        tell_begun(t);
        failpoint("function.train");
    }
}

/* ---- with the samples on the device ---------------------------------------------------------- */

/* Offers the training set to the engine, once. If the engine does not keep it, batches are sent. */
static void offer_share(trainer *t)
{
    err why = ERR_INIT;
    backend_share s;
    t->share = SHARE_NOT;
    if (program_has_step(t->config.program) || !engine_keeps_share(t->engine))
        return;
    if (loader_share(t->loader, &s, &why) == 0 && engine_share(t->engine, &s, &why) == 0)
        t->share = SHARE_KEPT;
    if (t->share == SHARE_KEPT)
        log_info("the %s backend keeps the training set", engine_backend(t->engine));
    else
        log_info("samples travel with every batch: %s", why.message);
}

static int train_some(trainer *t, const trainer_task *task, uint32_t batches, const uint32_t *order,
                      uint32_t rows, double *lr, trainer_result *out, err *e)
{
    int batch = t->config.batch;
    uint32_t count = (rows - 1) / (uint32_t)batch + 1, first = task->batch_begin + out->batches;
    engine_result r;
    for (uint32_t i = 0; i < count; i++) {
        schedule_point at = {.epoch = (int)task->epoch,
                             .step = first + i,
                             .steps = batches,
                             .history = task->history,
                             .history_count = task->history_count};
        lr[i] = program_lr(t->config.program, task->lr, t->config.epochs, &at);
    }
    set_reason(t->reason, "ShapeMismatch");
    backend_steps s = {.order = order,
                       .rows = rows,
                       .batch = batch,
                       .epoch = task->epoch,
                       .lr = lr,
                       .done = advance,
                       .done_of = t};
    if (engine_train_share(t->engine, &s, &r, e) != 0)
        return failed(t, e);
    set_reason(t->reason, "NaNLoss");
    if (!isfinite(r.loss_sum))
        return err_set(
            e, ERR_INVALID,
            "the loss is %s in epoch %u, within batches %u to %u of function %d: training diverged at "
            "learning rate %g",
            isnan(r.loss_sum) ? "NaN" : "infinite", task->epoch + 1, first + 1, first + count,
            task->function, lr[0]);
    out->samples += rows;
    out->loss_sum += r.loss_sum;
    out->correct += r.correct;
    out->batches += count;
    tell_begun(t);
    failpoint("function.train");
    return 0;
}

/* Brings samples to the device. An error here has the reason that it would have in a batch. */
static int bring(trainer *t, const uint32_t *order, uint32_t rows, err *e)
{
    const uint32_t batch = (uint32_t)t->config.batch;
    set_reason(t->reason, "DataError");
    for (uint32_t at = 0; at < rows; at += batch, advance(t, 1)) {
        if (engine_bring(t->engine, order + at, rows - at < batch ? rows - at : batch, e) == 0)
            continue;
        if (e && e->code == ERR_INVALID)
            set_reason(t->reason, "ShapeMismatch");
        return failed(t, e);
    }
    return 0;
}

/* Makes the updates of train_batches without the host between them. */
static int train_share(trainer *t, const trainer_task *task, uint32_t batches, trainer_result *out,
                       err *e)
{
    int64_t clock_ns = clock_monotonic_ns();
    uint64_t rows = out->sample_end - out->sample_begin;
    const uint64_t some = (uint64_t)t->config.batch * SHARE_BATCHES;
    cleanup_free uint32_t *order = calloc(rows ? (size_t)rows : 1, sizeof *order);
    double lr[SHARE_BATCHES];
    int rc = 0;
    set_reason(t->reason, "DataError");
    if (!order)
        return err_set(e, ERR_NOMEM, "no memory for the order of %llu samples",
                       (unsigned long long)rows);
    loader_rows(t->loader, order);
    for (uint64_t at = 0; rc == 0 && at < rows; at += some) {
        uint32_t n = (uint32_t)(rows - at < some ? rows - at : some);
        rc = bring(t, order + at, n, e);
        out->load_s += seconds_since(&clock_ns);
        if (rc == 0)
            rc = train_some(t, task, batches, order + at, n, lr, out, e);
        out->train_s += seconds_since(&clock_ns);
    }
    return rc;
}

int trainer_train(trainer *t, const trainer_task *task, trainer_result *out, err *e)
{
    *out = (trainer_result){0};
    int64_t clock_ns = clock_monotonic_ns();
    uint32_t batches;
    if (t->share == SHARE_UNASKED)
        offer_share(t);
    set_reason(t->reason, "DataError");
    if (loader_batches(t->loader, task->epoch, task->parallelism, task->function, &batches, e) !=
            0 ||
        loader_train(t->loader, task->epoch, task->parallelism, task->function, task->batch_begin,
                     task->batch_count, &out->sample_begin, &out->sample_end, e) != 0)
        return -1;
    out->load_s = seconds_since(&clock_ns);
    int rc = t->share == SHARE_KEPT ? train_share(t, task, batches, out, e)
                                    : train_batches(t, task, batches, out, e);
    loader_end(t->loader);
    return rc;
}

static int validate_batches(trainer *t, uint32_t epoch, trainer_result *out, err *e)
{
    engine_batch b;
    engine_result r;
    int64_t clock_ns = clock_monotonic_ns();
    for (;;) {
        set_reason(t->reason, "DataError");
        int more = loader_next(t->loader, &b, e);
        out->load_s += seconds_since(&clock_ns);
        if (more <= 0)
            return more;
        b.epoch = epoch;
        set_reason(t->reason, "ShapeMismatch");
        if (engine_eval(t->engine, &b, &r, e) != 0)
            return failed(t, e);
        count(t, &r, out);
        out->train_s += seconds_since(&clock_ns) - r.convert_s;
        failpoint("function.validate");
    }
}

int trainer_validate(trainer *t, uint32_t epoch, int parallelism, int function, trainer_result *out,
                     err *e)
{
    *out = (trainer_result){0};
    set_reason(t->reason, "DataError");
    int64_t clock_ns = clock_monotonic_ns();
    int rc = loader_test(t->loader, parallelism, function, &out->sample_end, e);
    out->load_s = seconds_since(&clock_ns);
    if (rc == 0)
        rc = validate_batches(t, epoch, out, e);
    loader_end(t->loader);
    if (rc != 0 || isfinite(out->loss_sum))
        return rc;
    set_reason(t->reason, "NaNLoss");
    return err_set(e, ERR_INVALID,
                   "the validation loss is %s in epoch %u, in function %d's part of the test set: "
                   "training diverged",
                   isnan(out->loss_sum) ? "NaN" : "infinite", epoch + 1, function);
}
