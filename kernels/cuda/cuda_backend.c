/* cuda_backend.c: the CUDA backend behind backend.h: prepare, copying the state to the device and
 * back, and the running calls. cuda_plan.c lays everything out, cuda_algo.c chooses, cuda_run.c
 * enqueues.
 *
 * Each kind of run (forward, gradients, step, update) is one CUDA graph, captured when it is first
 * asked for: a job's first batch does not wait for captures of other kinds. prepare takes all
 * memory, and does what a library does only outside of a capture. A call copies the batch in,
 * replays the graph, which writes the result to the host's memory, and waits: the host touches the
 * device three times a step, however deep the model is.
 *
 * The same graph, batch, device type and libraries give the same bits: every sum has a fixed order,
 * and only those ways of the libraries are used that they call deterministic. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend_seam.h" /* made by the build */
#include "common/base/parallel.h"
#include "cuda_devices.h"
#include "cuda_memory.h"
#include "cuda_program.h"

extern const backend backend_cuda;
extern const char backend_cuda_seam[];

/* ---- prepare --------------------------------------------------------------------------------- */

void cuda_release(backend_program *base)
{
    program *p = (program *)base;
    if (!p)
        return;
    if (p->dev) {
        p->d->wait(p->dev, NULL);
        cuda_share_drop(p);
        cuda_peers_drop(p);
        cuda_comm_drop(p);
        cuda_mean_drop(p);
        for (int i = 0; i < RUN_KINDS; i++)
            if (p->graphs[i])
                p->d->release(p->dev, p->graphs[i]);
        cuda_memory_give(p->d, p->dev, p->memory, p->memory_bytes);
        cuda_memory_give(p->d, p->dev, p->workspace, p->workspace_bytes);
        if (p->in.host)
            p->d->free_host(p->dev, p->in.host);
        cuda_device_close(p->d, p->c.device, p->dev);
    }
    free(p->layers);
    free(p->tensors);
    free(p->turned);
    free(p->choices);
    free(p);
}

int cuda_capture(program *p, cuda_work *enqueue, const void *of, device_graph **out, err *e)
{
    device_graph *made = NULL;
    err ignored = ERR_INIT;
    if (p->d->capture(p->dev, e))
        return -1;
    int failed = enqueue(p, of, e);
    if (p->d->captured(p->dev, &made, failed ? &ignored : e))
        return -1;
    if (failed)
        p->d->release(p->dev, made); /* a part of the work */
    else
        *out = made;
    return failed;
}

static int enqueue_run(program *p, const void *of, err *e)
{
    return cuda_enqueue(p, *(const run_kind *)of, e);
}

int cuda_graph(program *p, run_kind kind, err *e)
{
    return p->graphs[kind] ? 0 : cuda_capture(p, enqueue_run, &kind, &p->graphs[kind], e);
}

int cuda_begin(const graph *g, const backend_config *c, uint32_t apart, program **out, err *e)
{
    program *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for a model");
    p->base.backend = &backend_cuda;
    p->d = cuda_driver;
    p->g = g;
    p->c = *c;
    p->t = c->precision == PRECISION_BF16 ? ELEMENT_BF16 : ELEMENT_F32;
    p->apart = apart;
    if (cuda_device_open(p->d, p->c.device, &p->dev, e) || cuda_plan_layers(p, e)) {
        cuda_release(&p->base);
        return -1;
    }
    *out = p;
    return 0;
}

int cuda_finish(program *p, err *e)
{
    if (cuda_plan_memory(p, e) || cuda_choose(p, e))
        return -1;
    return p->d->wait(p->dev, e);
}

static int cuda_prepare(const graph *g, const backend_config *c, backend_program **out, err *e)
{
    program *p;
    uint32_t apart;
    if (c->device_memory)
        cuda_memory_cap(c->device_memory);
    if (cuda_fuse(g, c, &apart, e) || cuda_begin(g, c, apart, &p, e))
        return -1;
    if (cuda_finish(p, e)) {
        cuda_release(&p->base);
        return -1;
    }
    *out = &p->base;
    return 0;
}

