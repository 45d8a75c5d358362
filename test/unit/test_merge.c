/* test_merge.c: the merge: equal bits from every variant and any number of threads, the stated
 * formula, what is refused. */
#include "common/base/rng.h"
#include "common/modelstore/block.h"
#include "common/modelstore/merge.h"
#include "test.h"

#include "common/modelstore/merge_variants.h"

enum { INPUTS = 5, FLOATS = 3 * BLOCK_PIECE_FLOATS + 12345, COUNTERS = 77 };

static float odd_float(rng *r)
{
    union {
        uint32_t bits;
        float value;
    } u;
    switch (rng_below(r, 8)) {
    case 0: /* any finite bit pattern: huge, tiny, subnormal */
        do
            u.bits = rng_u32(r);
        while (!isfinite(u.value));
        return u.value;
    case 1:
        return rng_below(r, 2) ? -0.0f : 0.0f;
    default:
        return (rng_uniform(r) - 0.5f) * 4.0f;
    }
}

static block new_model(uint64_t seed, uint64_t n)
{
    rng r;
    rng_init(&r, seed, RNG_TEST, 1, n);
    block b = {malloc(FLOATS * sizeof(float)), malloc(COUNTERS * sizeof(int64_t))};
    CHECK(b.floats && b.counters);
    for (size_t i = 0; i < FLOATS; i++)
        b.floats[i] = odd_float(&r);
    for (size_t i = 0; i < COUNTERS; i++)
        b.counters[i] = (int64_t)rng_u64(&r);
    return b;
}

static void free_model(block b)
{
    free(b.floats);
    free(b.counters);
}

static const block_shape shape = {FLOATS, COUNTERS};
static const uint64_t samples[INPUTS] = {1000, 37, 64000, 0, 511};

typedef struct set {
    block b[INPUTS], out;
    merge_input in[INPUTS];
    const void *flat[INPUTS][2];
} set;

static void set_init(set *s)
{
    err e = ERR_INIT;
    s->out = new_model(9, 99);
    for (int k = 0; k < INPUTS; k++) {
        s->b[k] = new_model(1, (uint64_t)k);
        s->in[k] = (merge_input){.function = k, .incarnation = 1, .samples = samples[k]};
        merge_input_contiguous(&s->in[k], &s->b[k], s->flat[k]);
        CHECK_OK(block_checksum(shape, s->b[k], 1, &s->in[k].checksum, &e), e);
    }
}

static void set_free(set *s)
{
    for (int k = 0; k < INPUTS; k++)
        free_model(s->b[k]);
    free_model(s->out);
}

static const merge_rule *rule(const char *name)
{
    const merge_rule *r = NULL;
    err e = ERR_INIT;
    CHECK_OK(merge_rule_find(name, &r, &e), e);
    return r;
}

/* The formula of merge.h, written down a second time. */
static float expected(const set *s, size_t i)
{
    double sum = 0, total = 0;
    bool first = true;
    for (int k = 0; k < INPUTS; k++)
        total += (double)samples[k];
    for (int k = 0; k < INPUTS; k++) {
        volatile double weight = (double)samples[k] / total;
        volatile double product = weight * (double)s->b[k].floats[i];
        volatile double next = first ? product : sum + product;
        if (samples[k] == 0)
            continue;
        sum = next;
        first = false;
    }
    return (float)sum;
}

TEST(mean_is_the_stated_formula)
{
    set s;
    err e = ERR_INIT;
    merge_result result;
    set_init(&s);
    CHECK_OK(merge_run(rule("mean"), shape, s.in, INPUTS, s.out, 1, &result, &e), e);
    CHECK_INT(result.samples, 65548);
    CHECK_INT(result.bad, -1);
    for (size_t i = 0; i < FLOATS; i++) {
        float want = expected(&s, i);
        if (memcmp(&want, &s.out.floats[i], sizeof want) != 0)
            test_fail(__FILE__, __LINE__, "number %zu is %a, not %a", i, s.out.floats[i], want);
    }
    for (size_t i = 0; i < COUNTERS; i++) {
        int64_t largest = INT64_MIN;
        for (int k = 0; k < INPUTS; k++)
            if (samples[k] > 0 && s.b[k].counters[i] > largest)
                largest = s.b[k].counters[i];
        CHECK_INT(s.out.counters[i], largest);
    }
    uint64_t checksum;
    CHECK_OK(block_checksum(shape, s.out, 2, &checksum, &e), e);
    CHECK(checksum == result.checksum);
    set_free(&s);
}

