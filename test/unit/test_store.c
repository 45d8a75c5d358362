/* test_store.c: every promise of store.h that does not need a second process, on every store. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stores.h"
#include "store_memory.h"

#define SMALL_MAP "?map_bytes=65536"

static int put(store *s, const char *key, int value, uint64_t expected, uint64_t *version, err *e)
{
    json_t *json = json_pack("{s:i}", "value", value);
    int result = store_put(s, "things", key, json, expected, version, e);
    json_decref(json);
    return result;
}

static int value_of(store *s, const char *key)
{
    err e = ERR_INIT;
    json_t *json;
    CHECK_OK(store_get(s, "things", key, &json, NULL, &e), e);
    int value = (int)json_integer_value(json_object_get(json, "value"));
    json_decref(json);
    return value;
}

ON_STORES(records_keep_versions)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    uint64_t first, second, third;
    CHECK_OK(store_ping(s, &e), e);
    CHECK_OK(put(s, "a", 1, STORE_NEW, &first, &e), e);
    CHECK_ERR(put(s, "a", 2, STORE_NEW, NULL, &e), e, ERR_EXISTS, "things/a exists");
    CHECK_INT(value_of(s, "a"), 1);
    CHECK_OK(put(s, "a", 2, first, &second, &e), e);
    CHECK(second > first);
    CHECK_ERR(put(s, "a", 3, first, NULL, &e), e, ERR_CONFLICT, "things/a has version");
    CHECK_INT(value_of(s, "a"), 2);
    CHECK_OK(put(s, "a", 4, STORE_ANY, NULL, &e), e);
    CHECK_ERR(store_delete(s, "things", "a", second, &e), e, ERR_CONFLICT, "things/a");
    CHECK_OK(store_delete(s, "things", "a", STORE_ANY, &e), e);
    CHECK_ERR(put(s, "a", 5, second, NULL, &e), e, ERR_NOT_FOUND, "things/a is gone");
    CHECK_ERR(store_delete(s, "things", "a", STORE_ANY, &e), e, ERR_NOT_FOUND, "no things/a");
    json_t *json;
    CHECK_ERR(store_get(s, "things", "a", &json, NULL, &e), e, ERR_NOT_FOUND, "no things/a");
    CHECK_OK(put(s, "a", 6, STORE_NEW, &third, &e), e);
    CHECK(third > second); /* a version is never used again */
    store_close(s);
}

ON_STORES(records_are_objects_under_good_keys)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    json_t *number = json_integer(1);
    CHECK_ERR(store_put(s, "things", "a", number, STORE_ANY, NULL, &e), e, ERR_INVALID, "object");
    json_decref(number);
    char longer[STORE_KEY_BYTES + 1];
    memset(longer, 'k', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    const char *bad[] = {"",  "/a",  "a/",  "a//b", "../a",     "a/.b",
                         ".", "a b", "a\n", "a+b",  "\xC3\xA9", longer};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERR(put(s, bad[i], 1, STORE_ANY, NULL, &e), e, ERR_INVALID, "key");
    longer[STORE_KEY_BYTES - 1] = '\0';
    CHECK_OK(put(s, longer, 7, STORE_NEW, NULL, &e), e);
    CHECK_INT(value_of(s, longer), 7);
    json_t *json;
    CHECK_ERR(store_get(s, "no such/collection", "a", &json, NULL, &e), e, ERR_INVALID,
              "collection");
    store_close(s);
}

static void check_list(store *s, const char *prefix, const char *after, size_t limit,
                       const char *want, bool more)
{
    err e = ERR_INIT;
    store_page page;
    char got[256] = "";
    CHECK_OK(store_list(s, "things", prefix, after, limit, &page, &e), e);
    for (size_t i = 0; i < page.count; i++) {
        CHECK(json_is_object(page.records[i].value) && page.records[i].version > 0);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", page.records[i].key);
    }
    CHECK_STR(got, want);
    CHECK_INT(page.more, more);
    store_page_free(&page);
}

