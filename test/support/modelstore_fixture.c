/* modelstore_fixture.c: see modelstore_fixture.h. */
#include "modelstore_fixture.h"

#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/modelstore/redis_link.h"
#include "modelstore_memory.h"
#include "test.h"

int64_t fixture_deadline(void)
{
    return clock_deadline_ms(10000);
}

const char *fixture_module(void)
{
    static char path[PATH_MAX + 32];
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    CHECK(n > 0);
    exe[n] = '\0';
    for (int up = 0; up < 2; up++)
        *strrchr(exe, '/') = '\0';
    snprintf(path, sizeof path, "%s/lib/kubeml-redis.so", exe);
    return path;
}

/* A weight matrix, a running mean, as much momentum, and two counters. */
void fixture_layout(uint64_t floats, layout *out)
{
    err e = ERR_INIT;
    uint64_t weights = floats > 20 ? floats / 2 : floats;
    layout_entry entry[] = {
        {.name = "fc.weight", .kind = LAYOUT_PARAM, .rank = 1, .dims = {weights}},
        {.name = "bn.num_batches_tracked", .kind = LAYOUT_COUNTER, .rank = 0},
        {.name = "optimizer.step", .kind = LAYOUT_COUNTER, .rank = 0},
        {.name = "optimizer.momentum.fc.weight",
         .kind = LAYOUT_STATE,
         .rank = 1,
         .dims = {floats - weights}},
    };
    CHECK_OK(layout_make(entry, floats > weights ? 4 : 3, out, &e), e);
}

static void start_server(fixture *f, bool module, bool tcp)
{
    char folder[300], listen[32];
    err e = ERR_INIT;
    snprintf(folder, sizeof folder, "%s/redis", test_tmp());
    /* Below the ports that the system gives to whoever asks for any. */
    snprintf(listen, sizeof listen, "127.0.0.1:%d", 20000 + (int)(getpid() % 12000));
    const redis_server_spec spec = {.folder = folder,
                                    .module = module ? fixture_module() : NULL,
                                    .segment_dir = test_tmp(),
                                    .listen = tcp ? listen : NULL,
                                    .merge_threads = 2};
    if (redis_server_start(&spec, fixture_deadline(), &f->server, &e)) {
        if (e.code == ERR_NOT_FOUND)
            test_skip("redis-server is not installed");
        test_fail(__FILE__, __LINE__, "%s", e.message);
    }
    snprintf(f->owner_access.address, sizeof f->owner_access.address, "%s%s",
             tcp ? "tcp:" : redis_server_address(f->server), tcp ? listen : "");
    snprintf(f->owner_access.password, sizeof f->owner_access.password, "%s",
             redis_server_password(f->server));
}

static void make_member(fixture *f)
{
    char password[REDIS_SERVER_PASSWORD_BYTES];
    err e = ERR_INIT;
    f->member_access = f->owner_access;
    if (!f->server)
        return;
    CHECK_OK(redis_server_password_new(password, &e), e);
    CHECK_OK(redis_server_user(f->server, "function", password, "job1",
                               strcmp(f->owner_access.kind, "database") == 0, fixture_deadline(),
                               &e),
             e);
    snprintf(f->member_access.user, sizeof f->member_access.user, "function");
    snprintf(f->member_access.password, sizeof f->member_access.password, "%s", password);
}

void fixture_init(fixture *f, const char *kind, const char *tensor_path, uint64_t floats)
{
    err e = ERR_INIT;
    bool tcp = strcmp(tensor_path, "tcp") == 0;
    *f = (fixture){.server = NULL};
    modelstore_access *a = &f->owner_access;
    snprintf(a->kind, sizeof a->kind, "%s", kind);
    snprintf(a->job, sizeof a->job, "job1");
    snprintf(a->tensor_path, sizeof a->tensor_path, "%s", tcp ? "socket" : tensor_path);
    snprintf(a->segment_dir, sizeof a->segment_dir, "%s", test_tmp());
    if (strcmp(kind, "memory") == 0)
        modelstore_memory_add();
    else
        start_server(f, strcmp(kind, "database") == 0, tcp);
    make_member(f);
    fixture_layout(floats, &f->layout);
    CHECK_OK(modelstore_open(a, MODELSTORE_OWNER, fixture_deadline(), &f->owner, &e), e);
}

void fixture_free(fixture *f)
{
    modelstore_close(f->owner);
    redis_server_stop(f->server);
    layout_free(&f->layout);
}

modelstore *fixture_member(const fixture *f)
{
    err e = ERR_INIT;
    modelstore *m = NULL;
    CHECK_OK(modelstore_open(&f->member_access, MODELSTORE_MEMBER, fixture_deadline(), &m, &e), e);
    return m;
}

redis_link *fixture_redis(const char *address, const char *password)
{
    err e = ERR_INIT;
    redis_link *l = NULL;
    CHECK_OK(redis_link_dial(address, "", password, fixture_deadline(), &l, &e), e);
    return l;
}

int fixture_call(redis_link *l, const char *text, redisReply **out, err *e)
{
    const char *words[32];
    char copy[512], *rest = copy;
    int count = 0;
    cleanup_command redis_command c = {NULL, 0};
    CHECK((size_t)snprintf(copy, sizeof copy, "%s", text) < sizeof copy);
    for (char *word; (word = strsep(&rest, " "));) {
        CHECK(count < 32);
        words[count++] = word;
    }
    return redis_command_words(&c, count, words, NULL, e) ||
                   redis_link_call(l, &c, out, fixture_deadline(), e)
               ? -1
               : 0;
}

void fixture_limit_memory(redis_server *server, const char *bytes)
{
    char text[64];
    err e = ERR_INIT;
    redis_link *l = fixture_redis(redis_server_address(server), redis_server_password(server));
    snprintf(text, sizeof text, "CONFIG SET maxmemory %.32s", bytes);
    CHECK_OK(fixture_call(l, text, NULL, &e), e);
    redis_link_close(l);
}

void fixture_segment(const char *job, char name[SHM_NAME_BYTES])
{
    char pattern[400];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/kubeml-%s-????????????????????????????????", test_tmp(),
             job);
    CHECK_INT(glob(pattern, 0, NULL, &found), 0);
    CHECK_INT(found.gl_pathc, 1);
    snprintf(name, SHM_NAME_BYTES, "%s", strrchr(found.gl_pathv[0], '/') + 1);
    globfree(&found);
}

block fixture_block(block_shape s)
{
    void *at =
        mmap(NULL, block_bytes(s), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return block_at(at, s);
}

void fixture_fill(block_shape s, block b, uint64_t seed)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint64_t i = 0; i < s.floats; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        b.floats[i] = (float)((double)(int64_t)x / 9.3e18);
    }
    for (uint64_t i = 0; i < s.counters; i++)
        b.counters[i] = (int64_t)(seed * 100 + i);
}
