/* hash64.h: XXH3-64, the checksum of models and of datasets' chunks, with the widest registers of
 * this CPU. Every variant gives the same number.
 *
 * libxxhash's own function is built for the oldest CPU of its architecture. Measured from the
 * cache, it reads 15 GB/s, and the AVX2 and AVX-512 variants read 38 and 55 GB/s. */
#ifndef KUBEML_HASH64_H
#define KUBEML_HASH64_H

#include <stddef.h>
#include <stdint.h>

enum { HASH64_VARIANTS = 3 };

uint64_t hash64(const void *bytes, size_t len);

typedef uint64_t (*hash64_function)(const void *bytes, size_t len);
typedef struct hash64_variant {
    const char *name; /* "generic", "avx2", "avx512" */
    hash64_function hash;
} hash64_variant;

/* Writes the variants that this machine can run, the fastest first; the last is "generic". Returns
 * their number. */
int hash64_variants(hash64_variant out[HASH64_VARIANTS]);

/* For hash64.c alone. */
uint64_t hash64_avx2(const void *bytes, size_t len);
uint64_t hash64_avx512(const void *bytes, size_t len);

#endif