ON_STORES(lists_are_in_order)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    const char *keys[] = {"b", "a/2", "c", "a/1", "a", "a/10", "ab"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        CHECK_OK(put(s, keys[i], (int)i, STORE_NEW, NULL, &e), e);
    json_t *other = json_object();
    CHECK_OK(store_put(s, "thing", "x", other, STORE_NEW, NULL, &e), e);
    CHECK_OK(store_put(s, "thingsandmore", "y", other, STORE_NEW, NULL, &e), e);
    json_decref(other);
    check_list(s, NULL, NULL, 0, "a a/1 a/10 a/2 ab b c ", false);
    check_list(s, NULL, NULL, 2, "a a/1 ", true);
    check_list(s, NULL, "a/1", 2, "a/10 a/2 ", true);
    check_list(s, NULL, "b", 2, "c ", false);
    check_list(s, NULL, "c", 0, "", false);
    check_list(s, "a/", NULL, 0, "a/1 a/10 a/2 ", false);
    check_list(s, "a/", "a/1", 1, "a/10 ", true);
    check_list(s, "a/", "a", 3, "a/1 a/10 a/2 ", false);
    check_list(s, "a/1", "a/11", 0, "", false);
    check_list(s, "x", NULL, 0, "", false);
    store_close(s);
}

/* Of large records a page has few, so that no list takes more memory than the largest record and
 * STORE_LIST_BYTES do. */
ON_STORES(a_page_has_few_large_records)
{
    enum { LARGE = 12, BYTES = 1 << 20 };
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    char *text = malloc(BYTES + 1), after[STORE_KEY_BYTES] = "";
    CHECK(text);
    memset(text, 'x', BYTES);
    text[BYTES] = '\0';
    json_t *large = json_pack("{s:s}", "text", text);
    for (int i = 0; i < LARGE; i++) {
        char key[16];
        snprintf(key, sizeof key, "a%02d", i);
        CHECK_OK(store_put(s, "things", key, large, STORE_NEW, NULL, &e), e);
    }
    int met = 0, pages = 0;
    for (bool more = true; more; pages++) {
        store_page page;
        CHECK_OK(store_list(s, "things", NULL, after[0] ? after : NULL, 0, &page, &e), e);
        CHECK(page.count > 0 && page.count <= STORE_LIST_BYTES / BYTES);
        for (size_t i = 0; i < page.count; i++, met++)
            CHECK(strcmp(after, page.records[i].key) < 0 &&
                  json_equal(page.records[i].value, large));
        snprintf(after, sizeof after, "%s", page.records[page.count - 1].key);
        more = page.more;
        store_page_free(&page);
    }
    CHECK_INT(met, LARGE);
    CHECK_INT(pages, LARGE / (STORE_LIST_BYTES / BYTES));
    json_decref(large);
    free(text);
    store_close(s);
}

typedef struct met {
    int count;
    char last[STORE_KEY_BYTES];
} met;

/* In order, each once; one named "enough" is the last that is wanted. */
static int meet(void *context, const char *key, json_t *value, err *e)
{
    met *m = context;
    CHECK(strcmp(m->last, key) < 0 && json_is_object(value));
    snprintf(m->last, sizeof m->last, "%s", key);
    m->count++;
    return strcmp(key, "enough") == 0 ? err_set(e, ERR_CANCELLED, "enough") : 0;
}

