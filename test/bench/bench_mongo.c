/* bench_mongo.c: how fast a function reads a dataset out of MongoDB, beside what the driver alone
 * reaches on the same documents: bench_mongo URI [MIB [ROUNDS]].
 *
 * The driver alone: one cursor over all chunks in their order, every document looked at and its
 * bytes summed. A function: dataset_open, dataset_prefetch of its share, dataset_view of each chunk
 * (which verifies its checksum) and the same sum. Both in turn, each round with a reader that has
 * nothing yet; the best round of each counts. A reader's connections authenticate themselves, some
 * 10 ms of processor each: MIB is large enough for that not to be what is measured. Exits 1 when
 * the ratio is below 0.8. */
#include <mongoc/mongoc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/dataset/dataset.h"
#include "common/dataset/ingest.h"

enum { IMAGE = 3 * 32 * 32, ROUNDS_MAX = 99 };

static void must(int result, const err *e)
{
    if (result == 0)
        return;
    fprintf(stderr, "bench_mongo: %s\n", e->message);
    exit(2);
}

static uint64_t sum(const void *bytes, size_t len)
{
    uint64_t total = 0, word;
    for (size_t at = 0; at + sizeof word <= len; at += sizeof word) {
        memcpy(&word, (const char *)bytes + at, sizeof word);
        total += word;
    }
    return total;
}

/* An npy of `samples` images of chance, or of their labels, fed in blocks. */
static void feed(ingest *i, const char *field, uint64_t samples, size_t each, const char *shape)
{
    err e = ERR_INIT;
    char header[128];
    static uint8_t block[256 * IMAGE];
    int len = snprintf(header + 10, sizeof header - 10,
                       "{'descr': '|u1', 'fortran_order': False, 'shape': (%llu%s), }",
                       (unsigned long long)samples, shape);
    memset(header + 10 + len, ' ', (size_t)(118 - len));
    header[127] = '\n';
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    must(ingest_part(i, field, "bench", &e), &e);
    must(ingest_bytes(i, field, header, sizeof header, &e), &e);
    rng r;
    rng_init(&r, 1, RNG_TEST, 0, 0);
    for (size_t k = 0; k < sizeof block; k++)
        block[k] = each == 1 ? (uint8_t)(k % 10) : (uint8_t)rng_u32(&r);
    for (uint64_t at = 0; at < samples; at += 256)
        must(ingest_bytes(i, field, block,
                          (size_t)(samples - at < 256 ? samples - at : 256) * each, &e),
             &e);
}

static void make_dataset(store *s, uint64_t samples, char locator[STORE_LOCATOR_BYTES])
{
    err e = ERR_INIT;
    ingest *i;
    dataset_info info;
    must(ingest_begin(s, "bench", NULL, &i, &e), &e);
    feed(i, "x-train", samples, IMAGE, ", 3, 32, 32");
    feed(i, "y-train", samples, 1, ",");
    feed(i, "x-test", 64, IMAGE, ", 3, 32, 32");
    feed(i, "y-test", 64, 1, ",");
    must(ingest_end(i, &info, &e), &e);
    must(dataset_locator(s, &info, locator, &e), &e);
    dataset_info_free(&info);
}

static double driver_alone(const char *locator, uint64_t *bytes, uint64_t *check)
{
    mongoc_client_t *client = mongoc_client_new(locator);
    mongoc_collection_t *c = mongoc_client_get_collection(
        client, mongoc_uri_get_database(mongoc_client_get_uri(client)), "chunks");
    int64_t begin = clock_monotonic_ns();
    bson_t *filter = BCON_NEW("_id", "{", "$lt", BCON_INT64(INT64_C(1) << 32), "}");
    bson_t *opts = BCON_NEW("sort", "{", "_id", BCON_INT32(1), "}");
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(c, filter, opts, NULL);
    const bson_t *document;
    bson_error_t error;
    *bytes = *check = 0;
    while (mongoc_cursor_next(cursor, &document)) {
        bson_iter_t at;
        bson_subtype_t type;
        uint32_t len;
        const uint8_t *data;
        if (!bson_iter_init_find(&at, document, "data"))
            exit(2);
        bson_iter_binary(&at, &type, &len, &data);
        *bytes += len;
        *check += sum(data, len);
    }
    double seconds = (double)(clock_monotonic_ns() - begin) / 1e9;
    if (mongoc_cursor_error(cursor, &error)) {
        fprintf(stderr, "bench_mongo: %s\n", error.message);
        exit(2);
    }
    mongoc_cursor_destroy(cursor);
    bson_destroy(filter);
    bson_destroy(opts);
    mongoc_collection_destroy(c);
    mongoc_client_destroy(client);
    return seconds;
}

static double function(const char *locator, uint64_t *bytes, uint64_t *check)
{
    err e = ERR_INIT;
    dataset *d;
    must(dataset_open(locator, &d, &e), &e);
    const dataset_info *info = dataset_get_info(d);
    uint32_t count = info->chunks[DATASET_TRAIN];
    uint32_t *order = calloc(count, sizeof *order);
    rng r;
    rng_init(&r, 7, RNG_TEST, 0, 0);
    rng_permutation(&r, order, count);
    *bytes = *check = 0;
    int64_t begin = clock_monotonic_ns();
    dataset_prefetch(d, DATASET_TRAIN, order, count);
    for (uint32_t i = 0; i < count; i++) {
        dataset_chunk chunk;
        must(dataset_view(d, DATASET_TRAIN, order[i], &chunk, &e), &e);
        *bytes += chunk.samples * dataset_sample_bytes(info);
        *check += sum(chunk.data, chunk.samples * dataset_sample_bytes(info));
        dataset_release(d, DATASET_TRAIN, order[i]);
    }
    double seconds = (double)(clock_monotonic_ns() - begin) / 1e9;
    free(order);
    dataset_close(d);
    return seconds;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fputs("usage: bench_mongo URI [MIB [ROUNDS]]\n", stderr);
        return 2;
    }
    err e = ERR_INIT;
    uint64_t mib = argc > 2 ? strtoull(argv[2], NULL, 10) : 400;
    int rounds = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 7;
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    char locator[STORE_LOCATOR_BYTES], where[STORE_LOCATOR_BYTES];
    store *s = store_open(argv[1], &e);
    must(s ? 0 : -1, &e);
    mongoc_init();
    make_dataset(s, (mib << 20) / IMAGE, locator);
    store_redact(locator, where);
    double alone[ROUNDS_MAX], ours[ROUNDS_MAX], rate_alone, rate_ours;
    uint64_t bytes_alone = 0, bytes_ours = 0, check;
    for (int i = 0; i < rounds; i++) {
        alone[i] = driver_alone(locator, &bytes_alone, &check);
        ours[i] = function(locator, &bytes_ours, &check);
    }
    qsort(alone, (size_t)rounds, sizeof *alone, by_value);
    qsort(ours, (size_t)rounds, sizeof *ours, by_value);
    rate_alone = (double)bytes_alone / alone[0] / (1 << 20);
    rate_ours = (double)bytes_ours / ours[0] / (1 << 20);
    printf(
        "%s: %llu MiB, best of %d rounds: driver alone %.0f MiB/s, a function %.0f MiB/s, ratio %.2f\n",
        where, (unsigned long long)mib, rounds, rate_alone, rate_ours, rate_ours / rate_alone);
    must(store_drop(s, &e), &e);
    store_close(s);
    return rate_ours / rate_alone >= 0.8 ? 0 : 1;
}
