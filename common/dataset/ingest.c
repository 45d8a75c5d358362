/* ingest.c: see ingest.h.
 *
 *     parts -> spools -> sources -> check (one pass in order: digests, NaN, mean and std)
 *                               -> write (one pass in the seeded order: chunks) -> seal -> record
 *
 * The record publishes the dataset. Until then no record names the chunk set, which has a living
 * writer, and the spools have no name. */
#include "ingest.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/jsontext.h"
#include "common/base/rng.h"
#include "ingest_source.h"

enum {
    BLOCK_BYTES = 1 << 20,  /* read at once, in a pass in order */
    REPORT_BYTES = 4 << 20, /* between two reports of progress */
    FILE_NAME_BYTES = 32,   /* of an uploaded file's name, in messages */
};
#define SEED_MAX ((uint64_t)1 << 53) /* JSON's numbers are exact up to here */

struct ingest {
    store *store;
    ingest_options options;
    char file_names[INGEST_FIELDS][FILE_NAME_BYTES];
    spool *spools[INGEST_FIELDS], *extracted[INGEST_FIELDS];
    spool_quota quota;
    uint64_t done, reported, total; /* of the present phase */
    bool failed;
    ingest_source sources[INGEST_FIELDS];
    ingest_field from[INGEST_FIELDS]; /* the part that has a field's array, mostly its own */
    ingest_shape shapes[DATASET_SPLITS];
    dataset_info info;
    uint32_t *order;                                /* of the training samples */
    char sums[DATASET_SPLITS][2][DIGEST_HEX_BYTES]; /* of data and labels */
};

static ingest_field x_of(int split)
{
    return split == DATASET_TRAIN ? INGEST_X_TRAIN : INGEST_X_TEST;
}

static ingest_field y_of(int split)
{
    return split == DATASET_TRAIN ? INGEST_Y_TRAIN : INGEST_Y_TEST;
}

/* ---- errors and progress ------------------------------------------------------------------- */

/* Names from a client may have any bytes; a message must be text. */
static void make_printable(char *text)
{
    for (char *p = text; *p; p++)
        if ((*p < ' ' && *p != '\n') || *p > '~')
            *p = '?';
}

/* Puts the field and its file in front of the message, cutting the file's name where the message
 * needs the room. Marks the upload as failed, which it stays. */
static int field_error(ingest *i, ingest_field field, err *e)
{
    const char *file = i->file_names[i->from[field]], *name = ingest_field_name(field);
    size_t used = e ? strlen(e->message) + strlen(name) + sizeof " (): " : 0;
    int room = used < ERR_MESSAGE_BYTES ? (int)(ERR_MESSAGE_BYTES - used) : 0;
    i->failed = true;
    if (file[0] && room)
        err_wrap(e, "%s (%.*s)", name, room, file);
    else
        err_wrap(e, "%s", name);
    if (e)
        make_printable(e->message);
    return -1;
}

static int report(ingest *i, ingest_phase phase, uint64_t more, err *e)
{
    i->done += more;
    if (!i->options.progress || (i->done - i->reported < REPORT_BYTES && i->done != i->total))
        return 0;
    i->reported = i->done;
    if (i->options.progress(i->options.progress_arg, phase, i->done, i->total) != 0)
        return err_set(e, ERR_CANCELLED, "the upload was cancelled");
    return 0;
}

static void begin_phase(ingest *i, uint64_t total)
{
    i->done = i->reported = 0;
    i->total = total;
}

/* ---- receiving ----------------------------------------------------------------------------- */

static int check_options(const ingest_options *o, err *e)
{
    if (o->chunk_samples > DATASET_CHUNK_SAMPLES_MAX)
        return err_set(e, ERR_INVALID, "chunk_samples %u is more than %d", o->chunk_samples,
                       DATASET_CHUNK_SAMPLES_MAX);
    if (o->seed > SEED_MAX)
        return err_set(e, ERR_INVALID, "seed is more than 2^53");
    return 0;
}

static int check_new(store *s, const char *name, err *e)
{
    json_t *record = NULL;
    err inner = ERR_INIT;
    if (store_get(s, STORE_DATASETS, name, &record, NULL, &inner) == 0) {
        json_decref(record);
        return err_set(e, ERR_EXISTS, "dataset \"%s\" exists", name);
    }
    if (inner.code == ERR_NOT_FOUND)
        return 0;
    if (e)
        *e = inner;
    return err_wrap(e, "dataset %s", name);
}

