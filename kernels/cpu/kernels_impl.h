/* kernels_impl.h: the body of one cpu_kernels table. A file kernels_SET.c sets the macros below and
 * includes this; the compiler's flags choose the instructions. KERNELS_NAME, KERNELS_TABLE;
 * TILE_PIXELS: accumulators in a row; MAX_ACC: accumulators that registers hold; KERNELS_WIDE: 16
 * lanes pay; KERNELS_NARROW: registers have 4 lanes. */
#include "common/base/prefetch.h"
#include "cpu_kernels.h"
#include "vec_impl.h"

#include <math.h>

enum { PANEL = KERNELS_WIDE ? 32 : 16 };

/* Sanitizers instrument every access of every copy of a tile, and compile for minutes: they get few
 * copies, which cover the same code. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KERNELS_LEAN 1
#undef TILE_PIXELS
#undef MAX_ACC
#define TILE_PIXELS 4
#define MAX_ACC     6
#else
#define KERNELS_LEAN 0
#endif

/* Which copy of a tile has this step as a constant; 0: the copy without a constant. */
static int step_index(size_t step)
{
    switch (step) {
    case 1: return 1;
    case 3: return 2;
    case 8: return 3;
    case 16: return 4;
    case 24: return 5;
    case 32: return 6;
    case 64: return 7;
    default: return 0;
    }
}

/* Transposes 8x8 blocks by the compiler's shuffles, edges one by one. */
static void transpose(int rows, int cols, const float *src, size_t lds, float *dst, size_t ldd)
{
    int i = 0;
    for (; i + 8 <= rows; i += 8) {
        int j = 0;
        for (; j + 8 <= cols; j += 8) {
            v8 r[8], s[8];
            UNROLL for (int q = 0; q < 8; q++)
                r[q] = load8(src + (size_t)(i + q) * lds + (size_t)j);
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (v8i){__VA_ARGS__})
#endif
            UNROLL for (int q = 0; q < 8; q += 2) {
                s[q] = SHUFFLE(r[q], r[q + 1], 0, 8, 1, 9, 4, 12, 5, 13);
                s[q + 1] = SHUFFLE(r[q], r[q + 1], 2, 10, 3, 11, 6, 14, 7, 15);
            }
            UNROLL for (int q = 0; q < 8; q += 4) {
                UNROLL for (int h = 0; h < 2; h++) {
                    r[q + 2 * h] = SHUFFLE(s[q + h], s[q + h + 2], 0, 1, 8, 9, 4, 5, 12, 13);
                    r[q + 2 * h + 1] = SHUFFLE(s[q + h], s[q + h + 2], 2, 3, 10, 11, 6, 7, 14, 15);
                }
            }
            UNROLL for (int q = 0; q < 4; q++) {
                v8 low = SHUFFLE(r[q], r[q + 4], 0, 1, 2, 3, 8, 9, 10, 11);
                v8 high = SHUFFLE(r[q], r[q + 4], 4, 5, 6, 7, 12, 13, 14, 15);
                store8(dst + (size_t)(j + q) * ldd + (size_t)i, low);
                store8(dst + (size_t)(j + q + 4) * ldd + (size_t)i, high);
            }
        }
        for (; j < cols; j++)
            for (int q = 0; q < 8; q++)
                dst[(size_t)j * ldd + (size_t)(i + q)] = src[(size_t)(i + q) * lds + (size_t)j];
    }
    for (; i < rows; i++)
        for (int j = 0; j < cols; j++)
            dst[(size_t)j * ldd + (size_t)i] = src[(size_t)i * lds + (size_t)j];
}

#include "max_pool_impl.h"

#define GEMM_T             float
#define GEMM_ADD(acc, s, v) ((acc) += T(all)(s) * (v))

#if KERNELS_NARROW
#define VT        v4
#define GEMM_V    v4
#define GEMM_LOAD load4
#define VW        4
#define T(name)   name##4
#include "gemm_impl.h"
#undef VT
#undef GEMM_V
#undef GEMM_LOAD
#undef VW
#undef T
#endif

