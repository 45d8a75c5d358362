/* test_job_log.c: a job's log out of its pods' tails, whole and as it is followed, from a
 * cluster that remembers what pods wrote. */
#include "common/base/cleanup.h"
#include "controller/ha/store_watch.h"
#include "controller/jobs/job_manager_internal.h"
#include "test.h"
#include "store_memory.h"

enum { PODS_MAX = 4, LINE_BYTES = 100, KEPT_LINES = CONTROLLER_LOG_BYTES_MAX / LINE_BYTES };

/* A cluster whose pods write what a case has them write. */
typedef struct world {
    cluster base;
    pod pods[PODS_MAX];
    buf written[PODS_MAX];
    int count;
    size_t others; /* pods of other jobs, listed first */
    bool unknown;  /* it cannot say where a tail begins */
} world;

static int list(cluster *c, pod *out, size_t max, size_t *count, err *e)
{
    const world *w = (const world *)c;
    (void)e;
    *count = w->others + (size_t)w->count;
    for (size_t i = 0; i < *count && i < max; i++)
        out[i] = i < w->others ? (pod){.job = "other"} : w->pods[i - w->others];
    return 0;
}

static int log_tail(cluster *c, const char *name, size_t bytes_max, cluster_log *out, err *e)
{
    const world *w = (const world *)c;
    int i = 0;
    (void)e;
    while (strcmp(w->pods[i].name, name) != 0)
        CHECK(++i < w->count);
    const buf *all = &w->written[i];
    size_t len = all->len < bytes_max ? all->len : bytes_max;
    *out = (cluster_log){.text = calloc(len + 1, 1),
                         .len = len,
                         .from = w->unknown ? CLUSTER_LOG_FROM_UNKNOWN : all->len - len};
    CHECK(out->text);
    if (len)
        memcpy(out->text, all->bytes + all->len - len, len);
    return 0;
}

static void open_world(world *w, int pods)
{
    static const cluster_ops ops = {.name = "fake", .list = list, .log_tail = log_tail};
    *w = (world){.base.ops = &ops, .count = pods};
    for (int i = 0; i < pods; i++) {
        w->pods[i] = (pod){.role = POD_FUNCTION, .phase = POD_RUNNING, .job = "j", .function = i};
        snprintf(w->pods[i].name, sizeof w->pods[i].name, "function-%d", i);
        buf_init(&w->written[i], 64 << 20);
    }
}

static void close_world(world *w)
{
    for (int i = 0; i < w->count; i++)
        buf_free(&w->written[i]);
}

/* Lines first to last - 1, of LINE_BYTES each, all with the same time. */
static void writes(world *w, int which, int first, int last)
{
    for (int i = first; i < last; i++)
        CHECK(buf_printf(&w->written[which], NULL, "2026-01-01T00:00:00.000Z %-*d\n",
                         LINE_BYTES - 26, i) == 0);
}

static int merge(world *w, log_position **positions, buf *out, err *e)
{
    log_look l = {0};
    int status = logs_pods(&w->base, "j", false, &l, e);
    if (status == 0) {
        logs_read(&w->base, &l);
        status = logs_merge(&l, positions, out, e);
    }
    logs_free(&l);
    return status;
}

typedef struct follow {
    log_position *positions;
    buf said; /* at the last look */
} follow;

static void look(world *w, follow *f)
{
    err e = ERR_INIT;
    buf_free(&f->said);
    buf_init(&f->said, 64 << 20);
    CHECK_OK(merge(w, &f->positions, &f->said, &e), e);
}

static void end_follow(follow *f)
{
    buf_free(&f->said);
    for (log_position *p = f->positions, *next; p; p = next) {
        next = p->next;
        free(p);
    }
}

/* The lines of `writes` in a merged log, which are one after the other; how many of other lines. */
static int numbers(const buf *log, int *first, int *last)
{
    static const char time[] = "| 2026-01-01T00:00:00.000Z ";
    int others = 0;
    *first = *last = -1;
    /* Line by line: under a sanitizer strchr and strstr look at all that is left, each time. */
    for (const char *at = log->bytes, *end = at + log->len, *next; at < end; at = next) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        CHECK(newline != NULL);
        next = newline + 1;
        const char *said = memmem(at, (size_t)(newline - at), time, sizeof time - 1);
        if (!said) {
            others++;
            continue;
        }
        char digits[8] = "";
        snprintf(digits, sizeof digits, "%.7s", said + sizeof time - 1);
        int number = (int)strtol(digits, NULL, 10);
        CHECK(*last < 0 || number == *last + 1);
        *first = *first < 0 ? number : *first;
        *last = number;
    }
    return others;
}

static void check_said(const follow *f, int first, int last, const char *besides)
{
    int from, to, others = numbers(&f->said, &from, &to);
    CHECK_INT(from, first);
    CHECK_INT(to, last);
    CHECK_INT(others, besides ? 1 : 0);
    if (besides)
        CHECK_CONTAINS(f->said.bytes, besides);
}

