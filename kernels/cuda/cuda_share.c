/* cuda_share.c: an epoch over samples that lie on the device; see backend.h.
 *
 * An update is a step whose first kernel gathers its samples straight into the network's input,
 * puts the next update's numbers in place and adds the result of the update before. The host
 * enqueues the graphs of all updates, some updates together. Every UPDATES updates it enqueues the
 * numbers of the next ones before them. Once DRIVER_EVENTS graphs are under way it waits for the
 * first of them, so that it can report how far the device is.
 *
 * The samples lie apart (cuda_samples.h): programs of one process share them. */
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "cuda_memory.h"
#include "cuda_models.h"

enum { UPDATES = 64, TOGETHER = 8, LAYERS_FEW = 32 };
_Static_assert(TOGETHER % 2 == 0, "what follows them begins with the first turn");

void cuda_share_drop(program *p)
{
    share *h = &p->share;
    device_graph *const graphs[] = {h->one[0], h->one[1], h->some};
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++)
        if (graphs[i])
            p->d->release(p->dev, graphs[i]);
    cuda_samples_give(p->dev, h->samples);
    cuda_memory_give(p->d, p->dev, h->memory, h->bytes);
    *h = (share){0};
}

static int place(program *p, err *e)
{
    share *h = &p->share;
    const size_t bytes[] = {(size_t)p->c.batch * UPDATES * sizeof *h->order,
                            UPDATES * sizeof *h->steps, sizeof *h->total,
                            2 * (size_t)p->g->nodes[0].shape.c * sizeof *h->scale_shift};
    enum { PARTS = sizeof bytes / sizeof *bytes };
    void *at[PARTS], *memory;
    size_t all = 0;
    for (size_t i = 0; i < PARTS; i++)
        all += cuda_aligned(bytes[i]);
    if (cuda_memory_take(p->d, p->dev, all, "the share's order", &memory, e))
        return -1;
    h->memory = memory;
    h->bytes = all;
    for (size_t i = 0, offset = 0; i < PARTS; offset += cuda_aligned(bytes[i]), i++)
        at[i] = h->memory + offset;
    h->order = at[0], h->steps = at[1], h->total = at[2], h->scale_shift = at[3];
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
    return 0;
}

static int bring_scale(program *p, const backend_share *s, err *e)
{
    size_t c = (size_t)p->g->nodes[0].shape.c, bytes = 2 * c * sizeof(float);
    cleanup_free float *list = malloc(bytes);
    if (!list)
        return err_set(e, ERR_NOMEM, "no memory for %zu channels", c);
    for (size_t i = 0; i < c; i++) {
        list[i] = s->scale ? s->scale[i] : 1.0f;
        list[c + i] = s->shift ? s->shift[i] : 0.0f;
    }
    return p->d->copy(p->dev, p->share.scale_shift, list, bytes, COPY_IN, e) ||
                   p->d->wait(p->dev, e)
               ? -1
               : 0;
}

static int enqueue(program *p, int turn, err *e)
{
    share *h = &p->share;
    char *in = p->in.device;
    gathering from = {.a = &h->steps[turn],
                      .augment = h->augment,
                      .uint8 = h->type == INPUT_UINT8,
                      .outputs = outputs_of(p),
                      .share = h->samples->at,
                      .order = h->order,
                      .scale_shift = h->scale_shift,
                      .batch = {.labels = (int32_t *)(void *)(in + p->in.labels),
                                .targets = (float *)(void *)(in + p->in.targets),
                                .keys = (uint64_t *)(void *)(in + p->in.keys)},
                      .list = h->steps,
                      .next = &h->steps[!turn],
                      .before = p->result,
                      .total = h->total};
    return cuda_enqueue_gathered(p, &from, e);
}

/* `count` updates, the first at that turn. */
typedef struct updates {
    uint32_t turn, count;
} updates;

static int enqueue_updates(program *p, const void *of, err *e)
{
    const updates *u = of;
    for (uint32_t i = 0; i < u->count; i++)
        if (enqueue(p, (int)((u->turn + i) % 2), e))
            return -1;
    return 0;
}

/* Captures several updates of a small model in one graph. Between two graphs lies more time than
 * between two kernels. The host starts each graph, and the programs of one process wait for each
 * other there. A small model's updates take not much longer than that. A deep model's do, and its
 * graphs are long already. */
