/* cpu_norm.c: batch norm with a residual's sum and ReLU.
 *
 * The sums are taken of all samples at once; what is made with them goes some samples at a time
 * with the layers that read it.
 *
 * Sums over a batch: floats within a sample, or some small ones (cpu_spans.h), doubles over those
 * of a thread, then the threads in order. Values are taken relative to the channel's first one, so
 * that a large mean costs no digits.
 *
 * dx = a g + b (x - mean) + d. Of these a is known before the sums are, and b and d are so few that
 * they need not be applied at once: norms over the same tensor, which DenseNet has by the dozen,
 * have one mean, so that their b and d add up. A norm whose convolution has written a g already
 * (cpu_entry.c) therefore gives its line to the norm over its first channels, whose backward comes
 * later, and applies it to the other channels alone. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cpu_ops.h"
#include "cpu_spans.h"

/* Rows of `stats`, cs floats each. */
enum {
    S_CENTER,
    S_MEAN,
    S_INVSTD,
    S_SCALE,
    S_SHIFT,
    S_A,
    S_B,
    S_D,
    S_REST,
    S_LATER_B,
    S_LATER_D,
    S_ROWS
};

static float *stat(const layer *l, const program *p, int row)
{
    return l->stats + (size_t)row * (size_t)p->tensors[l->out].cs;
}

typedef struct norm_work {
    program *p;
    layer *l;
    bool back;
} norm_work;

/* A layer's second input, where it has one, is what is added after the norm. */
static const tensor *residual(const program *p, const layer *l)
{
    return l->in_count > 1 ? &p->tensors[l->in[1]] : NULL;
}

/* Backward, a residual's sum cannot be told from x: then the result says what passed. */
static bool reads_result(const program *p, const layer *l)
{
    return l->relu && residual(p, l);
}

int norm_result(const layer *l)
{
    return l->act ? l->act->out : l->out;
}

static const tensor *result(const program *p, const layer *l)
{
    return &p->tensors[norm_result(l)];
}

static bn_pass pass_of(const program *p, const layer *l, const pixel_run *r)
{
    const tensor *x = &p->tensors[l->in[0]], *y = result(p, l);
    bn_pass in = {.x = run_at(x, &x->y, r), .mean = stat(l, p, S_MEAN), .dy = run_at(y, &y->dy, r),
                  .x_step = (size_t)x->step};
    if (reads_result(p, l))
        in.y = run_at(y, &y->y, r);
    else if (l->relu || l->act)
        in.scale = stat(l, p, S_SCALE), in.shift = stat(l, p, S_SHIFT);
    if (l->act)
        in.acts = true, in.act = l->act->node->act.kind, in.slope = (float)l->act->node->act.slope;
    return in;
}

/* What pass_of points to. */
static run_level pass_runs(const program *p, const layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = result(p, l);
    run_level level = run_through(run_through(RUN_SAMPLES, x, &x->y), y, &y->dy);
    return reads_result(p, l) ? run_through(level, y, &y->y) : level;
}

/* One run's two sums a channel, added to fsum. */
static void run_sums(const norm_work *w, const pixel_run *r, float *fsum)
{
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]];
    int cs = x->cs, known = l->known ? p->tensors[l->known->out].cs : 0;
    if (w->back) {
        bn_pass in = pass_of(p, l, r);
        p->k->bn_sums(r->pixels, cs, &in, fsum, fsum + cs);
    } else {
        p->k->moments(r->pixels, cs - known, run_at(x, &x->y, r) + known, (size_t)x->step,
                      stat(l, p, S_CENTER) + known, fsum + known, fsum + cs + known);
    }
}

/* The sums of some samples, added to the thread's, and begun anew. */
static void keep_sums(size_t count, double *sums, float *fsum)
{
    for (size_t c = 0; c < count; c++)
        sums[c] += (double)fsum[c];
    memset(fsum, 0, count * sizeof *fsum);
}

static void sums_part(void *arg, int thread, int threads)
{
    norm_work *w = arg;
    const tensor *x = &w->p->tensors[w->l->in[0]];
    int cs = x->cs, n = w->p->b->n;
    run_level level = w->back ? pass_runs(w->p, w->l) : run_through(RUN_SAMPLES, x, &x->y);
    double *sums = w->l->sums + (size_t)thread * 2 * (size_t)cs;
    float *fsum = layer_scratch(w->l, thread);
    memset(sums, 0, 2 * (size_t)cs * sizeof *sums);
    memset(fsum, 0, 2 * (size_t)cs * sizeof *fsum);
    pixel_runs r;
    RUNS(r, level, x->s, n * thread / threads, n * (thread + 1) / threads) {
        if (r.now.row == 0)
            keep_sums(2 * (size_t)cs, sums, fsum);
        run_sums(w, &r.now, fsum);
    }
    keep_sums(2 * (size_t)cs, sums, fsum);
}

