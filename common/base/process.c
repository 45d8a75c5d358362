/* process.c: see process.h. */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"

static void child_limit(__rlimit_resource_t what, uint64_t value)
{
    if (!value)
        return;
    /* The soft limit of CPU time sends SIGXCPU, which shows the cause; a second later the hard
     * limit sends SIGKILL. */
    struct rlimit l = {(rlim_t)value, (rlim_t)value + (what == RLIMIT_CPU)};
    if (setrlimit(what, &l) != 0)
        _exit(126);
}

/* Sets up the child and executes the program. Runs between fork and exec, as the guard does: both
 * make only calls that are safe in a child of a process with threads. */
static void child_exec(const process_run *r, pid_t guard, int out_fd, int text_fd, int fail_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guard)
        _exit(126);
    int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(out_fd, 1) < 0 || dup2(text_fd, 2) < 0)
        _exit(126);
    syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    for (size_t i = 0; i < r->keep_count; i++)
        fcntl(r->keep[i], F_SETFD, 0);
    if (chdir(r->folder ? r->folder : "/") != 0)
        _exit(126);
    child_limit(RLIMIT_CPU, (uint64_t)(r->cpu_s > 0 ? r->cpu_s : 0));
    child_limit(RLIMIT_AS, r->memory_bytes);
    child_limit(RLIMIT_FSIZE, r->file_bytes);
    execve(r->argv[0], r->argv, r->envp);
    int code = errno;
    if (write(fail_fd, &code, sizeof code) < 0)
        _exit(126);
    _exit(127);
}

