/* ingest_source.c: see ingest_source.h. */
#include "ingest_source.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cifar.h"

enum { SMALL_BYTES = 256 }; /* smaller elements share pages: reading a few brings them all */

static const char *const field_names[INGEST_FIELDS] = {"x-train", "y-train", "x-test", "y-test"};

const char *ingest_field_name(ingest_field field)
{
    return field_names[field];
}

int ingest_field_of(const char *name)
{
    for (int i = 0; i < INGEST_FIELDS; i++)
        if (strcmp(name, field_names[i]) == 0)
            return i;
    return -1;
}

static bool is_y(ingest_field field)
{
    return field == INGEST_Y_TRAIN || field == INGEST_Y_TEST;
}

static bool is_test(ingest_field field)
{
    return field == INGEST_X_TEST || field == INGEST_Y_TEST;
}

/* ---- finding the arrays -------------------------------------------------------------------- */

static int array_source(spool *s, ingest_source *out, err *e)
{
    const array_head *head = spool_head(s);
    if (head->ndim == 0)
        return err_set(e, ERR_INVALID, "is a single number and not an array of samples");
    *out = (ingest_source){.fd = spool_fd(s),
                           .dtype = head->dtype,
                           .swap = head->swap,
                           .ndim = head->ndim - 1,
                           .base = head->data_offset,
                           .count = head->shape[0]};
    memcpy(out->shape, head->shape + 1, (size_t)out->ndim * sizeof *out->shape);
    out->element_bytes = out->count ? head->data_bytes / out->count : 0;
    out->stride = out->element_bytes;
    return 0;
}

static void cifar_source(spool *s, bool labels, ingest_source *out)
{
    uint64_t label_bytes = spool_is_cifar_100(s) ? 2 : 1; /* the last label is used */
    uint64_t record = label_bytes + CIFAR_IMAGE_BYTES;
    *out = (ingest_source){.fd = spool_fd(s),
                           .dtype = ARRAY_U8,
                           .planes = true,
                           .ndim = labels ? 0 : 3,
                           .shape = {3, 32, 32},
                           .base = labels ? label_bytes - 1 : label_bytes,
                           .stride = record,
                           .element_bytes = labels ? 1 : CIFAR_IMAGE_BYTES,
                           .count = spool_bytes(s) / record};
}

/* Usual names of the four arrays, the field's own name first; NULL-terminated. */
static const char *const own_names[INGEST_FIELDS][6] = {
    {"x_train", "x-train", "X_train", "train_images", "train_x", NULL},
    {"y_train", "y-train", "Y_train", "train_labels", "train_y", NULL},
    {"x_test", "x-test", "X_test", "test_images", "test_x", NULL},
    {"y_test", "y-test", "Y_test", "test_labels", "test_y", NULL},
};
static const char *const x_names[] = {"x", "X", "data", "images", "features", NULL};
static const char *const y_names[] = {"y", "Y", "labels", "label", "targets", "target", NULL};

static int find_named(const npz *z, const char *const *names)
{
    for (; *names; names++) {
        int at = npz_find(z, *names);
        if (at >= 0)
            return at;
    }
    return -1;
}

/* Finds the array of a field in an npz that came as that field (`own`) or as another field; -1: it
 * has none. */
static int find_array(const npz *z, ingest_field field, bool same_split, bool own)
{
    int at = find_named(z, own_names[field]);
    if (at < 0 && same_split)
        at = find_named(z, is_y(field) ? y_names : x_names);
    if (at < 0 && own && npz_count(z) == 1)
        at = 0;
    return at;
}

static int no_array(const npz *z, ingest_field field, err *e)
{
    char names[120] = "";
    size_t len = 0;
    for (size_t i = 0; i < npz_count(z) && len < sizeof names; i++)
        len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", i ? ", " : "",
                                npz_name(z, i));
    return err_set(e, ERR_INVALID, "the npz file has no array \"%s\" or \"%s\"; it has %s",
                   own_names[field][0], is_y(field) ? "y" : "x", names);
}

/* Looks for the array of `field` in the npz that came as `from`. 1: found; 0: not there. */
static int npz_source(spool *const spools[], ingest_field from, ingest_field field, const char *dir,
                      spool_quota *quota, spool **extracted, ingest_source *out, err *e)
{
    npz *z;
    if (npz_open(spool_fd(spools[from]), &z, e) != 0)
        return -1;
    int at = find_array(z, field, is_test(from) == is_test(field), from == field);
    int result = 0;
    if (at < 0 && from == field)
        result = no_array(z, field, e);
    else if (at >= 0)
        result = npz_extract(z, (size_t)at, dir, quota, extracted, e) == 0 &&
                         array_source(*extracted, out, e) == 0
                     ? 1
                     : -1;
    npz_close(z);
    return result;
}

/* Looks for the array of `field` in the file that came as `from`. 1: found; 0: not there. */
static int source_in(spool *const spools[], ingest_field from, ingest_field field, const char *dir,
                     spool_quota *quota, spool **extracted, ingest_source *out, err *e)
{
    spool *s = spools[from];
    if (!s)
        return 0;
    switch (spool_get_format(s)) {
    case SPOOL_NPZ:
        return npz_source(spools, from, field, dir, quota, extracted, out, e);
    case SPOOL_CIFAR:
        if (is_test(from) != is_test(field))
            return 0;
        cifar_source(s, is_y(field), out);
        return 1;
    default:
        return from != field ? 0 : array_source(s, out, e) == 0 ? 1 : -1;
    }
}

