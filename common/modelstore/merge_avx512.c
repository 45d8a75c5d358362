/* merge_avx512.c: merge_generic.c for 16 numbers at a time. Each lane does exactly the generic
 * sequence of operations; nothing is summed across lanes. */
#include "merge_variants.h"

#if defined(__x86_64__)
#include <immintrin.h>

static inline __m512d load(const float_anywhere *x)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps((const float *)(const void *)x));
}

bool merge_floats_avx512(float *out, const void *const *in, const double *weight, int n,
                         size_t count)
{
    const __m512 infinity = _mm512_set1_ps(__builtin_inff());
    __mmask16 bad = 0;
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const float_anywhere *x = (const float_anywhere *)in[0] + i;
        __m512d w = _mm512_set1_pd(weight[0]);
        __m512d low = _mm512_mul_pd(w, load(x));
        __m512d high = _mm512_mul_pd(w, load(x + 8));
        for (int k = 1; k < n; k++) {
            x = (const float_anywhere *)in[k] + i;
            w = _mm512_set1_pd(weight[k]);
            low = _mm512_add_pd(low, _mm512_mul_pd(w, load(x)));
            high = _mm512_add_pd(high, _mm512_mul_pd(w, load(x + 8)));
        }
        __m512 rounded = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)),
                                            _mm512_cvtpd_ps(high), 1);
        bad |= _mm512_cmp_ps_mask(_mm512_abs_ps(rounded), infinity, _CMP_NLT_UQ);
        _mm512_storeu_ps(out + i, rounded);
    }
    if (i == count)
        return bad == 0;
    const void *rest[MERGE_INPUTS_MAX];
    for (int k = 0; k < n; k++)
        rest[k] = (const float_anywhere *)in[k] + i;
    return merge_floats_generic(out + i, rest, weight, n, count - i) && bad == 0;
}
#endif
