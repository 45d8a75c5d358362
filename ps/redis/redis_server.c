/* redis_server.c: see redis_server.h.
 *
 * Between fork and exec only async-signal-safe calls are made: kubeml-ps has threads. The server's
 * configuration is written into a pipe that becomes its standard input. */
#include "redis_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/modelstore/redis_link.h"
#include "common/modelstore/redis_program.h"
#include "redis_config.h"
#include "redis_serve.h"

enum { STOP_MS = 2000, JOIN_PAUSE_MS = 20 };

struct redis_server {
    redis_config config;
    char log[REDIS_SERVER_PATH_BYTES];
    uint64_t address_space_bytes;
    bool outlive;
    bool joined; /* another container's: `line` is a connection that ends with it */
    redis_link *line;
    pid_t pid;  /* -1: not running, or not ours */
    int death;  /* pidfd, -1 */
    int status; /* of waitpid, once it ended */
};

/* ---- the process ----------------------------------------------------------------------------- */

static void limit(int resource, uint64_t bytes)
{
    struct rlimit l = {bytes, bytes};
    if (bytes > 0)
        setrlimit((__rlimit_resource_t)resource, &l);
}

/* In the child: async-signal-safe calls alone. */
__attribute__((noreturn)) static void become_server(const redis_server *r, int in, int log,
                                                    pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    if (!r->outlive) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(126);
    }
    limit(RLIMIT_AS, r->address_space_bytes);
    dup2(in, 0);
    dup2(log, 1);
    dup2(log, 2);
    execlp(r->config.program, "redis-server", "-", (char *)NULL);
    _exit(errno == ENOENT ? 127 : 126);
}

static int spawn(redis_server *r, int in, int log, err *e)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0)
        return err_set_errno(e, errno, "redis: fork");
    if (pid == 0)
        become_server(r, in, log, parent);
    r->pid = pid;
    r->status = 0;
    r->death = pidfd_open(pid, 0);
    if (r->death < 0)
        return err_set_errno(e, errno, "redis: pidfd_open");
    return 0;
}

static int open_log(redis_server *r, err *e)
{
    int fd = open(r->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd >= 0 ? fd : err_set_errno(e, errno, "redis: %s", r->log);
}

/* The configuration is shorter than what a pipe holds: writing it never waits. */
static int feed(redis_server *r, const buf *config, err *e)
{
    int ends[2];
    cleanup_close int log = open_log(r, e);
    if (log < 0)
        return -1;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return err_set_errno(e, errno, "redis: pipe");
    cleanup_close int in = ends[0], out = ends[1];
    if (write(out, config->bytes, config->len) != (ssize_t)config->len)
        return err_set_errno(e, errno, "redis: pipe");
    return spawn(r, in, log, e);
}

static void reap(redis_server *r, bool wait)
{
    if (r->pid < 0)
        return;
    pid_t got;
    do
        got = waitpid(r->pid, &r->status, wait ? 0 : WNOHANG);
    while (got < 0 && errno == EINTR);
    if (got == 0)
        return;
    close(r->death);
    r->death = r->pid = -1;
}

static void kill_now(redis_server *r)
{
    if (r->pid > 0) {
        kill(r->pid, SIGKILL);
        reap(r, true);
    }
}

/* ---- is it there? -------------------------------------------------------------------------- */

static int report_death(redis_server *r, err *e)
{
    char how[ERR_MESSAGE_BYTES];
    reap(r, true);
    redis_server_epitaph(r, how, sizeof how);
    return err_set(e, ERR_CRASHED, "redis-server did not start: %.200s", how);
}

/* Asks again and again, with a pause that the server's death cuts short. */
static int wait_ready(redis_server *r, int64_t deadline_ms, err *e)
{
    int pause_ms = 1;
    for (;;) {
        err last = ERR_INIT;
        if (redis_config_ping(&r->config, deadline_ms, &last) == 0)
            return 0;
        struct pollfd p = {.fd = r->death, .events = POLLIN};
        int left = clock_left_ms(deadline_ms);
        if (poll(&p, 1, pause_ms < left ? pause_ms : left) > 0)
            return report_death(r, e);
        if (clock_left_ms(deadline_ms) == 0) {
            kill_now(r);
            return err_set(e, ERR_TIMEOUT, "redis-server did not answer in time (%.150s)",
                           last.message);
        }
        pause_ms = pause_ms < 20 ? pause_ms * 2 : 20;
    }
}

static int restart_child(redis_server *r, int64_t deadline_ms, err *e)
{
    kill_now(r);
    cleanup_buf buf config;
    buf_init(&config, REDIS_CONFIG_BYTES_MAX);
    unlink(r->config.address + strlen("unix:"));
    if (redis_program_find(r->config.program, e) || redis_config_write(&r->config, &config, e) ||
        feed(r, &config, e)) {
        kill_now(r);
        return -1;
    }
    return wait_ready(r, deadline_ms, e);
}

static int spec_set(redis_server *r, const redis_server_spec *spec, err *e)
{
    snprintf(r->log, sizeof r->log, "%.200s/redis.log", spec->folder);
    r->address_space_bytes = spec->address_space_bytes;
    r->outlive = spec->outlive;
    return redis_config_set(&r->config, spec, e);
}

int redis_server_start(const redis_server_spec *spec, int64_t deadline_ms, redis_server **out,
                       err *e)
{
    redis_server *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "redis: no memory");
    r->pid = r->death = -1;
    int rc = spec_set(r, spec, e);
    if (rc == 0)
        rc = redis_server_password_new(r->config.password, e);
    if (rc == 0 && mkdir(spec->folder, 0700) != 0 && errno != EEXIST)
        rc = err_set_errno(e, errno, "redis: folder %s", spec->folder);
    if (rc != 0 || redis_server_restart(r, deadline_ms, e)) {
        redis_server_stop(r);
        return -1;
    }
    *out = r;
    return 0;
}