TEST(every_variant_gives_the_same_bits)
{
    set s;
    set_init(&s);
    merge_variant variant[MERGE_VARIANTS];
    int variants = merge_variants(variant);
    const double weight[INPUTS] = {0.25, 1.0 / 3.0, 0.1, 0.3166666666666667, 1e-9};
    static char moved[INPUTS][FLOATS * sizeof(float) + 4];
    float *want = malloc(FLOATS * sizeof *want), *got = malloc(FLOATS * sizeof *got);
    CHECK(want && got);
    printf("%d variants, fastest %s\n", variants, variant[0].name);
    for (int n = 1; n <= INPUTS; n++) {
        for (size_t shift = 0; shift < 4; shift++) {
            const void *in[INPUTS]; /* unaligned too, as chunks from a socket are */
            for (int k = 0; k < n; k++) {
                memcpy(moved[k] + shift, s.b[k].floats, FLOATS * sizeof(float));
                in[k] = moved[k] + shift;
            }
            size_t count = FLOATS - 7 * shift;
            bool finite = merge_floats_generic(want, in, weight, n, count);
            for (int v = 0; v < variants; v++) {
                memset(got, 0, FLOATS * sizeof *got);
                CHECK_INT(variant[v].floats(got, in, weight, n, count), finite);
                if (memcmp(got, want, count * sizeof *want) != 0)
                    test_fail(__FILE__, __LINE__, "%s differs, n %d", variant[v].name, n);
            }
        }
    }
    free(want);
    free(got);
    set_free(&s);
}

TEST(threads_and_chunks_change_no_bit)
{
    set s;
    err e = ERR_INIT;
    merge_result first, other;
    set_init(&s);
    CHECK_OK(merge_run(rule("mean"), shape, s.in, INPUTS, s.out, 1, &first, &e), e);
    for (int threads = 2; threads <= 7; threads++) {
        CHECK_OK(merge_run(rule("mean"), shape, s.in, INPUTS, s.out, threads, &other, &e), e);
        CHECK(other.checksum == first.checksum);
    }
    /* The same bytes in chunks of 64 KiB that lie at odd addresses. */
    enum { CHUNKS = (FLOATS * 4 + BLOCK_PIECE_BYTES - 1) / BLOCK_PIECE_BYTES };
    static char store[INPUTS][CHUNKS][BLOCK_PIECE_BYTES + 16];
    const void *chunk[INPUTS][CHUNKS];
    for (int k = 0; k < INPUTS; k++) {
        for (size_t c = 0; c < CHUNKS; c++) {
            size_t at = c * BLOCK_PIECE_BYTES, len = FLOATS * 4 - at;
            chunk[k][c] = store[k][c] + 1 + k;
            memcpy(store[k][c] + 1 + k, (char *)s.b[k].floats + at,
                   len < BLOCK_PIECE_BYTES ? len : BLOCK_PIECE_BYTES);
        }
        s.in[k].chunk_bytes = BLOCK_PIECE_BYTES;
        s.in[k].float_chunks = chunk[k];
    }
    CHECK_OK(merge_run(rule("mean"), shape, s.in, INPUTS, s.out, 3, &other, &e), e);
    CHECK(other.checksum == first.checksum);
    set_free(&s);
}

TEST(equal_models_merge_to_themselves)
{
    set s;
    err e = ERR_INIT;
    merge_result result;
    set_init(&s);
    for (int k = 1; k < INPUTS; k++) {
        s.in[k].float_chunks = s.in[0].float_chunks;
        s.in[k].counter_chunks = s.in[0].counter_chunks;
        s.in[k].checksum = s.in[0].checksum;
    }
    CHECK_OK(merge_run(rule("mean"), shape, s.in, INPUTS, s.out, 2, &result, &e), e);
    CHECK(result.checksum == s.in[0].checksum ||
          memcmp(s.out.floats, s.b[0].floats, FLOATS * sizeof(float)) == 0);
    for (size_t i = 0; i < FLOATS; i++)
        CHECK(s.out.floats[i] == s.b[0].floats[i]);
    set_free(&s);
}

TEST(uniform_ignores_samples)
{
    set s;
    err e = ERR_INIT;
    merge_result result;
    set_init(&s);
    CHECK_OK(merge_run(rule("uniform"), shape, s.in, 2, s.out, 1, &result, &e), e);
    for (size_t i = 0; i < FLOATS; i++) {
        float want = (float)(0.5 * (double)s.b[0].floats[i] + 0.5 * (double)s.b[1].floats[i]);
        CHECK(want == s.out.floats[i]);
    }
    set_free(&s);
}

