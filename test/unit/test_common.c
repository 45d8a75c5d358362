/* test_common.c: err, buf, clock, rng and hash64. */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <xxhash.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/fs.h"
#include "common/base/hash64.h"
#include "common/base/json_read.h"
#include "common/base/parallel.h"
#include "common/base/rng.h"
#include "common/base/text.h"
#include "test.h"

TEST(err_carries_code_and_context)
{
    err e = ERR_INIT;
    CHECK_INT(err_set(&e, ERR_NOT_FOUND, "no dataset \"%s\"", "mnist"), -1);
    err_wrap(&e, "job %s", "a1");
    CHECK_STR(e.message, "job a1: no dataset \"mnist\"");
    CHECK_INT(err_http_status(e.code), 404);
    CHECK_INT(err_from_name(err_name(ERR_STALE)), ERR_STALE);
    CHECK_INT(err_from_name(err_name(ERR_NONE)), ERR_INTERNAL);
}

TEST(err_cuts_what_is_too_long)
{
    err e = ERR_INIT;
    char text[400];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    err_set(&e, ERR_INVALID, "%s", text);
    CHECK_INT(strlen(e.message), ERR_MESSAGE_BYTES - 1);
    err_wrap(&e, "outer");
    CHECK_INT(strlen(e.message), ERR_MESSAGE_BYTES - 1);
}

/* Within a character at every byte: what is in front, what is too long, what is put before it. */
TEST(an_errors_message_is_utf8_wherever_it_is_cut)
{
    char text[600] = "";
    for (size_t at = 0; at < 4; at++) {
        err e = ERR_INIT;
        snprintf(text, sizeof text, "%.*s", (int)at, "xxx");
        for (int i = 0; i < 100; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "\xf0\x9f\x90\xa2");
        err_set(&e, ERR_INVALID, "%s", text);
        CHECK(text_valid(e.message, strlen(e.message)));
        CHECK(strlen(e.message) > ERR_MESSAGE_BYTES - 5);
        CHECK(strncmp(e.message, text, strlen(e.message)) == 0);
        err_wrap(&e, "job %s", "a1");
        CHECK(text_valid(e.message, strlen(e.message)));
        err_set_errno(&e, ENOENT, "%.245s", text);
        CHECK(text_valid(e.message, strlen(e.message)));
    }
    err e = ERR_INIT;
    err_set(&e, ERR_INVALID,
            "Gr\xf6\xdf"
            "e: %s",
            "zu gro\xdf.");
    CHECK_STR(e.message, "Gr??e: zu gro?.");
}

static void check_mended(const char *from, const char *to)
{
    char text[64];
    text_print(text, sizeof text, "%s", from);
    CHECK_STR(text, to);
    CHECK(text_valid(text, strlen(text)));
    CHECK_INT(text_valid(from, strlen(from)), strcmp(from, to) == 0);
    cleanup_json json_t *json = json_string(text);
    CHECK(json);
}

TEST(a_text_is_mended)
{
    check_mended("", "");
    check_mended("Größe … 🐢", "Größe … 🐢");
    check_mended("\xc3", "");
    check_mended("x\xf0\x9f\x90", "x");
    check_mended("\xe2\x80 tail", "? tail");
    check_mended("a\x80"
                 "b\xff"
                 "c",
                 "a?b?c");
    check_mended("\xc0\xaf", "?");         /* longer than need be */
    check_mended("\xed\xa0\x80!", "?!");   /* a surrogate */
    check_mended("\xf4\x90\x80\x80", "?"); /* beyond the last code point */
    check_mended("\xe2\xc3\xa9", "?é");
    char small[4];
    text_print(small, sizeof small, "%s", "aé…");
    CHECK_STR(small, "aé");
    text_print(small, 1, "%s", "é");
    CHECK_STR(small, "");
}

TEST(buf_stops_at_its_maximum)
{
    err e = ERR_INIT;
    buf b;
    buf_init(&b, 10);
    CHECK_OK(buf_append(&b, "12345", 5, &e), e);
    CHECK_ERR(buf_append(&b, "678901", 6, &e), e, ERR_LIMIT, "10 bytes");
    CHECK_STR(b.bytes, "12345");
    CHECK_OK(buf_append(&b, "67890", 5, &e), e);
    buf_consume(&b, 4);
    CHECK_STR(b.bytes, "567890");
    buf_free(&b);
}