static int capture_all(program *p, err *e)
{
    share *h = &p->share;
    h->together = p->layer_count <= LAYERS_FEW ? TOGETHER : 2;
    return cuda_capture(p, enqueue_updates, &(updates){0, 1}, &h->one[0], e) ||
                   cuda_capture(p, enqueue_updates, &(updates){1, 1}, &h->one[1], e) ||
                   cuda_capture(p, enqueue_updates, &(updates){0, h->together}, &h->some, e)
               ? -1
               : 0;
}

int cuda_share_take(backend_program *base, const backend_share *s, err *e)
{
    program *p = (program *)base;
    cuda_share_drop(p);
    if (!s)
        return 0;
    /* the samples last: what they must leave free is for what is still to come */
    if (place(p, e) == 0 && bring_scale(p, s, e) == 0 && take_samples(p, s, e) == 0 &&
        capture_all(p, e) == 0)
        return 0;
    cuda_share_drop(p);
    return -1;
}

int cuda_share_bring(backend_program *base, const uint32_t *order, uint32_t rows, err *e)
{
    program *p = (program *)base;
    return cuda_samples_bring(p->share.samples, p->dev, &p->share.reader, order, rows, e);
}

/* The numbers of the updates, which the graphs read; rows and places count from the first of each
 * UPDATES updates. The caller frees. */
static step_args *list_steps(const program *p, const backend_steps *s, uint32_t count)
{
    step_args *list = calloc(count, sizeof *list);
    for (uint32_t i = 0; list && i < count; i++) {
        uint32_t left = s->rows - i * (uint32_t)s->batch;
        list[i] = (step_args){.n = left < (uint32_t)s->batch ? (int32_t)left : s->batch,
                              .epoch = s->epoch,
                              .row = (int32_t)(i % UPDATES) * s->batch,
                              .next = i + 1 < count ? (int32_t)((i + 1) % UPDATES) : 0,
                              .first = i == 0,
                              .seed = p->c.seed};
        cuda_set_update(p, &list[i], (backend_update){.lr = s->lr[i], .step = s->first_step + i});
    }
    return list;
}

/* Graphs that were enqueued, of which the first `awaited` are done. */
typedef struct flight {
    uint32_t enqueued, awaited;
    uint32_t updates[DRIVER_EVENTS]; /* of each graph that is not done */
} flight;

static int await_first(program *p, const backend_steps *s, flight *f, err *e)
{
    int event = (int)(f->awaited % DRIVER_EVENTS);
    if (p->d->await(p->dev, event, e))
        return -1;
    f->awaited++;
    if (s->done)
        s->done(s->done_of, f->updates[event]);
    return 0;
}

static int replay(program *p, const backend_steps *s, flight *f, device_graph *g, uint32_t count,
                  err *e)
{
    if (f->enqueued - f->awaited == DRIVER_EVENTS && await_first(p, s, f, e))
        return -1;
    int event = (int)(f->enqueued % DRIVER_EVENTS);
    if (p->d->replay(p->dev, g, e) || p->d->record(p->dev, event, e))
        return -1;
    f->updates[event] = count;
    f->enqueued++;
    return 0;
}

/* Updates [first, first + count). */
static int run_some(program *p, const backend_steps *s, flight *f, const step_args *list,
                    uint32_t first, uint32_t count, err *e)
{
    share *h = &p->share;
    const driver *d = p->d;
    uint32_t row = first * (uint32_t)s->batch, left = s->rows - row;
    uint32_t rows = left < count * (uint32_t)s->batch ? left : count * (uint32_t)s->batch;
    if (d->copy(p->dev, h->order, s->order + row, rows * sizeof *s->order, COPY_IN, e) ||
        d->copy(p->dev, h->steps, list + first, count * sizeof *list, COPY_IN, e))
        return -1;
    for (uint32_t i = 0; i < count;) {
        bool some = count - i >= h->together;
        uint32_t each = some ? h->together : 1;
        if (replay(p, s, f, some ? h->some : h->one[i % 2], each, e))
            return -1;
        i += each;
    }
    return 0;
}

static int run(program *p, const backend_steps *s, const step_args *list, uint32_t count,
               backend_result *result, err *e)
{
    flight f = {.enqueued = 0};
    for (uint32_t i = 0; i < count; i += UPDATES)
        if (run_some(p, s, &f, list, i, count - i < UPDATES ? count - i : UPDATES, e))
            return -1;
    cuda_add_results(p->d->stream(p->dev), p->share.total, p->result, cuda_result(p));
    while (f.awaited < f.enqueued)
        if (await_first(p, s, &f, e))
            return -1;
    return cuda_read_result(p, result, e);
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