TEST(a_flipped_byte_is_named)
{
    set s;
    err e = ERR_INIT;
    merge_result result;
    set_init(&s);
    ((char *)s.b[2].floats)[FLOATS * 4 - 1] ^= 1;
    CHECK_ERR(merge_run(rule("mean"), shape, s.in, INPUTS, s.out, 2, &result, &e), e, ERR_CORRUPT,
              "function 2 (incarnation 1)");
    CHECK_INT(result.bad, 2);
    ((char *)s.b[2].floats)[FLOATS * 4 - 1] ^= 1;
    s.b[4].counters[COUNTERS - 1] ^= 1;
    CHECK_ERR(merge_run(rule("mean"), shape, s.in, INPUTS, s.out, 2, &result, &e), e, ERR_CORRUPT,
              "function 4");
    set_free(&s);
}

TEST(not_a_number_is_named)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        set s;
        err e = ERR_INIT;
        merge_result result;
        set_init(&s);
        s.b[3].floats[5] = NAN; /* has no samples: nobody reads it */
        s.b[1].floats[FLOATS - 1 - i] = bad[i];
        s.b[4].floats[0] = -bad[i];
        for (int k = 0; k < INPUTS; k++)
            CHECK_OK(block_checksum(shape, s.b[k], 1, &s.in[k].checksum, &e), e);
        CHECK_ERR(merge_run(rule("mean"), shape, s.in, INPUTS, s.out, 2, &result, &e), e,
                  ERR_INVALID, "function 1 (incarnation 1) published numbers that are NaN");
        CHECK_INT(result.bad, 1);
        CHECK_INT(result.why, ERR_INVALID);
        set_free(&s);
    }
}

TEST(nothing_to_merge)
{
    set s;
    err e = ERR_INIT;
    merge_result result;
    const merge_rule *none;
    set_init(&s);
    CHECK_ERR(merge_run(rule("mean"), shape, s.in + 3, 1, s.out, 1, &result, &e), e, ERR_INVALID,
              "no contribution has samples");
    CHECK_ERR(merge_run(rule("mean"), shape, s.in, 0, s.out, 1, &result, &e), e, ERR_LIMIT, "0");
    CHECK_ERR(merge_rule_find("krum", &none, &e), e, ERR_UNSUPPORTED, "krum");
    set_free(&s);
}

TEST(largest_floats_do_not_overflow)
{
    float x[2] = {3.4028234664e38f, -3.4028234664e38f}, out[2];
    const void *in[3] = {x, x, x};
    const double weight[3] = {1.0 / 3, 1.0 / 3, 1.0 / 3};
    CHECK(merge_floats_generic(out, in, weight, 3, 2));
    CHECK(out[0] == x[0] && out[1] == x[1]);
}

TEST(shapes_have_limits)
{
    err e = ERR_INIT;
    CHECK_ERR(block_shape_check((block_shape){0, 4}, &e), e, ERR_INVALID, "without numbers");
    CHECK_ERR(block_shape_check((block_shape){BLOCK_FLOATS_MAX + 1, 0}, &e), e, ERR_LIMIT,
              "floats");
    CHECK_ERR(block_shape_check((block_shape){1, BLOCK_COUNTERS_MAX + 1}, &e), e, ERR_LIMIT,
              "counters");
    CHECK_OK(block_shape_check((block_shape){BLOCK_FLOATS_MAX, BLOCK_COUNTERS_MAX}, &e), e);
    CHECK_INT(block_counter_offset((block_shape){16, 1}), 64);
    CHECK_INT(block_counter_offset((block_shape){17, 1}), 128);
    CHECK_INT(block_bytes((block_shape){17, 1}), 192);
}

/* A number that is in no piece is neither merged nor checked. */
TEST(every_number_is_in_a_piece)
{
    enum { FLOATS_OF = BLOCK_PIECE_FLOATS, COUNTERS_OF = BLOCK_PIECE_COUNTERS };
    CHECK_INT(block_pieces((block_shape){1, 0}), 1);
    CHECK_INT(block_pieces((block_shape){1, 1}), 2);
    CHECK_INT(block_pieces((block_shape){FLOATS_OF, COUNTERS_OF}), 2);
    CHECK_INT(block_pieces((block_shape){FLOATS_OF + 1, COUNTERS_OF}), 3);
    CHECK_INT(block_pieces((block_shape){FLOATS_OF, COUNTERS_OF + 1}), 3);
}
