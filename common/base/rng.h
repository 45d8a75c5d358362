/* rng.h: all chance in KubeML, as a counter-based generator.
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a pure
 * function from (key, counter) to 128 random bits. A draw depends on its use and never on the
 * number of draws before it, so that a replacement function draws the same numbers as the function
 * that died. */
#ifndef KUBEML_RNG_H
#define KUBEML_RNG_H

#include <stddef.h>
#include <stdint.h>

/* The use of a stream; part of the counter, so that two uses never share numbers. */
typedef enum rng_use {
    RNG_INIT = 1,   /* weights */
    RNG_UPLOAD,     /* order of the samples in a data set */
    RNG_SHARD_PLAN, /* chunks to functions */
    RNG_SHUFFLE,    /* samples within a shard */
    RNG_AUGMENT,    /* flips and crops */
    RNG_DROPOUT,
    RNG_SIMULATOR,
    RNG_TEST,
    RNG_BACKOFF, /* the wait before the next try */
} rng_use;

/* 128 bits for (seed, use, a, b, c), the same on every machine. `a` counts below 2^28. */
void rng_draw(uint64_t seed, rng_use use, uint32_t a, uint64_t b, uint32_t c, uint32_t out[4]);

/* The key and the counter of a draw, for code that computes many draws at once: c is counter[0].
 */
void rng_counter(uint64_t seed, rng_use use, uint32_t a, uint64_t b, uint32_t c, uint32_t key[2],
                 uint32_t counter[4]);

/* A sequential view of one stream: the generator's counter `c` runs. */
typedef struct rng {
    uint64_t seed, b;
    rng_use use;
    uint32_t a, next;
    uint32_t word[4];
    unsigned left;
} rng;

void rng_init(rng *r, uint64_t seed, rng_use use, uint32_t a, uint64_t b);
/* Skips 4 * `draws` words of a stream from which no word was taken yet. */
void rng_skip(rng *r, size_t draws);
uint32_t rng_u32(rng *r);
uint64_t rng_u64(rng *r);
float rng_uniform(rng *r);               /* [0, 1), 24 bits */
/* Four deviates of N(0, 1) from one draw (Box and Muller 1958), at most 6.66 away from 0. Uses only
 * sums, products, quotients and square roots, so that the bits are the same on every processor and
 * with every mathematical library. Precondition: no words are left of an earlier draw. */
void rng_normals(rng *r, double out[4]);
uint64_t rng_below(rng *r, uint64_t n);  /* [0, n), unbiased (Lemire 2019); n > 0 */
/* Fisher-Yates over `n` indices: order[0..n) becomes a permutation of 0..n-1. */
void rng_permutation(rng *r, uint32_t *order, size_t n);

#endif