#define VT v8
#define GEMM_V             v8
#define GEMM_LOAD          load8
#define TI v8i
#define TB v8b
#define TBU v8bu
#define VW 8
#define T(name) name##8
#include "conv_tile_impl.h"
#if !KERNELS_NARROW
#include "gemm_impl.h"
#endif
#define SINGLE_CHANNEL_TILES (!KERNELS_NARROW && !KERNELS_WIDE)
#if SINGLE_CHANNEL_TILES
#include "conv_single_channel_impl.h"
#endif
#include "channel_tile_impl.h"
#include "wino_math_impl.h"
#include "wino_tile_impl.h"
#include "act_tile_impl.h"
#include "norm_tile_impl.h"
#undef VT
#undef GEMM_V
#undef GEMM_LOAD
#undef TI
#undef TB
#undef TBU
#undef VW
#undef T

#if KERNELS_WIDE
#define VT v16
#define GEMM_V             v16
#define GEMM_LOAD          load16
#define TI v16i
#define TB v16b
#define TBU v16bu
#define VW 16
#define T(name) name##16
#include "conv_tile_impl.h"
#include "gemm_impl.h"
#include "channel_tile_impl.h"
#include "wino_math_impl.h"
#include "wino_tile_impl.h"
#include "act_tile_impl.h"
#include "norm_tile_impl.h"
#undef VT
#undef GEMM_V
#undef GEMM_LOAD
#undef TI
#undef TB
#undef TBU
#undef VW
#undef T
#include "conv_lanes_impl.h"
#endif

#include "conv_back_impl.h"
#include "wino_impl.h"
#include "channel_impl.h"

static void conv(const conv_geom *g, const float *x, const float *wf, const float *b, float *y)
{
    size_t taps = (size_t)g->kh * (size_t)g->kw * (size_t)g->c;
    int o = 0, padded = (g->k + 7) / 8 * 8;
#if KERNELS_WIDE
    for (; o + 32 <= padded; o += 32)
        conv_pair16(g, x, wf + (size_t)o * taps, b + o, y + o);
    for (; o + 16 <= padded; o += 16)
        conv_block16(g, x, wf + (size_t)o * taps, b + o, y + o);
#else
    for (; o + 16 <= padded; o += 16)
        conv_pair8(g, x, wf + (size_t)o * taps, b + o, y + o);
#endif
    for (; o < padded; o += 8)
        conv_block8(g, x, wf + (size_t)o * taps, b + o, y + o);
}

static void conv_pool(const conv_geom *g, const float *x, const float *wf, const float *b, float *y,
                      uint8_t *arg)
{
    size_t taps = (size_t)g->kh * (size_t)g->kw * (size_t)g->c;
    int o = 0, padded = (g->k + 7) / 8 * 8;
    const pool_copy8 *copies = NULL;
#if KERNELS_WIDE
    for (; o + 16 <= padded; o += 16)
        conv_pool_block16(g, pool_copies16, x, wf + (size_t)o * taps, b + o, y + o,
                          arg ? arg + o : NULL);
    for (; o < padded && lanes_fit(g); o += 8)
        conv_lanes_block(g, g->k - o < 8 ? g->k - o : 8, x, wf + (size_t)o * taps, b + o, y + o,
                         arg ? arg + o : NULL);
#elif SINGLE_CHANNEL_TILES
    copies = single_channel_copies(g);
#endif
    for (; o < padded; o += 8)
        conv_pool_block8(g, copies ? copies : pool_copies8, x, wf + (size_t)o * taps, b + o, y + o,
                         arg ? arg + o : NULL);
}

/* Runs `f(lanes, nv, first channel)` over bands of BAND vectors of channels, of half as many, and
 * of one. Kernels that go over pixels use whole cache lines at once by this. */
#if KERNELS_WIDE
#define BANDS_WIDE(cs, f)                                                                          \
    for (; c + 16 * BAND <= (cs); c += 16 * BAND)                                                  \
        f(16, BAND, (size_t)c);                                                                    \
    for (; c + 8 * BAND <= (cs); c += 8 * BAND)                                                    \
        f(16, BAND / 2, (size_t)c);                                                                \
    for (; c + 16 <= (cs); c += 16)                                                                \
        f(16, 1, (size_t)c);