/* The two sums of every channel over the whole batch, in sums[0 .. 2 cs). */
static void batch_sums(program *p, layer *l, bool back)
{
    norm_work w = {p, l, back};
    if (!back || !l->entered) /* then the convolution has them */
        cpu_threads_run(p->threads, sums_part, &w);
    size_t cs = (size_t)p->tensors[l->out].cs;
    for (int t = 1; t < cpu_threads_count(p->threads); t++)
        for (size_t c = 0; c < 2 * cs; c++)
            l->sums[c] += l->sums[(size_t)t * 2 * cs + c];
}

static void move_running(program *p, const graph_node *n, int c, double mean, double var,
                         double count)
{
    float *rm = p->s.buffers + p->g->vars[n->running_mean].offset + c;
    float *rv = p->s.buffers + p->g->vars[n->running_var].offset + c;
    double m = n->bn.momentum;
    *rm = (float)((1 - m) * (double)*rm + m * mean);
    *rv = (float)((1 - m) * (double)*rv + m * var * count / (count - 1));
}

static void statistics(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]];
    const graph_node *n = l->node;
    double count = (double)p->b->n * x->s.h * x->s.w;
    memcpy(stat(l, p, S_CENTER), tensor_pixels(&x->y, x->cs, 0), (size_t)x->cs * sizeof(float));
    batch_sums(p, l, false);
    if (l->known) {
        size_t known = (size_t)p->tensors[l->known->out].cs;
        memcpy(l->sums, l->known->sums, known * sizeof *l->sums);
        memcpy(l->sums + x->cs, l->known->sums + known, known * sizeof *l->sums);
    }
    for (int c = 0; c < x->s.c; c++) {
        double off = l->sums[c] / count, var = l->sums[x->cs + c] / count - off * off;
        double mean = (double)stat(l, p, S_CENTER)[c] + off;
        var = var < 0 ? 0 : var; /* NaN stays */
        stat(l, p, S_MEAN)[c] = (float)mean;
        stat(l, p, S_REST)[c] = (float)(mean - (double)(float)mean);
        stat(l, p, S_INVSTD)[c] = (float)(1 / sqrt(var + n->bn.eps));
        if (count > 1)
            move_running(p, n, c, mean, var, count);
    }
    if (n->batches >= 0)
        p->s.counters[p->g->vars[n->batches].offset]++;
}

static void running(program *p, layer *l)
{
    const float *rm = p->s.buffers + p->g->vars[l->node->running_mean].offset;
    const float *rv = p->s.buffers + p->g->vars[l->node->running_var].offset;
    for (int c = 0; c < l->node->shape.c; c++) {
        stat(l, p, S_MEAN)[c] = rm[c];
        stat(l, p, S_INVSTD)[c] = (float)(1 / sqrt((double)rv[c] + l->node->bn.eps));
    }
}

static void norm_apply(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out], *add = residual(p, l);
    run_level level = run_through(run_through(RUN_SAMPLES, x, &x->y), y, &y->y);
    level = add ? run_through(level, add, &add->y) : level;
    pixel_runs r;
    RUNS(r, level, x->s, from, to)
    p->k->affine(r.now.pixels, x->cs, run_at(x, &x->y, &r.now), (size_t)x->step,
                 stat(l, p, S_SCALE), stat(l, p, S_SHIFT),
                 add ? run_at(add, &add->y, &r.now) : NULL, l->relu, run_at(y, &y->y, &r.now),
                 (size_t)y->cs);
}

/* With the activation after it. */
static void apply_act(program *p, layer *l, int from, int to)
{
    const tensor *x = &p->tensors[l->in[0]], *y = result(p, l);
    run_level level = run_through(run_through(RUN_SAMPLES, x, &x->y), y, &y->y);
    pixel_runs r;
    RUNS(r, level, x->s, from, to)
    p->k->affine_act(l->act->node->act.kind, (float)l->act->node->act.slope, r.now.pixels, x->cs,
                     run_at(x, &x->y, &r.now), (size_t)x->step, stat(l, p, S_SCALE),
                     stat(l, p, S_SHIFT), run_at(y, &y->y, &r.now), (size_t)y->cs);
}

static void norm_forward(program *p, layer *l, int from, int to, int thread)
{
    if (l->act)
        apply_act(p, l, from, to);
    else if (!l->entered)
        norm_apply(p, l, from, to, thread);
}