/* Known answer of Philox4x32-10 from the authors' Random123 distribution (kat_vectors): key and
 * counter of all zeros. Our use and a share the last counter word, so zero use gives it. */
TEST(rng_is_philox)
{
    uint32_t out[4];
    rng_draw(0, (rng_use)0, 0, 0, 0, out);
    CHECK_INT(out[0], 0x6627e8d5);
    CHECK_INT(out[1], 0xe169c58d);
    CHECK_INT(out[2], 0xbc57ac4c);
    CHECK_INT(out[3], 0x9b00dbd8);
}

TEST(rng_permutation_is_one)
{
    uint32_t order[1000];
    bool seen[1000] = {false};
    rng r;
    rng_init(&r, 7, RNG_TEST, 0, 0);
    rng_permutation(&r, order, 1000);
    size_t fixed = 0;
    for (size_t i = 0; i < 1000; i++) {
        CHECK(order[i] < 1000 && !seen[order[i]]);
        seen[order[i]] = true;
        fixed += order[i] == i;
    }
    CHECK(fixed < 10);
}

/* By the mathematical library's logarithm, cosine and sine, whose last bits differ from machine to
 * machine; ours do not. */
TEST(normals_are_box_and_mullers_with_one_set_of_bits)
{
    enum { DRAWS = 100000 };
    double *all = malloc(4 * DRAWS * sizeof *all);
    CHECK(all);
    rng r;
    rng_init(&r, 3, RNG_TEST, 1, 2);
    for (uint32_t i = 0; i < DRAWS; i++) {
        uint32_t w[4];
        rng_draw(3, RNG_TEST, 1, 2, i, w);
        rng_normals(&r, all + 4 * i);
        for (int k = 0; k < 4; k += 2) {
            double radius = sqrt(-2 * log(((double)w[k] + 1) * 0x1p-32));
            double angle = 6.283185307179586 * 0x1p-32 * (double)w[k + 1];
            CHECK_NEAR(all[4 * i + (size_t)k], radius * cos(angle), 1e-12);
            CHECK_NEAR(all[4 * i + (size_t)k + 1], radius * sin(angle), 1e-12);
        }
    }
    CHECK(hash64(all, 4 * DRAWS * sizeof *all) == UINT64_C(0x53ef21983a62f886));
    rng_init(&r, 3, RNG_TEST, 1, 2);
    rng_skip(&r, 7);
    double four[4];
    rng_normals(&r, four);
    CHECK(memcmp(four, all + 4 * 7, sizeof four) == 0);
    free(all);
}

TEST(clock_prints_rfc3339)
{
    char text[25];
    clock_rfc3339(1136214245678, text);
    CHECK_STR(text, "2006-01-02T15:04:05.678Z");
}

TEST(every_hash64_is_xxh3)
{
    enum { BYTES = 70000 };
    static char bytes[BYTES + 3];
    hash64_variant variant[HASH64_VARIANTS];
    int variants = hash64_variants(variant);
    rng r;
    rng_init(&r, 11, RNG_TEST, 0, 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)rng_u32(&r);
    printf("%d variants, fastest %s\n", variants, variant[0].name);
    CHECK_STR(variant[variants - 1].name, "generic");
    /* as the algorithm's specification has it */
    CHECK(hash64("", 0) == UINT64_C(0x2d06800538d394c2));
    for (size_t len = 0; len <= BYTES; len += len < 1100 ? 1 : 997)
        for (int v = 0; v < variants; v++)
            if (variant[v].hash(bytes + len % 4, len) != XXH3_64bits(bytes + len % 4, len))
                test_fail(__FILE__, __LINE__, "%s differs at %zu bytes", variant[v].name, len);
}

static void set_quota(const char *group, const char *text)
{
    char path[FS_PATH_BYTES];
    err e = ERR_INIT;
    CHECK_OK(fs_path(path, &e, "%s%s", test_tmp(), group), e);
    CHECK_OK(fs_mkdirs(path, 0700, &e), e);
    CHECK_OK(fs_path(path, &e, "%s%s/cpu.max", test_tmp(), group), e);
    CHECK_OK(fs_write_file(path, text, strlen(text), 0600, &e), e);
}

