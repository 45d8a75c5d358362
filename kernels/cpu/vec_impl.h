/* vec_impl.h: vectors of 4, 8 and 16 floats for the file that includes this, whatever the
 * instruction set.
 *
 * Written with the compiler's vector extension; with intrinsics only where the extension has no
 * operation (select, compare to a bit mask). The compiler splits vectors that an instruction set
 * lacks into narrower registers. */
#ifndef KUBEML_VEC_IMPL_H
#define KUBEML_VEC_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* All functions with vector arguments are inlined; so no call depends on how vectors are passed. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef float v4u __attribute__((vector_size(16), aligned(4), may_alias));
typedef float v8 __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef uint8_t v8b __attribute__((vector_size(8)));
typedef float v8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint8_t v8bu __attribute__((vector_size(8), aligned(1), may_alias));
typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint8_t v16b __attribute__((vector_size(16)));
typedef float v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint8_t v16bu __attribute__((vector_size(16), aligned(1), may_alias));

#define INLINE static inline __attribute__((always_inline))
/* UNROLL_KNOWN: for loops whose count is a constant in some inlined copies alone. clang warns about
 * the other copies, and unrolls without a pragma. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define UNROLL_KNOWN
#else
#define UNROLL _Pragma("GCC unroll 32")
#define UNROLL_KNOWN UNROLL
#endif

/* Hides from the compiler what p points to. It would otherwise carry pixels over from one step of a
 * loop to the next and spill accumulators for them, although reading them again as memory operands
 * costs nothing. */
#define OPAQUE(p) __asm__("" : "+r"(p))

/* Forces v into a register; otherwise each use may read the operand from memory. */
#define IN_REGISTER(v) __asm__("" : "+v"(v))

/* A vector with one number in all lanes. A number times a vector is written with these: where
 * registers are narrower than the vector, the compiler otherwise writes the number to memory,
 * element by element, and reads it from there. */
INLINE v4 all4(float s)
{
    return (v4){s, s, s, s};
}
INLINE v8 all8(float s)
{
    return (v8){s, s, s, s, s, s, s, s};
}
INLINE v16 all16(float s)
{
    return (v16){s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s};
}
INLINE v4 load4(const float *p)
{
    return *(const v4u *)p;
}
INLINE v8 load8(const float *p)
{
    return *(const v8u *)p;
}
INLINE void store4(float *p, v4 v)
{
    *(v4u *)p = v;
}
INLINE void store8(float *p, v8 v)
{
    *(v8u *)p = v;
}
INLINE v16 load16(const float *p)
{
    return *(const v16u *)p;
}
INLINE void store16(float *p, v16 v)
{
    *(v16u *)p = v;
}

/* a > b ? x : y, lane by lane. NaN in a or b: y. */
INLINE v8 gt8(v8 a, v8 b, v8 x, v8 y)
{
#if defined(__AVX512VL__)
    return (v8)_mm256_mask_blend_ps(_mm256_cmp_ps_mask((__m256)a, (__m256)b, _CMP_GT_OQ), (__m256)y,
                                    (__m256)x);
#elif defined(__AVX2__)
    /* A blend of bytes: for a blend of floats GCC compares the mask again. */
    return (v8)_mm256_blendv_epi8((__m256i)y, (__m256i)x,
                                  (__m256i)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ));
#else
    v8i m = a > b;
    return (v8)((m & (v8i)x) | (~m & (v8i)y));
#endif
}
INLINE v16 gt16(v16 a, v16 b, v16 x, v16 y)
{
#if defined(__AVX512F__)
    return (v16)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ),
                                     (__m512)y, (__m512)x);
#else
    v16i m = a > b;
    return (v16)((m & (v16i)x) | (~m & (v16i)y));
