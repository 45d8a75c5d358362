/* avx512_lanes.h: the AVX-512 and AVX512-BF16 intrinsics that kernels/cpu uses, each lane by lane
 * in C, so that the kernels for those sets compile for AVX2 and their tests run where a CPU has
 * neither (lanes.mk). It tests which lanes, masks, tiles and words they take, and not what the
 * compiler makes of the real intrinsics. What each does is Intel's definition (Intrinsics Guide),
 * but for VDPBF16PS, which takes denormals for zeros. */
#ifndef KUBEML_AVX512_LANES_H
#define KUBEML_AVX512_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define __AVX512F__    1
#define __AVX512BW__   1
#define __AVX512DQ__   1
#define __AVX512VL__   1
#define __AVX512BF16__ 1

#define VECTOR(element, bytes) element __attribute__((vector_size(bytes)))
typedef VECTOR(float, 64) f16;
typedef VECTOR(float, 32) f8;
typedef VECTOR(double, 64) d8;
typedef VECTOR(int32_t, 64) i16;
typedef VECTOR(int32_t, 32) i8;
typedef VECTOR(uint32_t, 64) u16;
typedef VECTOR(uint32_t, 32) u8;
typedef VECTOR(uint64_t, 64) q8;
typedef VECTOR(uint16_t, 64) h32;
typedef VECTOR(uint16_t, 32) h16;
typedef VECTOR(uint16_t, 16) h8;
typedef VECTOR(uint8_t, 16) b16;

#define LANE_FN  static inline __attribute__((unused))
#define LANES(n) for (int i = 0; i < (n); i++)
/* Lane i of a vector, as `type` has lanes. */
#define AT(type, v) ((type)(v))[i]
#define IN(k)       (k >> i & 1)

/* A function of that name whose result is a vector of `type`, with `value` in each of its first n
 * lanes and 0 in the others. */
#define VECTORS(result, name, type, n, value, ...)                                                 \
    LANE_FN result lanes##name(__VA_ARGS__)                                                        \
    {                                                                                              \
        type r = {0};                                                                              \
        LANES(n) r[i] = (value);                                                                   \
        return (result)r;                                                                          \
    }
/* One whose result is a mask with the bit of each lane where `holds`. */
#define MASKS(result, name, n, holds, ...)                                                         \
    LANE_FN result lanes##name(__VA_ARGS__)                                                        \
    {                                                                                              \
        unsigned m = 0;                                                                            \
        LANES(n) m |= (unsigned)((holds) ? 1 : 0) << i;                                            \
        return (result)m;                                                                          \
    }
/* One that writes the 32-bit lanes that are in the mask. */
#define STORES(name, n, mask, vector)                                                              \
    LANE_FN void lanes##name(void *to, mask k, vector v)                                           \
    {                                                                                              \
        LANES(n)                                                                                   \
        if (IN(k))                                                                                 \
            memcpy((char *)to + 4 * i, (const char *)&v + 4 * i, 4);                               \
    }

LANE_FN int lanes_compare(float a, float b, int how)
{
    switch (how) {
    case _CMP_GT_OQ: return a > b;
    case _CMP_UNORD_Q: return __builtin_isunordered(a, b);
    case _CMP_NEQ_UQ: return !(a == b);
    default: __builtin_trap();
    }
}

/* To the nearest, ties to even. */
LANE_FN uint16_t lanes_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7f800000) == 0) /* a denormal is a zero to it */
        return (uint16_t)(u >> 16 & 0x8000);
    if ((u & 0x7fffffff) > 0x7f800000) /* NaN */
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* clang-format off */
MASKS(__mmask16, 512_cmp_ps_mask, 16, lanes_compare(AT(f16, a), AT(f16, b), how), __m512 a, __m512 b, const int how)
MASKS(__mmask8, 256_cmp_ps_mask, 8, lanes_compare(AT(f8, a), AT(f8, b), how), __m256 a, __m256 b, const int how)
MASKS(__mmask16, 512_cmpeq_epi32_mask, 16, AT(i16, a) == AT(i16, b), __m512i a, __m512i b)
MASKS(__mmask8, 256_cmpeq_epi32_mask, 8, AT(i8, a) == AT(i8, b), __m256i a, __m256i b)
MASKS(__mmask8, 256_mask_cmpeq_epi32_mask, 8, IN(k) && AT(i8, a) == AT(i8, b), __mmask8 k, __m256i a, __m256i b)
MASKS(__mmask16, 512_cmpge_epi32_mask, 16, AT(i16, a) >= AT(i16, b), __m512i a, __m512i b)

