/* dataset.c: see dataset.h.
 *
 * A chunk's value, little-endian:
 *
 *     0   magic "KMLC"        8   samples        16  XXH3 (64 bits) of the bytes after the header
 *     4   version, 1          12  data's offset  24  zeros, to byte 32
 *     32  original index, u32 (samples)
 *     ..  labels, i32 (samples), or targets, f32 (samples, targets)
 *     ..  zeros, so that the data begin 16 bytes short of a multiple of 64
 *     ..  data, (samples, C, H, W)
 *
 * LMDB's values begin 16 bytes after the begin of a page, so that the data are aligned to 64. */
#include "dataset.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash64.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "chunks are little-endian");

typedef struct chunk_header {
    uint32_t magic, version, samples, data_offset;
    uint64_t checksum;
    uint64_t zero;
} chunk_header;
_Static_assert(sizeof(chunk_header) == 32, "a chunk's header has 32 bytes");

enum {
    MAGIC = 0x434C4D4B, /* "KMLC" */
    VERSION = 1,
    INFO_VERSION = 1,
    DATA_ALIGNMENT = 64,
    VALUE_OFFSET = 16, /* of a value in LMDB's page */
};

/* ---- info ---------------------------------------------------------------------------------- */

void dataset_info_free(dataset_info *info)
{
    free(info->mean);
    free(info->std);
    free(info->min);
    free(info->max);
    info->mean = info->std = info->min = info->max = NULL;
}

size_t dataset_sample_values(const dataset_info *info)
{
    return (size_t)info->channels * info->height * info->width;
}

size_t dataset_sample_bytes(const dataset_info *info)
{
    return dataset_sample_values(info) * (info->dtype == DATASET_U8 ? 1 : sizeof(float));
}

uint32_t dataset_chunk_count(uint64_t samples, uint32_t chunk_samples)
{
    return (uint32_t)((samples + chunk_samples - 1) / chunk_samples);
}

const char *dataset_split_name(dataset_split split)
{
    return split == DATASET_TRAIN ? "train" : "test";
}