/* Ends this process with the signal or exit status of the program. */
__attribute__((noreturn)) static void end_like(pid_t program)
{
    int status = 0;
    while (waitpid(program, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        kill(getpid(), WTERMSIG(status));
    _exit(WEXITSTATUS(status));
}

/* Runs as the program's parent, in a session and a process group of its own, and kills the whole
 * group when the asking process ends. The program may be bwrap, which ends its child only once that
 * child runs: a bwrap that is killed earlier would leave its child waiting for ever. */
__attribute__((noreturn)) static void guard(const process_run *r, pid_t asker, int out_fd,
                                            int text_fd, int fail_fd)
{
    struct rlimit no_core = {0, 0};
    sigset_t none;
    setsid();
    setrlimit(RLIMIT_CORE, &no_core);
    for (int s = 1; s < 32; s++)
        signal(s, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    pid_t self = getpid(), program = fork();
    if (program == 0)
        child_exec(r, self, out_fd, text_fd, fail_fd);
    syscall(SYS_close_range, 0U, ~0U, 0U); /* the pipes' ends are the program's alone */
    struct pollfd p[2] = {{.fd = pidfd_open(asker, 0), .events = POLLIN},
                          {.fd = program > 0 ? pidfd_open(program, 0) : -1, .events = POLLIN}};
    if (p[0].fd < 0 || p[1].fd < 0 || getppid() != asker)
        kill(0, SIGKILL);
    while (poll(p, 2, -1) < 0)
        ;
    if (p[0].revents)
        kill(0, SIGKILL);
    end_like(program);
}

/* Appends to `last` and drops its beginning beyond PROCESS_RUN_LAST_BYTES. */
static void keep_last(process_run *r, const char *bytes, size_t len)
{
    if (len > PROCESS_RUN_LAST_BYTES) {
        bytes += len - PROCESS_RUN_LAST_BYTES;
        len = PROCESS_RUN_LAST_BYTES;
    }
    size_t room = PROCESS_RUN_LAST_BYTES - len, kept = r->last_len < room ? r->last_len : room;
    memmove(r->last, r->last + r->last_len - kept, kept);
    memcpy(r->last + kept, bytes, len);
    r->last_len = kept + len;
    r->last[r->last_len] = '\0';
}

/* Reads once into `b`. 0 at the end, 1 otherwise; -1 when `b` is full and `strict`. */
static int take(process_run *r, int fd, buf *b, bool strict)
{
    char block[16384];
    ssize_t got = read(fd, block, sizeof block);
    if (got < 0)
        return errno == EINTR || errno == EAGAIN;
    if (got == 0)
        return 0;
    size_t room = b->max - b->len, n = (size_t)got < room ? (size_t)got : room;
    if (n > 0 && buf_append(b, block, n, NULL) != 0)
        return strict ? -1 : 1;
    if (!strict)
        keep_last(r, block + n, (size_t)got - n);
    return strict && n < (size_t)got ? -1 : 1;
}

/* Reads until both pipes are closed or a limit is met. The deadline also ends a program that never
 * stops writing. */
static void collect(process_run *r, int out_fd, int text_fd, buf *out, buf *text)
{
    struct pollfd p[2] = {{out_fd, POLLIN, 0}, {text_fd, POLLIN, 0}};
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        int ready = poll(p, 2, clock_left_ms(r->deadline_ms));
        if (clock_left_ms(r->deadline_ms) == 0) {
            r->timed_out = true;
            return;
        }
        if (ready <= 0)
            continue;
        if (p[0].fd >= 0 && p[0].revents) {
            int more = take(r, p[0].fd, out, true);
            if (more < 0) {
                r->output_over = true;
                return;
            }
            p[0].fd = more ? p[0].fd : -1;
        }
        if (p[1].fd >= 0 && p[1].revents && !take(r, p[1].fd, text, false))
            p[1].fd = -1;
    }
}

/* Waits for the guard's end, and kills it at the deadline (a program may close its outputs and go
 * on). Kills the rest of the process group before reaping: until then no other process can get the
 * pid, which is also the number of the group. */
static void reap(process_run *r, pid_t pid)
{
    cleanup_close int end = pidfd_open(pid, 0);
    struct pollfd p = {.fd = end, .events = POLLIN};
    bool kill_it = r->timed_out || r->output_over || end < 0;
    while (!kill_it && poll(&p, 1, clock_left_ms(r->deadline_ms)) <= 0)
        if (clock_left_ms(r->deadline_ms) == 0)
            kill_it = r->timed_out = true;
    kill(-pid, SIGKILL);
    if (kill_it)
        kill(pid, SIGKILL);
    while (waitpid(pid, &r->status, 0) < 0 && errno == EINTR)
        ;
}

static int start(process_run *r, int out_fd, int text_fd, pid_t *pid, err *e)
{
    int fail[2];
    if (pipe2(fail, O_CLOEXEC) != 0)
        return err_set_errno(e, errno, "pipe");
    pid_t parent = getpid();
    *pid = fork();
    if (*pid < 0) {
        int code = errno;
        close(fail[0]);
        close(fail[1]);
        return err_set_errno(e, code, "cannot start %s", r->argv[0]);
    }
    if (*pid == 0)
        guard(r, parent, out_fd, text_fd, fail[1]);
    close(fail[1]);
    int code = 0;
    ssize_t got;
    do
        got = read(fail[0], &code, sizeof code);
    while (got < 0 && errno == EINTR);
    close(fail[0]);
    if (got == (ssize_t)sizeof code) {
        waitpid(*pid, NULL, 0);
        return err_set_errno(e, code, "cannot run %s", r->argv[0]);
    }
    return 0;
}

int process_run_program(process_run *r, buf *out, buf *text, err *e)
{
    int out_pipe[2], text_pipe[2];
    r->timed_out = r->output_over = false;
    r->last[r->last_len = 0] = '\0';
    if (pipe2(out_pipe, O_CLOEXEC) != 0)
        return err_set_errno(e, errno, "pipe");
    cleanup_close int out_read = out_pipe[0], out_write = out_pipe[1];
    if (pipe2(text_pipe, O_CLOEXEC) != 0)
        return err_set_errno(e, errno, "pipe");
    cleanup_close int text_read = text_pipe[0], text_write = text_pipe[1];
    pid_t pid = -1;
    if (start(r, out_write, text_write, &pid, e) != 0)
        return -1;
    close(steal_fd(out_write));
    close(steal_fd(text_write));
    collect(r, out_read, text_read, out, text);
    reap(r, pid);
    return 0;
}

int builder_memory_file(const void *bytes, size_t len, err *e)
{
    cleanup_close int fd = memfd_create("kubeml-builder", MFD_CLOEXEC);
    if (fd < 0)
        return err_set_errno(e, errno, "memfd");
    for (size_t done = 0; done < len;) {
        ssize_t got = write(fd, (const char *)bytes + done, len - done);
        if (got < 0 && errno != EINTR)
            return err_set_errno(e, errno, "memfd");
        done += got > 0 ? (size_t)got : 0;
    }
    if (lseek(fd, 0, SEEK_SET) != 0)
        return err_set_errno(e, errno, "memfd");
    return steal_fd(fd);
}