int ingest_begin(store *s, const char *name, const ingest_options *options, ingest **out, err *e)
{
    static const ingest_options defaults;
    if (!options)
        options = &defaults;
    if (name_check("dataset", name, e) != 0 || check_options(options, e) != 0 ||
        check_new(s, name, e) != 0)
        return -1;
    ingest *i = calloc(1, sizeof *i);
    if (!i)
        return err_set(e, ERR_NOMEM, "no memory for an upload");
    i->store = s;
    i->options = *options;
    i->quota.bytes = options->bytes_max ? options->bytes_max : INGEST_BYTES_MAX;
    i->quota.disk = options->disk;
    snprintf(i->info.name, sizeof i->info.name, "%s", name);
    for (int f = 0; f < INGEST_FIELDS; f++)
        i->from[f] = (ingest_field)f;
    *out = i;
    return 0;
}

static int known_field(ingest *i, const char *field, err *e)
{
    if (i->failed)
        return err_set(e, ERR_CONFLICT, "the upload has failed before");
    int f = ingest_field_of(field);
    if (f >= 0)
        return f;
    i->failed = true;
    err_set(e, ERR_INVALID, "\"%.40s\" is none of x-train, y-train, x-test and y-test", field);
    if (e)
        make_printable(e->message);
    return -1;
}

int ingest_part(ingest *i, const char *field, const char *filename, err *e)
{
    int f = known_field(i, field, e);
    if (f < 0)
        return -1;
    snprintf(i->file_names[f], FILE_NAME_BYTES, "%s", filename ? filename : "");
    if ((i->spools[f] ? spool_next(i->spools[f], e)
                      : spool_new(store_scratch_dir(i->store), &i->quota, &i->spools[f], e)) != 0)
        return field_error(i, (ingest_field)f, e);
    return 0;
}

int ingest_bytes(ingest *i, const char *field, const void *bytes, size_t len, err *e)
{
    int f = known_field(i, field, e);
    if (f < 0)
        return -1;
    if (!i->spools[f]) {
        i->failed = true;
        return err_set(e, ERR_INVALID, "%s: bytes before the part began", field);
    }
    if (spool_feed(i->spools[f], bytes, len, e) != 0)
        return field_error(i, (ingest_field)f, e);
    if (report(i, INGEST_RECEIVE, len, e) != 0) {
        i->failed = true;
        return -1;
    }
    return 0;
}

void ingest_abort(ingest *i)
{
    if (!i)
        return;
    for (int f = 0; f < INGEST_FIELDS; f++) {
        spool_free(i->spools[f]);
        spool_free(i->extracted[f]);
    }
    free(i->order);
    dataset_info_free(&i->info);
    free(i);
}

/* ---- checking: shapes and labels ----------------------------------------------------------- */

static int check_lengths(ingest *i, err *e)
{
    for (int split = 0; split < DATASET_SPLITS; split++) {
        uint64_t x = i->sources[x_of(split)].count, y = i->sources[y_of(split)].count;
        if (x != y)
            return err_set(e, ERR_INVALID, "%s has %llu samples and %s has %llu",
                           ingest_field_name(x_of(split)), (unsigned long long)x,
                           ingest_field_name(y_of(split)), (unsigned long long)y);
        if (x > DATASET_SAMPLES_MAX)
            return err_set(e, ERR_LIMIT, "%s has %llu samples, more than %d",
                           ingest_field_name(x_of(split)), (unsigned long long)x,
                           DATASET_SAMPLES_MAX);
        i->info.samples[split] = x;
    }
    return 0;
}

static int check_shapes(ingest *i, err *e)
{
    ingest_shape *train = &i->shapes[DATASET_TRAIN], *test = &i->shapes[DATASET_TEST];
    const ingest_source *x = &i->sources[INGEST_X_TRAIN], *t = &i->sources[INGEST_X_TEST];
    if (ingest_shape_of(x, i->options.layout, train, e) != 0)
        return field_error(i, INGEST_X_TRAIN, e);
    if (ingest_shape_of(t, i->options.layout, test, e) != 0)
        return field_error(i, INGEST_X_TEST, e);
    if (test->channels != train->channels || test->height != train->height ||
        test->width != train->width)
        return err_set(e, ERR_INVALID,
                       "x-train has samples of (%u, %u, %u) and x-test of (%u, %u, %u)",
                       train->channels, train->height, train->width, test->channels, test->height,
                       test->width);
    if ((x->dtype == ARRAY_U8) != (t->dtype == ARRAY_U8))
        return err_set(e, ERR_INVALID, "x-train is %s and x-test is %s", array_dtype_name(x->dtype),
                       array_dtype_name(t->dtype));
    i->info.dtype = x->dtype == ARRAY_U8 ? DATASET_U8 : DATASET_F32;
    i->info.channels = train->channels;
    i->info.height = train->height;
    i->info.width = train->width;
    return 0;
}

