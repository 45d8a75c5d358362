/* merge_generic.c: the merge's inner loop in plain C, the reference for the other variants.
 * Compiled without contraction into fused multiply-add (Makefile). */
#include "merge_variants.h"

bool merge_floats_generic(float *out, const void *const *in, const double *weight, int n,
                          size_t count)
{
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        double sum = weight[0] * (double)((const float_anywhere *)in[0])[i];
        for (int k = 1; k < n; k++)
            sum = sum + weight[k] * (double)((const float_anywhere *)in[k])[i];
        float rounded = (float)sum;
        out[i] = rounded;
        finite &= __builtin_isfinite(rounded) != 0;
    }
    return finite;
}
