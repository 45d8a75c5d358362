/* cpu_rows.c: the pixel-wise layers that have a fast way, row by row: add, ReLU, flatten. */
#include <stdio.h>

#include "cpu_program.h"

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
