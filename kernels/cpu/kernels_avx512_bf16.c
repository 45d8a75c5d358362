/* kernels_avx512_bf16.c: products in bf16 with AVX512-BF16: see cpu_kernels16.h. */
#if defined(__x86_64__)
#include "common/base/prefetch.h"
#include "cpu_kernels16.h"
#include "vec_impl.h"

#if defined(__SANITIZE_ADDRESS__) ||                                                               \
    defined(__SANITIZE_THREAD__) /* few copies, as in kernels_impl.h */
#define TILE_PIXELS 4
#else
#define TILE_PIXELS 14
#endif

/* Words as 32-bit lanes, and their halves. */
typedef int32_t v8iu __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t v16iu __attribute__((vector_size(64), aligned(4), may_alias));
typedef int16_t v16hi __attribute__((vector_size(32)));
typedef int16_t v32hi __attribute__((vector_size(64)));

INLINE v8i words8(const bf16_word *p)
{
    return *(const v8iu *)p;
}
INLINE v16i words16(const bf16_word *p)
{
    return *(const v16iu *)p;
}

#define GEMM_T bf16_word

#define VT                  v8
#define VW                  8
#define T(name)             name##8
#define GEMM_V              v8i
#define GEMM_LOAD           words8
#define GEMM_ADD(acc, s, v)                                                                        \
    ((acc) = (v8)_mm256_dpbf16_ps((__m256)(acc), (__m256bh)_mm256_set1_epi32((int)(s)),            \
                                  (__m256bh)(v)))
#include "gemm_impl.h"
#include "wino_math_impl.h"
#undef VT
#undef VW
#undef T
#undef GEMM_V
#undef GEMM_LOAD
#undef GEMM_ADD

#define VT                  v16
#define VW                  16
#define T(name)             name##16
#define GEMM_V              v16i
#define GEMM_LOAD           words16
#define GEMM_ADD(acc, s, v)                                                                        \
    ((acc) = (v16)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)_mm512_set1_epi32((int)(s)),           \
                                   (__m512bh)(v)))
#include "gemm_impl.h"

static void gemm(int m, int n, int k, const bf16_word *a, size_t am, size_t ak, const bf16_word *b,
                 size_t ldb, const float *bias, bool relu, const float *add, size_t lda, float *c,
                 size_t ldc)
{
    int j = 0;
    for (int nv; j + 16 <= n; j += nv * 16) {
        nv = n - j >= 32 ? 2 : 1;
        gemm_panel16(m, k, a, am, ak, b + j, ldb, bias, relu, add ? add + j : NULL, lda, c + j, ldc,
                     nv, false);
    }
    for (; j + 8 <= n; j += 8)
        gemm_panel8(m, k, a, am, ak, b + j, ldb, bias, relu, add ? add + j : NULL, lda, c + j, ldc,
                    1, false);
}

/* ---- rounding -------------------------------------------------------------------------------- */

/* low[0], high[0], low[1], high[1], ... */
INLINE v8i pair8(v8 low, v8 high)
{
    const v16hi order = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
    return (v8i)_mm256_permutexvar_epi16((__m256i)order,
                                         (__m256i)_mm256_cvtne2ps_pbh((__m256)high, (__m256)low));
}

