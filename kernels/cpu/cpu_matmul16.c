/* cpu_matmul16.c: see cpu_matmul16.h. The products read many times what is read and rounded once
 * here, and they read it without gaps: rounding costs less than the strides of the tensors
 * would. */
#include "cpu_matmul16.h"

matmul_rows matmul_along(const program *p, int m, int channels, matmul_rows from, float *room)
{
    size_t ld = ((size_t)channels + 15) / 16 * 8;
    if (!p->k16)
        return from;
    p->k16->along(m, channels, from.data, from.ld, matmul_words_to(room), ld);
    return (matmul_rows){room, ld};
}

matmul_rows matmul_across(const program *p, int m, int channels, matmul_rows from, float *room)
{
    if (!p->k16)
        return from;
    p->k16->across(m, channels, from.data, from.ld, matmul_words_to(room), (size_t)channels);
    return (matmul_rows){room, (size_t)channels};
}

/* ---- one pixel of all samples ---------------------------------------------------------------- */

/* Words of a pixel's channels. */
static size_t row_words(const tensor *t)
{
    return (size_t)t->cs / 2;
}

/* Rows of two samples at one pixel; each thread may have one odd sample. */
static size_t twos(const program *p)
{
    return (size_t)p->c.batch / 2 + (size_t)cpu_threads_count(p->threads);
}

static size_t point(const tensor *t, int h, int w)
{
    return (size_t)(h * t->s.w + w);
}

matmul_rows points16_row(const program *p, const float *words, const tensor *t, int from, int h,
                         int w)
{
    size_t ld = row_words(t);
    return (matmul_rows){words + (point(t, h, w) * (size_t)p->c.batch + (size_t)from) * ld, ld};
}

matmul_rows points16_two(const program *p, const float *words, const tensor *t, int from,
                         int thread, int h, int w)
{
    size_t ld = (size_t)t->cs;
    return (matmul_rows){words + (point(t, h, w) * twos(p) + (size_t)(from / 2 + thread)) * ld, ld};
}

/* The products read every h-th row and every w-th column of a tensor. */
typedef struct grid {
    int h, w;
} grid;

static grid input_grid(const layer *l)
{
    bool skips =
        l->g.kh == 1 && l->g.kw == 1 && l->node->conv.pad_h == 0 && l->node->conv.pad_w == 0;
    return skips ? (grid){l->g.sh, l->g.sw} : (grid){1, 1};
}

static const float *row_of(const tensor *t, const plane *a, int sample, int h)
{
    return tensor_pixels(a, t->cs, sample) + (size_t)h * a->row;
}

/* Writes words sample by sample, in the order in which samples lie in memory. */
static void write_rows(const program *p, const tensor *t, const plane *a, grid g, int from, int to,
                       float *words)
{
    size_t ld = row_words(t), apart = (size_t)p->c.batch * ld;
    for (int i = from; i < to; i++)
        for (int h = 0; h < t->s.h; h += g.h)
            p->k16->along((t->s.w + g.w - 1) / g.w, t->s.c, row_of(t, a, i, h),
                          (size_t)(t->step * g.w),
                          matmul_words_to(words) + point(t, h, 0) * apart + (size_t)i * ld,
                          apart * (size_t)g.w);
}

static void write_twos(const program *p, const tensor *t, const plane *a, grid g, int from, int to,
                       int thread, float *words)
{
    size_t ld = (size_t)t->cs;
    for (int i = from; i < to; i += 2)
        for (int h = 0; h < t->s.h; h += g.h)
            for (int w = 0; w < t->s.w; w += g.w)
                p->k16->across(
                    to - i < 2 ? 1 : 2, t->cs, row_of(t, a, i, h) + w * t->step, a->sample,
                    matmul_words_to(words) +
                        (point(t, h, w) * twos(p) + (size_t)(from / 2 + thread + (i - from) / 2)) *
                            ld,
                    ld);
}

void points16_forward(const program *p, const layer *l, int from, int to)
{
    const tensor *x = &p->tensors[l->in[0]];
    write_rows(p, x, &x->y, input_grid(l), from, to, l->points16->x);
}

void points16_backward(const program *p, const layer *l, int from, int to, int thread)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    write_twos(p, x, &x->y, input_grid(l), from, to, thread, l->points16->x_two);
    write_twos(p, y, &y->dy, (grid){1, 1}, from, to, thread, l->points16->dy_two);
    if (x->dy.data)
        write_rows(p, y, &y->dy, (grid){1, 1}, from, to, l->points16->dy);
}

static int lease(program *p, layer *l, float **to, const tensor *t, size_t rows, size_t ld,
                 lease_time when)
{
    return program_lease(p, to, (size_t)(t->s.h * t->s.w) * rows * ld + CPU_SLACK, l, when);
}

int points16_alloc(program *p, layer *l)
{
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    size_t batch = (size_t)p->c.batch;
    struct points16 *w = l->points16 = program_alloc(p, 1, sizeof *w);
    if (!w || lease(p, l, &w->x, x, batch, row_words(x), LEASE_FORWARD) != 0)
        return -1;
    if (p->c.inference)
        return 0;
    if (lease(p, l, &w->x_two, x, twos(p), (size_t)x->cs, LEASE_BACKWARD) != 0 ||
        lease(p, l, &w->dy_two, y, twos(p), (size_t)y->cs, LEASE_BACKWARD) != 0)
        return -1;
    return x->dy.data ? lease(p, l, &w->dy, y, batch, row_words(y), LEASE_BACKWARD) : 0;
}
