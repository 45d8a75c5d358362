/* cpu_backend.c: the fast backend for the host's CPU behind backend.h: runs what cpu_build.c makes
 * of a graph. Which instructions: cpu_isa.c; the layers: cpu_input.c, cpu_conv.c, cpu_winograd.c,
 * cpu_winograd_recomputed.c, cpu_matmul.c, cpu_linear.c, cpu_norm.c, cpu_channel.c, cpu_concat.c,
 * cpu_rows.c, cpu_generic.c, and of ops that this backend lacks cpu_reference.c (cpu_ops.c says
 * which it has); norms in convolutions: cpu_fold.c, cpu_entry.c; what is done with weights once a
 * batch: cpu_weights.c; forward where nothing is trained: cpu_evaluate.c; inner loops:
 * kernels_impl.h. In bf16: cpu_linear16.c, cpu_matmul16.c and the words of cpu_winograd.c; inner
 * loops: kernels_avx512_bf16.c.
 *
 * Same graph, batch, CPU class (the table's name) and thread count give the same bits: work is
 * split by sample or by output, and every sum across threads runs in thread order.
 *
 * Memory: all of it is allocated in prepare, in blocks that the program owns. Parameters stay where
 * the caller has them (`store` is NULL); packed copies of convolution weights follow them. */
#include <stdlib.h>
#include <string.h>

#include "cpu_denormals.h"
#include "cpu_program.h"

/* ---- life ------------------------------------------------------------------------------------ */

