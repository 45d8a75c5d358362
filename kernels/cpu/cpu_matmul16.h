/* cpu_matmul16.h: the operands of cpu_matmul.c's products in bf16: pixels as words. */
#ifndef KUBEML_CPU_MATMUL16_H
#define KUBEML_CPU_MATMUL16_H

#include "cpu_program.h"

/* Rows of a matrix, ld elements apart. Elements are floats, or, where the program computes in bf16
 * (p->k16), words, which are as large. */
typedef struct matmul_rows {
    const float *data;
    size_t ld;
} matmul_rows;

static inline const bf16_word *matmul_words(const float *data)
{
    return (const bf16_word *)(const void *)data;
}
static inline bf16_word *matmul_words_to(float *data)
{
    return (bf16_word *)(void *)data;
}

/* m rows of `channels` channels as operand: `from` itself in fp32; otherwise words, written to
 * `room`. along: a word is two channels, m * (channels / 2) words, rounded up to 8 a row; across: a
 * word is from two rows, m / 2 * channels words. */
matmul_rows matmul_along(const program *p, int m, int channels, matmul_rows from, float *room);
matmul_rows matmul_across(const program *p, int m, int channels, matmul_rows from, float *room);

/* Whole tensors as words in leased memory, pixel by pixel, each pixel with all samples. x: the
 * input, for forward; x_two: the input, a word is from two samples, for backward; dy: a word is two
 * channels; dy_two: a word is from two samples. Each thread writes and reads its own samples. */
struct points16 {
    float *x, *x_two, *dy, *dy_two;
};

int points16_alloc(program *p, layer *l);
void points16_forward(const program *p, const layer *l, int from, int to);
void points16_backward(const program *p, const layer *l, int from, int to, int thread);
/* Pixel (h, w) of t, from sample `from` on: points16_row in x or dy, points16_two in x_two or
 * dy_two. */
matmul_rows points16_row(const program *p, const float *words, const tensor *t, int from, int h,
                         int w);
matmul_rows points16_two(const program *p, const float *words, const tensor *t, int from,
                         int thread, int h, int w);

#endif