int ingest_layout_parse(const char *name, ingest_layout *out, err *e)
{
    static const char *const names[] = {"auto", "chw", "hwc"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (ingest_layout)i;
            return 0;
        }
    return err_set(e, ERR_INVALID, "layout must be auto, chw or hwc");
}

bool ingest_note(const dataset_info *info, ingest_layout layout, char out[INGEST_NOTE_BYTES])
{
    if (layout != INGEST_LAYOUT_AUTO || info->dtype != DATASET_F32 || info->height == 1 ||
        ingest_is_channels(info->channels) || !ingest_is_channels(info->width))
        return false;
    snprintf(out, INGEST_NOTE_BYTES,
             "the samples are taken as %u channels of %ux%u; if they are images of %ux%u with the "
             "channels last: layout hwc",
             info->channels, info->height, info->width, info->channels, info->height);
    return true;
}

static const char target_hint[] = "; if they are targets, not classes: --regression";

/* Checks the numbers of y for a sample: one class, or the targets. */
static int check_target_shape(ingest *i, int split, err *e)
{
    const ingest_source *y = &i->sources[y_of(split)];
    uint64_t numbers = y->ndim == 0 ? 1 : y->ndim == 1 ? y->shape[0] : 0;
    if (!i->options.regression) {
        if (numbers != 1)
            return err_set(
                e, ERR_INVALID,
                "labels are (N,) or (N, 1), one class a sample; from one-hot: y.argmax(1)%s",
                target_hint);
        return 0;
    }
    if (numbers == 0 || numbers > DATASET_TARGETS_MAX)
        return err_set(e, ERR_INVALID, "targets are (N,) or (N, T) with T from 1 to %d",
                       DATASET_TARGETS_MAX);
    if (split == DATASET_TEST && numbers != i->info.targets)
        return err_set(e, ERR_INVALID, "has %llu targets a sample and y-train %u",
                       (unsigned long long)numbers, i->info.targets);
    i->info.targets = (uint32_t)numbers;
    return 0;
}

/* Bytes of a sample's class, or its targets, in a chunk. */
static size_t label_bytes(const dataset_info *info)
{
    return sizeof(int32_t) * (info->targets ? info->targets : 1);
}

/* Converts n raw labels, from sample `first` on, to int32 classes or float32 targets. */
static int convert_labels(const ingest *i, int split, uint64_t first, size_t n, const void *raw,
                          void *out, err *e)
{
    const ingest_source *y = &i->sources[y_of(split)];
    if (i->options.regression) {
        size_t numbers = i->info.targets;
        float *targets = out;
        array_to_f32(y->dtype, y->swap, raw, targets, n * numbers);
        for (size_t k = 0; k < n * numbers; k++)
            if (!isfinite(targets[k]))
                return err_set(e, ERR_INVALID, "target %g at sample %llu is not finite",
                               (double)targets[k], (unsigned long long)(first + k / numbers));
        return 0;
    }
    double bad;
    size_t good = array_to_labels(y->dtype, y->swap, raw, out, n, DATASET_CLASSES_MAX - 1, &bad);
    return good == n
               ? 0
               : err_set(e, ERR_INVALID, "label %.15g at sample %llu is no integer from 0 to %d%s",
                         bad, (unsigned long long)(first + good), DATASET_CLASSES_MAX - 1,
                         isfinite(bad) && bad != floor(bad) ? target_hint : "");
}

static void count_classes(dataset_info *info, const int32_t *labels, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if ((uint32_t)labels[k] >= info->classes)
            info->classes = (uint32_t)labels[k] + 1;
}

