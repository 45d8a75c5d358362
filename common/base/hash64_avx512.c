/* hash64_avx512.c: xxhash.h's own code, compiled for AVX-512. */
#include "hash64.h"

#if defined(__x86_64__)
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash64_avx512(const void *bytes, size_t len)
{
    return XXH3_64bits(bytes, len);
}
#endif
