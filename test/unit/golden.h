/* golden.h: reads test/golden/, and draws the weights and batches that its script draws too.
 *
 * Streams of (GOLDEN_SEED, RNG_TEST, a, b): a = 1 weights of variable b, 2 images of batch b, 3 its
 * labels; see make_golden.py, whose `fill` and `batch` these functions repeat. */
#ifndef KUBEML_GOLDEN_H
#define KUBEML_GOLDEN_H

#include "common/base/rng.h"
#include "kernels/engine.h"
#include "test.h"

enum { GOLDEN_SEED = 7, GOLDEN_BATCH_MAX = 64, GOLDEN_LINE_BYTES = 1 << 16 };

/* In [-1, 1), 24 bits. */
static inline double golden_uniform(rng *r)
{
    return (double)(rng_u32(r) >> 8) * 0x1p-23 - 1;
}

/* One variable's values, by its kind, rank and name, as make_golden.py's `fill`. */
static inline void golden_fill_var(const engine_var *v, uint64_t index, double gain, float *to)
{
    rng r;
    rng_init(&r, GOLDEN_SEED, RNG_TEST, 1, index);
    bool around_one =
        strstr(v->name, "running_var") || (strstr(v->name, ".weight") && v->rank == 1);
    double fan_in = v->rank >= 2 ? (double)v->count / v->dims[0] : 1;
    for (size_t i = 0; i < v->count; i++) {
        double u = golden_uniform(&r);
        to[i] = (float)(v->rank >= 2 ? u * gain / sqrt(fan_in)
                        : around_one ? 1 + 0.25 * u
                                     : 0.1 * u);
    }
}

/* The layout lists kinds apart; the draw is keyed by the place in the graph's list, as a
 * state_dict. */
static inline void golden_fill(engine *m, double gain)
{
    err e = ERR_INIT;
    float *floats = engine_floats(m, &e);
    size_t count;
    const engine_var *layout = engine_layout(m, &count);
    for (size_t i = 0; i < count; i++) {
        if (layout[i].kind != VAR_PARAM && layout[i].kind != VAR_BUFFER)
            continue;
        int index = graph_var_find(engine_graph(m), layout[i].name);
        golden_fill_var(&layout[i], (uint64_t)index, gain, floats + layout[i].offset);
    }
    CHECK_OK(engine_state_changed(m, &e), e);
}

/* A batch of make_golden.py: uint8 images, to be read as x / 64 - 2. */
typedef struct golden_batch {
    unsigned char *x;
    int32_t labels[GOLDEN_BATCH_MAX];
    float scale[4], shift[4];
    engine_batch b;
} golden_batch;

static inline void golden_draw(golden_batch *to, uint64_t index, int n, shape s, int classes)
{
    size_t count = (size_t)n * shape_count(s);
    CHECK(n <= GOLDEN_BATCH_MAX && s.c <= 4);
    to->x = realloc(to->x, count);
    CHECK(to->x);
    rng r;
    rng_init(&r, GOLDEN_SEED, RNG_TEST, 2, index);
    for (size_t i = 0; i < count; i++)
        to->x[i] = (unsigned char)(rng_u32(&r) >> 24);
    rng_init(&r, GOLDEN_SEED, RNG_TEST, 3, index);
    for (int i = 0; i < n; i++)
        to->labels[i] = (int32_t)(rng_u32(&r) % (uint32_t)classes);
    for (int i = 0; i < 4; i++) {
        to->scale[i] = 1.0f / 64;
        to->shift[i] = -2;
    }
    to->b = (engine_batch){.n = n,
                           .type = INPUT_UINT8,
                           .x = to->x,
                           .scale = to->scale,
                           .shift = to->shift,
                           .labels = to->labels};
}

/* The numbers after `key` in test/golden/<file>.txt; how many there were (0: no such line). The
 * tests run in the source tree's root. */
static inline int golden_read(const char *file, const char *key, double *to, int room)
{
    char path[256];
    snprintf(path, sizeof path, "test/golden/%s.txt", file);
    FILE *f = fopen(path, "r");
    if (!f)
        test_fail(__FILE__, __LINE__, "%s is missing", path);
    char *line = malloc(GOLDEN_LINE_BYTES);
    CHECK(line);
    int found = 0;
    size_t n = strlen(key);
    while (!found && fgets(line, GOLDEN_LINE_BYTES, f)) {
        if (strncmp(line, key, n) != 0 || line[n] != ' ')
            continue;
        char *at = line + n, *end;
        for (double v = strtod(at, &end); end != at && found < room; v = strtod(at, &end)) {
            to[found++] = v;
            at = end;
        }
    }
    free(line);
    fclose(f);
    return found;
}

/* A line that must be there with exactly `count` numbers. */
static inline void golden_line(const char *file, const char *key, double *to, int count)
{
    if (golden_read(file, key, to, count) != count)
        test_fail(__FILE__, __LINE__, "%s.txt has no line '%s' with %d numbers", file, key, count);
}

#endif
