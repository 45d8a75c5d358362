/* test_shm.c: the shared segment: geometry, names, who may write, what is refused; layouts. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/modelstore/shm.h"
#include "modelstore_fixture.h"
#include "test.h"

static const block_shape shape = {5000, 3};

static shm *make(const char *job)
{
    err e = ERR_INIT;
    shm *s = NULL;
    CHECK_OK(shm_create(test_tmp(), job, shape, 4, 0xabc, &s, &e), e);
    return s;
}

TEST(members_share_what_the_merger_makes)
{
    err e = ERR_INIT;
    shm *owner = make("job-1"), *member;
    block mine, theirs;
    struct stat st;
    char path[400];
    CHECK_OK(shm_reserve_references(owner, &e), e);
    CHECK_OK(shm_open_segment(test_tmp(), shm_name(owner), false, &member, &e), e);
    CHECK(shm_layout_digest(member) == 0xabc);
    CHECK_INT(shm_slots(member), 4);
    CHECK_INT(shm_state_get(member).version, -1);
    CHECK_OK(shm_slot(member, 2, true, &mine, &e), e);
    mine.floats[4999] = 2.5f;
    mine.counters[2] = 77;
    CHECK_OK(shm_slot(owner, 2, false, &theirs, &e), e);
    CHECK(theirs.floats[4999] == 2.5f && theirs.counters[2] == 77);
    shm_reference(owner, 7).floats[1] = 3.0f;
    shm_state_set(owner, (shm_state){7, 1, 2, 99});
    CHECK(shm_reference(member, 7).floats[1] == 3.0f);
    CHECK(shm_reference(member, 6).floats[1] == 0.0f);
    CHECK_INT(shm_state_get(member).checksum, 99);
    snprintf(path, sizeof path, "%s/%s", test_tmp(), shm_name(owner));
    CHECK(stat(path, &st) == 0);
    CHECK_INT(st.st_mode & 0777, 0600);
    /* The header, two references and four slots: each can be mapped where pages have 64 KiB. */
    CHECK_INT(st.st_size, 7 << 16);
    CHECK_ERR(shm_slot(member, 4, true, &mine, &e), e, ERR_INVALID, "slot 4");
    shm_close(member);
    shm_close(owner);
}

TEST(a_member_cannot_write_the_reference)
{
    err e = ERR_INIT;
    shm *owner = make("job-1"), *member;
    CHECK_OK(shm_open_segment(test_tmp(), shm_name(owner), false, &member, &e), e);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile float *)shm_reference(member, 0).floats = 1;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(!(WIFEXITED(status) && WEXITSTATUS(status) == 0));
    shm_close(member);
    shm_close(owner);
}

static void note_job(const char *job, void *user)
{
    char *text = user;
    snprintf(text + strlen(text), 64 - strlen(text), "[%s]", job);
}

TEST(names_are_found_swept_and_checked)
{
    err e = ERR_INIT;
    char jobs[64] = "";
    char name[SHM_NAME_BYTES];
    shm *a = make("job"), *b = make("job-x"), *s;
    fixture_segment("job", name);
    CHECK_STR(name, shm_name(a));
    shm *again = make("job"); /* replaces what was left behind */
    fixture_segment("job", name);
    CHECK_STR(name, shm_name(again));
    shm_each_job(test_tmp(), note_job, jobs);
    CHECK(strcmp(jobs, "[job][job-x]") == 0 || strcmp(jobs, "[job-x][job]") == 0);
    CHECK_INT(shm_sweep(test_tmp(), "job"), 1);
    CHECK_INT(shm_sweep(test_tmp(), "job"), 0);
    CHECK_ERR(shm_open_segment(test_tmp(), shm_name(a), true, &s, &e), e, ERR_NOT_FOUND, "segment");
    CHECK_ERR(shm_open_segment(test_tmp(), "../etc/passwd", true, &s, &e), e, ERR_INVALID, "name");
    CHECK_ERR(shm_create(test_tmp(), "a/b", shape, 4, 1, &s, &e), e, ERR_INVALID, "a/b");
    CHECK_ERR(shm_create(test_tmp(), "j", shape, 0, 1, &s, &e), e, ERR_LIMIT, "0 slots");
    CHECK_ERR(shm_create("/no/such/folder", "j", shape, 1, 1, &s, &e), e, ERR_NOT_FOUND, "folder");
    CHECK_INT(shm_sweep(test_tmp(), NULL), 1);
    shm_close(a);
    shm_close(b);
    shm_close(again);
}

TEST(what_is_no_segment_is_refused)
{
    err e = ERR_INIT;
    char path[400];
    shm *owner = make("job"), *s;
    block b;
    snprintf(path, sizeof path, "%s/%s", test_tmp(), shm_name(owner));
    struct stat st;
    CHECK(stat(path, &st) == 0);
    CHECK(shm_whole(owner));
    CHECK(truncate(path, st.st_size - 1) == 0);
    CHECK(!shm_whole(owner));
    CHECK_ERR(shm_slot(owner, 3, false, &b, &e), e, ERR_CORRUPT, "cut short");
    CHECK_ERR(shm_open_segment(test_tmp(), shm_name(owner), false, &s, &e), e, ERR_CORRUPT, "size");
    int fd = open(path, O_WRONLY);
    CHECK(pwrite(fd, "1", 1, 6) == 1);
    CHECK_ERR(shm_open_segment(test_tmp(), shm_name(owner), false, &s, &e), e, ERR_CORRUPT,
              "another version");
    CHECK(pwrite(fd, "X", 1, 0) == 1);
    CHECK_ERR(shm_open_segment(test_tmp(), shm_name(owner), false, &s, &e), e, ERR_CORRUPT,
              "not a segment");
    CHECK(ftruncate(fd, 10) == 0);
    CHECK_ERR(shm_open_segment(test_tmp(), shm_name(owner), false, &s, &e), e, ERR_CORRUPT,
              "not a segment");
    close(fd);
    shm_close(owner);
}