VECTORS(__m512, 512_mask_blend_ps, f16, 16, IN(k) ? AT(f16, b) : AT(f16, a), __mmask16 k, __m512 a, __m512 b)
VECTORS(__m256, 256_mask_blend_ps, f8, 8, IN(k) ? AT(f8, b) : AT(f8, a), __mmask8 k, __m256 a, __m256 b)
VECTORS(__m512i, 512_mask_mov_epi32, i16, 16, IN(k) ? AT(i16, a) : AT(i16, s), __m512i s, __mmask16 k, __m512i a)
VECTORS(__m256i, 256_mask_mov_epi32, i8, 8, IN(k) ? AT(i8, a) : AT(i8, s), __m256i s, __mmask8 k, __m256i a)
VECTORS(__m512, 512_maskz_mov_ps, f16, 16, IN(k) ? AT(f16, a) : 0, __mmask16 k, __m512 a)
VECTORS(__m256, 256_maskz_mov_ps, f8, 8, IN(k) ? AT(f8, a) : 0, __mmask8 k, __m256 a)
VECTORS(__m512, 512_max_ps, f16, 16, AT(f16, a) > AT(f16, b) ? AT(f16, a) : AT(f16, b), __m512 a, __m512 b)

VECTORS(__m512, 512_permutexvar_ps, f16, 16, ((f16)a)[AT(i16, from) & 15], __m512i from, __m512 a)
VECTORS(__m512, 512_mask_permutexvar_ps, f16, 16, IN(k) ? ((f16)a)[AT(i16, from) & 15] : AT(f16, s),
        __m512 s, __mmask16 k, __m512i from, __m512 a)
VECTORS(__m512, 512_permutex2var_ps, f16, 16, (AT(i16, from) & 16 ? (f16)b : (f16)a)[AT(i16, from) & 15],
        __m512 a, __m512i from, __m512 b)
VECTORS(__m512i, 512_permutexvar_epi16, h32, 32, ((h32)a)[AT(h32, from) & 31], __m512i from, __m512i a)
VECTORS(__m256i, 256_permutexvar_epi16, h16, 16, ((h16)a)[AT(h16, from) & 15], __m256i from, __m256i a)

VECTORS(__m512, 512_maskz_loadu_ps, f16, 16, IN(k) ? ((const float *)from)[i] : 0, __mmask16 k, const void *from)
STORES(512_mask_storeu_epi32, 16, __mmask16, __m512i)
STORES(256_mask_storeu_epi32, 8, __mmask8, __m256i)

VECTORS(__m512i, 512_cvtepu8_epi32, i16, 16, AT(b16, a), __m128i a)
VECTORS(__m128i, 512_cvtepi32_epi8, b16, 16, (uint8_t)AT(i16, a), __m512i a)
VECTORS(__m128i, 256_cvtepi32_epi8, b16, 8, (uint8_t)AT(i8, a), __m256i a)
VECTORS(__m512i, 512_mul_epu32, q8, 8, (AT(q8, a) & 0xffffffff) * (AT(q8, b) & 0xffffffff), __m512i a, __m512i b)
VECTORS(__m512i, 512_set1_epi32, i16, 16, k, int k)
VECTORS(__m512i, 512_set1_epi64, q8, 8, (uint64_t)k, long long k)
VECTORS(__m512d, 512_set1_pd, d8, 8, k, double k)
VECTORS(__m512, 512_setzero_ps, f16, 16, 0, void)

VECTORS(__m256bh, 512_cvtneps_pbh, h16, 16, lanes_bf16(AT(f16, a)), __m512 a)
VECTORS(__m128bh, 256_cvtneps_pbh, h8, 8, lanes_bf16(AT(f8, a)), __m256 a)
VECTORS(__m512bh, 512_cvtne2ps_pbh, h32, 32, lanes_bf16(i < 16 ? ((f16)b)[i] : ((f16)a)[i - 16]), __m512 a, __m512 b)
VECTORS(__m256bh, 256_cvtne2ps_pbh, h16, 16, lanes_bf16(i < 8 ? ((f8)b)[i] : ((f8)a)[i - 8]), __m256 a, __m256 b)
/* clang-format on */

/* The odd halves' product is added first. */
#define DOT_PRODUCTS(name, f, u, sum, pairs)                                                       \
    LANE_FN sum lanes##name(sum c, pairs a, pairs b)                                               \
    {                                                                                              \
        f r = (f)c;                                                                                \
        r += (f)((u)a & 0xffff0000) * (f)((u)b & 0xffff0000);                                      \
        r += (f)((u)a << 16) * (f)((u)b << 16);                                                    \
        return (sum)r;                                                                             \
    }
DOT_PRODUCTS(512_dpbf16_ps, f16, u16, __m512, __m512bh)
DOT_PRODUCTS(256_dpbf16_ps, f8, u8, __m256, __m256bh)

LANE_FN __m512 lanes512_loadu_ps(const void *from)
{
    f16 r;
    memcpy(&r, from, sizeof r);
    return (__m512)r;
}

