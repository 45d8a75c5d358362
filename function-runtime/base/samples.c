/* samples.c: see samples.h. */
#include "samples.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct extents {
    int rank;
    size_t n[SAMPLES_RANK_MAX];
} extents;

static void print_shape(const extents *x, char *out, size_t room)
{
    size_t used = (size_t)snprintf(out, room, "(");
    for (int i = 0; i < x->rank && used < room; i++)
        used += (size_t)snprintf(out + used, room - used, "%s%zu", i ? ", " : "", x->n[i]);
    if (used < room)
        snprintf(out + used, room - used, ")");
}

/* Measures the extents along the first elements; copy checks that all others agree. */
static int measure(const json_t *data, extents *out, err *e)
{
    for (out->rank = 0; json_is_array(data); data = json_array_get(data, 0)) {
        if (out->rank == SAMPLES_RANK_MAX)
            return err_set(e, ERR_INVALID, "data: nested deeper than %d", SAMPLES_RANK_MAX);
        if (json_array_size(data) == 0)
            return err_set(e, ERR_INVALID, "data: an empty array");
        out->n[out->rank++] = json_array_size(data);
    }
    return out->rank ? 0 : err_set(e, ERR_INVALID, "data: an array of numbers is expected");
}

static bool same_squeezed(const size_t *a, int a_rank, const size_t *b, int b_rank)
{
    int i = 0, j = 0;
    for (;;) {
        while (i < a_rank && a[i] == 1)
            i++;
        while (j < b_rank && b[j] == 1)
            j++;
        if (i == a_rank || j == b_rank)
            return i == a_rank && j == b_rank;
        if (a[i++] != b[j++])
            return false;
    }
}

static bool channels_last(const extents *x, shape one)
{
    if (x->rank < 3)
        return false;
    const size_t *of = x->n + x->rank - 3;
    return of[0] == (size_t)one.h && of[1] == (size_t)one.w && of[2] == (size_t)one.c;
}

static int count_samples(const extents *x, shape one, size_t n_max, size_t *n, err *e)
{
    const size_t want[3] = {(size_t)one.c, (size_t)one.h, (size_t)one.w};
    if (x->rank > 1 && same_squeezed(x->n + 1, x->rank - 1, want, 3)) {
        *n = x->n[0];
    } else if (same_squeezed(x->n, x->rank, want, 3)) {
        *n = 1;
    } else if (shape_count(one) == 1 && x->rank == 1) {
        *n = x->n[0];
    } else {
        char got[160];
        print_shape(x, got, sizeof got);
        return err_set(
            e, ERR_INVALID,
            "data: the shape is %.100s, the model takes (%d, %d, %d) or (n, %d, %d, %d)%s", got,
            one.c, one.h, one.w, one.c, one.h, one.w,
            channels_last(x, one) ? ": bring the channels from the end to the front" : "");
    }
    return *n <= n_max ? 0
                       : err_set(e, ERR_LIMIT, "data: %zu samples, at most %zu at once", *n, n_max);
}

/* The error for a value; names its place, "data[1][0]". */
static int refuse(const size_t *at, int depth, const char *what, err *e)
{
    char place[24 * SAMPLES_RANK_MAX] = "";
    size_t used = 0;
    for (int i = 0; i < depth && used < sizeof place; i++)
        used += (size_t)snprintf(place + used, sizeof place - used, "[%zu]", at[i]);
    return err_set(e, ERR_INVALID, "data%s: %s", place, what);
}

static int copy_number(const json_t *data, const size_t *at, int depth, float *to, err *e)
{
    char text[64];
    double v = json_number_value(data);
    if (!json_is_number(data))
        return refuse(at, depth,
                      json_is_array(data) ? "an array where a number is expected" : "no number", e);
    *to = (float)v;
    if (isfinite(*to))
        return 0;
    snprintf(text, sizeof text, "%g is beyond a float's range", v);
    return refuse(at, depth, text, e);
}

static int copy(const json_t *data, const extents *x, size_t *at, int depth, float **to, err *e)
{
    if (depth == x->rank)
        return copy_number(data, at, depth, (*to)++, e);
    if (!json_is_array(data) || json_array_size(data) != x->n[depth])
        return err_set(e, ERR_INVALID, "data: arrays of different length at depth %d (%zu and %zu)",
                       depth, x->n[depth], json_array_size(data));
    for (size_t i = 0; i < x->n[depth]; i++) {
        at[depth] = i;
        if (copy(json_array_get(data, i), x, at, depth + 1, to, e) != 0)
            return -1;
    }
    return 0;
}

int samples_read(const json_t *data, shape one, size_t n_max, samples *out, err *e)
{
    extents x;
    size_t n = 0;
    if (measure(data, &x, e) != 0 || count_samples(&x, one, n_max, &n, e) != 0)
        return -1;
    float *values = malloc(n * shape_count(one) * sizeof *values), *to = values;
    size_t at[SAMPLES_RANK_MAX];
    if (!values)
        return err_set(e, ERR_NOMEM, "no memory for %zu samples", n);
    if (copy(data, &x, at, 0, &to, e) != 0) {
        free(values);
        return -1;
    }
    *out = (samples){n, values};
    return 0;
}