static json_t *floats_json(const float *values, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; array && i < count; i++)
        if (json_array_append_new(array, json_real((double)values[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

json_t *dataset_info_json(const dataset_info *info)
{
    json_t *mean = floats_json(info->mean, info->channels);
    json_t *std = floats_json(info->std, info->channels);
    json_t *min = info->min ? floats_json(info->min, info->channels) : NULL;
    json_t *max = info->max ? floats_json(info->max, info->channels) : NULL;
    if (!mean || !std || (info->min && !min) || (info->max && !max)) {
        json_decref(mean);
        json_decref(std);
        json_decref(min);
        json_decref(max);
        return NULL;
    }
    return json_pack(
        "{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:[I,I,I], s:I, s:I, s:I,"
        " s:I, s:o, s:o, s:o*, s:o*}",
        "version", INFO_VERSION, "name", info->name, "digest", info->digest, "upload", info->upload,
        "train_set_size", (json_int_t)info->samples[DATASET_TRAIN], "test_set_size",
        (json_int_t)info->samples[DATASET_TEST], "train_chunks",
        (json_int_t)info->chunks[DATASET_TRAIN], "test_chunks",
        (json_int_t)info->chunks[DATASET_TEST], "chunk_samples", (json_int_t)info->chunk_samples,
        "seed", (json_int_t)info->seed, "dtype", info->dtype == DATASET_U8 ? "uint8" : "float32",
        "shape", (json_int_t)info->channels, (json_int_t)info->height, (json_int_t)info->width,
        "classes", (json_int_t)info->classes, "targets", (json_int_t)info->targets, "bytes",
        (json_int_t)info->bytes, "created_ms", (json_int_t)info->created_ms, "mean", mean, "std",
        std, "min", min, "max", max);
}

/* Reads one float per channel; the caller frees *out. */
static int parse_floats(const json_t *array, uint32_t count, float **out, err *e)
{
    if (json_array_size(array) != count)
        return err_set(e, ERR_CORRUPT, "dataset description: %zu channels of statistics, not %u",
                       json_array_size(array), count);
    float *values = calloc(count, sizeof *values);
    if (!values)
        return err_set(e, ERR_NOMEM, "no memory for a dataset description");
    for (uint32_t i = 0; i < count; i++) {
        const json_t *number = json_array_get(array, i);
        values[i] = (float)json_number_value(number);
        if (!json_is_number(number) || !isfinite(values[i])) {
            free(values);
            return err_set(e, ERR_CORRUPT, "dataset description: statistics that are no numbers");
        }
    }
    *out = values;
    return 0;
}

static bool in_range(json_int_t value, json_int_t low, json_int_t high)
{
    return value >= low && value <= high;
}

static bool numbers_fit(json_int_t train, json_int_t test, json_int_t chunk_samples,
                        const json_int_t shape[3], json_int_t value_bytes, json_int_t classes,
                        json_int_t targets)
{
    return in_range(train, 0, DATASET_SAMPLES_MAX) && in_range(test, 0, DATASET_SAMPLES_MAX) &&
           in_range(chunk_samples, 1, DATASET_CHUNK_SAMPLES_MAX) &&
           in_range(shape[0], 1, DATASET_CHANNELS_MAX) && in_range(shape[1], 1, DATASET_SIDE_MAX) &&
           in_range(shape[2], 1, DATASET_SIDE_MAX) && in_range(classes, 0, DATASET_CLASSES_MAX) &&
           in_range(targets, 0, DATASET_TARGETS_MAX) && (classes == 0) != (targets == 0) &&
           shape[0] * shape[1] * shape[2] * value_bytes <= DATASET_CHUNK_BYTES;
}

int dataset_info_parse(const json_t *json, dataset_info *out, err *e)
{
    const char *name, *sum, *upload, *dtype;
    json_int_t train, test, chunk_samples, seed, shape[3], classes, targets, bytes, created;
    json_t *mean, *std, *min = NULL, *max = NULL;
    int version;
    json_error_t problem;
    if (json_unpack_ex(
            (json_t *)(uintptr_t)json, &problem, 0,
            "{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:[I,I,I], s:I, s:I, s:I, s:I,"
            " s:o, s:o, s?:o, s?:o}",
            "version", &version, "name", &name, "digest", &sum, "upload", &upload,
            "train_set_size", &train, "test_set_size", &test, "chunk_samples", &chunk_samples,
            "seed", &seed, "dtype", &dtype, "shape", &shape[0], &shape[1], &shape[2], "classes",
            &classes, "targets", &targets, "bytes", &bytes, "created_ms", &created, "mean", &mean,
            "std", &std, "min", &min, "max", &max) != 0)
        return err_set(e, ERR_CORRUPT, "dataset description: %.120s", problem.text);
    if (version != INFO_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "dataset format %d; this program reads %d", version,
                       INFO_VERSION);
    bool is_float = strcmp(dtype, "float32") == 0;
    if (!numbers_fit(train, test, chunk_samples, shape, is_float ? sizeof(float) : 1, classes,
                     targets) ||
        !digest_is_hex(sum) || strlen(upload) >= STORE_ID_BYTES || seed < 0 ||
        (!is_float && strcmp(dtype, "uint8") != 0) || name_check("dataset", name, NULL) != 0)
        return err_set(e, ERR_CORRUPT, "dataset description: a value is out of range");
    dataset_info info = {
        .samples = {(uint64_t)train, (uint64_t)test},
        .chunks = {dataset_chunk_count((uint64_t)train, (uint32_t)chunk_samples),
                   dataset_chunk_count((uint64_t)test, (uint32_t)chunk_samples)},
        .chunk_samples = (uint32_t)chunk_samples,
        .seed = (uint64_t)seed,
        .dtype = is_float ? DATASET_F32 : DATASET_U8,
        .channels = (uint32_t)shape[0],
        .height = (uint32_t)shape[1],
        .width = (uint32_t)shape[2],
        .classes = (uint32_t)classes,
        .targets = (uint32_t)targets,
        .bytes = (uint64_t)bytes,
        .created_ms = created,
    };
    snprintf(info.name, sizeof info.name, "%s", name);
    snprintf(info.digest, sizeof info.digest, "%s", sum);
    snprintf(info.upload, sizeof info.upload, "%s", upload);
    if (parse_floats(mean, info.channels, &info.mean, e) != 0 ||
        parse_floats(std, info.channels, &info.std, e) != 0 ||
        (min && parse_floats(min, info.channels, &info.min, e) != 0) ||
        (max && parse_floats(max, info.channels, &info.max, e) != 0)) {
        dataset_info_free(&info);
        return -1;
    }
    *out = info;
    return 0;
}

/* ---- in a store ---------------------------------------------------------------------------- */

static int get_record(store *s, const char *name, json_t **record, uint64_t *version, err *e)
{
    err inner = ERR_INIT;
    if (name_check("dataset", name, e) != 0)
        return -1;
    if (store_get(s, STORE_DATASETS, name, record, version, &inner) == 0)
        return 0;
    if (inner.code == ERR_NOT_FOUND)
        return err_set(e, ERR_NOT_FOUND, "there is no dataset \"%s\"", name);
    if (e)
        *e = inner;
    return err_wrap(e, "dataset %s", name);
}

int dataset_find(store *s, const char *name, dataset_info *out, uint64_t *version, err *e)
{
    json_t *record;
    if (get_record(s, name, &record, version, e) != 0)
        return -1;
    int result = dataset_info_parse(record, out, e);
    json_decref(record);
    return result == 0 ? 0 : err_wrap(e, "dataset %s", name);
}

int dataset_locator(store *s, const dataset_info *info, char out[STORE_LOCATOR_BYTES], err *e)
{
    return store_chunks_locator(s, info->upload, out, e);
}

int dataset_delete(store *s, const char *name, err *e)
{
    json_t *record;
    uint64_t version;
    if (get_record(s, name, &record, &version, e) != 0)
        return -1;
    int result = store_delete(s, STORE_DATASETS, name, version, e);
    /* Without its record the dataset is gone: a sweep removes chunks that cannot be removed now. */
    const char *upload = json_string_value(json_object_get(record, "upload"));
    if (result == 0 && upload)
        store_chunks_delete(s, upload, NULL);
    json_decref(record);
    return result;
}

/* ---- a chunk's bytes ----------------------------------------------------------------------- */

void dataset_layout_of(const dataset_info *info, uint32_t samples, dataset_layout *out)
{
    size_t label_bytes = sizeof(int32_t) * (info->targets ? info->targets : 1);
    out->index = sizeof(chunk_header);
    out->labels = out->index + samples * sizeof(uint32_t);
    size_t end = out->labels + samples * label_bytes;
    out->data =
        (end + VALUE_OFFSET + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT - VALUE_OFFSET;
    out->bytes = out->data + samples * dataset_sample_bytes(info);
}

static uint64_t checksum(const uint8_t *value, size_t bytes)
{
    return hash64(value + sizeof(chunk_header), bytes - sizeof(chunk_header));
}

void dataset_chunk_finish(const dataset_info *info, uint32_t samples, uint8_t *value)
{
    dataset_layout at;
    dataset_layout_of(info, samples, &at);
    size_t label_bytes = sizeof(int32_t) * (info->targets ? info->targets : 1);
    size_t labels_end = at.labels + samples * label_bytes;
    memset(value + labels_end, 0, at.data - labels_end);
    chunk_header header = {
        .magic = MAGIC,
        .version = VERSION,
        .samples = samples,
        .data_offset = (uint32_t)at.data,
        .checksum = checksum(value, at.bytes),
    };
    memcpy(value, &header, sizeof header);
}

int dataset_chunk_parse(const dataset_info *info, uint32_t samples, const void *value, size_t len,
                        bool verify, dataset_chunk *out, err *e)
{
    chunk_header header;
    dataset_layout at;
    dataset_layout_of(info, samples, &at);
    /* The value may be longer: a store may pad it. */
    if (len < at.bytes)
        return err_set(e, ERR_CORRUPT, "has %zu bytes and should have %zu", len, at.bytes);
    memcpy(&header, value, sizeof header);
    if (header.magic != MAGIC)
        return err_set(e, ERR_CORRUPT, "does not begin like a chunk");
    if (header.version != VERSION)
        return err_set(e, ERR_UNSUPPORTED, "has format %u; this program reads %d", header.version,
                       VERSION);
    if (header.samples != samples || header.data_offset != at.data)
        return err_set(e, ERR_CORRUPT, "has %u samples at byte %u, not %u at %zu", header.samples,
                       header.data_offset, samples, at.data);
    const uint8_t *bytes = value;
    if (verify && header.checksum != checksum(bytes, at.bytes))
        return err_set(e, ERR_CORRUPT, "does not match its checksum");
    *out = (dataset_chunk){
        .samples = samples,
        .index = (const uint32_t *)(const void *)(bytes + at.index),
        .labels = info->targets ? NULL : (const int32_t *)(const void *)(bytes + at.labels),
        .targets = info->targets ? (const float *)(const void *)(bytes + at.labels) : NULL,
        .data = bytes + at.data,
    };
    return 0;
}

/* ---- reading ------------------------------------------------------------------------------- */

struct dataset {
    chunk_reader *reader;
    dataset_info info;
    uint8_t *verified[DATASET_SPLITS]; /* (chunks): whether the checksum was checked; atomic */
};

static int read_info(dataset *d, err *e)
{
    const char *text;
    size_t len;
    if (chunk_reader_info(d->reader, &text, &len, e) != 0)
        return -1;
    json_error_t problem;
    json_t *json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &problem);
    if (!json)
        return err_set(e, ERR_CORRUPT, "dataset description: %.120s", problem.text);
    int result = dataset_info_parse(json, &d->info, e);
    json_decref(json);
    return result;
}

int dataset_open(const char *locator, dataset **out, err *e)
{
    chunk_reader *r;
    return chunk_reader_open(locator, &r, e) != 0 ? -1 : dataset_open_on(r, out, e);
}

int dataset_open_on(chunk_reader *r, dataset **out, err *e)
{
    dataset *d = calloc(1, sizeof *d);
    if (!d) {
        chunk_reader_close(r);
        return err_set(e, ERR_NOMEM, "no memory for a dataset");
    }
    d->reader = r;
    if (read_info(d, e) != 0) {
        dataset_close(d);
        return -1;
    }
    for (int split = 0; split < DATASET_SPLITS; split++) {
        d->verified[split] = calloc((size_t)d->info.chunks[split] + 1, 1);
        if (!d->verified[split]) {
            dataset_close(d);
            return err_set(e, ERR_NOMEM, "no memory for a dataset");
        }
    }
    *out = d;
    return 0;
}

void dataset_close(dataset *d)
{
    if (!d)
        return;
    chunk_reader_close(d->reader);
    dataset_info_free(&d->info);
    for (int split = 0; split < DATASET_SPLITS; split++)
        free(d->verified[split]);
    free(d);
}

const dataset_info *dataset_get_info(const dataset *d)
{
    return &d->info;
}

int dataset_view(dataset *d, dataset_split split, uint32_t chunk, dataset_chunk *out, err *e)
{
    const dataset_info *info = &d->info;
    assert(split < DATASET_SPLITS);
    if (chunk >= info->chunks[split])
        return err_set(e, ERR_INVALID, "dataset %s has %u %s chunks, no number %u", info->name,
                       info->chunks[split], dataset_split_name(split), chunk);
    const void *value;
    size_t len;
    if (chunk_view(d->reader, split, chunk, &value, &len, e) != 0)
        return err_wrap(e, "dataset %s, %s chunk %u", info->name, dataset_split_name(split), chunk);
    uint64_t before = (uint64_t)chunk * info->chunk_samples;
    uint64_t left = info->samples[split] - before;
    uint32_t samples = left < info->chunk_samples ? (uint32_t)left : info->chunk_samples;
    bool known = __atomic_load_n(&d->verified[split][chunk], __ATOMIC_RELAXED);
    if (dataset_chunk_parse(info, samples, value, len, !known, out, e) != 0) {
        chunk_view_release(d->reader, split, chunk);
        return err_wrap(e, "dataset %s, %s chunk %u", info->name, dataset_split_name(split), chunk);
    }
    __atomic_store_n(&d->verified[split][chunk], 1, __ATOMIC_RELAXED);
    return 0;
}

void dataset_release(dataset *d, dataset_split split, uint32_t chunk)
{
    chunk_view_release(d->reader, split, chunk);
}

void dataset_prefetch(dataset *d, dataset_split split, const uint32_t *chunks, size_t count)
{
    chunk_prefetch(d->reader, split, chunks, count);
}

bool dataset_prefetches(const dataset *d)
{
    return chunk_prefetches(d->reader);
}

uint64_t dataset_scratch_bytes(const dataset *d)
{
    return chunk_reader_scratch_bytes(d->reader);
}

void dataset_reach(const dataset *d, store_reach *out)
{
    chunk_reader_reach(d->reader, out);
}

bool dataset_waits(const dataset *d, char *why, size_t size)
{
    return chunk_reader_waits(d->reader, why, size);
}
