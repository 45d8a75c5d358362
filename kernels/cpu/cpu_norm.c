/* cpu_norm.c: batch norm with a residual's sum and ReLU, and the pixel-wise layers that have a fast way:
 * ReLU, add, flatten.
 *
 * Sums over a batch: floats within a sample, doubles over the samples of a thread, then the threads in
 * order. Values are taken relative to the channel's first one, so that a large mean costs no digits. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cpu_program.h"

/* Rows of `stats`, cs floats each. */
enum { S_CENTER, S_MEAN, S_INVSTD, S_SCALE, S_SHIFT, S_A, S_B, S_D, S_REST, S_ROWS };

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

static float *row_at(const tensor *t, const plane *a, int i, int h)
{
    return tensor_pixels(a, t->cs, i) + (size_t)h * a->row;
}

/* Row h of sample i. A residual's sum cannot be told from x: then the result says what passed. */
static bn_pass pass_of(const program *p, const layer *l, int i, int h)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    bn_pass in = {.x = row_at(x, &x->y, i, h), .mean = stat(l, p, S_MEAN), .dy = row_at(y, &y->dy, i, h),
                  .x_step = (size_t)x->step};
    if (l->relu && residual(p, l))
        in.y = row_at(y, &y->y, i, h);
    else if (l->relu)
        in.scale = stat(l, p, S_SCALE), in.shift = stat(l, p, S_SHIFT);
    return in;
}

/* One sample's two sums a channel, added to the thread's. */
static void sample_sums(const norm_work *w, int i, double *sums, float *fsum)
{
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]];
    int cs = x->cs, known = l->known ? p->tensors[l->known->out].cs : 0;
    memset(fsum, 0, 2 * (size_t)cs * sizeof *fsum);
    for (int h = 0; h < x->s.h; h++) {
        bn_pass in;
        if (w->back) {
            in = pass_of(p, l, i, h);
            p->k->bn_sums(x->s.w, cs, &in, fsum, fsum + cs);
        } else {
            p->k->moments(x->s.w, cs - known, row_at(x, &x->y, i, h) + known, (size_t)x->step,
                          stat(l, p, S_CENTER) + known, fsum + known, fsum + cs + known);
        }
    }
    for (int c = 0; c < 2 * cs; c++)
        sums[c] += (double)fsum[c];
}

static void sums_part(void *arg, int thread, int threads)
{
    norm_work *w = arg;
    int cs = w->p->tensors[w->l->out].cs, n = w->p->b->n;
    double *sums = w->l->sums + (size_t)thread * 2 * (size_t)cs;
    float *fsum = w->l->scratch + (size_t)thread * w->l->scratch_floats;
    memset(sums, 0, 2 * (size_t)cs * sizeof *sums);
    for (int i = n * thread / threads; i < n * (thread + 1) / threads; i++)
        sample_sums(w, i, sums, fsum);
}

/* The two sums of every channel over the whole batch, in sums[0 .. 2 cs). */
static void batch_sums(program *p, layer *l, bool back)
{
    norm_work w = {p, l, back};
    cpu_threads_run(p->threads, sums_part, &w);
    size_t cs = (size_t)p->tensors[l->out].cs;
    for (int t = 1; t < cpu_threads_count(p->threads); t++)
        for (size_t c = 0; c < 2 * cs; c++)
            l->sums[c] += l->sums[(size_t)t * 2 * cs + c];
}

static void move_running(program *p, const graph_node *n, int c, double mean, double var, double count)
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

static void apply_part(void *arg, int thread, int threads)
{
    norm_work *w = arg;
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out], *add = residual(p, l);
    int n = p->b->n;
    for (int i = n * thread / threads; i < n * (thread + 1) / threads; i++)
        for (int h = 0; h < x->s.h; h++)
            p->k->affine(x->s.w, x->cs, row_at(x, &x->y, i, h), (size_t)x->step, stat(l, p, S_SCALE), stat(l, p, S_SHIFT),
                         add ? row_at(add, &add->y, i, h) : NULL, l->relu, row_at(y, &y->y, i, h));
}

static void norm_forward(program *p, layer *l)
{
    if (p->training)
        statistics(p, l);
    else
        running(p, l);
    const float *w = program_param(p, l->node->weight), *b = program_param(p, l->node->bias);
    for (int c = 0; c < l->node->shape.c; c++) {
        float scale = w[c] * stat(l, p, S_INVSTD)[c];
        stat(l, p, S_SCALE)[c] = scale;
        stat(l, p, S_SHIFT)[c] = b[c] - stat(l, p, S_MEAN)[c] * scale;
    }
    norm_work work = {p, l, false};
    cpu_threads_run(p->threads, apply_part, &work);
}

/* dx = w*invstd * (g - sum(g)/M - (x - mean) * invstd^2 * sum(g * (x - mean))/M), Ioffe and Szegedy 2015. */
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
        stat(l, p, S_D)[c] = (float)(-((double)af * sum / count + (double)bf * (double)stat(l, p, S_REST)[c]));
    }
}

static void dx_part(void *arg, int thread, int threads)
{
    norm_work *w = arg;
    program *p = w->p;
    layer *l = w->l;
    const tensor *x = &p->tensors[l->in[0]], *res = residual(p, l);
    bool dx = x->dy.data, dres = res && res->dy.data;
    int n = p->b->n;
    for (int i = n * thread / threads; i < n * (thread + 1) / threads; i++)
        for (int h = 0; h < x->s.h; h++) {
            bn_pass in = pass_of(p, l, i, h);
            p->k->bn_dx(x->s.w, x->cs, &in, stat(l, p, S_A), stat(l, p, S_B), stat(l, p, S_D), l->add[0],
                        dx ? row_at(x, &x->dy, i, h) : NULL, dres && l->add[1],
                        dres ? row_at(res, &res->dy, i, h) : NULL);
        }
}