static int check_label_blocks(ingest *i, int split, digest_sum *sum, err *e)
{
    const ingest_source *y = &i->sources[y_of(split)];
    size_t label = label_bytes(&i->info);
    size_t block = BLOCK_BYTES / (label > y->element_bytes ? label : y->element_bytes);
    cleanup_free void *raw = malloc(block * y->element_bytes), *labels = malloc(block * label);
    if (!raw || !labels)
        return err_set(e, ERR_NOMEM, "no memory for a block of labels");
    for (uint64_t first = 0; first < y->count; first += block) {
        size_t n = y->count - first < block ? (size_t)(y->count - first) : block;
        if (ingest_read(y, first, n, raw, e) != 0 ||
            convert_labels(i, split, first, n, raw, labels, e) != 0)
            return -1;
        digest_update(sum, labels, n * label);
        if (!i->options.regression)
            count_classes(&i->info, labels, n);
    }
    return 0;
}

static int check_labels(ingest *i, int split, err *e)
{
    digest_sum *sum;
    if (check_target_shape(i, split, e) != 0 || digest_new(&sum, e) != 0)
        return -1;
    int result = check_label_blocks(i, split, sum, e);
    if (result == 0)
        digest_finish_hex(sum, i->sums[split][1]);
    digest_free(sum);
    return result;
}

/* ---- checking: samples --------------------------------------------------------------------- */

/* Sums of a channel. uint8: exact. float32: sums of the differences to `shift`, the channel's first
 * value, so that a large mean does not cost the deviation digits. */
typedef struct channel_sums {
    uint64_t sum, squares;
    double shift, fsum, fsquares;
    float min, max; /* of uint8 too */
} channel_sums;

static void take_extremes(channel_sums *s, bool first, float low, float high)
{
    s->min = first || low < s->min ? low : s->min;
    s->max = first || high > s->max ? high : s->max;
}

static void sum_u8(const dataset_info *info, const uint8_t *data, size_t n, bool first,
                   channel_sums *sums)
{
    size_t pixels = (size_t)info->height * info->width;
    for (size_t s = 0; s < n; s++)
        for (uint32_t c = 0; c < info->channels; c++, data += pixels) {
            uint64_t sum = 0, squares = 0;
            uint8_t low = data[0], high = data[0];
            for (size_t p = 0; p < pixels; p++) {
                sum += data[p];
                squares += (uint32_t)data[p] * data[p];
                low = data[p] < low ? data[p] : low;
                high = data[p] > high ? data[p] : high;
            }
            take_extremes(&sums[c], first && s == 0, low, high);
            sums[c].sum += sum;
            sums[c].squares += squares;
        }
}

static void sum_f32(const dataset_info *info, const float *data, size_t n, bool first,
                    channel_sums *sums)
{
    size_t pixels = (size_t)info->height * info->width;
    for (uint32_t c = 0; first && c < info->channels; c++)
        sums[c].shift = (double)data[c * pixels];
    for (size_t s = 0; s < n; s++)
        for (uint32_t c = 0; c < info->channels; c++, data += pixels) {
            float low = data[0], high = data[0];
            for (size_t p = 0; p < pixels; p++) {
                double d = (double)data[p] - sums[c].shift;
                sums[c].fsum += d;
                sums[c].fsquares += d * d;
                low = data[p] < low ? data[p] : low;
                high = data[p] > high ? data[p] : high;
            }
            take_extremes(&sums[c], first && s == 0, low, high);
        }
}

static int finish_sums(dataset_info *info, const channel_sums *sums, err *e)
{
    double count = (double)info->samples[DATASET_TRAIN] * info->height * info->width;
    info->mean = calloc(info->channels, sizeof *info->mean);
    info->std = calloc(info->channels, sizeof *info->std);
    info->min = calloc(info->channels, sizeof *info->min);
    info->max = calloc(info->channels, sizeof *info->max);
    if (!info->mean || !info->std || !info->min || !info->max)
        return err_set(e, ERR_NOMEM, "no memory for the statistics");
    for (uint32_t c = 0; c < info->channels; c++) {
        const channel_sums *s = &sums[c];
        bool u8 = info->dtype == DATASET_U8;
        double scale = u8 ? 1.0 / 255 : 1;
        double mean = (u8 ? (double)s->sum : s->fsum) / count;
        double variance = (u8 ? (double)s->squares : s->fsquares) / count - mean * mean;
        info->mean[c] = (float)((u8 ? mean : mean + s->shift) * scale);
        info->std[c] = (float)(sqrt(variance > 0 ? variance : 0) * scale);
        info->min[c] = (float)((double)s->min * scale);
        info->max[c] = (float)((double)s->max * scale);
        /* For values near float32's limit, rounding may take the statistics beyond it. */
        if (!isfinite(info->mean[c]) || !isfinite(info->std[c]))
            return err_set(e, ERR_INVALID, "the values of channel %u are too large for statistics",
                           c);
    }
    return 0;
}