INLINE __m512i pair16(__m512 low, __m512 high)
{
    const v32hi order = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16((__m512i)order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

INLINE void store_words8(bf16_word *p, v8i v)
{
    *(v8iu *)p = v;
}

INLINE __mmask16 lanes16(int count)
{
    return (__mmask16)(count >= 16 ? 0xffffu : (1u << count) - 1);
}

static void along(int rows, int cols, const float *src, size_t lds, bf16_word *dst, size_t ldd)
{
    for (int r = 0; r < rows; r++, src += lds, dst += ldd) {
        int c = 0;
        for (; c + 32 <= cols; c += 32)
            _mm512_storeu_si512(dst + c / 2,
                                (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(src + c + 16),
                                                             _mm512_loadu_ps(src + c)));
        for (; c < cols; c += 16) {
            __m512 v = _mm512_maskz_loadu_ps(lanes16(cols - c), src + c);
            __m256i words = (__m256i)_mm512_cvtneps_pbh(v);
            _mm256_mask_storeu_epi32(dst + c / 2, (__mmask8)lanes16((cols - c + 1) / 2), words);
        }
    }
}

static void across(int rows, int cols, const float *src, size_t lds, bf16_word *dst, size_t ldd)
{
    for (int r = 0; r < rows; r += 2, src += 2 * lds, dst += ldd)
        for (int c = 0; c < cols; c += 16) {
            __mmask16 there = lanes16(cols - c);
            __m512 low = _mm512_maskz_loadu_ps(there, src + c), high = _mm512_setzero_ps();
            if (r + 1 < rows)
                high = _mm512_maskz_loadu_ps(there, src + lds + c);
            _mm512_mask_storeu_epi32(dst + c, there, pair16(low, high));
        }
}

/* ---- Winograd's transforms: wino_impl.h in words, of 3x3 kernels ------------------------------
 */

/* o[6][6] = B^T d B. */
INLINE void in_tile(const wino_span *s, const float *x, size_t x_step, size_t x_row, v8 o[6][6])
{
    bool inside = s->r0 == 0 && s->r1 == 6 && s->c0 == 0 && s->c1 == 6;
    v8 t[6][6], d[6], r[6];
    for (int j = 0; j < 6; j++) {
        UNROLL for (int i = 0; i < 6; i++) {
            bool there = inside || (i >= s->r0 && i < s->r1 && j >= s->c0 && j < s->c1);
            d[i] = there ? load8(x + (size_t)i * x_row + (size_t)j * x_step) : (v8){0};
        }
        wino_bt8(d, r);
        UNROLL for (int i = 0; i < 6; i++)
            t[i][j] = r[i];
    }
    for (int i = 0; i < 6; i++)
        wino_bt8(t[i], o[i]);
}

/* o[6][6] = A dy A^T. */
INLINE void dy_tile(const wino_span *s, const float *dy, size_t y_step, size_t y_row, v8 o[6][6])
{
    v8 t[6][4], d[4], r[6];
    for (int j = 0; j < 4; j++) {
        UNROLL for (int i = 0; i < 4; i++) d[i] =
            i < s->r1 && j < s->c1 ? load8(dy + (size_t)i * y_row + (size_t)j * y_step) : (v8){0};
        wino_a8(3, d, r);
        UNROLL for (int i = 0; i < 6; i++)
            t[i][j] = r[i];
    }
    for (int i = 0; i < 6; i++)
        wino_a8(3, t[i], o[i]);
}

static void wino_in(const wino_span *s, int channels, int real, const float *x, size_t x_step,
                    size_t x_row, bf16_word *v, size_t plane)
{
    for (int c = 0; c < channels; c += 8) {
        __mmask8 there = (__mmask8)lanes16(real - c < 8 ? real - c < 0 ? 0 : real - c : 8);
        v8 o[6][6];
        in_tile(s, x + c, x_step, x_row, o);
        for (size_t q = 0; q < 36; q++)
            _mm_storeu_si128(
                (__m128i *)(void *)(v + q * plane + (size_t)c / 2),
                (__m128i)_mm256_cvtneps_pbh(_mm256_maskz_mov_ps(there, (__m256)o[q / 6][q % 6])));
    }
}

INLINE void store_two(v8 (*a)[6], v8 (*b)[6], bf16_word *v, size_t plane)
{
    for (size_t q = 0; q < 36; q++)
        store_words8(v + q * plane, pair8(a[q / 6][q % 6], b[q / 6][q % 6]));
}

static void wino_in_two(const wino_span s[2], int channels, const float *const x[2], size_t x_step,
                        size_t x_row, bf16_word *v, size_t plane)
{
    v8 a[6][6], b[6][6] = {{{0}}};
    for (int c = 0; c < channels; c += 8) {
        in_tile(&s[0], x[0] + c, x_step, x_row, a);
        if (x[1])
            in_tile(&s[1], x[1] + c, x_step, x_row, b);
        store_two(a, b, v + c, plane);
    }
}

static void wino_dy_two(const wino_span s[2], int channels, const float *const dy[2], size_t y_step,
                        size_t y_row, bf16_word *v, size_t plane)
{
    v8 a[6][6], b[6][6] = {{{0}}};
    for (int c = 0; c < channels; c += 8) {
        dy_tile(&s[0], dy[0] + c, y_step, y_row, a);
        if (dy[1])
            dy_tile(&s[1], dy[1] + c, y_step, y_row, b);
        store_two(a, b, v + c, plane);
    }
}

/* o[6][6] = G g G^T of 8 filters' 9 taps, the filters `cs` floats apart; those beyond `real` are
 * zero. */
INLINE void weights_tile(int real, const float *w, size_t cs, bool turned, v8 o[6][6])
{
    union {
        float f[9][8];
        v8 v[9];
    } g;
    if (real < 8)
        memset(&g, 0, sizeof g);
    if (real > 0)
        cpu_kernels_avx512.transpose(real, 9, w, cs, g.f[0], 8);
    v8 t[6][3], d[3], r[6];
    UNROLL for (int j = 0; j < 3; j++) {
        UNROLL for (int i = 0; i < 3; i++)
            d[i] = g.v[turned ? 8 - (i * 3 + j) : i * 3 + j];
        wino_g8(3, d, r);
        UNROLL for (int i = 0; i < 6; i++)
            t[i][j] = r[i];
    }
    for (int i = 0; i < 6; i++)
        wino_g8(3, t[i], o[i]);
}

static void wino_weights(int rows, int cols, size_t ld, const float *w, size_t rs, size_t cs,
                         bool turned, bf16_word *u, size_t plane)
{
    size_t words = (size_t)(rows + 1) / 2;
    v8 a[6][6], b[6][6] = {{{0}}};
    for (int r = 0; r < rows; r += 2) {
        const float *from = w + (size_t)r * rs;
        for (size_t c = 0; c < ld; c += 8) {
            size_t panel = c / PANEL_MOST * PANEL_MOST,
                   width = ld - panel < PANEL_MOST ? ld - panel : PANEL_MOST;
            int real = (size_t)cols < c ? 0 : (size_t)cols - c < 8 ? (int)((size_t)cols - c) : 8;
            weights_tile(real, from + c * cs, cs, turned, a);
            if (r + 1 < rows)
                weights_tile(real, from + rs + c * cs, cs, turned, b);
            else
                memset(b, 0, sizeof b);
            store_two(a, b, u + panel * words + (size_t)r / 2 * width + c - panel, plane);
        }
    }
}

const cpu_kernels16 cpu_kernels16_avx512 = {
    .name = "avx512_bf16",
    .gemm = gemm,
    .along = along,
    .across = across,
    .wino_in = wino_in,
    .wino_in_two = wino_in_two,
    .wino_dy_two = wino_dy_two,
    .wino_weights = wino_weights,
};
#endif
