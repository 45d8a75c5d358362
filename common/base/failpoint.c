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

static struct place {
    const char *name;
    atomic_int left;
    int action; /* 0: wait */
} places[4];
static int place_count;

static void arm(char *text)
{
    char *count = strchr(text, ':');
    char *what = count ? strchr(count + 1, ':') : NULL;
    if (what)
        *what++ = '\0';
    if (count)
        *count++ = '\0';
    long n = count ? strtol(count, NULL, 10) : 1;
    struct place *p = &places[place_count++];
    p->name = text;
    p->left = n > 0 && n < 1 << 30 ? (int)n : 1;
    p->action = what && strcmp(what, "stop") == 0   ? SIGSTOP
                : what && strcmp(what, "wait") == 0 ? 0
                                                    : SIGKILL;
}

void failpoint_open(const char *own)
{
    static char wanted[160];
    const char *text = getenv("KUBEML_FAILPOINT");
    char *rest = NULL;
    place_count = 0;
    snprintf(wanted, sizeof wanted, "%s", text ? text : "");
    for (char *at = strtok_r(wanted, ",", &rest);
         at && place_count < (int)(sizeof places / sizeof *places);
         at = strtok_r(NULL, ",", &rest))
        if (!own || strncmp(at, own, strlen(own)) == 0)
            arm(at);
    failpoint_armed = place_count > 0;
}

/* Whether this process fires: it created the file, or there is no file to create. */
static int claim(const char *name)
{
    const char *path = getenv("KUBEML_FAILPOINT_FILE");
    if (!path || !*path)
        return 1;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return 0;
    dprintf(fd, "%s %d\n", name, (int)getpid());
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
    for (int i = 0; i < place_count; i++) {
        struct place *p = &places[i];
        if (strcmp(name, p->name) != 0 || atomic_fetch_sub(&p->left, 1) != 1 || !claim(name))
            continue;
        if (!p->action) {
            await_removal(name);
            continue;
        }
        log_warn("failpoint %s: signal %d to myself", name, p->action);
        /* To this thread: a signal to the process may reach another thread, and this thread would
         * run on until that thread stops the process. */
        raise(p->action);
    }
}
