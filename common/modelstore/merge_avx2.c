/* merge_avx2.c: merge_generic.c for 8 numbers at a time. Each lane does exactly the generic
 * sequence of operations; nothing is summed across lanes. */
#include "merge_variants.h"

#if defined(__x86_64__)
#include <immintrin.h>

static inline __m256d load(const float_anywhere *x)
{
    return _mm256_cvtps_pd(_mm_loadu_ps((const float *)(const void *)x));
}

/* All ones in the lanes that are infinity or NaN. */
static inline __m256 not_finite(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 infinity = _mm256_set1_ps(__builtin_inff());
    return _mm256_cmp_ps(_mm256_andnot_ps(sign, x), infinity, _CMP_NLT_UQ);
}

bool merge_floats_avx2(float *out, const void *const *in, const double *weight, int n, size_t count)
{
    __m256 bad = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const float_anywhere *x = (const float_anywhere *)in[0] + i;
        __m256d w = _mm256_set1_pd(weight[0]);
        __m256d low = _mm256_mul_pd(w, load(x));
        __m256d high = _mm256_mul_pd(w, load(x + 4));
        for (int k = 1; k < n; k++) {
            x = (const float_anywhere *)in[k] + i;
            w = _mm256_set1_pd(weight[k]);
            low = _mm256_add_pd(low, _mm256_mul_pd(w, load(x)));
            high = _mm256_add_pd(high, _mm256_mul_pd(w, load(x + 4)));
        }
        __m256 rounded = _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low));
        bad = _mm256_or_ps(bad, not_finite(rounded));
        _mm256_storeu_ps(out + i, rounded);
    }
    bool finite = _mm256_movemask_ps(bad) == 0;
    if (i == count)
        return finite;
    const void *rest[MERGE_INPUTS_MAX];
    for (int k = 0; k < n; k++)
        rest[k] = (const float_anywhere *)in[k] + i;
    return merge_floats_generic(out + i, rest, weight, n, count - i) && finite;
}
#endif
