/* cuda_share.c: an epoch over samples that lie on the device; see backend.h.
 *
 * One update is one graph: take the next update's numbers, gather and augment its samples, forward,
 * loss, backward, update, add to the sums. The host enqueues that graph as often as there are
 * updates, with the numbers of the next ones before it every UPDATES times, and waits once, at the
 * end. The samples lie apart (cuda_samples.h): programs of one process share them. */
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_memory.h"
#include "cuda/cuda_models.h"

enum { UPDATES = 64 };

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

void cuda_share_drop(program *p)
{
    if (p->share.graph)
        p->d->release(p->dev, p->share.graph);
    cuda_samples_give(p->dev, p->share.samples);
    cuda_memory_give(p->d, p->dev, p->share.memory, p->share.bytes);
    free(p->share.scale_shift);
    p->share = (share){0};
}

static int place(program *p, err *e)
{
    share *h = &p->share;
    const size_t bytes[] = {(size_t)p->c.batch * UPDATES * sizeof *h->order,
                            UPDATES * sizeof *h->steps, sizeof *h->number, sizeof *h->total};
    enum { PARTS = sizeof bytes / sizeof *bytes };
    void *at[PARTS], *memory;
    size_t all = 0;
    for (size_t i = 0; i < PARTS; i++)
        all += aligned(bytes[i]);
    if (cuda_memory_take(p->d, p->dev, all, "the share's order", &memory, e))
        return -1;
    h->memory = memory;
    h->bytes = all;
    for (size_t i = 0, offset = 0; i < PARTS; offset += aligned(bytes[i]), i++)
        at[i] = h->memory + offset;
    h->order = at[0], h->steps = at[1], h->number = at[2], h->total = at[3];
    return 0;
}

/* Targets a row; 0: labels. */
static int outputs_of(const program *p)
{
    return p->c.loss == LOSS_MSE ? p->g->nodes[p->g->output].shape.c : 0;
}

static int take_samples(program *p, const backend_share *s, err *e)
{
    share *h = &p->share;
    shape in = p->g->nodes[0].shape;
    size_t c = (size_t)in.c;
    cuda_samples_form form = {.sample_bytes =
                                  shape_count(in) * (s->type == INPUT_UINT8 ? 1 : sizeof(float)),
                              .rest = cuda_mean_untaken(p),
                              .outputs = outputs_of(p)};
    if (cuda_samples_take(p->d, p->dev, p->c.device, s, &form, &h->samples, e))
        return -1;
    h->reader = s->reader;
    h->type = s->type;
    h->augment = (augmentation){
        .flip = s->flip, .crop = s->crop, .c = in.c, .h = in.h, .w = in.w, .seed = s->seed};
    h->scale_shift = malloc(2 * c * sizeof *h->scale_shift);
    if (!h->scale_shift)
        return err_set(e, ERR_NOMEM, "no memory for %zu channels", c);
    for (size_t i = 0; i < c; i++) {
        h->scale_shift[i] = s->scale ? s->scale[i] : 1.0f;
        h->scale_shift[c + i] = s->shift ? s->shift[i] : 0.0f;
    }
    return 0;
}

static int enqueue(program *p, err *e)
{
    share *h = &p->share;
    void *stream = p->d->stream(p->dev);
    char *in = p->in.device;
    step_args *args = (step_args *)(void *)(in + p->in.args);
    cuda_rows batch = {.x = in + p->in.x,
                       .labels = (int32_t *)(void *)(in + p->in.labels),
                       .targets = (float *)(void *)(in + p->in.targets),
                       .keys = (uint64_t *)(void *)(in + p->in.keys)};
    cuda_next_step(stream, args, h->steps, h->number);
    cuda_gather(stream, args, h->augment, p->c.batch, outputs_of(p), h->samples->at, h->order,
                batch);
    if (cuda_enqueue(p, RUN_STEP, e))
        return -1;
    cuda_add_result(stream, p->result, h->total);
    return 0;
}

