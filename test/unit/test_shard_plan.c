/* test_shard_plan.c: every sample exactly once, whatever the numbers. */
#include <stdlib.h>

#include "common/base/rng.h"
#include "common/contract/shard_plan.h"
#include "test.h"

/* Walks the whole epoch and marks each sample seen. */
static void check_exactly_once(const shard_plan_spec *s)
{
    err e = ERR_INIT;
    shard_plan d;
    CHECK_OK(shard_plan_init(&d, s, &e), e);
    unsigned char *seen = calloc(s->samples, 1);
    uint32_t *order = calloc(s->samples, sizeof *order);
    uint64_t least = UINT64_MAX, most = 0;
    CHECK(seen && order);
    for (int f = 0; f < s->parallelism; f++) {
        uint64_t begin, end, at = 0;
        shard_plan_order(&d, f, order);
        for (uint32_t b = 0; b < shard_plan_batches(&d, f); b++) {
            shard_plan_samples(&d, f, b, 1, &begin, &end);
            CHECK_INT(begin, at);
            CHECK(end > begin && end - begin <= s->batch_size);
            for (; at < end; at++) {
                uint32_t chunk, offset;
                shard_plan_locate(&d, f, order[at], &chunk, &offset);
                uint64_t sample = (uint64_t)chunk * s->chunk_samples + offset;
                CHECK(offset < s->chunk_samples && sample < s->samples && !seen[sample]);
                seen[sample] = 1;
            }
        }
        CHECK_INT(at, d.share[f]);
        least = d.share[f] < least ? d.share[f] : least;
        most = d.share[f] > most ? d.share[f] : most;
    }
    for (uint64_t i = 0; i < s->samples; i++)
        CHECK(seen[i]);
    CHECK(most - least <= s->chunk_samples);
    free(seen);
    free(order);
    shard_plan_free(&d);
}

TEST(every_sample_once)
{
    static const shard_plan_spec fixed[] = {
        {.samples = 1, .chunk_samples = 1, .batch_size = 1, .parallelism = 1},
        {.samples = 60000, .chunk_samples = 256, .batch_size = 32, .parallelism = 4},
        {.samples = 60000, .chunk_samples = 256, .batch_size = 32, .parallelism = 7, .epoch = 3},
        {.samples = 100, .chunk_samples = 64, .batch_size = 32, .parallelism = 5},
        {.samples = 1000, .chunk_samples = 1, .batch_size = 3, .parallelism = 256},
        {.samples = 1025, .chunk_samples = 256, .batch_size = 65536, .parallelism = 2},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        check_exactly_once(&fixed[i]);
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    for (int i = 0; i < 300; i++)
        check_exactly_once(&(shard_plan_spec){.seed = rng_u64(&r),
                                              .samples = 1 + rng_below(&r, 3000),
                                              .chunk_samples = 1 + (uint32_t)rng_below(&r, 200),
                                              .batch_size = 1 + (uint32_t)rng_below(&r, 100),
                                              .parallelism = 1 + (int)rng_below(&r, 20),
                                              .epoch = (uint32_t)rng_below(&r, 1000)});
}

/* Rounds of K batches cover each function's batches in order, and no round is without work. */
TEST(rounds_tile_the_batches)
{
    static const int ks[] = {-1, 1, 2, 7, 1000000};
    err e = ERR_INIT;
    shard_plan d;
    CHECK_OK(shard_plan_init(
                 &d,
                 &(shard_plan_spec){
                     .samples = 1000, .chunk_samples = 30, .batch_size = 8, .parallelism = 6},
                 &e),
             e);
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        uint32_t rounds = shard_plan_rounds(&d, ks[i]), worked = 0, begin, count;
        for (int f = 0; f < 6; f++) {
            uint32_t at = 0;
            for (uint32_t r = 0; r < rounds; r++) {
                shard_plan_range(&d, f, ks[i], r, &begin, &count);
                CHECK_INT(begin, at);
                at += count;
                worked += r == rounds - 1 && count > 0;
            }
            CHECK_INT(at, shard_plan_batches(&d, f));
            shard_plan_range(&d, f, ks[i], rounds, &begin, &count);
            CHECK_INT(count, 0);
        }
        CHECK(worked > 0);
    }
    CHECK_INT(shard_plan_rounds(&d, -1), 1);
    shard_plan_free(&d);
}

