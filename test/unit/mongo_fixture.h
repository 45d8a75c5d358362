/* mongo_fixture.h: for tests of MongoDB alone: a store at a locator, a line to the server that can
 * be cut, and the contents of a store. */
#ifndef KUBEML_MONGO_FIXTURE_H
#define KUBEML_MONGO_FIXTURE_H

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "stores.h"

static inline store *open_at(const char *locator)
{
    err e = ERR_INIT;
    store *s = store_open(locator, &e);
    if (!s)
        test_fail(__FILE__, __LINE__, "%s", e.message);
    return s;
}

static inline int put(store *s, const char *key, int value, uint64_t expected, err *e)
{
    json_t *json = json_pack("{s:i}", "value", value);
    int result = store_put(s, "things", key, json, expected, NULL, e);
    json_decref(json);
    return result;
}

static inline void check_blob(store *s, const char *name, const char *text)
{
    err e = ERR_INIT;
    cleanup_buf buf bytes;
    buf_init(&bytes, 1000);
    CHECK_OK(store_blob_read(s, name, &bytes, &e), e);
    CHECK_INT(bytes.len, strlen(text));
    CHECK(memcmp(bytes.bytes, text, bytes.len) == 0);
}

/* ---- a line that can be cut ---------------------------------------------------------------- */

/* Forwards connections to the server; `open` says whether it takes them, and closing it ends those
 * that are there. */
typedef struct line {
    int listener, port;
    uint16_t to;
    char host[64];
    pthread_t thread;
    int wake[2];
    bool open, ending; /* read and written atomically */
    /* Read and written atomically: these commands on this collection end their connection, before
     * the server has them (`deaf`) or when it has answered. NULL: none. */
    const char *command, *lose;
    bool deaf;
    /* messages that write; those that do not ask for a majority and its journals */
    unsigned writes, lax;
    size_t given; /* bytes of the server's answers */
} line;

enum { PAIRS = 32 };

static inline int dial(const line *l)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(l->to)};
    CHECK_INT(inet_pton(AF_INET, l->host, &at.sin_addr), 1);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A message that begins here: OP_MSG, its flags, and the command's document, whose first field is
 * its name. */
static inline void look_at(line *l, const char *bytes, size_t len)
{
    static const char *const writers[] = {"insert", "update", "delete", "findAndModify"};
    int32_t code;
    if (len < 48)
        return;
    memcpy(&code, bytes + 12, sizeof code);
    for (size_t i = 0; code == 2013 && i < sizeof writers / sizeof *writers; i++)
        if (strncmp(bytes + 26, writers[i], len - 26) == 0) {
            bool good = memmem(bytes, len, "w\0\x09\0\0\0majority", 14) &&
                        memmem(bytes, len, "\x08j\0\x01", 4);
            __atomic_add_fetch(&l->writes, 1, __ATOMIC_RELAXED);
            __atomic_add_fetch(&l->lax, !good, __ATOMIC_RELAXED);
        }
}

/* Is it the command that is to be lost? */
static inline bool is_lost(const line *l, const char *bytes, size_t len)
{
    enum { COMMAND = 26 };
    const char *lose = __atomic_load_n(&l->lose, __ATOMIC_ACQUIRE);
    if (!lose)
        return false;
    const char *command = __atomic_load_n(&l->command, __ATOMIC_ACQUIRE);
    size_t name = strlen(command) + 1;
    size_t collection = COMMAND + name + 4; /* behind a length */
    return len > collection + strlen(lose) && memcmp(bytes + COMMAND, command, name) == 0 &&
           memcmp(bytes + collection, lose, strlen(lose) + 1) == 0;
}