int ingest_find_source(spool *const spools[INGEST_FIELDS], ingest_field field, const char *dir,
                       spool_quota *quota, spool **extracted, ingest_source *out,
                       ingest_field *from, err *e)
{
    /* The field's own part; the images of its split; the npz that may hold all arrays. */
    ingest_field places[] = {field, is_test(field) ? INGEST_X_TEST : INGEST_X_TRAIN,
                             INGEST_X_TRAIN};
    int found = 0;
    for (size_t i = 0; i < 3 && found == 0; i++) {
        *from = places[i];
        found = source_in(spools, places[i], field, dir, quota, extracted, out, e);
    }
    return found;
}

/* ---- shapes -------------------------------------------------------------------------------- */

bool ingest_is_channels(uint64_t n)
{
    return n == 1 || n == 3 || n == 4;
}

int ingest_shape_of(const ingest_source *x, ingest_layout layout, ingest_shape *out, err *e)
{
    uint64_t c = 1, h = 1, w = 1;
    const uint64_t *d = x->shape;
    bool last = false;
    switch (x->ndim) {
    case 0:
        break;
    case 1:
        c = d[0];
        break;
    case 2:
        h = d[0];
        w = d[1];
        break;
    case 3:
        last = !x->planes && (layout == INGEST_LAYOUT_HWC ||
                              (layout == INGEST_LAYOUT_AUTO && x->dtype == ARRAY_U8 &&
                               ingest_is_channels(d[2]) && !ingest_is_channels(d[0])));
        c = d[last ? 2 : 0];
        h = d[last ? 0 : 1];
        w = d[last ? 1 : 2];
        break;
    default:
        return err_set(e, ERR_INVALID,
                       "has %d dimensions; samples are (N, D), (N, H, W) or (N, C, H, W)",
                       x->ndim + 1);
    }
    size_t number = x->dtype == ARRAY_U8 ? 1 : sizeof(float);
    if (c == 0 || h == 0 || w == 0)
        return err_set(e, ERR_INVALID, "its samples are empty");
    if (c > DATASET_CHANNELS_MAX || h > DATASET_SIDE_MAX || w > DATASET_SIDE_MAX ||
        c * h * w > DATASET_CHUNK_BYTES / number)
        return err_set(
            e, ERR_LIMIT,
            "a sample of %llu x %llu x %llu; the limits are %d channels, side %d, %d bytes",
            (unsigned long long)c, (unsigned long long)h, (unsigned long long)w,
            DATASET_CHANNELS_MAX, DATASET_SIDE_MAX, DATASET_CHUNK_BYTES);
    *out = (ingest_shape){(uint32_t)c, (uint32_t)h, (uint32_t)w, last && c > 1};
    return 0;
}

/* ---- reading ------------------------------------------------------------------------------- */

int ingest_read(const ingest_source *s, uint64_t first, size_t n, void *raw, err *e)
{
    uint64_t at = s->base + first * s->stride;
    if (s->stride == s->element_bytes)
        return fs_pread_all(s->fd, raw, n * s->element_bytes, at, "upload's spool file", e);
    for (size_t i = 0; i < n; i++, at += s->stride)
        if (fs_pread_all(s->fd, (uint8_t *)raw + i * s->element_bytes, s->element_bytes, at,
                         "upload's spool file", e) != 0)
            return -1;
    return 0;
}

void ingest_expect(const ingest_source *s, uint64_t index)
{
    if (s->element_bytes < SMALL_BYTES)
        return;
    posix_fadvise(s->fd, (off_t)(s->base + index * s->stride), (off_t)s->element_bytes,
                  POSIX_FADV_WILLNEED); /* a hint: a failure costs only time */
}

/* (H, W, C) to (C, H, W). */
static void planes_u8(const ingest_shape *shape, const uint8_t *in, uint8_t *out)
{
    size_t pixels = (size_t)shape->height * shape->width, channels = shape->channels;
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < pixels; i++)
            out[c * pixels + i] = in[i * channels + c];
}

static void planes_f32(const ingest_shape *shape, const float *in, float *out)
{
    size_t pixels = (size_t)shape->height * shape->width, channels = shape->channels;
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < pixels; i++)
            out[c * pixels + i] = in[i * channels + c];
}

void ingest_convert(const ingest_source *s, const ingest_shape *shape, const void *raw, size_t n,
                    float *scratch, void *out)
{
    size_t values = (size_t)shape->channels * shape->height * shape->width;
    if (!shape->channels_last) {
        if (s->dtype == ARRAY_U8)
            memcpy(out, raw, n * values);
        else
            array_to_f32(s->dtype, s->swap, raw, out, n * values);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint8_t *in = (const uint8_t *)raw + i * s->element_bytes;
        if (s->dtype == ARRAY_U8) {
            planes_u8(shape, in, (uint8_t *)out + i * values);
        } else {
            array_to_f32(s->dtype, s->swap, in, scratch, values);
            planes_f32(shape, scratch, (float *)out + i * values);
        }
    }
}
