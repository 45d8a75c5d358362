/* failpoint.c: see failpoint.h. */
#include "failpoint.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"

enum { WAIT_MS = 60000 };

int failpoint_armed;

static char wanted[64];
static atomic_int left = 1;
static int action = SIGKILL; /* 0: wait */

void failpoint_open(const char *own)
{
    const char *text = getenv("KUBEML_FAILPOINT");
    failpoint_armed = 0;
    if (!text || !*text || (own && strncmp(text, own, strlen(own)) != 0))
        return;
    snprintf(wanted, sizeof wanted, "%s", text);
    char *count = strchr(wanted, ':');
    if (count) {
        *count++ = '\0';
        char *what = strchr(count, ':');
        if (what)
            *what++ = '\0';
        action = !what                       ? SIGKILL
                 : strcmp(what, "stop") == 0 ? SIGSTOP
                 : strcmp(what, "wait") == 0 ? 0
                                             : SIGKILL;
        long n = strtol(count, NULL, 10);
        left = n > 0 && n < 1 << 30 ? (int)n : 1;
    }
    failpoint_armed = 1;
}

/* Whether this process is the one that fires. */
static int claim(void)
{
    const char *path = getenv("KUBEML_FAILPOINT_FILE");
    if (!path || !*path)
        return 1;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return 0;
    dprintf(fd, "%s %d\n", wanted, (int)getpid());
    close(fd);
    return 1;
}

static void await_removal(const char *name)
{
    const char *path = getenv("KUBEML_FAILPOINT_FILE");
    log_warn("failpoint %s: waiting", name);
    for (int64_t until = clock_deadline_ms(WAIT_MS);
         path && access(path, F_OK) == 0 && clock_left_ms(until) > 0;)
        poll(NULL, 0, 5);
}

void failpoint_pass(const char *name)
{
    if (strcmp(name, wanted) != 0 || atomic_fetch_sub(&left, 1) != 1 || !claim())
        return;
    if (!action) {
        await_removal(name);
        return;
    }
    log_warn("failpoint %s: signal %d to myself", name, action);
    /* To this thread: one to the process lets it go on until another has stopped it. */
    raise(action);
}
