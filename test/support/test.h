/* test.h: the unit tests' harness.
 *
 * A test file is one program of several cases. `X --list` prints "name seconds" per case; `X name`
 * runs that case alone and exits 0 (passed), 77 (left out, the reason on stdout) or anything else
 * (failed). test/run.py gives each case its own process, time limit and empty TEST_TMP folder.
 * Without arguments all cases run one after the other, each in a child process. */
#ifndef KUBEML_TEST_H
#define KUBEML_TEST_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

typedef struct test_case {
    const char *name;
    void (*run)(void);
    int limit_s;
    struct test_case *next;
} test_case;

void test_register(test_case *c);
const char *test_name(void); /* of the case that runs, for a function that several cases share */
void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));
void test_skip(const char *reason) __attribute__((noreturn)); /* prints the reason */
const char *test_tmp(void); /* an empty folder of this case's own */
/* A free TCP port of the loopback. It is below the ports that the kernel gives, so that no
 * connection and no port 0 gets it. */
int test_free_port(void);
/* Runs `run` when the case has passed, in its own process, before the libraries' exit handlers; one
 * for each case. */
void test_at_end(void (*run)(void));

#define TEST_LIMIT(case_name, seconds)                                                             \
    static void case_name(void);                                                                   \
    __attribute__((constructor)) static void register_##case_name(void)                           \
    {                                                                                              \
        static test_case c = {#case_name, case_name, seconds, NULL};                               \
        test_register(&c);                                                                         \
    }                                                                                              \
    static void case_name(void)
#define TEST(case_name) TEST_LIMIT(case_name, 20)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            test_fail(__FILE__, __LINE__, "%s", #condition);                                       \
    } while (0)
#define CHECK_INT(got, want)                                                                       \
    do {                                                                                           \
        long long got_ = (long long)(got), want_ = (long long)(want);                              \
        if (got_ != want_)                                                                         \
            test_fail(__FILE__, __LINE__, "%s is %lld, not %lld", #got, got_, want_);              \
    } while (0)
#define CHECK_STR(got, want)                                                                       \
    do {                                                                                           \
        const char *got_ = (got), *want_ = (want);                                                 \
        if (!got_ || strcmp(got_, want_) != 0)                                                     \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", not \"%s\"", #got,                        \
                      got_ ? got_ : "(null)", want_);                                              \
    } while (0)
#define CHECK_CONTAINS(got, part)                                                                  \
    do {                                                                                           \
        const char *got_ = (got), *part_ = (part);                                                 \
        if (!got_ || !strstr(got_, part_))                                                         \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", without \"%s\"", #got,                    \
                      got_ ? got_ : "(null)", part_);                                              \
    } while (0)
#define CHECK_NEAR(got, want, tolerance)                                                           \
    do {                                                                                           \
        double got_ = (double)(got), want_ = (double)(want);                                       \
        if (!(fabs(got_ - want_) <= (double)(tolerance)))                                          \
            test_fail(__FILE__, __LINE__, "%s is %.9g, not %.9g within %g", #got, got_, want_,     \
                      (double)(tolerance));                                                        \
    } while (0)
/* The call returns 0; otherwise the test fails with the error's message. `e` is the call's err. */
#define CHECK_OK(call, e)                                                                          \
    do {                                                                                           \
        if ((call) != 0)                                                                           \
            test_fail(__FILE__, __LINE__, "%s: %s (%s)", #call, (e).message, err_name((e).code));  \
    } while (0)
/* The call returns -1 with that code and a message that contains `part`. */
#define CHECK_ERR(call, e, want_code, part)                                                        \
    do {                                                                                           \
        if ((call) != -1)                                                                          \
            test_fail(__FILE__, __LINE__, "%s did not fail", #call);                               \
        if ((e).code != (want_code))                                                               \
            test_fail(__FILE__, __LINE__, "%s gives %s (%s), not %s", #call, err_name((e).code),   \
                      (e).message, err_name(want_code));                                           \
        CHECK_CONTAINS((e).message, part);                                                         \
    } while (0)

#endif
