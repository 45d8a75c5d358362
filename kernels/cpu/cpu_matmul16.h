/* cpu_matmul16.h: the operands of cpu_matmul.c's products in bf16: pixels as words. */
#ifndef KUBEML_CPU_MATMUL16_H
#define KUBEML_CPU_MATMUL16_H

#include "cpu_program.h"

/* Rows of a matrix, ld elements apart: floats, or where the program computes in bf16 (p->k16)
 * words, which are as large. */
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

/* m rows of so many channels as operand: `from` itself in fp32; otherwise words, in `room`. along:
 * words of two channels, m * (channels / 2) of them, rounded up to 8; across: of two rows, m / 2 *
 * channels. */
matmul_rows matmul_along(const program *p, int m, int channels, matmul_rows from, float *room);
matmul_rows matmul_across(const program *p, int m, int channels, matmul_rows from, float *room);

/* A whole tensor pixel by pixel, of one pixel all samples, leased: the input forward, and backward
 * in words of two samples; dy in words of two channels, and of two samples. Threads write and read
 * their own samples. */
struct points16 {
    float *x, *x_two, *dy, *dy_two;
};

int points16_alloc(program *p, layer *l);
void points16_forward(const program *p, const layer *l, int from, int to);
void points16_backward(const program *p, const layer *l, int from, int to, int thread);
/* Pixel (h, w) of t from sample `from` on, in x or dy, and in x_two or dy_two. */
matmul_rows points16_row(const program *p, const float *words, const tensor *t, int from, int h,
                         int w);
matmul_rows points16_two(const program *p, const float *words, const tensor *t, int from,
                         int thread, int h, int w);

#endif