/* ---- state ----------------------------------------------------------------------------------- */

/* Copies a block in the layout of the parameters, through the arena, which nothing else uses
 * between runs. */
static int bring_in(program *p, float *to, const float *from, err *e)
{
    size_t bytes = p->g->floats[VAR_PARAM] * sizeof(float);
    const float *arena = (const float *)(const void *)p->arena;
    if (p->d->copy(p->dev, p->arena, from, bytes, COPY_IN, e) ||
        p->d->copy(p->dev, to, arena, bytes, COPY_WITHIN, e))
        return -1;
    for (int i = 0; i < p->turned_count; i++) {
        const turned *t = &p->turned[i];
        cuda_transpose(p->d->stream(p->dev), ELEMENT_F32, t->outer, t->rows, t->columns,
                       arena + t->offset, to + t->offset, false);
    }
    return 0;
}

static int bring_out(program *p, float *to, const float *from, err *e)
{
    size_t bytes = p->g->floats[VAR_PARAM] * sizeof(float);
    float *arena = (float *)(void *)p->arena;
    if (p->d->copy(p->dev, arena, from, bytes, COPY_WITHIN, e))
        return -1;
    for (int i = 0; i < p->turned_count; i++) {
        const turned *t = &p->turned[i];
        cuda_transpose(p->d->stream(p->dev), ELEMENT_F32, t->outer, t->columns, t->rows,
                       from + t->offset, arena + t->offset, false);
    }
    return p->d->copy(p->dev, to, arena, bytes, COPY_OUT, e);
}

static size_t slots(const program *p)
{
    return p->c.inference ? 0 : (size_t)optim_slots(&p->c.optim);
}

static int load_state(program *p, const float *state, bool zero, err *e)
{
    size_t params = p->g->floats[VAR_PARAM];
    if (zero)
        return p->d->zero(p->dev, p->state, slots(p) * params * sizeof(float), e);
    for (size_t i = 0; i < slots(p); i++)
        if (bring_in(p, p->state + i * params, state + i * params, e))
            return -1;
    return 0;
}

static int cuda_load(backend_program *base, const backend_state *s, err *e)
{
    program *p = (program *)base;
    size_t params = p->g->floats[VAR_PARAM], buffers = p->g->floats[VAR_BUFFER];
    const float *from = s->given;
    p->s = *s;
    p->s.given = NULL;
    if (s->blank) {
        p->fresh = true;
        return 0;
    }
    p->fresh = p->fresh && !from;
    if (bring_in(p, p->params, from ? from : s->params, e) ||
        load_state(p, from ? from + params + buffers : s->state, s->state_zero, e))
        return -1;
    if (p->d->copy(p->dev, p->buffers, from ? from + params : s->buffers, buffers * sizeof(float),
                   COPY_IN, e) ||
        p->d->copy(p->dev, p->counters, s->counters, p->g->floats[VAR_COUNTER] * sizeof(int64_t),
                   COPY_IN, e))
        return -1;
    if (p->t == ELEMENT_BF16)
        cuda_to_bf16(p->d->stream(p->dev), params, p->params, p->weights16);
    p->fresh = !from;
    return p->d->wait(p->dev, e); /* the caller may write to its blocks again */
}

static int cuda_grads(backend_program *base, bool changed, err *e)
{
    program *p = (program *)base;
    return (changed ? bring_in(p, p->grads, p->s.grads, e)
                    : bring_out(p, p->s.grads, p->grads, e)) ||
                   p->d->wait(p->dev, e)
               ? -1
               : 0;
}

