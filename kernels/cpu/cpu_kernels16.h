/* cpu_kernels16.h: the inner loops of matrix products in bf16 with fp32 sums, for CPUs with
 * AVX512-BF16 (VDPBF16PS: each lane adds the products of two pairs). Everything else in a bf16
 * program, the master weights included, stays fp32 in cpu_kernels.h.
 *
 * A word is two bf16 that a sum takes one after the other, the first in its low half; a sum over an
 * odd number of values is filled up with a zero. Values are rounded to the nearest, ties to even;
 * subnormal values count as zero. Sums run in an order fixed by the shapes alone. */
#ifndef KUBEML_CPU_KERNELS16_H
#define KUBEML_CPU_KERNELS16_H

#include "cpu_kernels.h"

typedef uint32_t bf16_word;

typedef struct cpu_kernels16 {
    const char *name;

    /* cpu_kernels.gemm over k words: c[m][n] = sum_k a[m*am + k*ak] . b[k*ldb + n]; bias, add and
     * ReLU as in cpu_kernels. n is a multiple of 8. */
    void (*gemm)(int m, int n, int k, const bf16_word *a, size_t am, size_t ak, const bf16_word *b,
                 size_t ldb, const float *bias, bool relu, const float *add, size_t lda, float *c,
                 size_t ldc);

    /* dst[r][c/2]: a word is two neighbours of a row. */
    void (*along)(int rows, int cols, const float *src, size_t lds, bf16_word *dst, size_t ldd);
    /* dst[r/2][c]: a word is from two rows. */
    void (*across)(int rows, int cols, const float *src, size_t lds, bf16_word *dst, size_t ldd);

    /* As in cpu_kernels.h, but to planes of words, `plane` words apart. wino_in: one tile, a word
     * is two channels; the first `real` channels count, the others become zero. wino_in_two,
     * wino_dy_two: a word is the same channel of two tiles; the second is NULL where there is
     * none. */
    void (*wino_in)(const wino_span *s, int channels, int real, const float *x, size_t x_step,
                    size_t x_row, bf16_word *v, size_t plane);
    void (*wino_in_two)(const wino_span s[2], int channels, const float *const x[2], size_t x_step,
                        size_t x_row, bf16_word *v, size_t plane);
    void (*wino_dy_two)(const wino_span s[2], int channels, const float *const dy[2], size_t y_step,
                        size_t y_row, bf16_word *v, size_t plane);
    /* u[36][ld / PANEL_MOST][(rows + 1) / 2][PANEL_MOST]: a word is from two rows; planes are
     * `plane` words apart. */
    void (*wino_weights)(int rows, int cols, size_t ld, const float *w, size_t rs, size_t cs,
                         bool turned, bf16_word *u, size_t plane);
} cpu_kernels16;

#if defined(__x86_64__)
extern const cpu_kernels16 cpu_kernels16_avx512;
#endif

/* The table for this machine. NULL, with the reason in *why, where the CPU has no AVX512-BF16 or
 * KUBEML_CPU names a set without it. */
const cpu_kernels16 *cpu_kernels16_pick(const char **why);

#endif