static void scale_and_shift(program *p, layer *l)
{
    const float *w = program_param(p, l->node->weight), *b = program_param(p, l->node->bias);
    for (int c = 0; c < l->node->shape.c; c++) {
        float scale = w[c] * stat(l, p, S_INVSTD)[c];
        stat(l, p, S_SCALE)[c] = scale;
        stat(l, p, S_SHIFT)[c] = b[c] - stat(l, p, S_MEAN)[c] * scale;
    }
}

static void norm_forward_ahead(program *p, layer *l)
{
    statistics(p, l);
    scale_and_shift(p, l);
}

static void norm_evaluate_ahead(program *p, layer *l)
{
    running(p, l);
    scale_and_shift(p, l);
}

/* dx = w*invstd * (g - sum(g)/M - (x - mean) * invstd^2 * sum(g * (x - mean))/M), Ioffe and Szegedy
 * 2015. */
static void coefficients(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]];
    double count = (double)p->b->n * x->s.h * x->s.w;
    const float *w = program_param(p, l->node->weight);
    float *dw = program_grad(p, l->node->weight), *db = program_grad(p, l->node->bias);
    for (int c = 0; c < x->s.c; c++) {
        double inv = (double)stat(l, p, S_INVSTD)[c], a = (double)w[c] * inv;
        double sum = l->sums[c], dot = l->sums[x->cs + c];
        db[c] = (float)sum;
        dw[c] = (float)(dot * inv);
        float af = (float)a, bf = (float)(-a * inv * inv * dot / count);
        stat(l, p, S_A)[c] = af;
        stat(l, p, S_B)[c] = bf;
        /* Of the rounded a, b and mean: dx then sums to zero over the channel as it should. */
        stat(l, p, S_D)[c] =
            (float)(-((double)af * sum / count + (double)bf * (double)stat(l, p, S_REST)[c]));
    }
    size_t cs = (size_t)x->cs;
    p->k->add(cs, stat(l, p, S_B), stat(l, p, S_LATER_B), false, stat(l, p, S_B));
    p->k->add(cs, stat(l, p, S_D), stat(l, p, S_LATER_D), false, stat(l, p, S_D));
    memset(stat(l, p, S_LATER_B), 0, cs * sizeof(float));
    memset(stat(l, p, S_LATER_D), 0, cs * sizeof(float));
}

static void norm_dx(program *p, layer *l, int from, int to)
{
    const tensor *x = &p->tensors[l->in[0]], *res = residual(p, l);
    bool dx = x->dy.data, dres = res && res->dy.data;
    run_level level = pass_runs(p, l);
    level = dx ? run_through(level, x, &x->dy) : level;
    level = dres ? run_through(level, res, &res->dy) : level;
    pixel_runs r;
    RUNS(r, level, x->s, from, to) {
        bn_pass in = pass_of(p, l, &r.now);
        p->k->bn_dx(r.now.pixels, x->cs, &in, stat(l, p, S_A), stat(l, p, S_B), stat(l, p, S_D),
                    l->add[0], dx ? run_at(x, &x->dy, &r.now) : NULL, dres && l->add[1],
                    dres ? run_at(res, &res->dy, &r.now) : NULL);
    }
}

/* The line of an entered norm, where no norm before it takes it. */
static void norm_line(program *p, layer *l, int from, int to)
{
    const tensor *x = &p->tensors[l->in[0]];
    int known = l->known ? p->tensors[l->known->out].cs : 0;
    run_level level = run_through(run_through(RUN_SAMPLES, x, &x->y), x, &x->dy);
    pixel_runs r;
    RUNS(r, level, x->s, from, to)
    p->k->bn_line(r.now.pixels, x->cs - known, (size_t)x->step, run_at(x, &x->y, &r.now) + known,
                  stat(l, p, S_MEAN) + known, stat(l, p, S_B) + known, stat(l, p, S_D) + known,
                  run_at(x, &x->dy, &r.now) + known);
}

static void hand_on(program *p, const layer *l)
{
    const layer *to = l->known;
    size_t cs = (size_t)p->tensors[to->out].cs;
    p->k->add(cs, stat(to, p, S_LATER_B), stat(l, p, S_B), false, stat(to, p, S_LATER_B));
    p->k->add(cs, stat(to, p, S_LATER_D), stat(l, p, S_D), false, stat(to, p, S_LATER_D));
}

static void norm_backward_ahead(program *p, layer *l)
{
    batch_sums(p, l, true);
    coefficients(p, l);
    if (l->entered && l->known)
        hand_on(p, l);
}