#endif
}
/* The larger, lane by lane; b where both are equal or one is NaN. */
INLINE v8 max8(v8 a, v8 b)
{
#if defined(__AVX2__)
    return (v8)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return gt8(a, b, a, b);
#endif
}
INLINE v16 max16(v16 a, v16 b)
{
#if defined(__AVX512F__)
    return (v16)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return gt16(a, b, a, b);
#endif
}
/* The index of the first largest, 0 to 3; `up` is the larger of v0 and v1, `down` the larger of v2
 * and v3. */
INLINE v8i which8(v8 v0, v8 v1, v8 v2, v8 v3, v8 up, v8 down)
{
#if defined(__AVX512VL__)
    const v8 one = (v8)((v8i){0} + 1), two = (v8)((v8i){0} + 2), three = (v8)((v8i){0} + 3);
    return (v8i)gt8(down, up, gt8(v3, v2, three, two), gt8(v1, v0, one, (v8){0}));
#else
    v8i right = v1 > v0, below = down > up;
    return (below & (right - (v3 > v2) + 2)) - right;
#endif
}
INLINE v16i which16(v16 v0, v16 v1, v16 v2, v16 v3, v16 up, v16 down)
{
    const v16 one = (v16)((v16i){0} + 1), two = (v16)((v16i){0} + 2), three = (v16)((v16i){0} + 3);
    return (v16i)gt16(down, up, gt16(v3, v2, three, two), gt16(v1, v0, one, (v16){0}));
}
INLINE v8 sqrt8(v8 v)
{
#if defined(__AVX2__)
    return (v8)_mm256_sqrt_ps((__m256)v);
#else
    for (int i = 0; i < 8; i++)
        v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}
/* max(v, 0); NaN stays NaN. */
INLINE v4 relu4(v4 v)
{
    return (v4)((v4i)v & ~((v4){0} > v));
}
INLINE v8 relu8(v8 v)
{
    v8 zero = {0};
#if defined(__AVX2__)
    return (v8)_mm256_max_ps((__m256)zero, (__m256)v);
#else
    return gt8(zero, v, zero, v);
#endif
}
INLINE v16 relu16(v16 v)
{
    v16 zero = {0};
#if defined(__AVX512F__)
    return (v16)_mm512_max_ps((__m512)zero, (__m512)v);
#else
    return gt16(zero, v, zero, v);
#endif
}

#if defined(__AVX512F__)
/* The first `count` floats of p's 16, and zeros for the others, which are not read; count <= 0:
 * none. */
INLINE v16 first16(const float *p, int count)
{
    uint32_t lanes = count <= 0 ? 0 : count >= 16 ? 0xffff : (1u << count) - 1;
    return (v16)_mm512_maskz_loadu_ps((__mmask16)lanes, p);
}
/* Splits 16 pixels of c channels, 2 to 4, of which `count` floats exist: each channel's 16 values
 * go to to[channel * plane]. */
