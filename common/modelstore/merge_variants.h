/* merge_variants.h: the variants of the merge's inner loop, one in each file, for merge.c alone. */
#ifndef KUBEML_MERGE_VARIANTS_H
#define KUBEML_MERGE_VARIANTS_H

#include "merge.h"

/* A number at any address: chunks from a socket begin where Redis has put them. */
typedef float float_anywhere __attribute__((aligned(1), may_alias));
typedef int64_t int64_anywhere __attribute__((aligned(1), may_alias));

bool merge_floats_generic(float *out, const void *const *in, const double *weight, int n,
                          size_t count);
#if defined(__x86_64__)
bool merge_floats_avx2(float *out, const void *const *in, const double *weight, int n,
                       size_t count);
bool merge_floats_avx512(float *out, const void *const *in, const double *weight, int n,
                         size_t count);
#endif

#endif