static int cuda_store(backend_program *base, err *e)
{
    program *p = (program *)base;
    size_t params = p->g->floats[VAR_PARAM];
    if (p->fresh)
        return 0;
    if (bring_out(p, p->s.params, p->params, e))
        return -1;
    for (size_t i = 0; i < slots(p); i++)
        if (bring_out(p, p->s.state + i * params, p->state + i * params, e))
            return -1;
    if (p->d->copy(p->dev, p->s.buffers, p->buffers, p->g->floats[VAR_BUFFER] * sizeof(float),
                   COPY_OUT, e) ||
        p->d->copy(p->dev, p->s.counters, p->counters, p->g->floats[VAR_COUNTER] * sizeof(int64_t),
                   COPY_OUT, e) ||
        p->d->wait(p->dev, e))
        return -1;
    p->fresh = true;
    return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

void cuda_set_update(const program *p, step_args *a, backend_update u)
{
    const optim *o = &p->c.optim;
    double steps = (double)u.step;
    a->lr = (float)u.lr;
    a->fresh = u.step == 1 ? 1.0f : (float)(1 - o->dampening);
    a->kept = u.step == 1 ? 0.0f : (float)o->momentum;
    if (o->kind == OPTIM_SGD)
        return;
    a->rate = (float)(u.lr / (1 - pow(o->beta1, steps)));
    a->root2 = (float)sqrt(1 - pow(o->beta2, steps));
    a->shrink = o->kind == OPTIM_ADAMW ? (float)(1 - u.lr * o->weight_decay) : 1.0f;
}

static step_args *args_of(program *p)
{
    return (step_args *)(void *)(p->in.host + p->in.args);
}

static void fill_scale(program *p, const backend_batch *b)
{
    size_t c = (size_t)p->g->nodes[0].shape.c;
    float *to = (float *)(void *)(p->in.host + p->in.scale_shift);
    for (size_t i = 0; i < c; i++) {
        to[i] = b->scale ? b->scale[i] : 1.0f;
        to[c + i] = b->shift ? b->shift[i] : 0.0f;
    }
}

typedef struct fill {
    const backend_batch *b;
    char *to;
    size_t sample; /* bytes */
    size_t together;
} fill;

static void fill_part(size_t part, void *user)
{
    const fill *f = user;
    size_t n = (size_t)f->b->n, from = part * f->together, to = from + f->together;
    for (size_t i = from; i < n && i < to; i++)
        memcpy(f->to + i * f->sample, f->b->x[i], f->sample);
}

/* Several threads copy a large batch: one thread copies much slower than the GPU does, which waits
 * for it. Starting the others takes as long as copying 128 KiB or so. */
static void fill_samples(const backend_batch *b, char *to, size_t sample)
{
    enum { PART = 256 << 10, THREADS = 4 };
    fill f = {.b = b, .to = to, .sample = sample, .together = PART / sample + 1};
    size_t parts = ((size_t)b->n + f.together - 1) / f.together;
    int cores = parts > THREADS ? parallel_cores() : 1;
    parallel_for(parts, cores < THREADS ? cores : THREADS, fill_part, &f);
}

/* Returns the bytes to copy. */
static size_t fill_staging(program *p, const backend_batch *b)
{
    staging *in = &p->in;
    size_t n = (size_t)b->n, outputs = (size_t)p->g->nodes[p->g->output].shape.c;
    size_t sample =
        shape_count(p->g->nodes[0].shape) * (b->type == INPUT_UINT8 ? 1 : sizeof(float));
    step_args *a = args_of(p);
    a->n = b->n;
    a->uint8 = b->type == INPUT_UINT8;
    a->epoch = b->epoch;
    a->seed = p->c.seed;
    fill_scale(p, b);
    if (b->labels)
        memcpy(in->host + in->labels, b->labels, n * sizeof *b->labels);
    if (b->sample)
        memcpy(in->host + in->keys, b->sample, n * sizeof *b->sample);
    if (b->targets)
        memcpy(in->host + in->targets, b->targets, n * outputs * sizeof *b->targets);
    fill_samples(b, in->host + in->x, sample);
    return in->x + n * sample;
}

static int run_graph(program *p, run_kind kind, size_t bytes, err *e)
{
    return cuda_graph(p, kind, e) ||
                   p->d->copy(p->dev, p->in.device, p->in.host, bytes, COPY_IN, e) ||
                   p->d->replay(p->dev, p->graphs[kind], e)
               ? -1
               : 0;
}

int cuda_read_result(program *p, backend_result *result, err *e)
{
    const step_result *r = cuda_result(p);
    if (p->d->wait(p->dev, e))
        return -1;
    if (result)
        *result = (backend_result){.loss_sum = r->loss_sum, .correct = r->correct};
    return 0;
}

/* Without labels the loss is computed from zeros, and nobody reads it. */
static int cuda_forward(backend_program *base, const backend_batch *b, float *logits,
                        backend_result *result, err *e)
{
    program *p = (program *)base;
    size_t outputs = (size_t)p->g->nodes[p->g->output].shape.c;
    if (!b->labels)
        memset(p->in.host + p->in.labels, 0, (size_t)b->n * sizeof(int32_t));
    if (run_graph(p, RUN_FORWARD, fill_staging(p, b), e))
        return -1;
    if (logits &&
        p->d->copy(p->dev, logits, p->logits, (size_t)b->n * outputs * sizeof *logits, COPY_OUT, e))
        return -1;
    return cuda_read_result(p, result, e);
}

static int cuda_gradients(backend_program *base, const backend_batch *b, backend_result *result,
                          err *e)
{
    program *p = (program *)base;
    p->fresh = false;
    if (run_graph(p, RUN_GRADIENTS, fill_staging(p, b), e))
        return -1;
    return cuda_read_result(p, result, e);
}

static int cuda_update(backend_program *base, backend_update u, err *e)
{
    program *p = (program *)base;
    p->fresh = false;
    cuda_set_update(p, args_of(p), u);
    if (run_graph(p, RUN_UPDATE, sizeof(step_args), e))
        return -1;
    return p->d->wait(p->dev, e);
}

static int cuda_step(backend_program *base, const backend_batch *b, backend_update u,
                     backend_result *result, err *e)
{
    program *p = (program *)base;
    p->fresh = false;
    cuda_set_update(p, args_of(p), u);
    if (run_graph(p, RUN_STEP, fill_staging(p, b), e))
        return -1;
    return cuda_read_result(p, result, e);
}

/* ---- facts ----------------------------------------------------------------------------------- */

static int cuda_missing(err *e)
{
    return cuda_driver->missing(e);
}

/* Reads the cache too: later a function may no longer open files. */
static int cuda_warm(int ordinal, err *e)
{
    cuda_algorithms_read();
    return cuda_device_warm(cuda_driver, ordinal, e);
}

static size_t cuda_memory(const backend_program *base)
{
    const program *p = (const program *)base;
    return p->memory_bytes + p->workspace_bytes + p->in.bytes + p->share.bytes;
}

static const char *cuda_choices(const backend_program *base)
{
    return ((const program *)base)->choices;
}

/* Programs that load the engine compare this text with their own. */
__attribute__((visibility("default"))) const char backend_cuda_seam[] = BACKEND_SEAM;

__attribute__((visibility("default"))) const backend backend_cuda = {
    .name = "cuda",
    .missing = cuda_missing,
    .warm = cuda_warm,
    .preload = cuda_preload,
    .autotune_load = cuda_autotune_load,
    .autotune_dump = cuda_autotune_dump,
    .prepare = cuda_prepare,
    .release = cuda_release,
    .load = cuda_load,
    .store = cuda_store,
    .grads = cuda_grads,
    .forward = cuda_forward,
    .gradients = cuda_gradients,
    .update = cuda_update,
    .step = cuda_step,
    .share = cuda_share_take,
    .bring = cuda_share_bring,
    .steps = cuda_share_steps,
    .average = cuda_average,
    .peers = &cuda_peers,
    .comm = &cuda_comm,
    .memory = cuda_memory,
    .choices = cuda_choices,
};