TEST(pods_lines_are_merged_by_their_time)
{
    world w;
    follow f = {0};
    open_world(&w, 2);
#define AT(second, what) "2026-01-01T00:00:0" #second ".000Z " what "\n"
    CHECK(buf_printf(&w.written[0], NULL, "%s",
                     "early\n" AT(1, "a") "without a time\n\n" AT(4, "d") AT(3, "late")) == 0);
    CHECK(buf_printf(&w.written[1], NULL, "%s", AT(1, "b") AT(2, "c") AT(5, "e")) == 0);
    look(&w, &f);
    CHECK_STR(
        f.said.bytes,
        "function-0  | early\n"
        "function-0  | " AT(
            1, "a") "function-0  | without a time\n"
                    "function-0  | \n"
                    "function-1  | " AT(1, "b") "function-1  | " AT(2, "c") "function-0  | " AT(
                        4, "d") "function-0  | " AT(3, "late") "function-1  | " AT(5, "e"));
#undef AT
    end_follow(&f);
    close_world(&w);
}

TEST(a_jobs_pods_are_found_among_any_number_of_others)
{
    world w;
    follow f = {0};
    open_world(&w, 1);
    w.others = 3000;
    writes(&w, 0, 0, 10);
    look(&w, &f);
    check_said(&f, 0, 9, NULL);
    end_follow(&f);
    close_world(&w);
}

TEST(a_log_over_the_limit_is_followed_on)
{
    world w;
    follow f = {0};
    open_world(&w, 1);
    writes(&w, 0, 0, KEPT_LINES - 10);
    look(&w, &f);
    check_said(&f, 0, KEPT_LINES - 11, NULL);
    for (int n = KEPT_LINES - 10; n < KEPT_LINES + 40; n += 10) {
        writes(&w, 0, n, n + 10);
        look(&w, &f);
        check_said(&f, n, n + 9, NULL);
    }
    look(&w, &f);
    CHECK_INT(f.said.len, 0);
    end_follow(&f);
    close_world(&w);
}

TEST(a_followed_log_says_how_much_was_left_out)
{
    world w;
    follow f = {0};
    char besides[80];
    open_world(&w, 1);
    writes(&w, 0, 0, 10);
    look(&w, &f);
    int written = 10 + KEPT_LINES + 100, first = written - KEPT_LINES;
    writes(&w, 0, 10, written);
    look(&w, &f);
    snprintf(besides, sizeof besides, "function-0  | (%d bytes of this log are left out here)\n",
             (first - 10) * LINE_BYTES);
    check_said(&f, first, written - 1, besides);
    CHECK(strncmp(f.said.bytes, besides, strlen(besides)) == 0);
    writes(&w, 0, written, written + 1);
    look(&w, &f);
    check_said(&f, written, written, NULL);
    end_follow(&f);
    close_world(&w);
}

TEST(a_line_is_followed_when_it_is_whole)
{
    world w;
    follow f = {0};
    open_world(&w, 1);
    CHECK(buf_printf(&w.written[0], NULL, "one\ntw") == 0);
    look(&w, &f);
    CHECK_STR(f.said.bytes, "function-0  | one\n");
    look(&w, &f);
    CHECK_INT(f.said.len, 0);
    w.pods[0].phase = POD_ENDED; /* nothing completes it any more */
    look(&w, &f);
    CHECK_STR(f.said.bytes, "function-0  | tw\n");
    end_follow(&f);
    close_world(&w);
}

/* Then the place is found by what was seen last. */
TEST(a_log_of_unknown_beginning_is_followed_on)
{
    world w;
    follow f = {0};
    open_world(&w, 1);
    writes(&w, 0, 0, 20);
    look(&w, &f);
    check_said(&f, 0, 19, NULL);
    w.unknown = true;
    writes(&w, 0, 20, KEPT_LINES + 10);
    look(&w, &f);
    check_said(&f, 20, KEPT_LINES + 9, NULL);
    writes(&w, 0, KEPT_LINES + 10, KEPT_LINES + 50);
    look(&w, &f);
    check_said(&f, KEPT_LINES + 10, KEPT_LINES + 49, NULL);
    look(&w, &f);
    CHECK_INT(f.said.len, 0);
    /* all that was seen has left the tail */
    writes(&w, 0, KEPT_LINES + 50, 2 * KEPT_LINES + 100);
    look(&w, &f);
    check_said(&f, KEPT_LINES + 100, 2 * KEPT_LINES + 99, "(a part of this log is left out here)");
    end_follow(&f);
    close_world(&w);
}

/* As where a node has begun a new file for it. */
TEST(a_log_that_begins_again_is_followed_on)
{
    world w;
    follow f = {0};
    open_world(&w, 1);
    writes(&w, 0, 0, 100);
    look(&w, &f);
    w.written[0].len = 0;
    writes(&w, 0, 100, 110);
    look(&w, &f);
    check_said(&f, 100, 109, "(a part of this log is left out here)");
    end_follow(&f);
    close_world(&w);
}

