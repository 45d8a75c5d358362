/* test.c: see test.h. */
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static test_case *first, **last = &first;
static const test_case *running;

void test_register(test_case *c)
{
    *last = c;
    last = &c->next;
}

const char *test_name(void)
{
    return running->name;
}

void test_fail(const char *file, int line, const char *fmt, ...)
{
    printf("%s:%d: ", file, line);
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
    fflush(NULL);
    _exit(1);
}

void test_skip(const char *reason)
{
    printf("left out: %s\n", reason);
    fflush(NULL);
    _exit(77);
}

int test_free_port(void)
{
    enum { FIRST = 10000, COUNT = 20000, STRIDE = 7919 };
    static unsigned made; /* other processes begin elsewhere */
    for (int tries = 0; tries < COUNT; tries++) {
        unsigned port = FIRST + ((unsigned)getpid() * STRIDE + made++) % COUNT;
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        int bound = bind(fd, (struct sockaddr *)&at, sizeof at);
        close(fd);
        if (bound == 0)
            return (int)port;
    }
    test_fail(__FILE__, __LINE__, "no port is free");
}

const char *test_tmp(void)
{
    static char path[256];
    if (path[0])
        return path;
    const char *given = getenv("TEST_TMP");
    snprintf(path, sizeof path, "%s", given ? given : "/tmp/kubeml-test-XXXXXX");
    if (!given && !mkdtemp(path))
        test_fail(__FILE__, __LINE__, "mkdtemp: %s", strerror(errno));
    return path;
}

static void (*at_end)(void);

void test_at_end(void (*run)(void))
{
    at_end = run;
}

static void run_case(const test_case *c)
{
    running = c;
    c->run();
    if (at_end)
        at_end();
}

static int run_all(void)
{
    int failed = 0;
    for (test_case *c = first; c; c = c->next) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            alarm((unsigned)c->limit_s);
            run_case(c);
            fflush(NULL);
            exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        bool skipped = WIFEXITED(status) && WEXITSTATUS(status) == 77;
        printf("%s %s\n", passed ? "ok  " : skipped ? "skip" : "FAIL", c->name);
        failed += !passed && !skipped;
    }
    return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 1)
        return run_all();
    for (test_case *c = first; c; c = c->next) {
        if (strcmp(argv[1], "--list") == 0) {
            printf("%s %d\n", c->name, c->limit_s);
        } else if (strcmp(argv[1], c->name) == 0) {
            run_case(c);
            return 0;
        }
    }
    if (strcmp(argv[1], "--list") == 0)
        return 0;
    printf("no case %s\n", argv[1]);
    return 2;
}