static void norm_backward(program *p, layer *l)
{
    batch_sums(p, l, true);
    coefficients(p, l);
    norm_work w = {p, l, true};
    const tensor *res = residual(p, l);
    if (p->tensors[l->in[0]].dy.data || (res && res->dy.data))
        cpu_threads_run(p->threads, dx_part, &w);
}

static const layer_ops norm_ops = {.forward_whole = norm_forward, .backward_whole = norm_backward};

int layer_batch_norm(program *p, layer *l)
{
    size_t cs = (size_t)p->tensors[l->out].cs, threads = (size_t)cpu_threads_count(p->threads);
    l->ops = &norm_ops;
    l->stats = program_floats(p, S_ROWS * cs + CPU_SLACK);
    l->sums = program_alloc(p, threads * 2 * cs, sizeof(double));
    l->scratch_floats = 2 * cs + CPU_SLACK;
    l->scratch = program_floats(p, threads * l->scratch_floats);
    snprintf(l->choice, sizeof l->choice, "fused%s%s", l->in_count > 1 ? "+add" : "", l->relu ? "+relu" : "");
    return l->stats && l->sums && l->scratch ? 0 : -1;
}

/* ---- add and ReLU, row by row ------------------------------------------------------------------- */

static void add_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *a = &p->tensors[l->in[0]], *b = &p->tensors[l->in[1]], *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        for (int h = 0; h < y->s.h; h++)
            p->k->add((size_t)(y->s.w * y->cs), tensor_pixels(&a->y, a->cs, i) + (size_t)h * a->y.row,
                      tensor_pixels(&b->y, b->cs, i) + (size_t)h * b->y.row, l->relu,
                      tensor_pixels(&y->y, y->cs, i) + (size_t)h * y->y.row);
}

static void pass_back(program *p, layer *l, int input, bool relu, int i)
{
    const tensor *x = &p->tensors[l->in[input]], *y = &p->tensors[l->out];
    if (!x->dy.data)
        return;
    for (int h = 0; h < y->s.h; h++)
        p->k->relu_back((size_t)(y->s.w * y->cs),
                        relu ? tensor_pixels(&y->y, y->cs, i) + (size_t)h * y->y.row : NULL,
                        tensor_pixels(&y->dy, y->cs, i) + (size_t)h * y->dy.row, l->add[input],
                        tensor_pixels(&x->dy, x->cs, i) + (size_t)h * x->dy.row);
}

static void add_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    for (int i = from; i < to; i++) {
        pass_back(p, l, 0, l->relu, i);
        pass_back(p, l, 1, l->relu, i);
    }
}

static const layer_ops add_ops = {.forward = add_forward, .backward = add_backward};

int layer_add(program *p, layer *l)
{
    (void)p;
    l->ops = &add_ops;
    snprintf(l->choice, sizeof l->choice, l->relu ? "fused+relu" : "fused");
    return 0;
}

static void relu_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    for (int i = from; i < to; i++)
        for (int h = 0; h < y->s.h; h++) {
            const float *row = tensor_pixels(&x->y, x->cs, i) + (size_t)h * x->y.row;
            p->k->add((size_t)(y->s.w * y->cs), row, NULL, true,
                      tensor_pixels(&y->y, y->cs, i) + (size_t)h * y->y.row);
        }
}

static void relu_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    for (int i = from; i < to; i++)
        pass_back(p, l, 0, true, i);
}

static const layer_ops relu_ops = {.forward = relu_forward, .backward = relu_backward};

int layer_relu(program *p, layer *l)
{
    (void)p;
    l->ops = &relu_ops;
    snprintf(l->choice, sizeof l->choice, "fused");
    return 0;
}

/* ---- flatten: channels first again, one row a sample ------------------------------------------- */

static void flatten_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int whole = x->y.halo == 0, rows = whole ? 1 : x->s.h, pixels = x->s.h * x->s.w / rows;
    for (int i = from; i < to; i++)
        for (int h = 0; h < rows; h++)
            p->k->transpose(pixels, x->s.c, tensor_pixels(&x->y, x->cs, i) + (size_t)h * x->y.row,
                            (size_t)x->cs, y->y.data + (size_t)i * y->y.sample + (size_t)(h * pixels),
                            (size_t)(x->s.h * x->s.w));
}

static void flatten_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int whole = x->dy.halo == 0, rows = whole ? 1 : x->s.h, pixels = x->s.h * x->s.w / rows;
    for (int i = from; i < to && x->dy.data; i++)
        for (int h = 0; h < rows; h++)
            p->k->transpose(x->s.c, pixels,
                            y->dy.data + (size_t)i * y->dy.sample + (size_t)(h * pixels),
                            (size_t)(x->s.h * x->s.w),
                            tensor_pixels(&x->dy, x->cs, i) + (size_t)h * x->dy.row, (size_t)x->cs);
}

static const layer_ops flatten_ops = {.forward = flatten_forward, .backward = flatten_backward};

int layer_flatten(program *p, layer *l)
{
    (void)p;
    l->ops = &flatten_ops;
    snprintf(l->choice, sizeof l->choice, "transpose");
    return 0;
}