static int capture(program *p, err *e)
{
    if (p->d->capture(p->dev, e))
        return -1;
    int failed = enqueue(p, e);
    err ignored = ERR_INIT;
    if (p->d->captured(p->dev, &p->share.graph, failed ? &ignored : e))
        return -1;
    return failed;
}

int cuda_share_take(backend_program *base, const backend_share *s, err *e)
{
    program *p = (program *)base;
    cuda_share_drop(p);
    if (!s)
        return 0;
    /* The samples last: what they must leave free is what is still to come. */
    if (place(p, e) == 0 && take_samples(p, s, e) == 0 && capture(p, e) == 0)
        return 0;
    cuda_share_drop(p);
    return -1;
}

int cuda_share_bring(backend_program *base, const uint32_t *order, uint32_t rows, err *e)
{
    program *p = (program *)base;
    return cuda_samples_bring(p->share.samples, p->dev, &p->share.reader, order, rows, e);
}

/* What the graph reads, one an update; `row` counts from the first of UPDATES. The caller frees. */
static step_args *list_steps(const program *p, const backend_steps *s, uint32_t count)
{
    step_args *list = calloc(count, sizeof *list);
    for (uint32_t i = 0; list && i < count; i++) {
        uint32_t left = s->rows - i * (uint32_t)s->batch;
        list[i] = (step_args){.n = left < (uint32_t)s->batch ? (int32_t)left : s->batch,
                              .uint8 = p->share.type == INPUT_UINT8,
                              .epoch = s->epoch,
                              .row = (int32_t)(i % UPDATES) * s->batch,
                              .seed = p->c.seed};
        cuda_set_update(p, &list[i], (backend_update){.lr = s->lr[i], .step = s->first_step + i});
    }
    return list;
}

/* Updates `first` to `first + count`. */
static int run_some(program *p, const backend_steps *s, const step_args *list, uint32_t first,
                    uint32_t count, err *e)
{
    share *h = &p->share;
    const driver *d = p->d;
    uint32_t row = first * (uint32_t)s->batch, left = s->rows - row;
    uint32_t rows = left < count * (uint32_t)s->batch ? left : count * (uint32_t)s->batch;
    if (d->copy(p->dev, h->order, s->order + row, rows * sizeof *s->order, COPY_IN, e) ||
        d->copy(p->dev, h->steps, list + first, count * sizeof *list, COPY_IN, e) ||
        d->zero(p->dev, h->number, sizeof *h->number, e))
        return -1;
    for (uint32_t i = 0; i < count; i++)
        if (d->replay(p->dev, h->graph, e))
            return -1;
    return 0;
}

static int run(program *p, const backend_steps *s, const step_args *list, uint32_t count,
               backend_result *result, err *e)
{
    share *h = &p->share;
    size_t channels = (size_t)p->g->nodes[0].shape.c;
    const driver *d = p->d;
    if (d->copy(p->dev, p->in.device + p->in.scale_shift, h->scale_shift,
                2 * channels * sizeof(float), COPY_IN, e) ||
        d->zero(p->dev, h->total, sizeof *h->total, e))
        return -1;
    for (uint32_t i = 0; i < count; i += UPDATES)
        if (run_some(p, s, list, i, count - i < UPDATES ? count - i : UPDATES, e))
            return -1;
    return cuda_read_result(p, h->total, result, e);
}

int cuda_share_steps(backend_program *base, const backend_steps *s, backend_result *result, err *e)
{
    program *p = (program *)base;
    if (cuda_samples_have(p->share.samples, s->order, s->rows, e))
        return -1;
    uint32_t count = (s->rows - 1) / (uint32_t)s->batch + 1;
    step_args *list = list_steps(p, s, count);
    if (!list)
        return err_set(e, ERR_NOMEM, "no memory for %u steps", count);
    p->fresh = false;
    int failed = run(p, s, list, count, result, e);
    free(list);
    return failed;
}
