/* hash64.c: see hash64.h. */
#include "hash64.h"

#include <xxhash.h>

static uint64_t generic(const void *bytes, size_t len)
{
    return XXH3_64bits(bytes, len);
}

int hash64_variants(hash64_variant out[HASH64_VARIANTS])
{
    int n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        out[n++] = (hash64_variant){"avx512", hash64_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[n++] = (hash64_variant){"avx2", hash64_avx2};
#endif
    out[n++] = (hash64_variant){"generic", generic};
    return n;
}

uint64_t hash64(const void *bytes, size_t len)
{
    hash64_variant variant[HASH64_VARIANTS];
    hash64_variants(variant);
    return variant[0].hash(bytes, len);
}