static int check_finite(const dataset_info *info, const float *data, size_t n, uint64_t first,
                        err *e)
{
    size_t values = dataset_sample_values(info), total = n * values;
    for (size_t k = 0; k < total; k++)
        if (!isfinite(data[k])) {
            size_t in = k % values, pixels = (size_t)info->height * info->width;
            return err_set(e, ERR_INVALID, "%s at sample %llu, channel %zu, row %zu, column %zu",
                           isnan(data[k]) ? "NaN" : "an infinite value",
                           (unsigned long long)(first + k / values), in / pixels,
                           in % pixels / info->width, in % info->width);
        }
    return 0;
}

/* Buffers of a pass: raw elements, (C, H, W) samples, one element as float32, one raw label. */
typedef struct pass {
    size_t block; /* samples at once */
    uint8_t *raw, *samples, *raw_label;
    float *scratch;
} pass;

static void pass_free(pass *p)
{
    free(p->raw);
    free(p->samples);
    free(p->raw_label);
    free(p->scratch);
}

static int pass_init(pass *p, const ingest *i, int split, size_t block, err *e)
{
    const ingest_source *x = &i->sources[x_of(split)];
    size_t sample = dataset_sample_bytes(&i->info), values = dataset_sample_values(&i->info);
    size_t largest = sample > x->element_bytes ? sample : x->element_bytes;
    if (block == 0)
        block = BLOCK_BYTES / largest;
    *p = (pass){.block = block ? block : 1};
    p->raw = malloc(p->block * x->element_bytes);
    p->samples = malloc(p->block * sample);
    p->raw_label = malloc(i->sources[y_of(split)].element_bytes);
    p->scratch = malloc(values * sizeof *p->scratch);
    if (p->raw && p->samples && p->raw_label && p->scratch)
        return 0;
    pass_free(p);
    *p = (pass){0};
    return err_set(e, ERR_NOMEM, "no memory for a block of samples");
}

static int check_block(ingest *i, int split, uint64_t first, size_t n, pass *p, digest_sum *sum,
                       channel_sums *sums, err *e)
{
    const ingest_source *x = &i->sources[x_of(split)];
    if (ingest_read(x, first, n, p->raw, e) != 0)
        return -1;
    ingest_convert(x, &i->shapes[split], p->raw, n, p->scratch, p->samples);
    digest_update(sum, p->samples, n * dataset_sample_bytes(&i->info));
    const float *floats = (const float *)(const void *)p->samples;
    if (i->info.dtype == DATASET_F32 && check_finite(&i->info, floats, n, first, e) != 0)
        return -1;
    if (split == DATASET_TRAIN && i->info.dtype == DATASET_F32)
        sum_f32(&i->info, floats, n, first == 0, sums);
    else if (split == DATASET_TRAIN)
        sum_u8(&i->info, p->samples, n, first == 0, sums);
    return report(i, INGEST_CHECK, n * x->element_bytes, e);
}

static int check_samples(ingest *i, int split, err *e)
{
    const ingest_source *x = &i->sources[x_of(split)];
    pass p = {0};
    digest_sum *sum = NULL;
    channel_sums *sums = calloc(i->info.channels, sizeof *sums);
    int result = sums ? digest_new(&sum, e) : err_set(e, ERR_NOMEM, "no memory for the statistics");
    if (result == 0)
        result = pass_init(&p, i, split, 0, e);
    for (uint64_t first = 0; result == 0 && first < x->count; first += p.block) {
        size_t n = x->count - first < p.block ? (size_t)(x->count - first) : p.block;
        result = check_block(i, split, first, n, &p, sum, sums, e);
    }
    if (result == 0) {
        digest_finish_hex(sum, i->sums[split][0]);
        if (split == DATASET_TRAIN)
            result = finish_sums(&i->info, sums, e);
    }
    digest_free(sum);
    free(sums);
    pass_free(&p);
    return result;
}