#else
#define BANDS_WIDE(cs, f)                                                                          \
    for (; c + 8 * BAND <= (cs); c += 8 * BAND)                                                    \
        f(8, BAND, (size_t)c);
#endif
#define BANDS(cs, f)                                                                               \
    do {                                                                                           \
        int c = 0;                                                                                 \
        BANDS_WIDE(cs, f)                                                                          \
        for (; c < (cs); c += 8)                                                                   \
            f(8, 1, (size_t)c);                                                                    \
    } while (0)

static void mask_bias(int pixels, int ks, size_t step, const float *y, const float *dy, float *dst,
                      float *db)
{
#define MASK(lanes, nv, c) mask_band##lanes(nv, c, pixels, step, y, dy, dst, db)
    BANDS(ks, MASK);
#undef MASK
}

static void gemm(int m, int n, int k, const float *a, size_t am, size_t ak, const float *b,
                 size_t ldb, const float *bias, bool relu, const float *add, size_t lda, float *c,
                 size_t ldc, bool far)
{
    int j = 0;
#if KERNELS_WIDE
    for (; j + 16 <= n; ) {
        int nv = n - j >= 32 ? 2 : 1;
        gemm_panel16(m, k, a, am, ak, b + j, ldb, bias, relu, add ? add + j : NULL, lda, c + j, ldc,
                     nv, far);
        j += nv * 16;
    }
#endif
#if KERNELS_NARROW
    for (; j + 4 <= n;) {
        int nv = n - j >= 8 ? 2 : 1;
        gemm_panel4(m, k, a, am, ak, b + j, ldb, bias, relu, add ? add + j : NULL, lda, c + j, ldc,
                    nv, far);
        j += nv * 4;
    }
#else
    for (; j + 8 <= n; ) {
        int nv = n - j >= 16 ? 2 : 1;
        gemm_panel8(m, k, a, am, ak, b + j, ldb, bias, relu, add ? add + j : NULL, lda, c + j, ldc,
                    nv, far);
        j += nv * 8;
    }
#endif
    for (; j < n; j++) {
        for (int i = 0; i < m; i++) {
            float s = bias ? bias[i] : 0.0f;
            for (int q = 0; q < k; q++)
                s += a[(size_t)i * am + (size_t)q * ak] * b[(size_t)q * ldb + (size_t)j];
            s = add ? s + add[(size_t)i * lda + (size_t)j] : s;
            c[(size_t)i * ldc + (size_t)j] = relu && s < 0 ? 0 : s;
        }
    }
}

static void sgd(size_t n, float *w, const float *g, float *b, float lr, float wd, float momentum,
                float dampening, bool nesterov, bool first)
{
    float keep = first ? 0.0f : momentum, take = first ? 1.0f : 1.0f - dampening;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        v8 wv = load8(w + i), gv = load8(g + i) + wd * wv;
        if (b) {
            v8 bv = keep * load8(b + i) + take * gv;
            store8(b + i, bv);
            gv = nesterov ? gv + momentum * bv : bv;
        }
        store8(w + i, wv - lr * gv);
    }
}

static void adam(const optim *o, double lr, int64_t step, size_t n, float *w, const float *g,
                 float *m, float *v)
{
    double correct1 = 1 - pow(o->beta1, (double)step), correct2 = 1 - pow(o->beta2, (double)step);
    float rate = (float)(lr / correct1), root2 = 1 / (float)sqrt(correct2), eps = (float)o->eps;
    float fresh1 = (float)(1 - o->beta1), beta2 = (float)o->beta2, fresh2 = (float)(1 - o->beta2);
    float shrink = o->kind == OPTIM_ADAMW ? (float)(1 - lr * o->weight_decay) : 1.0f;
    float decay = o->kind == OPTIM_ADAM ? (float)o->weight_decay : 0.0f;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        v8 wv = load8(w + i), d = load8(g + i) + decay * wv, mv = load8(m + i);
        mv += fresh1 * (d - mv);
        v8 vv = beta2 * load8(v + i) + fresh2 * d * d;
        store8(m + i, mv);
        store8(v + i, vv);
        store8(w + i, wv * shrink - rate * mv / (sqrt8(vv) * root2 + eps));
    }
}

