/* cpu_input.c: the network's input: converts the caller's bytes or floats, (C, H, W), to scaled
 * floats with channels innermost. */
#include "common/base/clock.h"
#include "common/base/prefetch.h"
#include "cpu_program.h"

enum { LINE = 64 }; /* pixels of an input row that are converted at a time */

/* Converts n <= LINE values of channel c: value * scale[c] + shift[c]. */
static void convert(const program *p, const char *sample, int c, size_t at, size_t n, float *to)
{
    const backend_batch *b = p->b;
    const shape *s = &p->tensors[0].s;
    bool bytes = b->type == INPUT_UINT8;
    const char *src =
        sample + ((size_t)c * (size_t)(s->h * s->w) + at) * (bytes ? 1 : sizeof(float));
    (bytes ? p->k->input_bytes : p->k->input_floats)(n, src, b->scale ? b->scale[c] : 1,
                                                     b->shift ? b->shift[c] : 0, to);
}

/* Converts a plane of bytes into rows that lie `row` floats apart, in one call: rows are short, and
 * a call for each row would take longer. */
static void convert_plane(const program *p, const unsigned char *sample, float *y, size_t row)
{
    const backend_batch *b = p->b;
    p->k->input_plane((size_t)p->tensors[0].s.h, (size_t)p->tensors[0].s.w, sample,
                      b->scale ? b->scale[0] : 1, b->shift ? b->shift[0] : 0, y, row);
}

/* Converts n pixels at `at` of the plane from the caller's (C, H, W) to channels innermost. */
static void convert_pixels(const program *p, const char *sample, size_t at, size_t n, float *y)
{
    const tensor *t = &p->tensors[0];
    size_t cs = (size_t)t->cs;
    float line[3][LINE];
    if (cs == 1) {
        convert(p, sample, 0, at, n, y);
        return;
    }
    if (cs == 3) {
        for (int c = 0; c < 3; c++)
            convert(p, sample, c, at, n, line[c]);
        p->k->interleave3(n, line[0], line[1], line[2], y);
        return;
    }
    for (int c = 0; c < t->s.c; c++) {
        convert(p, sample, c, at, n, line[0]);
        for (size_t q = 0; q < n; q++)
            y[q * cs + (size_t)c] = line[0][q];
    }
}

static void convert_sample(const program *p, int i)
{
    const tensor *t = &p->tensors[0];
    float *y = tensor_pixels(&t->y, t->cs, i);
    size_t W = (size_t)t->s.w;
    if (t->cs == 1 && p->b->type == INPUT_UINT8) {
        convert_plane(p, p->b->x[i], y, t->y.row);
        return;
    }
    for (int h = 0; h < t->s.h; h++)
        for (size_t w = 0; w < W; w += LINE)
            convert_pixels(p, p->b->x[i], (size_t)h * W + w, W - w < LINE ? W - w : LINE,
                           y + (size_t)h * t->y.row + w * (size_t)t->cs);
}

static void input_forward(program *p, layer *l, int from, int to, int thread)
{
    (void)l;
    const tensor *t = &p->tensors[0];
    int64_t begin_ns = thread == 0 ? clock_monotonic_ns() : 0;
    size_t bytes = shape_count(t->s) * (p->b->type == INPUT_UINT8 ? 1 : sizeof(float));
    for (int i = from; i < to; i++) {
        if (i + 1 < p->b->n)
            prefetch_bytes(p->b->x[i + 1], bytes);
        convert_sample(p, i);
    }
    if (thread == 0)
        p->convert_ns += clock_monotonic_ns() - begin_ns;
}

static const layer_ops input_ops = {.forward = input_forward};

int layer_input(layer *l)
{
    l->ops = &input_ops;
    return 0;
}