static int sum_up(ingest *i, err *e)
{
    char text[640];
    const dataset_info *info = &i->info;
    int len =
        snprintf(text, sizeof text,
                 "kubeml dataset 1\n%s %u %u %u\ntargets %u\nchunk_samples %u\nseed %llu\n"
                 "train %llu %s %s\ntest %llu %s %s\n",
                 info->dtype == DATASET_U8 ? "uint8" : "float32", info->channels, info->height,
                 info->width, info->targets, info->chunk_samples, (unsigned long long)info->seed,
                 (unsigned long long)info->samples[DATASET_TRAIN], i->sums[DATASET_TRAIN][0],
                 i->sums[DATASET_TRAIN][1], (unsigned long long)info->samples[DATASET_TEST],
                 i->sums[DATASET_TEST][0], i->sums[DATASET_TEST][1]);
    assert(len > 0 && (size_t)len < sizeof text);
    return digest_of(text, (size_t)len, i->info.digest, e);
}

static void choose_chunks(ingest *i)
{
    dataset_info *info = &i->info;
    uint32_t samples = i->options.chunk_samples ? i->options.chunk_samples : DATASET_CHUNK_SAMPLES;
    size_t fit = DATASET_CHUNK_BYTES / dataset_sample_bytes(info);
    info->chunk_samples = samples < fit ? samples : (uint32_t)fit; /* a sample fits: checked */
    info->seed = i->options.seed;
    info->created_ms = clock_wall_ms();
    for (int split = 0; split < DATASET_SPLITS; split++) {
        info->chunks[split] = dataset_chunk_count(info->samples[split], info->chunk_samples);
        info->bytes += info->samples[split] * dataset_sample_bytes(info);
    }
}

static int check_all(ingest *i, err *e)
{
    if (check_lengths(i, e) != 0 || check_shapes(i, e) != 0)
        return -1;
    for (int split = 0; split < DATASET_SPLITS; split++)
        if (check_labels(i, split, e) != 0)
            return field_error(i, y_of(split), e);
    choose_chunks(i);
    uint64_t total = 0;
    for (int split = 0; split < DATASET_SPLITS; split++)
        total += i->sources[x_of(split)].count * i->sources[x_of(split)].element_bytes;
    begin_phase(i, total);
    for (int split = 0; split < DATASET_SPLITS; split++)
        if (check_samples(i, split, e) != 0)
            return field_error(i, x_of(split), e);
    return sum_up(i, e);
}

/* ---- writing ------------------------------------------------------------------------------- */

static int shuffle(ingest *i, err *e)
{
    size_t n = (size_t)i->info.samples[DATASET_TRAIN];
    rng r;
    i->order = malloc(n * sizeof *i->order);
    if (!i->order)
        return err_set(e, ERR_NOMEM, "no memory for the order of %zu samples", n);
    rng_init(&r, i->info.seed, RNG_UPLOAD, 0, 0);
    rng_permutation(&r, i->order, n);
    return 0;
}

static uint32_t chunk_samples(const ingest *i, int split, uint32_t chunk)
{
    uint64_t left = i->info.samples[split] - (uint64_t)chunk * i->info.chunk_samples;
    return left < i->info.chunk_samples ? (uint32_t)left : i->info.chunk_samples;
}

/* The index of the sample at place `at` of the chunk. */
static uint32_t sample_at(const ingest *i, int split, uint32_t chunk, uint32_t at)
{
    uint64_t place = (uint64_t)chunk * i->info.chunk_samples + at;
    return split == DATASET_TRAIN ? i->order[place] : (uint32_t)place;
}

/* Announces the samples of the next chunk. Training samples are read one by one from all over the
 * spool: if it is not in memory, the disk can read a chunk's samples together, while the chunk
 * before is written. */
static void expect_chunk(const ingest *i, int split, uint32_t chunk)
{
    if (split != DATASET_TRAIN || chunk >= i->info.chunks[split])
        return;
    for (uint32_t k = 0, n = chunk_samples(i, split, chunk); k < n; k++) {
        ingest_expect(&i->sources[x_of(split)], sample_at(i, split, chunk, k));
        ingest_expect(&i->sources[y_of(split)], sample_at(i, split, chunk, k));
    }
}

