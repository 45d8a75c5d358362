/* hash64.h: XXH3-64, the checksum of models and of datasets' chunks, with the widest registers that
 * this CPU has. (libxxhash's own function is built for the oldest CPU of its architecture:
 * measured, 15 GB/s where these read 38 and 55 from the cache.) Every variant gives the same
 * number. */
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

/* Those this machine can run, the fastest first; the last is "generic". */
int hash64_variants(hash64_variant out[HASH64_VARIANTS]);

/* For hash64.c alone. */
uint64_t hash64_avx2(const void *bytes, size_t len);
uint64_t hash64_avx512(const void *bytes, size_t len);

#endif