TEST(a_control_group_has_the_least_quota_of_those_that_it_is_in)
{
    const char *root = test_tmp();
    CHECK_INT(parallel_quota(root, "/"), INT_MAX);
    set_quota("/a/b", "max 100000\n");
    CHECK_INT(parallel_quota(root, "/a/b"), INT_MAX);
    set_quota("/a/b", "250000 100000\n");
    CHECK_INT(parallel_quota(root, "/a/b"), 2);
    CHECK_INT(parallel_quota(root, "/a/b/c"), 2);
    CHECK_INT(parallel_quota(root, "/a"), INT_MAX);
    set_quota("/a", "50000 100000\n");
    CHECK_INT(parallel_quota(root, "/a/b"), 1);
    set_quota("/a", "800000 100000\n");
    CHECK_INT(parallel_quota(root, "/a/b"), 2);
    set_quota("", "300000 100000\n"); /* as a container sees its own */
    CHECK_INT(parallel_quota(root, "/"), 3);
    CHECK_INT(parallel_quota(root, "/a"), 3);
}

TEST(processors_that_a_process_may_not_run_on_are_not_counted)
{
    cpu_set_t all, one;
    CHECK(parallel_cores() >= 1);
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK_INT(parallel_cores(), 1);
}

/* ---- what JSON takes ------------------------------------------------------------------------- */

static size_t taken, taken_most;

/* As malloc does: a word before it, whole 16 bytes. */
static size_t chunk(size_t bytes)
{
    return bytes < 24 ? 32 : (bytes + 8 + 15) / 16 * 16;
}

static void *take_counted(size_t bytes)
{
    size_t *p = malloc(bytes + 16);
    CHECK(p);
    *p = bytes;
    taken += chunk(bytes);
    taken_most = taken > taken_most ? taken : taken_most;
    return p + 2;
}

static void give_counted(void *block)
{
    size_t *p = block;
    if (!p)
        return;
    taken -= chunk(p[-2]);
    free(p - 2);
}

static char *repeated(const char *head, const char *item, size_t count, const char *tail)
{
    char *text = malloc(strlen(head) + count * (strlen(item) + 12) + strlen(tail) + 1), *at = text;
    CHECK(text);
    at += sprintf(at, "%s", head);
    for (size_t i = 0; i < count; i++)
        at += sprintf(at, item, i);
    sprintf(at, "%s", tail);
    return text;
}

/* Never more than is told before, and of the same order. */
TEST(json_takes_no_more_than_its_measure)
{
    static const char *const items[][3] = {
        {"[0", ",{}", "]"},
        {"[0", ",[]", "]"},
        {"[0", ",0", "]"},
        {"[0", ",0.125", "]"},
        {"[0", ",\"\"", "]"},
        {"[0", ",null", "]"},
        {"[0", ",[0,0,0,0]", "]"},
        {"[0", ",{\"a\":0}", "]"},
        {"{\"a\":0", ",\"%zu\":0", "}"},
        {"{\"a\":0", ",\"%zu\":{}", "}"},
        {"[0", ",\"seventy bytes of text, which are taken as they are, without more\"", "]"},
    };
    json_set_alloc_funcs(take_counted, give_counted);
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        for (size_t count = 1000; count < 40000; count = count * 5 / 4) {
            err e = ERR_INIT;
            json_t *value = NULL;
            char *text = repeated(items[i][0], items[i][1], count, items[i][2]);
            size_t len = strlen(text), measure = json_measure(text, len).bytes;
            taken = taken_most = 0;
            CHECK_OK(json_read(text, len, 8, &value, &e), e);
            if (taken_most > measure || measure > taken_most * 5)
                test_fail(__FILE__, __LINE__, "%zu of %s take %zu, not %zu", count, items[i][1],
                          taken_most, measure);
            json_decref(value);
            CHECK_INT(taken, 0);
            free(text);
        }
    }
    json_set_alloc_funcs(malloc, free);
}

TEST(json_of_too_many_values_is_refused)
{
    err e = ERR_INIT;
    json_t *value = NULL;
    cleanup_free char *digits = repeated("[0", ",0", 2 << 20, "]");
    CHECK_OK(json_read(digits, strlen(digits), 8, &value, &e), e);
    json_decref(value);
    cleanup_free char *objects = repeated("[0", ",{}", 1 << 20, "]");
    CHECK_ERR(json_read(objects, strlen(objects), 8, &value, &e), e, ERR_LIMIT, "too many values");
}