static void norm_backward(program *p, layer *l, int from, int to, int thread)
{
    const tensor *res = residual(p, l);
    bool dx = p->tensors[l->in[0]].dy.data;
    (void)thread;
    if (l->entered && dx)
        norm_line(p, l, from, to);
    else if (!l->entered && (dx || (res && res->dy.data)))
        norm_dx(p, l, from, to);
}

/* ---- for the convolution that applies it ----------------------------------------------------- */

void norm_enter(const program *p, const layer *norm, norm_part part, const float *x, float *y,
                size_t step)
{
    const tensor *t = &p->tensors[norm->in[0]];
    p->k->affine(part.pixels, part.channels, x, (size_t)t->step,
                 stat(norm, p, S_SCALE) + part.channel, stat(norm, p, S_SHIFT) + part.channel, NULL,
                 norm->relu, y, step);
}

static double *thread_sums(const program *p, const layer *norm, int thread)
{
    return norm->sums + (size_t)thread * 2 * (size_t)p->tensors[norm->out].cs;
}

void norm_begin(const program *p, const layer *norm, int thread)
{
    memset(thread_sums(p, norm, thread), 0,
           2 * (size_t)p->tensors[norm->out].cs * sizeof *norm->sums);
}

void norm_leave(const program *p, const layer *norm, int thread, norm_part part, const float *x,
                const float *dy, size_t step, bool dx_add, float *dx)
{
    const tensor *t = &p->tensors[norm->in[0]];
    float *fsum = layer_scratch(norm, thread);
    double *sum = thread_sums(p, norm, thread) + part.channel, *dot = sum + t->cs;
    bn_pass in = {.x = x,
                  .mean = stat(norm, p, S_MEAN) + part.channel,
                  .dy = dy,
                  .scale = stat(norm, p, S_SCALE) + part.channel,
                  .shift = stat(norm, p, S_SHIFT) + part.channel,
                  .x_step = (size_t)t->step};
    memset(fsum, 0, 2 * (size_t)part.channels * sizeof *fsum);
    p->k->bn_through(part.pixels, part.channels, &in, step, norm->relu, dx_add, dx, fsum,
                     fsum + part.channels);
    for (int c = 0; c < part.channels; c++) {
        sum[c] += (double)fsum[c];
        dot[c] += (double)fsum[part.channels + c];
    }
}

static bool is_piecewise(graph_act kind)
{
    return kind == ACT_RELU6 || kind == ACT_LEAKY_RELU || kind == ACT_HARDSIGMOID ||
           kind == ACT_HARDSWISH;
}

static bool takes_act(const program *p, const layer *norm, const layer *act)
{
    const tensor *x = &p->tensors[norm->out], *y = &p->tensors[act->out];
    return cpu_has(act->node, OP_ACTIVATION) && is_piecewise(act->node->act.kind) &&
           act->in[0] == norm->out && cpu_has(norm->node, OP_BATCH_NORM) && norm->in_count == 1 &&
           !norm->relu && !norm->entered && graph_only_reader(p->g, norm->out) >= 0 &&
           y->form == FORM_IMAGE && x->root == 0 && y->root == 0;
}

void norm_find_acts(program *p)
{
    for (int i = 0; i < p->layer_count && !p->c.inference; i++)
        for (int j = i + 1; j < p->layer_count; j++)
            if (takes_act(p, &p->layers[i], &p->layers[j]))
                p->layers[i].act = &p->layers[j], p->layers[j].acted = &p->layers[i];
}

static const layer_ops norm_ops = {.forward_whole = norm_forward_ahead,
                                   .forward = norm_forward,
                                   .evaluate = norm_apply,
                                   .evaluate_ahead = norm_evaluate_ahead,
                                   .backward_whole = norm_backward_ahead,
                                   .backward = norm_backward};

int layer_batch_norm(program *p, layer *l)
{
    size_t cs = (size_t)p->tensors[l->out].cs, threads = (size_t)cpu_threads_count(p->threads);
    l->ops = &norm_ops;
    l->stats = program_floats(p, S_ROWS * cs + CPU_SLACK);
    l->sums = program_alloc(p, threads * 2 * cs, sizeof(double));
    l->scratch_floats = 2 * cs + CPU_SLACK;
    l->scratch = program_floats(p, threads * l->scratch_floats);
    snprintf(l->choice, sizeof l->choice, "%s%s%s", l->entered ? "entry" : "fused",
             l->in_count > 1 ? "+add" : "", l->relu ? "+relu" : l->act ? "+act" : "");
    return l->stats && l->sums && l->scratch ? 0 : -1;
}
