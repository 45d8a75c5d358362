/* failpoint.c: see failpoint.h. */
#include "failpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

int failpoint_armed;

static char wanted[64];
static atomic_int left = 1;
static int action = SIGKILL;

void failpoint_open(void)
{
    const char *text = getenv("KUBEML_FAILPOINT");
    failpoint_armed = 0;
    if (!text || !*text)
        return;
    snprintf(wanted, sizeof wanted, "%s", text);
    char *count = strchr(wanted, ':');
    if (count) {
        *count++ = '\0';
        char *what = strchr(count, ':');
        if (what)
            *what++ = '\0';
        action = what && strcmp(what, "stop") == 0 ? SIGSTOP : SIGKILL;
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

void failpoint_pass(const char *name)
{
    if (strcmp(name, wanted) != 0 || atomic_fetch_sub(&left, 1) != 1 || !claim())
        return;
    log_warn("failpoint %s: signal %d to myself", name, action);
    kill(getpid(), action);
}