/* Walking is the same over every driver; this one has no disk to wait for. */
TEST(each_record_is_met_once)
{
    err e = ERR_INIT;
    store *s = store_open(store_memory_locator(), &e);
    CHECK(s);
    met m = {0};
    CHECK_OK(store_walk(s, "things", meet, &m, &e), e);
    CHECK_INT(m.count, 0);
    for (int i = 0; i < STORE_LIST_MAX + 1; i++) { /* two pages */
        char key[16];
        snprintf(key, sizeof key, "a%04d", i);
        CHECK_OK(put(s, key, i, STORE_NEW, NULL, &e), e);
    }
    CHECK_OK(store_walk(s, "things", meet, &m, &e), e);
    CHECK_INT(m.count, STORE_LIST_MAX + 1);
    CHECK_OK(put(s, "enough", 0, STORE_NEW, NULL, &e), e);
    CHECK_OK(put(s, "more", 0, STORE_NEW, NULL, &e), e);
    m = (met){0};
    CHECK_ERR(store_walk(s, "things", meet, &m, &e), e, ERR_CANCELLED, "enough");
    CHECK_INT(m.count, STORE_LIST_MAX + 2);
    store_close(s);
}

/* Far beyond the map's first size: it grows, for large and for many small records. */
ON_STORES(records_outgrow_the_map)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    char *text = malloc(3 << 20);
    memset(text, 'x', (3 << 20) - 1);
    text[(3 << 20) - 1] = '\0';
    json_t *large = json_pack("{s:s}", "text", text);
    CHECK_OK(store_put(s, "things", "large", large, STORE_NEW, NULL, &e), e);
    json_t *got;
    CHECK_OK(store_get(s, "things", "large", &got, NULL, &e), e);
    CHECK(json_equal(large, got));
    json_decref(got);
    json_decref(large);
    for (int i = 0; i < 300; i++) {
        char key[32];
        snprintf(key, sizeof key, "small.%d", i);
        CHECK_OK(put(s, key, i, STORE_NEW, NULL, &e), e);
    }
    CHECK_INT(value_of(s, "small.299"), 299);
    free(text);
    size_t bytes = (size_t)STORE_RECORD_BYTES_MAX + 1;
    text = malloc(bytes + 1);
    memset(text, 'x', bytes);
    text[bytes] = '\0';
    large = json_pack("{s:s}", "text", text);
    CHECK_ERR(store_put(s, "things", "larger", large, STORE_NEW, NULL, &e), e, ERR_LIMIT,
              "things/larger");
    json_decref(large);
    free(text);
    store_close(s);
}

ON_STORES(blobs_are_whole_or_not_there)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    blob_writer *w, *second;
    blob *b;
    CHECK_OK(store_blob_begin(s, "models/a/1", &w, &e), e);
    CHECK_OK(store_blob_begin(s, "models/a/1", &second, &e), e);
    CHECK_OK(blob_write(w, "hello ", 6, &e), e);
    CHECK_OK(blob_write(second, "other", 5, &e), e);
    CHECK_ERR(store_blob_open(s, "models/a/1", &b, &e), e, ERR_NOT_FOUND, "models/a/1");
    CHECK_OK(blob_write(w, "world", 5, &e), e);
    CHECK_OK(blob_commit(w, &e), e);
    CHECK_ERR(blob_commit(second, &e), e, ERR_EXISTS, "models/a/1");
    char text[16] = "";
    CHECK_OK(store_blob_open(s, "models/a/1", &b, &e), e);
    CHECK_INT(blob_size(b), 11);
    CHECK_OK(blob_read_at(b, 6, text, 5, &e), e);
    CHECK_STR(text, "world");
    CHECK_ERR(blob_read_at(b, 7, text, 5, &e), e, ERR_INVALID, "of a blob of 11");
    CHECK_ERR(blob_read_at(b, UINT64_MAX, text, 5, &e), e, ERR_INVALID, "of a blob of 11");
    CHECK_OK(store_blob_delete(s, "models/a/1", &e), e);
    CHECK_ERR(store_blob_delete(s, "models/a/1", &e), e, ERR_NOT_FOUND, "models/a/1");
    CHECK_OK(blob_read_at(b, 0, text, 5, &e), e); /* open, so still there */
    CHECK(memcmp(text, "hello", 5) == 0);
    blob_close(b);
    CHECK_OK(store_blob_begin(s, "models/b", &w, &e), e);
    CHECK_OK(blob_write(w, "x", 1, &e), e);
    blob_abort(w);
    CHECK_ERR(store_blob_open(s, "models/b", &b, &e), e, ERR_NOT_FOUND, "models/b");
    CHECK_ERR(store_blob_begin(s, "../etc/passwd", &w, &e), e, ERR_INVALID, "blob name");
    CHECK_ERR(store_blob_begin(s, "a+b", &w, &e), e, ERR_INVALID, "blob name");
    store_close(s);
}