#include "norm_impl.h"

static void add(size_t n, const float *a, const float *b, bool relu, float *y)
{
    for (size_t i = 0; i < n; i += 8) {
        v8 v = b ? load8(a + i) + load8(b + i) : load8(a + i);
        store8(y + i, relu ? relu8(v) : v);
    }
}

static void relu_back(size_t n, const float *y, const float *dy, bool accumulate, float *dx)
{
    v8 zero = {0};
    for (size_t i = 0; i < n; i += 8) {
        v8 g = load8(dy + i);
        if (y)
            g = gt8(load8(y + i), zero, g, zero);
        store8(dx + i, accumulate ? load8(dx + i) + g : g);
    }
}

/* Input samples may lie at any address. */
static void input_floats(size_t n, const void *src, float scale, float shift, float *y)
{
    const char *from = src;
    for (size_t i = 0; i < n; i++) {
        float v;
        memcpy(&v, from + i * sizeof v, sizeof v);
        y[i] = v * scale + shift;
    }
}

static void input_bytes(size_t n, const void *src, float scale, float shift, float *y)
{
    const uint8_t *from = src;
    for (size_t i = 0; i < n; i++)
        y[i] = (float)from[i] * scale + shift;
}

static inline void input8(const uint8_t *src, float scale, float shift, float *y)
{
    for (size_t i = 0; i < 8; i++)
        y[i] = (float)src[i] * scale + shift;
}

static void input_plane(size_t h, size_t w, const uint8_t *src, float scale, float shift, float *y,
                        size_t row)
{
    for (size_t r = 0; r < h; r++, src += w, y += row) {
        if (w < 8) {
            input_bytes(w, src, scale, shift, y);
            continue;
        }
        for (size_t i = 0; i + 8 <= w; i += 8)
            input8(src + i, scale, shift, y + i);
        input8(src + w - 8, scale, shift, y + w - 8); /* the rest, and some pixels again */
    }
}

static void interleave3(size_t n, const float *a, const float *b, const float *c, float *y)
{
    for (size_t i = 0; i < n; i++) {
        y[3 * i] = a[i];
        y[3 * i + 1] = b[i];
        y[3 * i + 2] = c[i];
    }
}

const cpu_kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .block = KERNELS_WIDE ? 16 : 8,
    .panel = PANEL,
    .conv = conv,
    .conv_pool = conv_pool,
    .conv_dw = conv_dw,
    .conv_pool_dw = conv_pool_dw,
    .conv_window_dw = conv_window_dw,
    .conv_pool_dx = conv_pool_dx,
    .conv_dx = conv_dx,
    .mask_bias = mask_bias,
    .gemm = gemm,
    .transpose = transpose,
    .sgd = sgd,
    .adam = adam,
    .affine = affine,
    .affine_act = affine_act,
    .moments = moments,
    .bn_sums = bn_sums,
    .bn_dx = bn_dx,
    .bn_through = bn_through,
    .bn_line = bn_line,
    .add = add,
    .relu_back = relu_back,
    .window = window,
    .window_dw = window_dw,
    .window_max = window_max,
    .window_max_back = window_max_back,
    .act = act,
    .act_back = act_back,
    .gate_back = gate_back,
    .keep = keep,
    .multiply = multiply,
    .input_floats = input_floats,
    .input_bytes = input_bytes,
    .input_plane = input_plane,
    .interleave3 = interleave3,
    .wino_in = wino_in,
    .wino_out = wino_out,
    .wino_out_pool = wino_out_pool,
    .wino_dy = wino_dy,
    .wino_weights = wino_weights,
    .wino_dw = wino_dw,
};
