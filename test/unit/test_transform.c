/* test_transform.c: flips and crops depend on (seed, epoch, sample) alone, and do what they say. */
#include "function-runtime/model/transform.h"
#include "test.h"

enum { SIDE = 6, PIXELS = SIDE * SIDE };

/* 1, 2, 3, ... so that every pixel tells where it came from. */
static void fill(unsigned char *x)
{
    for (int i = 0; i < PIXELS; i++)
        x[i] = (unsigned char)(i + 1);
}

static void move(const transform *t, uint64_t seed, uint32_t epoch, uint64_t sample,
                 unsigned char *out)
{
    unsigned char in[PIXELS];
    fill(in);
    transform_move(t, seed, epoch, sample, 1, SIDE, SIDE, 1, in, out);
}

TEST(the_same_draw_in_any_order)
{
    transform t = {.flip = true, .crop = 2};
    unsigned char first[50][PIXELS], again[PIXELS];
    for (int i = 0; i < 50; i++)
        move(&t, 3, 7, (uint64_t)i, first[i]);
    for (int i = 49; i >= 0; i--) {
        move(&t, 3, 7, (uint64_t)i, again);
        CHECK(memcmp(first[i], again, PIXELS) == 0);
    }
}

TEST(seed_epoch_and_sample_each_count)
{
    transform t = {.flip = true, .crop = 2};
    unsigned char a[PIXELS], b[PIXELS];
    int seed = 0, epoch = 0, sample = 0;
    for (uint64_t i = 0; i < 40; i++) {
        move(&t, 1, 1, i, a);
        move(&t, 2, 1, i, b);
        seed += memcmp(a, b, PIXELS) != 0;
        move(&t, 1, 2, i, b);
        epoch += memcmp(a, b, PIXELS) != 0;
        move(&t, 1, 1, i + 1, b);
        sample += memcmp(a, b, PIXELS) != 0;
    }
    CHECK(seed > 30 && epoch > 30 && sample > 30);
}

/* Every result is one of the 2 * 5 * 5 that are possible, and all of them come. */
TEST(crops_and_flips_are_what_they_say)
{
    transform t = {.flip = true, .crop = 2};
    unsigned char in[PIXELS], got[PIXELS], want[PIXELS];
    bool seen[2][5][5] = {{{false}}};
    fill(in);
    for (uint64_t i = 0; i < 2000; i++) {
        move(&t, 5, 0, i, got);
        bool found = false;
        for (int f = 0; f < 2 && !found; f++)
            for (int dy = -2; dy <= 2 && !found; dy++)
                for (int dx = -2; dx <= 2 && !found; dx++) {
                    for (int y = 0; y < SIDE; y++)
                        for (int x = 0; x < SIDE; x++) {
                            int sy = y + dy, sx = (f ? SIDE - 1 - x : x) + dx;
                            bool in_it = sy >= 0 && sy < SIDE && sx >= 0 && sx < SIDE;
                            want[y * SIDE + x] = in_it ? in[sy * SIDE + sx] : 0;
                        }
                    found = memcmp(got, want, PIXELS) == 0;
                    if (found)
                        seen[f][dy + 2][dx + 2] = true;
                }
        CHECK(found);
    }
    for (int f = 0; f < 2; f++)
        for (int y = 0; y < 5; y++)
            for (int x = 0; x < 5; x++)
                CHECK(seen[f][y][x]);
}

TEST(half_are_flipped)
{
    transform t = {.flip = true};
    unsigned char in[PIXELS], out[PIXELS];
    int flipped = 0;
    fill(in);
    for (uint64_t i = 0; i < 4000; i++) {
        move(&t, 11, 2, i, out);
        flipped += memcmp(in, out, PIXELS) != 0;
    }
    CHECK(flipped > 1850 && flipped < 2150); /* 4.7 standard deviations */
}