static void check_blob(store *s, const char *name, const char *want)
{
    buf got;
    err e = ERR_INIT;
    buf_init(&got, 100);
    CHECK_OK(store_blob_read(s, name, &got, &e), e);
    CHECK_STR(got.bytes, want);
    buf_free(&got);
}

ON_STORES(a_blob_takes_the_place_of_another)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    char text[12] = {0};
    size_t count;
    blob_entry *entries;
    blob_writer *w;
    blob *b;
    CHECK_OK(store_blob_put(s, "models/a", "before", 6, &e), e);
    CHECK_OK(store_blob_open(s, "models/a", &b, &e), e);
    CHECK_OK(store_blob_begin(s, "models/a", &w, &e), e);
    CHECK_OK(blob_write(w, "now", 3, &e), e);
    check_blob(s, "models/a", "before");
    CHECK_OK(blob_commit_over(w, &e), e);
    check_blob(s, "models/a", "now");
    CHECK_OK(blob_read_at(b, 0, text, 6, &e), e); /* open, so still there */
    CHECK_STR(text, "before");
    blob_close(b);
    CHECK_OK(store_blob_begin(s, "models/b", &w, &e), e);
    CHECK_OK(blob_write(w, "first", 5, &e), e);
    CHECK_OK(blob_commit_over(w, &e), e);
    check_blob(s, "models/b", "first");
    CHECK_OK(store_blob_begin(s, "models/a", &w, &e), e);
    blob_abort(w);
    check_blob(s, "models/a", "now");
    CHECK_OK(store_blob_list(s, "models/", NULL, 0, &entries, &count, &e), e);
    CHECK_INT(count, 2);
    free(entries);
    CHECK_OK(store_blob_delete(s, "models/a", &e), e);
    CHECK_ERR(store_blob_open(s, "models/a", &b, &e), e, ERR_NOT_FOUND, "models/a");
    store_close(s);
}

/* Both versions of a blob that is deleted and written anew, over and over. */
enum { REPLACED_BYTES = 3 << 20, REPLACED_TIMES = 20 };

static uint8_t *replaced_bytes(int version)
{
    uint8_t *bytes = malloc(REPLACED_BYTES);
    CHECK(bytes);
    memset(bytes, 'a' + version % 26, REPLACED_BYTES);
    return bytes;
}

static void *replace_blob(void *arg)
{
    store *s = arg;
    err e = ERR_INIT;
    for (int i = 1; i <= REPLACED_TIMES; i++) {
        uint8_t *bytes = replaced_bytes(i);
        CHECK_OK(store_blob_delete(s, "models/r", &e), e);
        CHECK_OK(store_blob_put(s, "models/r", bytes, REPLACED_BYTES, &e), e);
        free(bytes);
    }
    return NULL;
}

