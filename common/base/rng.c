/* rng.c: see rng.h. */
#include "rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>

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

/* The polynomial with these coefficients, the highest power first, at z (Horner). */
static inline double series(const double *of, size_t count, double z)
{
    double sum = of[0];
    for (size_t i = 1; i < count; i++)
        sum = sum * z + of[i];
    return sum;
}

#define SERIES(of, z) series(of, sizeof of / sizeof *of, z)

/* ln((w + 1) / 2^32), from a mantissa m in [sqrt(1/2), sqrt(2)): ln m is twice the artanh of
 * (m - 1) / (m + 1), whose truncated series is off by less than 1e-14. */
static double log_of(uint32_t w)
{
    static const double artanh[] = {1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9,
                                    1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
    double from_1 = (double)w + 1, m;
    uint64_t bits;
    memcpy(&bits, &from_1, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023 - 32;
    bits = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    double s = (m - 1) / (m + 1);
    return exponent * 0.6931471805599453 + 2 * s * SERIES(artanh, s * s);
}

/* Cosine and sine of w / 2^32 turns. Rotates by the nearest quarter turn; the rest goes through
 * Taylor's series, which are off by less than 1e-13. */
static void turn(uint32_t w, double *cosine, double *sine)
{
    static const double of_sine[] = {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040,
                                     1.0 / 120,        -1.0 / 6,        1.0};
    static const double of_cosine[] = {
        -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
        -1.0 / 720,         1.0 / 24,        -1.0 / 2,       1.0};
    uint32_t quarter = (w + (1u << 29)) >> 30;
    double x = (double)(int32_t)(w - (quarter << 30)) * (6.283185307179586 * 0x1p-32);
    double s = x * SERIES(of_sine, x * x), c = SERIES(of_cosine, x * x);
    double cosine_of[] = {c, -s, -c, s};
    *cosine = cosine_of[quarter];
    *sine = cosine_of[(quarter + 3) % 4];
}

void rng_normals(rng *r, double out[4])
{
    assert(r->left == 0);
    rng_draw(r->seed, r->use, r->a, r->b, r->next++, r->word);
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2 * log_of(r->word[i])), c, s;
        turn(r->word[i + 1], &c, &s);
        out[i] = radius * c;
        out[i + 1] = radius * s;
    }
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