static inline bool forward(line *l, bool asks, int from, int to)
{
    static __thread char bytes[1 << 16];
    ssize_t len = read(from, bytes, sizeof bytes);
    if (asks && len > 0)
        look_at(l, bytes, (size_t)len);
    bool lost = asks && len > 0 && is_lost(l, bytes, (size_t)len);
    if (lost && __atomic_load_n(&l->deaf, __ATOMIC_ACQUIRE))
        return false;
    if (!asks && len > 0)
        __atomic_add_fetch(&l->given, (size_t)len, __ATOMIC_RELAXED);
    for (ssize_t at = 0, part; at < len; at += part)
        if ((part = write(to, bytes + at, (size_t)(len - at))) <= 0)
            return false;
    if (lost)
        return read(to, bytes, sizeof bytes) < 0; /* it is done, and nobody hears of it */
    return len > 0;
}

static inline void *run_line(void *arg)
{
    line *l = arg;
    struct pollfd fds[2 + 2 * PAIRS];
    int ends[2 * PAIRS], pairs = 0;
    while (!__atomic_load_n(&l->ending, __ATOMIC_ACQUIRE)) {
        fds[0] = (struct pollfd){l->listener, POLLIN, 0};
        fds[1] = (struct pollfd){l->wake[0], POLLIN, 0};
        for (int i = 0; i < 2 * pairs; i++)
            fds[2 + i] = (struct pollfd){ends[i], POLLIN, 0};
        poll(fds, (nfds_t)(2 + 2 * pairs), -1);
        bool open = __atomic_load_n(&l->open, __ATOMIC_ACQUIRE);
        char c;
        if (fds[1].revents && read(l->wake[0], &c, 1) != 1)
            break;
        int had = pairs;
        if (fds[0].revents) {
            int in = accept(l->listener, NULL, NULL), out = open && pairs < PAIRS ? dial(l) : -1;
            if (in >= 0 && out >= 0) {
                ends[2 * pairs] = in;
                ends[2 * pairs++ + 1] = out;
            } else {
                close(in);
            }
        }
        for (int i = had - 1; i >= 0; i--) {
            bool good = open;
            for (int k = 0; k < 2 && good; k++)
                if (fds[2 + 2 * i + k].revents)
                    good = forward(l, k == 0, ends[2 * i + k], ends[2 * i + 1 - k]);
            if (!good) {
                close(ends[2 * i]);
                close(ends[2 * i + 1]);
                pairs--;
                ends[2 * i] = ends[2 * pairs];
                ends[2 * i + 1] = ends[2 * pairs + 1];
            }
        }
    }
    for (int i = 0; i < 2 * pairs; i++)
        close(ends[i]);
    return NULL;
}

static inline void set_line(line *l, bool open)
{
    __atomic_store_n(&l->open, open, __ATOMIC_RELEASE);
    CHECK_INT(write(l->wake[1], "x", 1), 1);
}

/* Opens a line to the server under test and gives the locator that goes through it. */
static inline void make_line(line *l, const char *locator, const char *options, char out[800])
{
    *l = (line){.open = true};
    char rest[400];
    unsigned port;
    const char *begin = locator + strlen("mongodb://"), *at_sign = strchr(begin, '@');
    const char *hosts = at_sign ? at_sign + 1 : begin;
    if (sscanf(hosts, "%63[0-9.]:%u/%399[^\n]", l->host, &port, rest) != 3)
        test_skip("the line needs a server at one address of IPv4");
    l->to = (uint16_t)port;
    l->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    CHECK_INT(bind(l->listener, (struct sockaddr *)&at, len), 0);
    CHECK_INT(listen(l->listener, 16), 0);
    CHECK_INT(getsockname(l->listener, (struct sockaddr *)&at, &len), 0);
    CHECK_INT(pipe(l->wake), 0);
    signal(SIGPIPE, SIG_IGN);
    CHECK_INT(pthread_create(&l->thread, NULL, run_line, l), 0);
    snprintf(out, 800, "mongodb://%.*s127.0.0.1:%d/%s&serverSelectionTimeoutMS=300&%s",
             (int)(hosts - begin), begin, ntohs(at.sin_port), rest, options);
}

static inline void end_line(line *l)
{
    __atomic_store_n(&l->ending, true, __ATOMIC_RELEASE);
    set_line(l, false);
    pthread_join(l->thread, NULL);
    close(l->listener);
    close(l->wake[0]);
    close(l->wake[1]);
}

#endif