ON_STORES(a_blob_that_is_replaced_is_one_or_the_other_or_none)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    pthread_t writer;
    uint8_t *bytes = replaced_bytes(0), last = 0;
    uint64_t size = 0;
    CHECK_OK(store_blob_put(s, "models/r", bytes, REPLACED_BYTES, &e), e);
    CHECK_INT(pthread_create(&writer, NULL, replace_blob, s), 0);
    while (last != 'a' + REPLACED_TIMES % 26) {
        blob *b;
        if (store_blob_open(s, "models/r", &b, &e) != 0) {
            CHECK_ERR(-1, e, ERR_NOT_FOUND, "models/r");
            continue;
        }
        CHECK_OK(blob_read_at(b, 0, bytes, REPLACED_BYTES, &e), e);
        CHECK(memcmp(bytes, bytes + 1, REPLACED_BYTES - 1) == 0);
        last = bytes[0];
        blob_close(b);
    }
    CHECK_INT(pthread_join(writer, NULL), 0);
    CHECK_OK(store_blob_find(s, "models/r", &size, &e), e);
    CHECK_INT(size, REPLACED_BYTES);
    CHECK_ERR(store_blob_find(s, "models/q", NULL, &e), e, ERR_NOT_FOUND, "models/q");
    free(bytes);
    store_close(s);
}

ON_STORES(blobs_have_descriptors_and_paths)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    blob *b;
    int fd;
    char path[FS_PATH_BYTES], text[8] = "";
    CHECK_OK(store_blob_put(s, "f/x.so", "ELF...", 6, &e), e);
    CHECK_OK(store_blob_open(s, "f/x.so", &b, &e), e);
    CHECK_OK(blob_fd(b, &fd, &e), e);
    CHECK_INT(pread(fd, text, 6, 0), 6);
    CHECK_STR(text, "ELF...");
    CHECK_OK(blob_path(b, path, &e), e);
    int again = open(path, O_RDONLY);
    CHECK(again >= 0);
    memset(text, 0, sizeof text);
    CHECK_INT(pread(again, text, 6, 0), 6);
    CHECK_STR(text, "ELF...");
    close(again);
    blob_close(b);
    buf out;
    buf_init(&out, 6);
    CHECK_OK(store_blob_read(s, "f/x.so", &out, &e), e);
    CHECK_STR(out.bytes, "ELF...");
    buf_free(&out);
    buf_init(&out, 5);
    CHECK_ERR(store_blob_read(s, "f/x.so", &out, &e), e, ERR_LIMIT, "f/x.so");
    buf_free(&out);
    store_close(s);
}

ON_STORES(blobs_are_listed)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    blob_entry *entries;
    size_t count;
    const char *names[] = {"m/2", "m/1", "n", "m/10", "m"};
    for (size_t i = 0; i < 5; i++)
        CHECK_OK(store_blob_put(s, names[i], "123", i % 4, &e), e);
    CHECK_OK(store_blob_list(s, "m/", NULL, 0, &entries, &count, &e), e);
    CHECK_INT(count, 3);
    CHECK_STR(entries[0].name, "m/1");
    CHECK_STR(entries[1].name, "m/10");
    CHECK_STR(entries[2].name, "m/2");
    CHECK_INT(entries[1].bytes, 3);
    free(entries);
    CHECK_OK(store_blob_list(s, NULL, "m/1", 2, &entries, &count, &e), e);
    CHECK_INT(count, 2);
    CHECK_STR(entries[1].name, "m/2");
    free(entries);
    store_close(s);
}