TEST(same_numbers_same_deal_other_epoch_other_deal)
{
    shard_plan_spec s = {
        .seed = 5, .samples = 6000, .chunk_samples = 64, .batch_size = 32, .parallelism = 3};
    err e = ERR_INIT;
    shard_plan a, b, c;
    CHECK_OK(shard_plan_init(&a, &s, &e), e);
    CHECK_OK(shard_plan_init(&b, &s, &e), e);
    s.epoch = 1;
    CHECK_OK(shard_plan_init(&c, &s, &e), e);
    CHECK(memcmp(a.chunk, b.chunk, a.chunks * sizeof *a.chunk) == 0);
    CHECK(memcmp(a.chunk, c.chunk, a.chunks * sizeof *a.chunk) != 0);
    uint32_t *x = calloc(6000, sizeof *x), *y = calloc(6000, sizeof *y);
    CHECK(x && y);
    shard_plan_order(&a, 0, x);
    shard_plan_order(&b, 0, y);
    CHECK(memcmp(x, y, a.share[0] * sizeof *x) == 0);
    shard_plan_order(&a, 1, y);
    CHECK(memcmp(x, y, (a.share[0] < a.share[1] ? a.share[0] : a.share[1]) * sizeof *x) != 0);
    free(x);
    free(y);
    shard_plan_free(&a);
    shard_plan_free(&b);
    shard_plan_free(&c);
}

/* The deal is part of the plan: a job replayed by a later version must see the same samples. */
TEST(the_deal_is_fixed_for_good)
{
    err e = ERR_INIT;
    shard_plan d;
    CHECK_OK(shard_plan_init(&d,
                             &(shard_plan_spec){.seed = 1,
                                                .samples = 95,
                                                .chunk_samples = 10,
                                                .batch_size = 4,
                                                .parallelism = 3,
                                                .epoch = 2},
                             &e),
             e);
    char text[128] = "";
    for (int f = 0; f < 3; f++) {
        for (uint32_t i = 0; i < shard_plan_chunk_count(&d, f); i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%u ",
                     shard_plan_chunk_list(&d, f)[i]);
        strcat(text, "| ");
    }
    CHECK_STR(text, "7 5 6 9 | 3 0 4 | 8 2 1 | ");
    shard_plan_free(&d);
}

TEST(test_shares)
{
    for (int p = 1; p <= 12; p++) {
        uint32_t at = 0;
        uint64_t sum = 0;
        for (int f = 0; f < p; f++) {
            uint32_t begin, end;
            uint64_t samples;
            shard_plan_test_share(1001, 128, p, f, &begin, &end, &samples);
            CHECK_INT(begin, at);
            CHECK((samples == 0) == (begin == end));
            at = end;
            sum += samples;
        }
        CHECK_INT(at, 8);
        CHECK_INT(sum, 1001);
    }
}

TEST(wrong_numbers)
{
    static const struct {
        shard_plan_spec s;
        const char *part;
    } cases[] = {
        {{.samples = 0, .chunk_samples = 1, .batch_size = 1, .parallelism = 1}, "samples: 0"},
        {{.samples = UINT64_MAX, .chunk_samples = 1, .batch_size = 1, .parallelism = 1},
         "samples:"},
        {{.samples = 1, .chunk_samples = 0, .batch_size = 1, .parallelism = 1}, "chunk_samples:"},
        {{.samples = 1 << 30, .chunk_samples = 1, .batch_size = 1, .parallelism = 1}, "chunks"},
        {{.samples = 1, .chunk_samples = 1, .batch_size = 0, .parallelism = 1}, "batch_size:"},
        {{.samples = 1, .chunk_samples = 1, .batch_size = 1, .parallelism = 0}, "parallelism: 0"},
        {{.samples = 1, .chunk_samples = 1, .batch_size = 1, .parallelism = 257}, "parallelism:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = ERR_INIT;
        shard_plan d;
        CHECK_ERR(shard_plan_init(&d, &cases[i].s, &e), e, ERR_INVALID, cases[i].part);
        shard_plan_free(&d);
    }
    err e = ERR_INIT;
    shard_plan_spec most = {.samples = 3ULL * SHARD_PLAN_CHUNKS_MAX,
                            .chunk_samples = 3,
                            .batch_size = 1,
                            .parallelism = 1};
    CHECK_OK(shard_plan_check(&most, &e), e);
    most.samples++;
    CHECK_ERR(shard_plan_check(&most, &e), e, ERR_INVALID, "more than");
}
