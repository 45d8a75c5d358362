/* test_cpu_pool.c: max pooling's kernels, of each instruction set, value by value and winner by
 * winner: the first of the largest, and of NaNs the last, as PyTorch has it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "kernels/cpu/cpu_kernels.h"
#include "test.h"

enum { SIDE = 7, TAPS_MAX = 25, CHANNELS_MAX = 56, PIXELS = SIDE * SIDE, ROOM = 64 };

typedef struct pooling {
    int kernel, stride, padding;
} pooling;

/* One axis, as cpu_kernels.h says: for the outputs what they see, for the inputs who sees them. */
typedef struct axis {
    window_axis to, back;
    int begin[2][SIDE + 3], step[2][SIDE + 2];
    window_tap taps[2][(SIDE + 2) * TAPS_MAX];
} axis;

static void lay_out(axis *a, pooling p)
{
    int out = (SIDE + 2 * p.padding - p.kernel) / p.stride + 1;
    memset(a, 0, sizeof *a);
    for (int back = 0; back < 2; back++) {
        int count = back ? SIDE : out, n = 0;
        for (int d = 0; d < count; d++) {
            a->begin[back][d] = n;
            a->step[back][d] = -1;
            for (int t = 0; t < p.kernel; t++) {
                int from = back ? d + p.padding - t : d * p.stride - p.padding + t;
                bool meets = back ? from >= 0 && from % p.stride == 0 && from / p.stride < out
                                  : from >= 0 && from < SIDE;
                if (meets)
                    a->taps[back][n++] = (window_tap){back ? from / p.stride : from, t, 1};
            }
        }
        a->begin[back][count] = n;
        window_axis *to = back ? &a->back : &a->to;
        *to = (window_axis){.count = count, .begin = a->begin[back], .step = a->step[back],
                            .taps = a->taps[back]};
    }
}

/* One output, by the definition. */
static float largest(const axis *a, int h, int w, pooling p, int cs, const float *x, uint8_t *won)
{
    float best = 0;
    bool any = false;
    for (int r = a->begin[0][h]; r < a->begin[0][h + 1]; r++)
        for (int s = a->begin[0][w]; s < a->begin[0][w + 1]; s++) {
            const window_tap *th = &a->taps[0][r], *tw = &a->taps[0][s];
            float v = x[(th->from * SIDE + tw->from) * cs];
            if (any && !(v > best) && !isnan(v))
                continue;
            any = true;
            best = v;
            *won = (uint8_t)(th->tap * p.kernel + tw->tap);
        }
    return best;
}

/* Few values, so that many windows have two that are largest. */
static float draw(rng *r, bool odd)
{
    static const float of[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 0x1p-126f, -3.0f};
    uint64_t which = rng_below(r, odd ? 40 : 5);
    return which < 5 ? (float)which - 2 : which - 5 < 8 ? of[which - 5] : -1.0f;
}

static void check_pooling(const cpu_kernels *k, pooling p, int cs, bool odd)
{
    static float x[PIXELS * CHANNELS_MAX], y[ROOM * CHANNELS_MAX], dx[PIXELS * CHANNELS_MAX],
        want_dx[PIXELS * CHANNELS_MAX];
    static uint8_t won[ROOM * CHANNELS_MAX];
    static axis a;
    rng r;
    rng_init(&r, 7, RNG_TEST, (uint32_t)cs, (uint64_t)(p.kernel * 100 + p.stride * 10 + p.padding));
    lay_out(&a, p);
    int out = a.to.count;
    CHECK(out * out <= ROOM);
    for (int i = 0; i < PIXELS * cs; i++)
        x[i] = draw(&r, odd);
    window_geom g = {.h = a.to, .w = a.to, .cs = cs, .kh = p.kernel, .kw = p.kernel,
                     .x_row = (size_t)(SIDE * cs), .y_row = (size_t)(out * cs)};
    window_geom b = {.h = a.back, .w = a.back, .cs = cs, .kh = p.kernel, .kw = p.kernel,
                     .x_row = g.y_row, .y_row = g.x_row, .accumulate = odd};
    for (int asked = 0; asked < 2; asked++) { /* for the winners, too */
        memset(won, 0xEE, sizeof won);
        k->window_max(&g, x, y, asked ? won : NULL);
        for (int i = 0; i < out * out * cs; i++) {
            uint8_t at = 0;
            int pixel = i / cs;
            float want = largest(&a, pixel / out, pixel % out, p, cs, x + i % cs, &at);
            if (isnan(want) ? !isnan(y[i]) : memcmp(&want, &y[i], sizeof want) != 0)
                test_fail(__FILE__, __LINE__, "%s, %dx%d by %d, channel %d of %d, output %d: %g, not %g",
                          k->name, p.kernel, p.kernel, p.stride, i % cs, cs, pixel, (double)y[i],
                          (double)want);
            CHECK_INT(won[i], asked ? at : 0xEE);
        }
    }
    /* Small whole numbers: their sums are exact in any order. */
    for (int i = 0; i < PIXELS * cs; i++) {
        dx[i] = 5;
        want_dx[i] = b.accumulate ? 5 : 0;
    }
    for (int i = 0; i < out * out * cs; i++) {
        int pixel = i / cs, h = pixel / out * p.stride - p.padding + won[i] / p.kernel,
            w = pixel % out * p.stride - p.padding + won[i] % p.kernel;
        y[i] = (float)rng_below(&r, 9) - 4;
        want_dx[(h * SIDE + w) * cs + i % cs] += y[i];
    }
    k->window_max_back(&b, y, won, (size_t)(out * cs), dx);
    for (int i = 0; i < PIXELS * cs; i++)
        CHECK(dx[i] == want_dx[i]);
}

static void check_set(const char *set)
{
    static const pooling kinds[] = {{2, 2, 0}, {3, 2, 0}, {3, 2, 1}, {3, 1, 1},
                                    {2, 1, 1}, {5, 1, 2}, {4, 3, 2}, {1, 1, 0}};
    static const int channels[] = {8, 16, 24, 40, 56};
    const char *why;
    setenv("KUBEML_CPU", set, 1);
    const cpu_kernels *k = cpu_kernels_pick(&why);
    if (!k)
        test_skip(why);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (size_t c = 0; c < sizeof channels / sizeof *channels; c++) {
            check_pooling(k, kinds[i], channels[c], false);
            check_pooling(k, kinds[i], channels[c], true);
        }
}

TEST(windows_of_avx512)
{
    check_set("avx512");
}

TEST(windows_of_avx2)
{
    check_set("avx2");
}

TEST(windows_of_generic)
{
    check_set("generic");
}