/* Puts sample `from` at place `to` of the chunk. */
static int place_sample(const ingest *i, int split, uint32_t from, uint32_t to, pass *p,
                        const dataset_layout *at, uint8_t *value, err *e)
{
    const ingest_source *x = &i->sources[x_of(split)];
    size_t sample = dataset_sample_bytes(&i->info);
    uint8_t *data = value + at->data + to * sample;
    memcpy(value + at->index + to * sizeof from, &from, sizeof from);
    if (ingest_read(&i->sources[y_of(split)], from, 1, p->raw_label, e) != 0 ||
        convert_labels(i, split, from, 1, p->raw_label,
                       value + at->labels + to * label_bytes(&i->info), e) != 0)
        return -1;
    if (x->dtype == ARRAY_U8 && !i->shapes[split].channels_last)
        return ingest_read(x, from, 1, data, e);
    if (ingest_read(x, from, 1, p->raw, e) != 0)
        return -1;
    ingest_convert(x, &i->shapes[split], p->raw, 1, p->scratch, p->samples);
    memcpy(data, p->samples, sample);
    return 0;
}

static int write_chunk(ingest *i, chunk_writer *w, int split, uint32_t chunk, pass *p,
                       uint8_t *value, err *e)
{
    dataset_layout at;
    uint32_t n = chunk_samples(i, split, chunk);
    dataset_layout_of(&i->info, n, &at);
    expect_chunk(i, split, chunk + 1);
    for (uint32_t k = 0; k < n; k++)
        if (place_sample(i, split, sample_at(i, split, chunk, k), k, p, &at, value, e) != 0)
            return -1;
    dataset_chunk_finish(&i->info, n, value);
    failpoint("ingest-chunk");
    if (chunk_put(w, (uint32_t)split, chunk, value, at.bytes, e) != 0)
        return -1;
    return report(i, INGEST_WRITE, n * dataset_sample_bytes(&i->info), e);
}

static int write_split(ingest *i, chunk_writer *w, int split, err *e)
{
    dataset_layout at;
    pass p;
    dataset_layout_of(&i->info, i->info.chunk_samples, &at);
    cleanup_free uint8_t *value = malloc(at.bytes);
    if (!value)
        return err_set(e, ERR_NOMEM, "no memory for a chunk");
    if (pass_init(&p, i, split, 1, e) != 0)
        return -1;
    int result = 0;
    expect_chunk(i, split, 0);
    for (uint32_t chunk = 0; result == 0 && chunk < i->info.chunks[split]; chunk++)
        result = write_chunk(i, w, split, chunk, &p, value, e);
    pass_free(&p);
    return result;
}

static int write_all(ingest *i, chunk_writer *w, json_t *record, err *e)
{
    for (int split = 0; split < DATASET_SPLITS; split++)
        if (write_split(i, w, split, e) != 0)
            return -1;
    cleanup_buf buf text;
    buf_init(&text, STORE_RECORD_BYTES_MAX);
    if (jsontext_append(&text, record, JSON_COMPACT | JSON_REAL_PRECISION(17), e) != 0 ||
        chunk_put_info(w, text.bytes, text.len, e) != 0)
        return -1;
    begin_phase(i, 1);
    failpoint("ingest-seal");
    if (chunk_seal(w, e) != 0)
        return -1;
    failpoint("ingest-sealed");
    return 0;
}

/* Whether the record was certainly not put. After any other error it may be there: the reply of the
 * store was lost. */
static bool is_refusal(err_code code)
{
    return code == ERR_EXISTS || code == ERR_CONFLICT || code == ERR_LIMIT || code == ERR_NOMEM;
}

/* Puts the record that names the sealed chunks, and ends their writer. */
static int put_record(ingest *i, chunk_writer *w, const json_t *record, err *e)
{
    err inner = ERR_INIT;
    if (store_put(i->store, STORE_DATASETS, i->info.name, record, STORE_NEW, NULL, &inner) == 0) {
        failpoint("ingest-published");
        chunk_release(w);
        /* The dataset is published: the result of progress, a cancellation, is ignored. */
        if (i->options.progress)
            i->options.progress(i->options.progress_arg, INGEST_PUBLISH, 1, 1);
        return 0;
    }
    if (is_refusal(inner.code))
        chunk_abort(w);
    else
        chunk_release(w);
    if (inner.code == ERR_EXISTS)
        return err_set(e, ERR_EXISTS, "dataset \"%s\" exists: another upload was first",
                       i->info.name);
    if (e)
        *e = inner;
    return -1;
}

/* About the size of the chunk set: LMDB gives each chunk whole pages. */
static uint64_t bytes_hint(const ingest *i)
{
    dataset_layout at;
    dataset_layout_of(&i->info, i->info.chunk_samples, &at);
    return (uint64_t)(i->info.chunks[DATASET_TRAIN] + i->info.chunks[DATASET_TEST]) *
           (at.bytes + 8192);
}

