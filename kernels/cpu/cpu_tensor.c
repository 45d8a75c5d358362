/* cpu_tensor.c: where a tensor's elements lie, and the borders of its gradient. */
#include <string.h>

#include "cpu_program.h"

static view plane_view(const tensor *t, const plane *a)
{
    if (!a->data)
        return (view){NULL, 0, 0, 0, 0};
    if (t->form == FORM_IMAGE)
        return (view){tensor_pixels(a, t->cs, 0), a->sample, 1, a->row, (size_t)t->step};
    if (t->form == FORM_ROWS)
        return (view){a->data, a->sample, 1, 0, 0};
    return (view){a->data, 1, a->row, 0, 0};
}

view tensor_view(const tensor *t)
{
    return plane_view(t, &t->y);
}

view tensor_gradient(const tensor *t)
{
    return plane_view(t, &t->dy);
}

void tensor_clear_halo(const tensor *t, int sample)
{
    const plane *a = &t->dy;
    if (a->halo == 0)
        return;
    float *p = a->data + (size_t)sample * a->sample;
    size_t side = (size_t)(a->halo * t->cs);
    memset(p, 0, (size_t)a->halo * a->row * sizeof *p);
    for (int h = 0; h < t->s.h; h++) {
        float *row = p + (size_t)(h + a->halo) * a->row;
        memset(row, 0, side * sizeof *p);
        memset(row + a->row - side, 0, side * sizeof *p);
    }
    memset(p + (size_t)(t->s.h + a->halo) * a->row, 0, (size_t)a->halo * a->row * sizeof *p);
}