ON_STORES(chunks_come_back_aligned)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    char id[STORE_ID_BYTES], locator[STORE_LOCATOR_BYTES];
    chunk_writer *w;
    chunk_reader *r;
    static uint8_t bytes[40000];
    CHECK_OK(store_chunks_begin(s, 0, id, &w, &e), e);
    for (uint32_t i = 0; i < 300; i++) {
        size_t len = i * 131 % sizeof bytes;
        memset(bytes, (int)i, len);
        CHECK_OK(chunk_put(w, i % 2, i, bytes, len, &e), e);
    }
    CHECK_ERR(chunk_put(w, 0, 4, bytes, 5, &e), e, ERR_INTERNAL, "twice");
    CHECK_OK(chunk_put_info(w, "{}", 2, &e), e);
    CHECK_OK(chunk_seal(w, &e), e);
    CHECK_OK(store_chunks_locator(s, id, locator, &e), e);
    CHECK_OK(chunk_reader_open(locator, &r, &e), e);
    const void *view;
    size_t len;
    for (uint32_t i = 0; i < 300; i++) {
        CHECK_OK(chunk_view(r, i % 2, i, &view, &len, &e), e);
        CHECK(len >= i * 131 % sizeof bytes);
        CHECK_INT((uintptr_t)view % 16, 0);
        for (size_t k = 0; k < i * 131 % sizeof bytes; k++)
            CHECK(((const uint8_t *)view)[k] == (uint8_t)i);
        chunk_view_release(r, i % 2, i);
    }
    CHECK_ERR(chunk_view(r, 1, 4, &view, &len, &e), e, ERR_NOT_FOUND, "no chunk 4 in split 1");
    const char *text;
    CHECK_OK(chunk_reader_info(r, &text, &len, &e), e);
    CHECK(len == 2 && memcmp(text, "{}", 2) == 0);
    chunk_release(w);
    CHECK_OK(store_chunks_delete(s, id, &e), e);
    CHECK_ERR(store_chunks_delete(s, id, &e), e, ERR_NOT_FOUND, id);
    CHECK_OK(chunk_view(r, 0, 298, &view, &len, &e), e); /* open, so still there */
    CHECK(((const uint8_t *)view)[0] == (uint8_t)298);
    chunk_reader_close(r);
    CHECK_ERR(chunk_reader_open(locator, &r, &e), e, ERR_NOT_FOUND, "dataset");
    store_close(s);
}

enum { THREADS = 4, ADDS = 25 };

/* Adds one to a counter, again until no other thread was faster. */
static void *count_up(void *arg)
{
    store *s = arg;
    err e = ERR_INIT;
    for (int i = 0; i < ADDS;) {
        json_t *json;
        uint64_t version;
        CHECK_OK(store_get(s, "things", "counter", &json, &version, &e), e);
        int value = (int)json_integer_value(json_object_get(json, "value"));
        json_decref(json);
        if (put(s, "counter", value + 1, version, NULL, &e) == 0)
            i++;
        else
            CHECK_INT(e.code, ERR_CONFLICT);
    }
    return NULL;
}

ON_STORES(threads_lose_no_update)
{
    store *s = test_store(SMALL_MAP);
    err e = ERR_INIT;
    pthread_t threads[THREADS];
    CHECK_OK(put(s, "counter", 0, STORE_NEW, NULL, &e), e);
    for (int i = 0; i < THREADS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, count_up, s), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(value_of(s, "counter"), THREADS * ADDS);
    store_close(s);
}

ON_DURABLE_STORES(what_was_put_is_there_after_a_restart)
{
    err e = ERR_INIT;
    store *s = test_store(SMALL_MAP);
    uint64_t version, after;
    CHECK_OK(put(s, "a", 1, STORE_NEW, &version, &e), e);
    CHECK_OK(store_blob_put(s, "b", "x", 1, &e), e);
    store *other = test_store(SMALL_MAP); /* a second handle on the same store */
    CHECK_OK(put(other, "a", 2, version, NULL, &e), e);
    store_close(s);
    CHECK_INT(value_of(other, "a"), 2);
    store_close(other);
    s = test_store(SMALL_MAP);
    CHECK_INT(value_of(s, "a"), 2);
    CHECK_OK(put(s, "c", 1, STORE_NEW, &after, &e), e);
    CHECK(after > version);
    CHECK_OK(store_blob_delete(s, "b", &e), e);
    store_close(s);
}

TEST(stores_are_chosen_by_scheme)
{
    err e = ERR_INIT;
    CHECK(!store_open("postgres://x", &e));
    CHECK_INT(e.code, ERR_UNSUPPORTED);
    CHECK(!store_open("memory:", &e)); /* tests have one, when they ask for it: store_memory.h */
    CHECK_CONTAINS(e.message, "\"memory:...\" begins with none of lmdb:, ");
    CHECK(!store_open("lmdb:", &e));
    CHECK_INT(e.code, ERR_INVALID);
    CHECK(!store_open("lmdb:/x?map_bytes=1", &e));
    CHECK_INT(e.code, ERR_INVALID);
    CHECK(!store_open("lmdb:/x?map_bytes=99999999999999999999", &e));
    CHECK_INT(e.code, ERR_INVALID);
    CHECK(!store_open("lmdb:/dev/null/x", &e));
    CHECK_CONTAINS(e.message, "/dev/null");
}

