/* cpu_rows.c: the pixel-wise layers that have a fast way, run by run: add, ReLU, flatten; and
 * mask_samples, the first step of a convolution's backward. */
#include <stdio.h>
#include <string.h>

#include "cpu_spans.h"

void mask_samples(const program *p, const layer *l, int from, int to, float *db)
{
    const tensor *y = &p->tensors[l->out];
    if (!l->relu && l->node->bias < 0)
        return;
    run_level level = run_through(RUN_SAMPLES, y, &y->dy);
    level = l->relu ? run_through(level, y, &y->y) : level;
    pixel_runs r;
    RUNS(r, level, y->s, from, to) {
        float *dy = run_at(y, &y->dy, &r.now);
        p->k->mask_bias(r.now.pixels, y->cs, (size_t)y->step,
                        l->relu ? run_at(y, &y->y, &r.now) : NULL, dy, dy, db);
    }
}

static size_t run_floats(const tensor *t, const pixel_run *r)
{
    return (size_t)r->pixels * (size_t)t->cs;
}

static void add_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *a = &p->tensors[l->in[0]], *b = &p->tensors[l->in[1]], *y = &p->tensors[l->out];
    run_level level =
        run_through(run_through(run_through(RUN_SAMPLES, a, &a->y), b, &b->y), y, &y->y);
    pixel_runs r;
    RUNS(r, level, y->s, from, to)
    p->k->add(run_floats(y, &r.now), run_at(a, &a->y, &r.now), run_at(b, &b->y, &r.now), l->relu,
              run_at(y, &y->y, &r.now));
}

static void pass_back(program *p, layer *l, int input, bool relu, int from, int to)
{
    const tensor *x = &p->tensors[l->in[input]], *y = &p->tensors[l->out];
    if (!x->dy.data)
        return;
    run_level level = run_through(run_through(RUN_SAMPLES, x, &x->dy), y, &y->dy);
    level = relu ? run_through(level, y, &y->y) : level;
    pixel_runs r;
    RUNS(r, level, y->s, from, to)
    p->k->relu_back(run_floats(y, &r.now), relu ? run_at(y, &y->y, &r.now) : NULL,
                    run_at(y, &y->dy, &r.now), l->add[input], run_at(x, &x->dy, &r.now));
}

static void add_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    for (int i = from; i < to; i++) { /* the second call finds dy in the cache */
        pass_back(p, l, 0, l->relu, i, i + 1);
        pass_back(p, l, 1, l->relu, i, i + 1);
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
    run_level level = run_through(run_through(RUN_SAMPLES, x, &x->y), y, &y->y);
    pixel_runs r;
    RUNS(r, level, y->s, from, to)
    p->k->add(run_floats(y, &r.now), run_at(x, &x->y, &r.now), NULL, true,
              run_at(y, &y->y, &r.now));
}

static void relu_backward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    pass_back(p, l, 0, true, from, to);
}

static const layer_ops relu_ops = {.forward = relu_forward, .backward = relu_backward};

int layer_relu(program *p, layer *l)
{
    (void)p;
    l->ops = &relu_ops;
    snprintf(l->choice, sizeof l->choice, "fused");
    return 0;
}

/* ---- flatten: channels first again, one row a sample ----------------------------------------- */

static void flatten_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)thread;
    const tensor *x = &p->tensors[l->in[0]], *y = &p->tensors[l->out];
    int whole = x->y.halo == 0, rows = whole ? 1 : x->s.h, pixels = x->s.h * x->s.w / rows;
    for (int i = from; i < to; i++)
        for (int h = 0; h < rows; h++)
            p->k->transpose(pixels, x->s.c, tensor_pixels(&x->y, x->cs, i) + (size_t)h * x->y.row,
                            (size_t)x->cs,
                            y->y.data + (size_t)i * y->y.sample + (size_t)(h * pixels),
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