TEST(floats_move_as_bytes_do)
{
    transform t = {.flip = true, .crop = 1};
    float in[2 * PIXELS], out[2 * PIXELS];
    unsigned char bytes[PIXELS];
    for (int i = 0; i < 2 * PIXELS; i++)
        in[i] = (float)(i % PIXELS + 1);
    for (uint64_t s = 0; s < 20; s++) {
        move(&t, 9, 1, s, bytes);
        transform_move(&t, 9, 1, s, 2, SIDE, SIDE, sizeof(float), in, out);
        for (int i = 0; i < 2 * PIXELS; i++)
            CHECK(out[i] == (float)bytes[i % PIXELS]);
    }
}

TEST(standardisation_by_the_dataset_or_by_given_numbers)
{
    float mean[2] = {0.5f, 0.25f}, std[2] = {0.25f, 0.0f}, scale[2], shift[2];
    dataset_info d = {.channels = 2, .height = 4, .width = 4, .dtype = DATASET_U8, .mean = mean,
                      .std = std};
    transform none = {0}, own = {.standardise = true},
              given = {.standardise = true, .channels = 2, .mean = {0.1f, 0.2f},
                       .std = {2.0f, 4.0f}};
    transform_scale(&none, &d, scale, shift);
    CHECK_NEAR(scale[0] * 255.0f + shift[0], 1.0, 1e-6);
    CHECK_NEAR(shift[0], 0.0, 0);
    transform_scale(&own, &d, scale, shift);
    CHECK_NEAR(scale[0] * 255.0f + shift[0], (1.0 - 0.5) / 0.25, 1e-5);
    CHECK_NEAR(scale[1] * 255.0f + shift[1], 0.75, 1e-5); /* a channel that never varies */
    d.dtype = DATASET_F32;
    transform_scale(&given, &d, scale, shift);
    CHECK_NEAR(scale[1] * 1.0f + shift[1], (1.0 - 0.2) / 4.0, 1e-6);
}

TEST(the_datasets_own_extremes_become_0_and_1)
{
    float min[2] = {-2.0f, 3.0f}, max[2] = {6.0f, 3.0f}, scale[2], shift[2];
    dataset_info d = {.channels = 2,        .height = 4, .width = 4,
                      .dtype = DATASET_F32, .min = min,  .max = max};
    transform t = {.min_max = true};
    err e = ERR_INIT;
    CHECK_OK(transform_check(&t, &d, &e), e);
    transform_scale(&t, &d, scale, shift);
    CHECK_NEAR(scale[0] * -2.0f + shift[0], 0.0, 1e-6);
    CHECK_NEAR(scale[0] * 6.0f + shift[0], 1.0, 1e-6);
    CHECK_NEAR(scale[1] * 3.0f + shift[1], 0.0, 1e-6); /* a channel that never varies */
    min[0] = 0.2f, max[0] = 0.6f;
    d.dtype = DATASET_U8;
    transform_scale(&t, &d, scale, shift);
    CHECK_NEAR(scale[0] * (0.6f * 255.0f) + shift[0], 1.0, 1e-5);
    d.min = NULL;
    CHECK_ERR(transform_check(&t, &d, &e), e, ERR_INVALID, "uploaded anew");
    t.standardise = true;
    CHECK_ERR(transform_check(&t, &d, &e), e, ERR_INVALID, "exclude each other");
}

TEST(what_cannot_be_is_refused)
{
    dataset_info d = {.channels = 3, .height = 8, .width = 8};
    err e = ERR_INIT;
    transform crop = {.crop = 8}, channels = {.standardise = true, .channels = 1, .std = {1.0f}};
    CHECK_ERR(transform_check(&crop, &d, &e), e, ERR_INVALID,
              "crop of 8 does not fit samples of 8x8 (at most 7)");
    CHECK_ERR(transform_check(&channels, &d, &e), e, ERR_INVALID, "1 channels, the samples have 3");
    transform fine = {.crop = 4, .flip = true, .standardise = true};
    CHECK_OK(transform_check(&fine, &d, &e), e);
}