static int publish(ingest *i, err *e)
{
    chunk_writer *w;
    if (shuffle(i, e) != 0 ||
        store_chunks_begin(i->store, bytes_hint(i), i->info.upload, &w, e) != 0)
        return -1;
    begin_phase(i, i->info.bytes);
    json_t *record = dataset_info_json(&i->info);
    int result = record ? write_all(i, w, record, e)
                        : err_set(e, ERR_NOMEM, "no memory for a dataset's description");
    if (result == 0)
        result = put_record(i, w, record, e);
    else
        chunk_abort(w);
    json_decref(record);
    return result;
}

/* ---- the end ------------------------------------------------------------------------------- */

static int end_parts(ingest *i, err *e)
{
    for (int f = 0; f < INGEST_FIELDS; f++)
        if (i->spools[f] && spool_end(i->spools[f], e) != 0)
            return field_error(i, (ingest_field)f, e);
    return 0;
}

static int find_sources(ingest *i, err *e)
{
    /* The options of the command line. */
    static const char *const option_of[INGEST_FIELDS] = {[INGEST_X_TRAIN] = "--traindata",
                                                         [INGEST_Y_TRAIN] = "--trainlabels",
                                                         [INGEST_X_TEST] = "--testdata",
                                                         [INGEST_Y_TEST] = "--testlabels"};
    for (int f = 0; f < INGEST_FIELDS; f++) {
        ingest_field field = (ingest_field)f;
        int found = ingest_find_source(i->spools, field, store_scratch_dir(i->store), &i->quota,
                                       &i->extracted[f], &i->sources[f], &i->from[f], e);
        if (found < 0)
            return field_error(i, field, e);
        if (found == 0)
            return err_set(e, ERR_INVALID, "%s is missing (%s)", ingest_field_name(field),
                           option_of[field]);
        if (i->sources[f].count == 0)
            return err_set(e, ERR_INVALID, "%s has no samples", ingest_field_name(field));
    }
    return 0;
}

int ingest_end(ingest *i, dataset_info *out, err *e)
{
    int result;
    if (i->failed)
        result = err_set(e, ERR_CONFLICT, "the upload has failed before");
    else if ((result = end_parts(i, e)) == 0 && (result = find_sources(i, e)) == 0 &&
             (result = check_all(i, e)) == 0)
        result = publish(i, e);
    if (result != 0 && e)
        make_printable(e->message);
    if (result == 0 && out) {
        *out = i->info;
        i->info.mean = i->info.std = i->info.min = i->info.max = NULL; /* the caller owns them */
    }
    ingest_abort(i);
    return result;
}

int ingest_file(ingest *i, const char *field, const char *path, err *e)
{
    const char *slash = strrchr(path, '/');
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set_errno(e, errno, "%s: cannot read %s", field, path);
    cleanup_free uint8_t *block = malloc(BLOCK_BYTES);
    if (!block)
        return err_set(e, ERR_NOMEM, "no memory for an upload");
    if (ingest_part(i, field, slash ? slash + 1 : path, e) != 0)
        return -1;
    for (uint64_t at = 0;;) {
        size_t got;
        if (fs_pread_some(fd, block, BLOCK_BYTES, at, &got, path, e) != 0)
            return -1;
        if (got == 0)
            return 0;
        if (ingest_bytes(i, field, block, got, e) != 0)
            return -1;
        at += got;
    }
}

static int feed_file(ingest *i, ingest_field field, const char *path, err *e)
{
    return path ? ingest_file(i, ingest_field_name(field), path, e) : 0;
}

int ingest_paths(store *s, const char *name, const ingest_options *options,
                 const ingest_files *files, dataset_info *out, err *e)
{
    ingest *i;
    if (ingest_begin(s, name, options, &i, e) != 0)
        return -1;
    if (feed_file(i, INGEST_X_TRAIN, files->x_train, e) != 0 ||
        feed_file(i, INGEST_Y_TRAIN, files->y_train, e) != 0 ||
        feed_file(i, INGEST_X_TEST, files->x_test, e) != 0 ||
        feed_file(i, INGEST_Y_TEST, files->y_test, e) != 0) {
        ingest_abort(i);
        return -1;
    }
    return ingest_end(i, out, e);
}