INLINE void split16(const float *p, int count, const int c, float *to, size_t plane)
{
    v16i at = (v16i){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * c;
    v16 part[4];
    UNROLL for (int i = 0; i < c; i++)
        part[i] = first16(p + 16 * i, count - 16 * i);
    UNROLL for (int q = 0; q < c; q++, at += 1) {
        /* The instructions take an index modulo the number of lanes that they choose from. */
        __m512i from = (__m512i)at;
        __m512 v = _mm512_permutex2var_ps((__m512)part[0], from, (__m512)part[1]);
        UNROLL for (int i = 2; i < c; i++)
            v = _mm512_mask_permutexvar_ps(
                v, _mm512_cmpge_epi32_mask(from, _mm512_set1_epi32(16 * i)), from, (__m512)part[i]);
        store16(to + (size_t)q * plane, (v16)v);
    }
}
/* Lanes 0, 2, ... 14 (odds16: 1, 3, ... 15) of a, then those of b. */
INLINE v16 evens16(v16 a, v16 b)
{
    const v16i order = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    return (v16)_mm512_permutex2var_ps((__m512)a, (__m512i)order, (__m512)b);
}
INLINE v16 odds16(v16 a, v16 b)
{
    const v16i order = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    return (v16)_mm512_permutex2var_ps((__m512)a, (__m512i)order, (__m512)b);
}
/* to[i] = lanes i, i + 4, i + 8, i + 12 of each of the four vectors, a quarter for each lane
 * number. */
INLINE void transpose4x16(const v16 *of, v16 *to)
{
    __m512d low[2], high[2];
    UNROLL for (int i = 0; i < 2; i++)
    {
        __m512 a = (__m512)of[2 * i], b = (__m512)of[2 * i + 1];
        low[i] = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
        high[i] = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
    }
    to[0] = (v16)_mm512_unpacklo_pd(low[0], low[1]);
    to[1] = (v16)_mm512_unpackhi_pd(low[0], low[1]);
    to[2] = (v16)_mm512_unpacklo_pd(high[0], high[1]);
    to[3] = (v16)_mm512_unpackhi_pd(high[0], high[1]);
}
/* Quarters 0 of a and b, then quarters 1 of a and b; with half 1, quarters 2 and 3. */
INLINE v16 quarters16(v16 a, v16 b, const int half)
{
    const int64_t q = 4 * half;
    const __m512i order = _mm512_setr_epi64(q, q + 1, q + 8, q + 9, q + 2, q + 3, q + 10, q + 11);
    return (v16)_mm512_permutex2var_pd((__m512d)a, order, (__m512d)b);
}
/* to[i] = a's lane i in the low half and b's lane i in the high half. */
INLINE void zip16(v16i a, v16i b, uint64_t *to)
{
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi32((__m512i)a, first, (__m512i)b));
    _mm512_storeu_si512(to + 8, _mm512_permutex2var_epi32((__m512i)a, last, (__m512i)b));
}
INLINE v8 low8(v16 v)
{
    return (v8)_mm512_castps512_ps256((__m512)v);
}
INLINE v8 high8(v16 v)
{
    return (v8)_mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)v, 1));
}
#endif

/* The low bytes of lanes that hold 0 to 3. */
INLINE v8b bytes8(v8i v)
{
#if defined(__AVX512VL__)
    return (v8b)_mm_cvtsi128_si64(_mm256_cvtepi32_epi8((__m256i)v));
#elif defined(__AVX2__)
    /* GCC's conversion would convert the lanes one by one. */
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v),
                                    _mm256_extracti128_si256((__m256i)v, 1));
    return (v8b)_mm_cvtsi128_si64(_mm_packus_epi16(words, words));
#else
    return __builtin_convertvector(v, v8b);
#endif
}
INLINE v16b bytes16(v16i v)
{
#if defined(__AVX512F__)
    return (v16b)_mm512_cvtepi32_epi8((__m512i)v);
#else
    return __builtin_convertvector(v, v16b);
#endif
}

/* best = v, at = tap in the lanes where v is larger. A NaN in v changes nothing. */
INLINE void larger8(v8 v, v8i tap, v8 *best, v8i *at)
{
#if defined(__AVX512VL__)
    __mmask8 m = _mm256_cmp_ps_mask((__m256)v, (__m256)*best, _CMP_GT_OQ);
    *best = (v8)_mm256_max_ps((__m256)v, (__m256)*best);
    *at = (v8i)_mm256_mask_mov_epi32((__m256i)*at, m, (__m256i)tap);
#elif defined(__AVX2__)
    __m256i m = (__m256i)_mm256_cmp_ps((__m256)v, (__m256)*best, _CMP_GT_OQ);
    *best = (v8)_mm256_max_ps((__m256)v, (__m256)*best);
    *at = (v8i)_mm256_blendv_epi8((__m256i)*at, (__m256i)tap, m);
#else
    v8i m = v > *best;
    *best = (v8)((m & (v8i)v) | (~m & (v8i)*best));
    *at = (m & tap) | (~m & *at);
#endif
}