static atomic_bool stop;

static void *change_state(void *arg)
{
    for (int64_t i = 0; !atomic_load(&stop); i++)
        shm_state_set(arg, (shm_state){i, 2 * i, 3 * i, (uint64_t)(5 * i)});
    return NULL;
}

TEST(a_state_is_read_whole)
{
    pthread_t thread;
    shm *s = make("job");
    shm_state_set(s, (shm_state){0, 0, 0, 0});
    CHECK(pthread_create(&thread, NULL, change_state, s) == 0);
    for (int i = 0; i < 200000; i++) {
        shm_state t = shm_state_get(s);
        CHECK(t.version == -1 || (t.epoch == 2 * t.version && t.round == 3 * t.version &&
                                  t.checksum == (uint64_t)(5 * t.version)));
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    shm_close(s);
}

/* ---- layouts ------------------------------------------------------------------------------- */

TEST(layouts_are_made_parsed_and_cut)
{
    err e = ERR_INIT;
    layout l, same, cut;
    const layout_entry entry[] = {
        {.name = "w", .kind = LAYOUT_PARAM, .rank = 2, .dims = {3, 4}},
        {.name = "bn.mean", .kind = LAYOUT_BUFFER, .rank = 1, .dims = {5}},
        {.name = "optimizer.momentum.w", .kind = LAYOUT_STATE, .rank = 2, .dims = {3, 4}},
        {.name = "bn.batches", .kind = LAYOUT_COUNTER},
        {.name = "optimizer.step", .kind = LAYOUT_COUNTER},
    };
    CHECK_OK(layout_make(entry, 5, &l, &e), e);
    CHECK_INT(l.shape.floats, 29);
    CHECK_INT(l.weights, 17);
    CHECK_INT(l.shape.counters, 2);
    CHECK_INT(layout_find(&l, "optimizer.momentum.w")->offset, 17);
    CHECK(layout_find(&l, "x") == NULL);
    CHECK_OK(layout_parse_text(l.text, strlen(l.text), &same, &e), e);
    CHECK(same.digest == l.digest);
    CHECK_STR(same.text, l.text);
    CHECK_OK(layout_without_state(&l, &cut, &e), e);
    CHECK_INT(cut.shape.floats, 17);
    CHECK_INT(cut.shape.counters, 1);
    CHECK(cut.digest != l.digest);
    layout_free(&l);
    layout_free(&same);
    layout_free(&cut);
}

TEST(wrong_layouts_are_refused)
{
#define ENTRY(name, kind, shape_, offset)                                                          \
    "{\"name\":\"" name "\",\"kind\":\"" kind "\",\"shape\":" shape_ ",\"offset\":" offset "}"
#define WRAP(f, w, c, entries)                                                                     \
    "{\"floats\":" f ",\"weights\":" w ",\"counters\":" c ",\"entries\":[" entries "]}"
    static const struct {
        const char *text, *part;
    } wrong[] = {
        {"", "layout"},
        {"[]", "entries"},
        {"{}", "entries"},
        {WRAP("0", "0", "0", ""), "entries"},
        {WRAP("4", "4", "0", ENTRY("a", "weird", "[4]", "0")), "kind"},
        {WRAP("4", "4", "0", ENTRY("", "param", "[4]", "0")), "name"},
        {WRAP("4", "4", "0", ENTRY("a", "param", "[-4]", "0")), "shape"},
        {WRAP("4", "4", "0", ENTRY("a", "param", "4", "0")), "shape"},
        {WRAP("4", "4", "0", ENTRY("a", "param", "[4294967296,4294967296]", "0")), "out of range"},
        {WRAP("4", "4", "0", ENTRY("a", "param", "[4]", "-1")), "offset"},
        {WRAP("5", "4", "0", ENTRY("a", "param", "[4]", "0")), "floats"},
        {WRAP("4", "3", "0", ENTRY("a", "param", "[4]", "0")), "weights"},
        {WRAP("4", "4", "1", ENTRY("a", "param", "[4]", "0")), "counters"},
        {WRAP("8", "8", "0", ENTRY("a", "param", "[4]", "0") "," ENTRY("b", "param", "[4]", "3")),
         "\"b\" begins at 3"},
        {WRAP("8", "8", "0", ENTRY("a", "param", "[4]", "0") "," ENTRY("a", "param", "[4]", "4")),
         "two entries"},
        {WRAP("8", "8", "0", ENTRY("a", "state", "[4]", "0") "," ENTRY("b", "param", "[4]", "4")),
         "behind state"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        err e = ERR_INIT;
        layout l;
        CHECK_ERR(layout_parse_text(wrong[i].text, strlen(wrong[i].text), &l, &e), e, ERR_INVALID,
                  wrong[i].part);
    }
}
