/* transform.c: see transform.h. */
#include "transform.h"

#include <string.h>

#include "common/base/rng.h"

static int crop_max(const dataset_info *d)
{
    uint32_t side = d->height < d->width ? d->height : d->width;
    return side > TRANSFORM_CROP_MAX ? TRANSFORM_CROP_MAX : (int)side - 1;
}

int transform_check(const transform *t, const dataset_info *d, err *e)
{
    if (t->crop < 0 || t->crop > crop_max(d))
        return err_set(e, ERR_INVALID,
                       "the transform's crop of %d does not fit samples of %ux%u (at most %d)",
                       t->crop, d->height, d->width, crop_max(d));
    if (t->min_max && t->standardise)
        return err_set(e, ERR_INVALID,
                       "the transform's min_max and standardise exclude each other");
    if (t->min_max && (!d->min || !d->max))
        return err_set(e, ERR_INVALID,
                       "dataset %s was uploaded before minima and maxima were kept; "
                       "min_max needs it uploaded anew",
                       d->name);
    if (!t->standardise || t->channels == 0)
        return 0;
    if ((uint32_t)t->channels != d->channels)
        return err_set(e, ERR_INVALID,
                       "the transform standardises %d channels, the samples have %u", t->channels,
                       d->channels);
    for (int c = 0; c < t->channels; c++)
        if (!(t->std[c] > 0))
            return err_set(e, ERR_INVALID, "the transform's deviation of channel %d is %g", c,
                           (double)t->std[c]);
    return 0;
}

bool transform_moves(const transform *t)
{
    return t->flip || t->crop > 0;
}

void transform_scale(const transform *t, const dataset_info *d, float *scale, float *shift)
{
    float unit = d->dtype == DATASET_U8 ? 1.0f / 255.0f : 1.0f;
    for (uint32_t c = 0; c < d->channels; c++) {
        float mean = 0.0f, std = 1.0f;
        if (t->standardise) {
            mean = t->channels ? t->mean[c] : d->mean[c];
            std = t->channels ? t->std[c] : d->std[c];
        } else if (t->min_max) {
            mean = d->min[c];
            std = d->max[c] - d->min[c];
        }
        if (!(std > 0.0f))
            std = 1.0f; /* the channel is constant */
        scale[c] = unit / std;
        shift[c] = -mean / std;
    }
}

/* The range [from, to) of i for which both i and i + delta are in [0, n). */
static void overlap(int n, int delta, int *from, int *to)
{
    *from = delta < 0 ? -delta : 0;
    *to = delta > 0 ? n - delta : n;
}

/* Copies a row. Rows are short: a call of memcpy would take longer than the copy. */
static inline void copy_row(unsigned char *to, const unsigned char *from, size_t len)
{
    if (len < 8 || len > 128) {
        memcpy(to, from, len);
        return;
    }
    for (size_t i = 0; i + 8 <= len; i += 8)
        memcpy(to + i, from + i, 8);
    memcpy(to + len - 8, from + len - 8, 8); /* the rest, and some bytes again */
}

/* Copies the n values of a row in reverse order. */
static void copy_mirrored(unsigned char *to, const unsigned char *from, int n, size_t each)
{
    int i = 0;
    if (each == 1) {
        for (; i + 8 <= n; i += 8) { /* eight bytes at once, by a byte swap of a word */
            uint64_t word;
            memcpy(&word, from + n - i - 8, sizeof word);
            word = __builtin_bswap64(word);
            memcpy(to + i, &word, sizeof word);
        }
        for (; i < n; i++)
            to[i] = from[n - 1 - i];
        return;
    }
    for (; i < n; i++) {
        uint32_t value;
        memcpy(&value, from + 4 * (size_t)(n - 1 - i), sizeof value);
        memcpy(to + 4 * (size_t)i, &value, sizeof value);
    }
}

/* A number in [0, n) from 32 random bits; the bias of n / 2^32 does not matter here. */
static int below(uint32_t bits, int n)
{
    return (int)(((uint64_t)bits * (uint64_t)n) >> 32);
}

void transform_move(const transform *t, uint64_t seed, uint32_t epoch, uint64_t sample, int c,
                    int h, int w, size_t each, const void *in, void *out)
{
    uint32_t word[4];
    rng_draw(seed, RNG_AUGMENT, epoch, sample, 0, word);
    bool mirror = t->flip && (word[0] & 1);
    int dy = t->crop ? below(word[1], 2 * t->crop + 1) - t->crop : 0;
    int dx = t->crop ? below(word[2], 2 * t->crop + 1) - t->crop : 0;
    int y0, y1, x0, x1;
    overlap(h, dy, &y0, &y1);
    overlap(w, dx, &x0, &x1);
    size_t row = (size_t)w * each, plane = row * (size_t)h;
    if (dy || dx)
        memset(out, 0, plane * (size_t)c);
    int n = x1 - x0, to_x = mirror ? w - x1 : x0;
    for (int k = 0; k < c; k++)
        for (int y = y0; y < y1; y++) {
            unsigned char *to = (unsigned char *)out + (size_t)k * plane + (size_t)y * row +
                                (size_t)to_x * each;
            const unsigned char *from = (const unsigned char *)in + (size_t)k * plane +
                                        (size_t)(y + dy) * row + (size_t)(x0 + dx) * each;
            if (mirror)
                copy_mirrored(to, from, n, each);
            else
                copy_row(to, from, (size_t)n * each);
        }
}