/* Each pod's last lines, which say why a job ended, whatever the others wrote. */
TEST(what_does_not_fit_is_left_out_at_each_pods_beginning)
{
    world w;
    err e = ERR_INIT;
    cleanup_buf buf text;
    open_world(&w, 3);
    for (int i = 0; i < 2000; i++)
        CHECK(buf_printf(&w.written[0], NULL, "\n") == 0);
    CHECK(buf_printf(&w.written[0], NULL, "the last of the first\n") == 0);
    writes(&w, 1, 0, 500);
    CHECK(buf_printf(&w.written[1], NULL, "the last of the second") == 0);
    CHECK(buf_printf(&w.written[2], NULL, "all of the third\n") == 0);
    buf_init(&text, 30000);
    CHECK_OK(merge(&w, NULL, &text, &e), e);
    CHECK_CONTAINS(text.bytes, "function-0  | the last of the first\n");
    CHECK_CONTAINS(text.bytes, "function-1  | the last of the second\n");
    CHECK_CONTAINS(text.bytes, "function-2  | all of the third\n");
    CHECK_CONTAINS(text.bytes, "function-0  | (");
    CHECK_CONTAINS(text.bytes, "function-1  | (");
    CHECK(!strstr(text.bytes, "function-2  | ("));
    CHECK(text.len > 18000); /* most of two shares */
    close_world(&w);
}

/* ---- runs before ----------------------------------------------------------------------------- */

enum { PART_BYTES = 400, PARTS = 3 };

static controller platform;
static job_manager o = {.controller = &platform};

/* With a log of so many parts of PART_BYTES each, "0000...\n", "1111...\n", ... */
static void open_store(int parts)
{
    char text[PART_BYTES];
    err e = ERR_INIT;
    platform.store = store_open(store_memory_locator(), &e);
    CHECK_OK(platform.store ? 0 : -1, e);
    platform.watch = store_watch_new(&platform, job_manager_store_back);
    CHECK_OK(store_watch_start(platform.watch, &e), e);
    for (int i = 0; i < parts; i++) {
        memset(text, '0' + i, sizeof text - 1);
        text[sizeof text - 1] = '\n';
        CHECK_OK(logs_store(&o, "j", text, sizeof text, &e), e);
    }
}

static void close_store(void)
{
    store_watch_stop(platform.watch);
    store_watch_free(platform.watch);
    store_close(platform.store);
}

/* The parts from `first` on, behind that line. */
static void check_parts(const char *text, size_t len, const char *besides, int first)
{
    size_t at = strlen(besides);
    CHECK_INT(len, at + (size_t)(PARTS - first) * PART_BYTES);
    CHECK(strncmp(text, besides, at) == 0);
    for (int i = first; i < PARTS; i++, at += PART_BYTES)
        CHECK(text[at] == '0' + i && text[at + PART_BYTES - 2] == '0' + i);
}

static void check_stored(size_t bytes_max, const char *besides, int first)
{
    err e = ERR_INIT;
    cleanup_buf buf text;
    buf_init(&text, bytes_max);
    CHECK_OK(logs_stored(&o, "j", &text, &e), e);
    check_parts(text.bytes, text.len, besides, first);
}

TEST(of_a_log_of_many_runs_the_oldest_are_left_out)
{
    open_store(PARTS);
    check_stored(PARTS * PART_BYTES, "", 0);
    check_stored(PARTS * PART_BYTES - 1,
                 "(the first 1 of 3 parts of this log, 400 bytes, are left out here)\n", 1);
    check_stored(2 * PART_BYTES,
                 "(the first 2 of 3 parts of this log, 800 bytes, are left out here)\n", 2);
    check_stored(PART_BYTES,
                 "(the first 3 of 3 parts of this log, 1200 bytes, are left out here)\n", PARTS);
    close_store();
}

/* The last lines say where the job is: those before them give way. */
TEST(a_whole_log_ends_with_what_its_pods_have_written)
{
    static const struct {
        size_t bytes_max;
        const char *besides;
        int first;
    } cases[] = {
        {2048, "", 0},
        {1600, "(the first 1 of 3 parts of this log, 400 bytes, are left out here)\n", 1},
        {900, "(the first 3 of 3 parts of this log, 1200 bytes, are left out here)\n", PARTS},
    };
    world w;
    open_world(&w, 1);
    open_store(PARTS);
    writes(&w, 0, 0, 5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = ERR_INIT;
        log_look l = {0};
        cleanup_buf buf text;
        buf_init(&text, cases[i].bytes_max);
        CHECK_OK(logs_pods(&w.base, "j", false, &l, &e), e);
        logs_read(&w.base, &l);
        CHECK_OK(logs_whole(&o, "j", &l, &text, &e), e);
        logs_free(&l);
        const char *now = strstr(text.bytes, "function-0  | ");
        CHECK(now != NULL);
        buf last = {.bytes = (char *)(uintptr_t)now, .len = strlen(now)};
        int first, end;
        CHECK_INT(numbers(&last, &first, &end), 0);
        CHECK(first == 0 && end == 4);
        check_parts(text.bytes, (size_t)(now - text.bytes), cases[i].besides, cases[i].first);
    }
    close_store();
    close_world(&w);
}
