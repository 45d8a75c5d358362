/* hash64_avx2.c: xxhash.h's own code, compiled for AVX2. */
#include "hash64.h"

#if defined(__x86_64__)
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash64_avx2(const void *bytes, size_t len)
{
    return XXH3_64bits(bytes, len);
}
#endif