TEST(a_damaged_store_is_refused)
{
    err e = ERR_INIT;
    char locator[512], path[512];
    snprintf(locator, sizeof locator, "lmdb:%s/s", test_tmp());
    snprintf(path, sizeof path, "%s/s", test_tmp());
    CHECK_OK(fs_mkdirs(path, 0700, &e), e);
    snprintf(path, sizeof path, "%s/s/records.mdb", test_tmp());
    static char noise[8192];
    memset(noise, 0x5A, sizeof noise);
    CHECK_OK(fs_write_file(path, noise, sizeof noise, 0600, &e), e);
    CHECK(!store_open(locator, &e));
    CHECK_INT(e.code, ERR_CORRUPT);
}

/* A store on disk with a blob that is being written: `folder` is where, `hidden` beside it. */
typedef struct half_written {
    store *s;
    blob_writer *w;
    char folder[512], hidden[512];
} half_written;

static void write_half(half_written *h, err *e)
{
    char locator[512];
    snprintf(locator, sizeof locator, "lmdb:%s/s", test_tmp());
    snprintf(h->folder, sizeof h->folder, "%s/s/tmp", test_tmp());
    snprintf(h->hidden, sizeof h->hidden, "%s/s/hidden", test_tmp());
    h->s = store_open(locator, e);
    CHECK_OK(h->s ? 0 : -1, *e);
    CHECK_OK(store_blob_begin(h->s, "models/1", &h->w, e), *e);
    CHECK_OK(blob_write(h->w, "12", 2, e), *e);
}

TEST(a_blob_that_cannot_be_put_in_its_place_says_where_it_lies)
{
    half_written h;
    err e = ERR_INIT;
    write_half(&h, &e);
    CHECK_INT(rename(h.folder, h.hidden), 0);
    CHECK_OK(fs_write_file(h.folder, "", 0, 0600, &e), e);
    CHECK_ERR(blob_commit(h.w, &e), e, ERR_IO, h.folder);
    CHECK_INT(e.os_errno, ENOTDIR);
    store_close(h.s);
}

/* A mount that is away for a moment, at each step of a write: no name that nobody has. */
TEST(a_folder_of_the_store_that_is_away_is_an_error_of_the_store)
{
    half_written h;
    err e = ERR_INIT;
    write_half(&h, &e);
    CHECK_INT(rename(h.folder, h.hidden), 0);
    CHECK_ERR(blob_commit(h.w, &e), e, ERR_IO, h.folder);
    CHECK_ERR(store_blob_begin(h.s, "models/1", &h.w, &e), e, ERR_IO, h.folder);
    CHECK_INT(rename(h.hidden, h.folder), 0);
    CHECK_OK(store_blob_begin(h.s, "models/1", &h.w, &e), e);
    CHECK_OK(blob_write(h.w, "12", 2, &e), e);
    CHECK_OK(blob_commit(h.w, &e), e);
    store_close(h.s);
}

TEST(the_fake_fails_when_told)
{
    test_store_use(ON_MEMORY);
    err e = ERR_INIT;
    store *s = test_store("");
    store_memory_fail(s, 2, ERR_UNAVAILABLE);
    CHECK_OK(put(s, "a", 1, STORE_NEW, NULL, &e), e);
    CHECK_ERR(put(s, "a", 2, STORE_ANY, NULL, &e), e, ERR_UNAVAILABLE, "told to fail");
    CHECK_INT(value_of(s, "a"), 1);
    store_close(s);
}