LANE_FN void lanes512_storeu_si512(void *to, __m512i v)
{
    memcpy(to, &v, sizeof v);
}

/* The upper half is undefined: no number. */
LANE_FN __m512 lanes512_castps256_ps512(__m256 a)
{
    f16 r;
    memset(&r, 0xff, sizeof r);
    memcpy(&r, &a, sizeof a);
    return (__m512)r;
}

LANE_FN __m256 lanes512_castps512_ps256(__m512 a)
{
    __m256 r;
    memcpy(&r, &a, sizeof r);
    return r;
}

LANE_FN __m256d lanes512_extractf64x4_pd(__m512d a, int half)
{
    __m256d r;
    memcpy(&r, (const char *)&a + sizeof r * (size_t)half, sizeof r);
    return r;
}

#undef _mm256_cmp_ps_mask
#define _mm256_cmp_ps_mask lanes256_cmp_ps_mask
#undef _mm256_cmpeq_epi32_mask
#define _mm256_cmpeq_epi32_mask lanes256_cmpeq_epi32_mask
#undef _mm256_cvtepi32_epi8
#define _mm256_cvtepi32_epi8 lanes256_cvtepi32_epi8
#undef _mm256_cvtne2ps_pbh
#define _mm256_cvtne2ps_pbh lanes256_cvtne2ps_pbh
#undef _mm256_cvtneps_pbh
#define _mm256_cvtneps_pbh lanes256_cvtneps_pbh
#undef _mm256_dpbf16_ps
#define _mm256_dpbf16_ps lanes256_dpbf16_ps
#undef _mm256_mask_blend_ps
#define _mm256_mask_blend_ps lanes256_mask_blend_ps
#undef _mm256_mask_cmpeq_epi32_mask
#define _mm256_mask_cmpeq_epi32_mask lanes256_mask_cmpeq_epi32_mask
#undef _mm256_mask_mov_epi32
#define _mm256_mask_mov_epi32 lanes256_mask_mov_epi32
#undef _mm256_mask_storeu_epi32
#define _mm256_mask_storeu_epi32 lanes256_mask_storeu_epi32
#undef _mm256_maskz_mov_ps
#define _mm256_maskz_mov_ps lanes256_maskz_mov_ps
#undef _mm256_permutexvar_epi16
#define _mm256_permutexvar_epi16 lanes256_permutexvar_epi16
#undef _mm512_castps256_ps512
#define _mm512_castps256_ps512 lanes512_castps256_ps512
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256 lanes512_castps512_ps256
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask lanes512_cmp_ps_mask
#undef _mm512_cmpeq_epi32_mask
#define _mm512_cmpeq_epi32_mask lanes512_cmpeq_epi32_mask
#undef _mm512_cmpge_epi32_mask
#define _mm512_cmpge_epi32_mask lanes512_cmpge_epi32_mask
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 lanes512_cvtepi32_epi8
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 lanes512_cvtepu8_epi32
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh lanes512_cvtne2ps_pbh
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh lanes512_cvtneps_pbh
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps lanes512_dpbf16_ps
#undef _mm512_extractf64x4_pd
#define _mm512_extractf64x4_pd lanes512_extractf64x4_pd
#undef _mm512_loadu_ps
#define _mm512_loadu_ps lanes512_loadu_ps
#undef _mm512_mask_blend_ps
#define _mm512_mask_blend_ps lanes512_mask_blend_ps
#undef _mm512_mask_mov_epi32
#define _mm512_mask_mov_epi32 lanes512_mask_mov_epi32
#undef _mm512_mask_permutexvar_ps
#define _mm512_mask_permutexvar_ps lanes512_mask_permutexvar_ps
#undef _mm512_mask_storeu_epi32
#define _mm512_mask_storeu_epi32 lanes512_mask_storeu_epi32
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps lanes512_maskz_loadu_ps
#undef _mm512_maskz_mov_ps
#define _mm512_maskz_mov_ps lanes512_maskz_mov_ps
#undef _mm512_max_ps
#define _mm512_max_ps lanes512_max_ps
#undef _mm512_mul_epu32
#define _mm512_mul_epu32 lanes512_mul_epu32
#undef _mm512_permutex2var_ps
#define _mm512_permutex2var_ps lanes512_permutex2var_ps
#undef _mm512_permutexvar_epi16
#define _mm512_permutexvar_epi16 lanes512_permutexvar_epi16
#undef _mm512_permutexvar_ps
#define _mm512_permutexvar_ps lanes512_permutexvar_ps
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 lanes512_set1_epi32
#undef _mm512_set1_epi64
#define _mm512_set1_epi64 lanes512_set1_epi64
#undef _mm512_set1_pd
#define _mm512_set1_pd lanes512_set1_pd
#undef _mm512_setzero_ps
#define _mm512_setzero_ps lanes512_setzero_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 lanes512_storeu_si512

#endif