static void cpu_release(backend_program *base)
{
    program *p = (program *)base;
    if (!p)
        return;
    cpu_threads_stop(p->threads);
    for (struct block *b = p->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(p);
}

static int cpu_prepare(const graph *g, const backend_config *c, backend_program **out, err *e)
{
    const char *why;
    if (c->precision == PRECISION_TF32)
        return err_set(e, ERR_UNSUPPORTED, "the cpu backend computes in fp32 or bf16, not in tf32");
    const cpu_kernels16 *k16 = c->precision == PRECISION_BF16 ? cpu_kernels16_pick(&why) : NULL;
    if (c->precision == PRECISION_BF16 && !k16)
        return err_set(e, ERR_UNSUPPORTED, "the cpu backend cannot compute in bf16 here: %s", why);
    program *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for the cpu backend");
    p->base.backend = &backend_cpu;
    p->g = g, p->c = *c, p->stale = true;
    p->batch_pad = (c->batch + 15) / 16 * 16;
    p->k16 = k16;
    p->k = cpu_kernels_pick(&why);
    if (!p->k)
        err_set(e, ERR_UNSUPPORTED, "%s", why);
    if (!p->k || cpu_threads_start(c->threads, &p->threads, e) != 0) {
        cpu_release(&p->base);
        return -1;
    }
    if (program_build(p) != 0) {
        err_set(e, ERR_NOMEM, "no memory for the layers at batch %d (%zu MiB were had)", c->batch,
                p->bytes >> 20);
        cpu_release(&p->base);
        return -1;
    }
    *out = &p->base;
    return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Layers [first, last] that work on samples independently, all of them `together` or none. */
typedef struct stretch {
    program *p;
    int first, last;
} stretch;

static bool goes_with(const layer *next, const layer *l, bool forward)
{
    return next->together == l->together &&
           !(forward ? next->ops->forward_whole : next->ops->backward_whole);
}

/* So many samples that a layer's result is still in the cache when the next one reads it. */
static int chunk_of(const stretch *s)
{
    size_t bytes = 1;
    if (s->p->layers[s->first].together)
        return s->p->c.batch;
    for (int i = s->first; i <= s->last; i++) {
        const tensor *t = &s->p->tensors[s->p->layers[i].out];
        bytes += (t->form == FORM_IMAGE ? t->y.sample : (size_t)t->cs) * sizeof(float);
    }
    return bytes < CPU_CHUNK_BYTES ? (int)(CPU_CHUNK_BYTES / bytes) : 1;
}

static void forward_stretch(void *arg, int thread, int threads)
{
    const stretch *s = arg;
    int n = s->p->b->n, from = n * thread / threads, to = n * (thread + 1) / threads,
        chunk = chunk_of(s);
    for (; from < to; from += chunk)
        for (int i = s->first; i <= s->last; i++) {
            layer *l = &s->p->layers[i];
            l->ops->forward(s->p, l, from, from + chunk < to ? from + chunk : to, thread);
        }
}

static void run_forward(program *p)
{
    p->convert_ns = 0;
    for (int i = 0; i < p->layer_count; i++) {
        if (p->layers[i].ops->forward_whole)
            p->layers[i].ops->forward_whole(p, &p->layers[i]);
        if (!p->layers[i].ops->forward)
            continue;
        stretch s = {p, i, i};
        while (s.last + 1 < p->layer_count &&
               goes_with(&p->layers[s.last + 1], &p->layers[i], true))
            s.last++;
        weights_run(p, s.first, s.last, WEIGHTS_PACK_AHEAD);
        cpu_threads_run(p->threads, forward_stretch, &s);
        i = s.last;
    }
}

static bool has_backward(const program *p, const layer *l)
{
    return p->tensors[l->entered ? l->entered->out : l->act ? l->act->out : l->out].dy.data &&
           (l->ops->backward || l->ops->backward_whole);
}

/* Gradients that this layer is the first to write: their borders, where the memory was others'
 * before. */
static void clear_borders(program *p, const layer *l, int from, int to)
{
    for (int j = 0; j < l->in_count; j++) {
        const tensor *x = &p->tensors[l->in[j]];
        for (int i = from; i < to && !l->add[j] && x->dy.shared && x->dy.halo; i++)
            tensor_clear_halo(x, i);
    }
}

static void borders_part(void *arg, int thread, int threads)
{
    const stretch *s = arg;
    int n = s->p->b->n;
    clear_borders(s->p, &s->p->layers[s->first], n * thread / threads, n * (thread + 1) / threads);
}

static void backward_stretch(void *arg, int thread, int threads)
{
    const stretch *s = arg;
    int n = s->p->b->n, from = n * thread / threads, to = n * (thread + 1) / threads,
        chunk = chunk_of(s);
    for (int i = s->first; i <= s->last; i++) {
        layer *l = &s->p->layers[i];
        if (l->dw) {
            if (!l->fresh || from >= to)
                memset(layer_dw(l, thread), 0, l->dw_floats * sizeof(float));
            memset(layer_db(l, thread), 0, l->db_floats * sizeof(float));
        }
        if (l->entry)
            norm_begin(s->p, l->entry, thread);
    }
    /* The last samples first: theirs are the results that the cache still has from going forward. */
    for (int end = to, begin; end > from; end = begin) {
        begin = from + (end - from - 1) / chunk * chunk;
        for (int i = s->last; i >= s->first; i--) {
            layer *l = &s->p->layers[i];
            if (!has_backward(s->p, l))
                continue;
            clear_borders(s->p, l, begin, end);
            l->ops->backward(s->p, l, begin, end, thread);
        }
    }
}

static void run_backward(program *p)
{
    for (int i = p->layer_count - 1; i >= 0; i--) {
        if (p->layers[i].ops->backward_whole && has_backward(p, &p->layers[i])) {
            if (!p->layers[i].ops->backward)
                cpu_threads_run(p->threads, borders_part, &(stretch){p, i, i});
            p->layers[i].ops->backward_whole(p, &p->layers[i]);
        }
        if (!p->layers[i].ops->backward)
            continue;
        stretch s = {p, i, i};
        while (s.first > 0 && goes_with(&p->layers[s.first - 1], &p->layers[i], false))
            s.first--;
        weights_run(p, s.first, s.last, WEIGHTS_PACK_BACK);
        cpu_threads_run(p->threads, backward_stretch, &s);
        weights_run(p, s.first, s.last, WEIGHTS_SUM);
        weights_run(p, s.first, s.last, WEIGHTS_FINISH);
        i = s.first;
    }
}

static void refresh(program *p)
{
    p->stale |= fold_turn(p, !p->training);
    if (p->stale)
        weights_run(p, 0, p->layer_count - 1, WEIGHTS_PACK);
    p->stale = false;
}

static int cpu_load(backend_program *base, const backend_state *s, err *e)
{
    program *p = (program *)base;
    (void)e;
    p->s = *s;
    p->stale = true;
    return 0;
}

static int cpu_forward(backend_program *base, const backend_batch *b, float *logits,
                       backend_result *result, err *e)
{
    program *p = (program *)base;
    const tensor *out = &p->tensors[p->g->output];
    unsigned arithmetic = flush_begin();
    (void)e;
    p->b = b, p->training = false;
    refresh(p);
    evaluate_forward(p);
    if (result)
        loss_compute(p, out, false, result);
    if (result)
        result->convert_s = (double)p->convert_ns * 1e-9;
    view y = tensor_view(out);
    for (int i = 0; logits && i < b->n; i++)
        for (int c = 0; c < out->s.c; c++)
            *logits++ = y.p[(size_t)i * y.sn + (size_t)c * y.sc];
    flush_end(arithmetic);
    return 0;
}

static int cpu_gradients(backend_program *base, const backend_batch *b, backend_result *result,
                         err *e)
{
    program *p = (program *)base;
    unsigned arithmetic = flush_begin();
    (void)e;
    p->b = b, p->training = true;
    refresh(p);
    run_forward(p);
    loss_compute(p, &p->tensors[p->g->output], p->tensors[p->g->output].dy.data != NULL, result);
    result->convert_s = (double)p->convert_ns * 1e-9;
    run_backward(p);
    flush_end(arithmetic);
    return 0;
}

/* ---- updating -------------------------------------------------------------------------------- */

void program_update(const program *p, const backend_update *u, size_t at, size_t n,
                    const float *grads)
{
    const optim *o = &p->c.optim;
    float *params = p->s.params + at, *state = p->s.state ? p->s.state + at : NULL;
    if (o->kind != OPTIM_SGD)
        p->k->adam(o, u->lr, u->step, n, params, grads, state, state + p->g->floats[VAR_PARAM]);
    else
        p->k->sgd(n, params, grads, optim_slots(o) ? state : NULL, (float)u->lr,
                  (float)o->weight_decay, (float)o->momentum, (float)o->dampening, o->nesterov,
                  u->step == 1);
}

typedef struct update_work {
    program *p;
    backend_update u;
    const param_span *spans;
    int count;
} update_work;

/* A thread's part of each span: whole lines. */
static void update_part(void *arg, int thread, int threads)
{
    const update_work *w = arg;
    for (int i = 0; i < w->count; i++) {
        size_t lines = (w->spans[i].to - w->spans[i].from) / GRAPH_ALIGN_FLOATS,
               first = lines * (size_t)thread / (size_t)threads,
               last = lines * (size_t)(thread + 1) / (size_t)threads,
               at = w->spans[i].from + first * GRAPH_ALIGN_FLOATS;
        if (first < last)
            program_update(w->p, &w->u, at, (last - first) * GRAPH_ALIGN_FLOATS,
                           w->p->s.grads + at);
    }
}

static void update_spans(program *p, backend_update u, const param_span *spans, int count)
{
    update_work w = {p, u, spans, count};
    unsigned arithmetic = flush_begin();
    cpu_threads_run(p->threads, update_part, &w);
    flush_end(arithmetic);
    p->stale = true;
}

static int cpu_update(backend_program *base, backend_update u, err *e)
{
    program *p = (program *)base;
    (void)e;
    update_spans(p, u, &(param_span){0, p->g->floats[VAR_PARAM]}, 1);
    return 0;
}

static int cpu_step(backend_program *base, const backend_batch *b, backend_update u,
                    backend_result *result, err *e)
{
    program *p = (program *)base;
    p->update = u, p->updating = true;
    cpu_gradients(base, b, result, e);
    p->updating = false;
    update_spans(p, u, p->rest, p->rest_count);
    return 0;
}

/* ---- facts ----------------------------------------------------------------------------------- */

static size_t cpu_memory(const backend_program *base)
{
    return ((const program *)base)->bytes;
}

static const char *cpu_choices(const backend_program *base)
{
    return ((const program *)base)->choices;
}

static int cpu_missing(err *e)
{
    const char *why;
    return cpu_kernels_pick(&why) ? 0 : err_set(e, ERR_UNSUPPORTED, "%s", why);
}

const backend backend_cpu = {
    .name = "cpu",
    .missing = cpu_missing,
    .prepare = cpu_prepare,
    .release = cpu_release,
    .load = cpu_load,
    .forward = cpu_forward,
    .gradients = cpu_gradients,
    .update = cpu_update,
    .step = cpu_step,
    .memory = cpu_memory,
    .choices = cpu_choices,
};
