/* rng.c: see rng.h. */
#include "rng.h"

#include <assert.h>

static void philox(uint32_t counter[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t low = (uint64_t)0xD2511F53u * counter[0];
        uint64_t high = (uint64_t)0xCD9E8D57u * counter[2];
        uint32_t next0 = (uint32_t)(high >> 32) ^ counter[1] ^ key0;
        uint32_t next2 = (uint32_t)(low >> 32) ^ counter[3] ^ key1;
        counter[0] = next0;
        counter[1] = (uint32_t)high;
        counter[2] = next2;
        counter[3] = (uint32_t)low;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

void rng_counter(uint64_t seed, rng_use use, uint32_t a, uint64_t b, uint32_t c, uint32_t key[2],
                 uint32_t counter[4])
{
    /* `a` and the use share a word: uses fit in 4 bits, `a` (an epoch, a layer) in 28. */
    counter[0] = c;
    counter[1] = (uint32_t)b;
    counter[2] = (uint32_t)(b >> 32);
    counter[3] = ((uint32_t)use << 28) | (a & 0x0FFFFFFFu);
    key[0] = (uint32_t)seed;
    key[1] = (uint32_t)(seed >> 32);
}

void rng_draw(uint64_t seed, rng_use use, uint32_t a, uint64_t b, uint32_t c, uint32_t out[4])
{
    uint32_t key[2];
    rng_counter(seed, use, a, b, c, key, out);
    philox(out, key[0], key[1]);
}

void rng_init(rng *r, uint64_t seed, rng_use use, uint32_t a, uint64_t b)
{
    *r = (rng){.seed = seed, .use = use, .a = a, .b = b};
}

void rng_skip(rng *r, size_t draws)
{
    r->next = (uint32_t)draws;
}

uint32_t rng_u32(rng *r)
{
    if (r->left == 0) {
        rng_draw(r->seed, r->use, r->a, r->b, r->next++, r->word);
        r->left = 4;
    }
    return r->word[4 - r->left--];
}

uint64_t rng_u64(rng *r)
{
    uint64_t high = rng_u32(r);
    return high << 32 | rng_u32(r);
}

float rng_uniform(rng *r)
{
    return (float)(rng_u32(r) >> 8) * 0x1p-24f;
}

uint64_t rng_below(rng *r, uint64_t n)
{
    assert(n > 0);
    __extension__ typedef unsigned __int128 u128;
    uint64_t threshold = (0 - n) % n;
    for (;;) {
        u128 product = (u128)rng_u64(r) * n;
        if ((uint64_t)product >= threshold)
            return (uint64_t)(product >> 64);
    }
}

void rng_permutation(rng *r, uint32_t *order, size_t n)
{
    assert(n <= UINT32_MAX);
    for (size_t i = 0; i < n; i++) {
        size_t j = rng_below(r, i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}
