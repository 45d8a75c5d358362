/* crash.c: see crash.h. The handler calls only functions that are safe in a signal handler. */
#include "crash.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STACK_BYTES = 64 << 10 };

static char name[96];
static _Atomic(const char *) phase_now = "start";
static atomic_int epoch_now = -1, round_now = -1;
static char stack[STACK_BYTES];
static atomic_int watched; /* the process that is watched, not its children; 0: none */
static atomic_bool tell_status;

static const struct {
    int number;
    const char *text;
} signals[] = {
    {SIGSEGV, "SIGSEGV (it used memory that is not its own)"},
    {SIGBUS, "SIGBUS (memory that is not there)"},
    {SIGFPE, "SIGFPE (an integer division by zero)"},
    {SIGILL, "SIGILL (an instruction this processor lacks, or __builtin_trap)"},
    {SIGTRAP, "SIGTRAP (__builtin_trap, of other processors than x86's)"},
    {SIGABRT, "SIGABRT (abort, or a failed assertion)"},
    {SIGXFSZ, "SIGXFSZ (a file larger than it may be)"},
    {SIGSYS, "SIGSYS (a system call of another architecture)"},
};

void crash_phase(const char *phase, int epoch, int round)
{
    atomic_store(&phase_now, phase);
    atomic_store(&epoch_now, epoch);
    atomic_store(&round_now, round);
}

static size_t put(char *line, size_t at, size_t room, const char *text)
{
    while (*text && at + 1 < room)
        line[at++] = *text++;
    return at;
}

static size_t put_number(char *line, size_t at, size_t room, int n)
{
    char digits[12];
    int i = 0;
    do
        digits[i++] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    while (i > 0 && at + 1 < room)
        line[at++] = digits[--i];
    return at;
}

static void tell(const char *how, const char *what)
{
    char line[320];
    const size_t room = sizeof line;
    size_t at = put(line, 0, room, "error kubeml-function: ");
    at = put(line, at, room, name);
    at = put(line, at, room, how);
    at = put(line, at, room, what);
    at = put(line, at, room, " while it did: ");
    at = put(line, at, room, atomic_load(&phase_now));
    int epoch = atomic_load(&epoch_now), round = atomic_load(&round_now);
    if (epoch >= 0) {
        at = put(line, at, room, ", epoch ");
        at = put_number(line, at, room, epoch + 1);
    }
    if (round >= 0) {
        at = put(line, at, room, ", round ");
        at = put_number(line, at, room, round + 1);
    }
    line[at++] = '\n';
    ssize_t wrote = write(STDERR_FILENO, line, at);
    (void)wrote;
}

static void handle(int number)
{
    const char *text = "a signal";
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i].number == number)
            text = signals[i].text;
    tell(" crashed with ", text);
    /* The kernel does not deliver raised signals to the first process of a container. */
    if (getpid() == 1) {
        crash_over();
        _exit(128 + number);
    }
    /* The signal has its default action again (SA_RESETHAND): a fault happens again on return. */
    raise(number);
}

/* Whether an end with this status writes the line. A status other than 0 does not, unless
 * crash_tell_status was called: the code's own output stays the last in the log. */
static bool told(int status)
{
    return atomic_load(&watched) == getpid() && ((status & 0xff) == 0 || atomic_load(&tell_status));
}

int crash_status(int status)
{
    char digits[12];
    if (!told(status))
        return status;
    crash_over(); /* only one line: exit comes here, and so does the _exit at its end */
    digits[put_number(digits, 0, sizeof digits, status & 0xff)] = '\0';
    tell(" ended the process with exit status ", digits);
    return (status & 0xff) == 0 ? 1 : status;
}

static void left(int status, void *arg)
{
    (void)arg;
    if (!told(status))
        return;
    fflush(NULL); /* the code's own output comes before the line */
    _exit(crash_status(status));
}

void crash_tell_status(void)
{
    atomic_store(&tell_status, true);
}

void crash_over(void)
{
    atomic_store(&watched, 0);
}

void crash_watch(const char *who)
{
    static atomic_bool known;
    snprintf(name, sizeof name, "%s", who);
    atomic_store(&watched, getpid());
    if (!atomic_exchange(&known, true))
        on_exit(left, NULL);
    stack_t s = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&s, NULL);
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = handle;
    a.sa_flags = SA_ONSTACK | (int)SA_RESETHAND;
    sigemptyset(&a.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i].number, &a, NULL);
}