/* ---- another container's --------------------------------------------------------------------- */

static int dial_line(redis_server *r, int64_t deadline_ms, err *e)
{
    if (redis_serve_password(r->config.folder, false, r->config.password, e) ||
        redis_link_dial(r->config.address, "default", r->config.password, deadline_ms, &r->line, e))
        return -1;
    return 0;
}

/* It is started again by somebody else; all there is to do is to wait, and to tell it the user. */
static int rejoin(redis_server *r, int64_t deadline_ms, err *e)
{
    redis_link_close(r->line);
    r->line = NULL;
    for (;;) {
        err last = ERR_INIT;
        if (dial_line(r, deadline_ms, &last) == 0 &&
            redis_config_ping(&r->config, deadline_ms, &last) == 0)
            return redis_config_tell_user(&r->config, deadline_ms, e);
        if (clock_left_ms(deadline_ms) == 0)
            return err_set(e, ERR_TIMEOUT,
                           "the container of redis-server did not answer in time (%.150s)",
                           last.message);
        redis_link_close(r->line);
        r->line = NULL;
        poll(NULL, 0, JOIN_PAUSE_MS);
    }
}

int redis_server_join(const redis_server_spec *spec, int64_t deadline_ms, redis_server **out,
                      err *e)
{
    redis_server *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "redis: no memory");
    r->pid = r->death = -1;
    r->joined = true;
    if (spec_set(r, spec, e) || rejoin(r, deadline_ms, e)) {
        redis_server_stop(r);
        return -1;
    }
    *out = r;
    return 0;
}

int redis_server_restart(redis_server *r, int64_t deadline_ms, err *e)
{
    return r->joined ? rejoin(r, deadline_ms, e) : restart_child(r, deadline_ms, e);
}

int redis_server_ping(const redis_server *r, int64_t deadline_ms, err *e)
{
    return redis_config_ping(&r->config, deadline_ms, e);
}

int redis_server_user(redis_server *r, const char *user, const char *password, const char *job,
                      bool module, int64_t deadline_ms, err *e)
{
    if (redis_config_user(&r->config, user, password, job, module, e) ||
        (r->joined && redis_serve_keep_user(r->config.folder, r->config.user, e)))
        return -1;
    return redis_config_tell_user(&r->config, deadline_ms, e);
}

/* ---- facts ---------------------------------------------------------------------------------- */

const char *redis_server_address(const redis_server *r)
{
    return r->config.address;
}

const char *redis_server_password(const redis_server *r)
{
    return r->config.password;
}

pid_t redis_server_pid(const redis_server *r)
{
    return r->pid;
}

int redis_server_death_fd(const redis_server *r)
{
    return r->line ? redis_link_fd(r->line) : r->death;
}

bool redis_server_alive(redis_server *r)
{
    struct pollfd p = {.fd = r->line ? redis_link_fd(r->line) : -1, .events = POLLIN};
    if (r->joined) /* nothing is ever asked on it: what can be read is its end */
        return r->line && poll(&p, 1, 0) == 0;
    reap(r, false);
    return r->pid > 0;
}

void redis_server_kill(const redis_server *r)
{
    if (r->pid > 0) /* not reaped, so the number is still its own */
        kill(r->pid, SIGKILL);
}

/* The last line of the log that is not empty. */
static void last_line(const char *path, char *out, size_t out_bytes)
{
    char tail[1024];
    out[0] = '\0';
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    off_t from = end > (off_t)sizeof tail - 1 ? end - (off_t)sizeof tail + 1 : 0;
    ssize_t n = fd >= 0 ? pread(fd, tail, sizeof tail - 1, from) : 0;
    while (n > 0 && (tail[n - 1] == '\n' || tail[n - 1] == '\r'))
        n--;
    if (n <= 0)
        return;
    tail[n] = '\0';
    const char *line = strrchr(tail, '\n');
    snprintf(out, out_bytes, "%.190s", line ? line + 1 : tail);
}

void redis_server_epitaph(redis_server *r, char *out, size_t out_bytes)
{
    char line[200];
    if (r->joined) {
        snprintf(out, out_bytes, "ended with its container, which the cluster starts again");
        return;
    }
    reap(r, false);
    last_line(r->log, line, sizeof line);
    if (r->pid > 0)
        snprintf(out, out_bytes, "runs");
    else if (WIFSIGNALED(r->status))
        snprintf(out, out_bytes, "ended by signal %d; its last words: %s", WTERMSIG(r->status),
                 line);
    else
        snprintf(out, out_bytes, "ended with status %d; its last words: %s", WEXITSTATUS(r->status),
                 line);
}

void redis_server_stop(redis_server *r)
{
    if (!r)
        return;
    if (!r->joined && redis_server_alive(r)) {
        kill(r->pid, SIGTERM);
        struct pollfd p = {.fd = r->death, .events = POLLIN};
        int64_t deadline = clock_deadline_ms(STOP_MS);
        while (poll(&p, 1, clock_left_ms(deadline)) < 0 && errno == EINTR)
            ;
        kill_now(r);
    }
    if (!r->joined)
        unlink(r->config.address + strlen("unix:"));
    redis_link_close(r->line);
    explicit_bzero(&r->config, sizeof r->config);
    free(r);
}