/* see_nans8 collects the lanes that are NaN; any_nan8: has a lane been NaN? */
#if defined(__AVX512VL__)
typedef __mmask8 nans8;
INLINE void see_nans8(v8 a, v8 b, nans8 *seen)
{
    *seen |= _mm256_cmp_ps_mask((__m256)a, (__m256)b, _CMP_UNORD_Q);
}
INLINE bool any_nan8(nans8 seen)
{
    return seen != 0;
}
#else
typedef v8i nans8;
INLINE void see_nans8(v8 a, v8 b, nans8 *seen)
{
    *seen |= (a != a) | (b != b);
}
INLINE bool any_nan8(nans8 seen)
{
#if defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)seen, (__m256i)seen);
#else
    int any = 0;
    for (int i = 0; i < 8; i++)
        any |= seen[i];
    return any != 0;
#endif
}
#endif

/* v in the lanes whose byte is `tap`, otherwise 0. */
INLINE v8 where8(const uint8_t *bytes, int32_t tap, v8 v)
{
#if defined(__AVX2__)
    v8i b = (v8i)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)bytes));
#else
    v8i b = __builtin_convertvector(*(const v8bu *)bytes, v8i);
#endif
#if defined(__AVX512VL__)
    return (v8)_mm256_maskz_mov_ps(_mm256_cmpeq_epi32_mask((__m256i)b, _mm256_set1_epi32(tap)),
                                   (__m256)v);
#else
    return (v8)((b == (v8i){0} + tap) & (v8i)v);
#endif
}

#if defined(__AVX512F__)
INLINE void larger16(v16 v, v16i tap, v16 *best, v16i *at)
{
    __mmask16 m = _mm512_cmp_ps_mask((__m512)v, (__m512)*best, _CMP_GT_OQ);
    *best = (v16)_mm512_max_ps((__m512)v, (__m512)*best);
    *at = (v16i)_mm512_mask_mov_epi32((__m512i)*at, m, (__m512i)tap);
}
typedef __mmask16 nans16;
INLINE void see_nans16(v16 a, v16 b, nans16 *seen)
{
    *seen |= _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q);
}
INLINE bool any_nan16(nans16 seen)
{
    return seen != 0;
}
INLINE v16 where16(const uint8_t *bytes, int32_t tap, v16 v)
{
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)bytes));
    return (v16)_mm512_maskz_mov_ps(_mm512_cmpeq_epi32_mask(b, _mm512_set1_epi32(tap)), (__m512)v);
}
#endif

/* Sets, for those of 8 filters that have a gradient, bit `shift` + filter in the set of its
 * winner's position. */
INLINE void winners8(const uint8_t *arg, const float *g, int shift, uint64_t set[4])
{
#if defined(__AVX512VL__)
    /* Eight lanes for the positions too: where a mask of 8 is widened to the 16 of bytes, GCC 12
     * spills 8 bits of it and reads 16 back. */
    __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)arg));
    __mmask8 alive = _mm256_cmp_ps_mask(_mm256_loadu_ps(g), _mm256_setzero_ps(), _CMP_NEQ_UQ);
    UNROLL for (int pos = 0; pos < 4; pos++)
        set[pos] |= (uint64_t)_mm256_mask_cmpeq_epi32_mask(alive, a, _mm256_set1_epi32(pos))
                    << shift;
#elif defined(__SSE2__)
    __m128i a = _mm_loadl_epi64((const __m128i *)(const void *)arg);
    unsigned low = (unsigned)_mm_movemask_ps(_mm_cmpneq_ps(_mm_loadu_ps(g), _mm_setzero_ps()));
    unsigned high = (unsigned)_mm_movemask_ps(_mm_cmpneq_ps(_mm_loadu_ps(g + 4), _mm_setzero_ps()));
    unsigned alive = low | high << 4;
    UNROLL for (int pos = 0; pos < 4; pos++)
        set[pos] |= (uint64_t)(alive & (unsigned)_mm_movemask_epi8(
                                           _mm_cmpeq_epi8(a, _mm_set1_epi8((char)pos)))) << shift;
#else
    for (int i = 0; i < 8; i++)
        if (g[i] != 0)
            set[arg[i]] |= (uint64_t)1 << (shift + i);
#endif
}

#endif
