/* cluster_local.c: see cluster_local.h.
 *
 * One thread. A pod's pidfd shows its end; a timer descriptor wakes the thread to kill a pod after
 * its grace. Both are in one epoll descriptor, which is the event_fd. */
#include "cluster_local.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/parallel.h"
#include "common/contract/exit_cause.h"
#include "common/contract/nvml.h"
#include "common/modelstore/redis_program.h"

enum { RECORD_BYTES_MAX = 4096, LOG_TAIL_MAX = 64 << 20, SOCKET_DIR_MAX = 60 };

extern char **environ;

typedef struct local_pod {
    pod seen; /* what the controller sees */
    pid_t pid;
    unsigned long long started; /* of /proc/PID/stat, in ticks since boot */
    int pidfd;                  /* -1 after its end */
    bool child;                 /* of this process, which reaps it; an adopted pod is init's */
    bool asked, killed;         /* by `stop` */
    bool untold;                /* its end is not reported yet */
    int64_t kill_ms;            /* when its grace is over; INT64_MAX */
    struct local_pod *next;
} local_pod;

typedef struct local {
    cluster base;
    char dir[FS_PATH_BYTES]; /* HOME/run/pods */
    char sockets[SOCKET_DIR_MAX + 64];
    char bin_dir[FS_PATH_BYTES], token_file[FS_PATH_BYTES];
    char boot[FS_BOOT_BYTES]; /* the boot in which the records' pids are valid */
    int slots;
    bool gpus, gpus_must;
    int epoll_fd, timer_fd;
    local_pod *pods; /* the youngest first */
    int living, ended;
    long oom_kills; /* of our control group, as last read */
} local;

/* ---- what the kernel reports ----------------------------------------------------------------- */

/* A process's start time; 0 where there is no such process, or only a zombie. */
static unsigned long long start_time(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    cleanup_fclose FILE *f = fopen(path, "re");
    size_t len = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[len] = '\0';
    /* The name may hold any bytes, so fields are counted from its closing bracket: field 3 is the
     * state. */
    char *at = strrchr(text, ')');
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* How many processes of our control group the kernel has killed for memory; -1: unknown. */
static long oom_kill_count(void)
{
    char line[512] = "", path[600];
    cleanup_fclose FILE *own = fopen("/proc/self/cgroup", "re");
    if (!own || !fgets(line, sizeof line, own) || strncmp(line, "0::", 3) != 0)
        return -1;
    line[strcspn(line, "\n")] = '\0';
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.events", line + 3);
    cleanup_fclose FILE *events = fopen(path, "re");
    long count = -1;
    while (events && fgets(line, sizeof line, events))
        if (strncmp(line, "oom_kill ", 9) == 0)
            count = strtol(line + 9, NULL, 10);
    return count;
}

/* ---- files ----------------------------------------------------------------------------------- */

static void pod_path(const local *l, const char *name, const char *suffix, char out[FS_PATH_BYTES])
{
    snprintf(out, FS_PATH_BYTES, "%.900s/%s%s", l->dir, name, suffix);
}

/* Replaces NAME.json. Not synced: after a crash of the machine there is no process to find. */
static int record_write(const local *l, const local_pod *p, err *e)
{
    json_t *record =
        json_pack("{s:s, s:s, s:i, s:I, s:s, s:s, s:s, s:i, s:i}", "name", p->seen.name, "role",
                  p->seen.role == POD_PS ? "ps" : "function", "pid", (int)p->pid, "started",
                  (json_int_t)p->started, "boot", l->boot, "address", p->seen.address, "job",
                  p->seen.job, "function", p->seen.function, "incarnation", p->seen.incarnation);
    cleanup_free char *text = record ? json_dumps(record, JSON_COMPACT) : NULL;
    json_decref(record);
    if (!text)
        return err_set(e, ERR_NOMEM, "no memory for the record of pod %s", p->seen.name);
    char path[FS_PATH_BYTES], fresh[FS_PATH_BYTES];
    pod_path(l, p->seen.name, ".json", path);
    pod_path(l, p->seen.name, ".json.new", fresh);
    cleanup_close int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set_errno(e, errno, "%.200s", fresh);
    if (fs_write_all(fd, text, strlen(text), fresh, e))
        return -1;
    return rename(fresh, path) ? err_set_errno(e, errno, "%.200s", path) : 0;
}

/* A path beside the control sockets, which are short: Redis has its socket there. */
static void socket_path(const local *l, const char *name, const char *suffix, char *out,
                        size_t out_bytes)
{
    snprintf(out, out_bytes, "%s/%s%s", l->sockets, name, suffix);
}

/* Removes what only a living process needs. */
static void sockets_remove(const local *l, const char *name)
{
    char path[FS_PATH_BYTES];
    socket_path(l, name, ".sock", path, sizeof path);
    unlink(path);
    socket_path(l, name, ".d", path, sizeof path);
    err e = ERR_INIT;
    if (fs_remove_tree(path, &e))
        log_warn("%s", e.message);
}

/* Removes a pod's files. The record goes last: where this process dies here, the next controller
 * finds the log only by the record. */
static void files_remove(const local *l, const char *name)
{
    static const char *const suffixes[] = {".log", ".json"};
    char path[FS_PATH_BYTES];
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        pod_path(l, name, suffixes[i], path);
        unlink(path);
    }
    sockets_remove(l, name);
}

/* ---- the list -------------------------------------------------------------------------------- */

static local_pod *find(const local *l, const char *name)
{
    for (local_pod *p = l->pods; p; p = p->next)
        if (strcmp(p->seen.name, name) == 0)
            return p;
    return NULL;
}

static local_pod *pod_new(const char *name, pod_role role)
{
    local_pod *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    snprintf(p->seen.name, sizeof p->seen.name, "%s", name);
    p->seen.role = role;
    p->seen.phase = POD_RUNNING;
    p->seen.function = p->seen.incarnation = -1;
    p->seen.exit_status = -1;
    p->pidfd = -1;
    p->kill_ms = INT64_MAX;
    return p;
}

static void pod_free(local_pod *p)
{
    if (p->pidfd >= 0)
        close(p->pidfd);
    free(p);
}

static void add(local *l, local_pod *p)
{
    p->next = l->pods;
    l->pods = p;
}

/* Forgets an ended pod and its log, unless its end is not reported yet. */
static void forget(local *l, local_pod *gone)
{
    if (gone->untold)
        return;
    for (local_pod **at = &l->pods; *at; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    files_remove(l, gone->seen.name);
    pod_free(gone);
    l->ended--;
}

/* Forgets the oldest pods beyond the limit. */
static void forget_old(local *l)
{
    while (l->ended > CLUSTER_LOCAL_ENDED_MAX) {
        local_pod *oldest = NULL;
        for (local_pod *p = l->pods; p; p = p->next)
            if (p->seen.phase == POD_ENDED && !p->untold)
                oldest = p;
        if (!oldest)
            return;
        forget(l, oldest);
    }
}

static int watch(local *l, local_pod *p, err *e)
{
    p->pidfd = pidfd_open(p->pid, 0);
    if (p->pidfd < 0)
        return err_set_errno(e, errno, "pidfd_open of pod %s", p->seen.name);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = p};
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, p->pidfd, &event))
        return err_set_errno(e, errno, "epoll_ctl for pod %s", p->seen.name);
    return 0;
}

/* ---- starting -------------------------------------------------------------------------------- */

static bool environment_passes(const char *entry)
{
    static const char *const names[] = {"PATH=",
                                        "HOME=",
                                        "LANG=",
                                        "LC_",
                                        "TMPDIR=",
                                        "TZ=",
                                        "LD_LIBRARY_PATH=",
                                        "KUBEML_",
                                        "ASAN_OPTIONS=",
                                        "UBSAN_OPTIONS=",
                                        "TSAN_OPTIONS=",
                                        "LSAN_OPTIONS=",
                                        "OMP_",
                                        "TEST_TMP=",
                                        "CUDA_MPS_PIPE_DIRECTORY=",
                                        "CUDA_MPS_LOG_DIRECTORY=",
                                        "CUDA_MODULE_LOADING=",
                                        "CUDA_CACHE_PATH=",
                                        "NCCL_",
                                        "FAKE_NVML="};
    /* secrets; and NCCL_COMM_ID, one meeting place, which the communicators of all jobs would
     * share */
    static const char *const never[] = {"KUBEML_TOKEN", "KUBEML_POOL_TOKEN", "NCCL_COMM_ID="};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (strncmp(entry, never[i], strlen(never[i])) == 0)
            return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(entry, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* The pod's environment: pointers into our own, and `more`. */
static char **environment_new(char *const *more, size_t more_count)
{
    size_t count = 0;
    while (environ[count])
        count++;
    char **out = calloc(count + more_count + 1, sizeof *out);
    size_t n = 0;
    for (size_t i = 0; out && i < count; i++)
        if (environment_passes(environ[i]))
            out[n++] = environ[i];
    for (size_t i = 0; out && i < more_count; i++)
        out[n++] = more[i];
    return out;
}

static void limit_self(__rlimit_resource_t resource, uint64_t value)
{
    struct rlimit both = {value, value};
    if (value && setrlimit(resource, &both))
        _exit(126);
}

/* Lets the kernel kill functions first when the machine's memory is over: their memory is up to
 * user code. The processes that outlive a function, and the user's other programs, come after
 * them. */
static void go_first(void)
{
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    ssize_t written = file >= 0 ? write(file, "500", 3) : 0;
    (void)written; /* without /proc the kernel chooses by itself */
    if (file >= 0)
        close(file);
}

/* Becomes the pod's program. Runs in the child, with only calls that are safe after fork in a
 * process with threads. The limits apply from the program's first instruction on. */
static void child_exec(const char *log_path, const char *dir, char *const argv[],
                       char *const environment[], const pod_limits *limits, int fail_fd)
{
    setsid();
    sigset_t none;
    sigemptyset(&none);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    int null = open("/dev/null", O_RDONLY);
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (null < 0 || log < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
        dup2(log, STDERR_FILENO) < 0 || chdir(dir))
        goto failed;
    syscall(SYS_close_range, STDERR_FILENO + 1U, ~0U, CLOSE_RANGE_CLOEXEC);
    if (limits->goes_first)
        go_first();
    limit_self(RLIMIT_AS, limits->memory_bytes);
    limit_self(RLIMIT_FSIZE, limits->file_bytes);
    limit_self(RLIMIT_NPROC, (uint64_t)limits->processes);
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(argv[0], argv, environment);
failed:;
    int code = errno;
    ssize_t written = write(fail_fd, &code, sizeof code);
    _exit(written == (ssize_t)sizeof code ? 127 : 126);
}

static int spawn(const local *l, local_pod *p, char *const argv[], char *const environment[],
                 const pod_limits *limits, err *e)
{
    char log_path[FS_PATH_BYTES];
    pod_path(l, p->seen.name, ".log", log_path);
    int fail[2];
    if (pipe2(fail, O_CLOEXEC))
        return err_set_errno(e, errno, "cannot start %.160s", argv[0]);
    p->pid = fork();
    if (p->pid == 0)
        child_exec(log_path, l->dir, argv, environment, limits, fail[1]);
    int code = p->pid < 0 ? errno : 0;
    close(fail[1]);
    /* Ends at once: with the exec, which closes the child's end, or with the child's errno. */
    ssize_t got = 0;
    while (p->pid > 0 && (got = read(fail[0], &code, sizeof code)) < 0 && errno == EINTR)
        ;
    close(fail[0]);
    if (got > 0)
        waitpid(p->pid, NULL, 0);
    return code ? err_set_errno(e, code, "cannot start %.160s", argv[0]) : 0;
}

static int launch(local *l, local_pod *p, const pod_spec *spec, err *e)
{
    char program[FS_PATH_BYTES + 32], token[FS_PATH_BYTES + 32], gpu[CLUSTER_GPU_BYTES + 32];
    static char warm[] = "KUBEML_WARM_GPU=1";
    snprintf(program, sizeof program, "%s/%s", l->bin_dir,
             p->seen.role == POD_PS ? "kubeml-ps" : "kubeml-function");
    snprintf(token, sizeof token, "KUBEML_POOL_TOKEN_FILE=%s", l->token_file);
    snprintf(gpu, sizeof gpu, "CUDA_VISIBLE_DEVICES=%s", spec->gpu);
    char *const more[] = {token, gpu, warm};
    cleanup_free char **environment = environment_new(more, spec->gpu[0] ? 3 : 1);
    if (!environment)
        return err_set(e, ERR_NOMEM, "no memory for pod %s", p->seen.name);
    char run_dir[FS_PATH_BYTES];
    socket_path(l, p->seen.name, ".d", run_dir, sizeof run_dir);
    bool ps = p->seen.role == POD_PS;
    char *argv[] = {program, "--listen", p->seen.address, ps ? "--run-dir" : NULL, run_dir, NULL};
    if (spawn(l, p, argv, environment, &spec->limits, e))
        return -1;
    p->child = true;
    p->started = start_time(p->pid);
    return 0;
}

static int local_start(cluster *c, const pod_spec *spec, pod *out, err *e)
{
    local *l = (local *)c;
    if (find(l, spec->name))
        return err_set(e, ERR_EXISTS, "there is a pod %s already", spec->name);
    if (l->living >= CLUSTER_LOCAL_PODS_MAX)
        return err_set(e, ERR_LIMIT, "%d pods run already", l->living);
    local_pod *p = pod_new(spec->name, spec->role);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for pod %s", spec->name);
    char path[FS_PATH_BYTES];
    socket_path(l, spec->name, ".sock", path, sizeof path);
    snprintf(p->seen.address, sizeof p->seen.address, "unix:%.150s", path);
    /* The record is written before the process exists, without its pid: a controller that dies in
     * between leaves a process that the next one finds by the address among its arguments. */
    if (record_write(l, p, e) || launch(l, p, spec, e) || watch(l, p, e) ||
        record_write(l, p, e)) {
        if (p->pid > 0) {
            kill(-p->pid, SIGKILL);
            waitpid(p->pid, NULL, 0);
        }
        files_remove(l, spec->name);
        pod_free(p);
        return -1;
    }
    add(l, p);
    l->living++;
    *out = p->seen;
    return 0;
}

static int local_assign(cluster *c, const char *name, const char *job, int function,
                        int incarnation, const cluster_gpu *gpu, err *e)
{
    (void)gpu; /* the controller itself knows which GPU it is on */
    local *l = (local *)c;
    local_pod *p = find(l, name);
    if (!p || p->seen.phase == POD_ENDED)
        return err_set(e, ERR_UNAVAILABLE, "there is no pod %s any more", name);
    snprintf(p->seen.job, sizeof p->seen.job, "%s", job);
    p->seen.function = function;
    p->seen.incarnation = incarnation;
    return record_write(l, p, e);
}

/* ---- ending ---------------------------------------------------------------------------------- */

static void arm(local *l)
{
    int64_t next = INT64_MAX;
    for (local_pod *p = l->pods; p; p = p->next)
        next = p->kill_ms < next ? p->kill_ms : next;
    struct itimerspec when = {0};
    if (next != INT64_MAX) {
        when.it_value.tv_sec = next / 1000;
        when.it_value.tv_nsec = next % 1000 * 1000000 + 1;
    }
    timerfd_settime(l->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void send_signal(const local_pod *p, int number)
{
    /* While the leader is not reaped its pid, and so the group's number, stays taken. An adopted
     * pod's process is checked first. */
    if (p->child || start_time(p->pid) == p->started)
        kill(-p->pid, number);
}

static int local_stop(cluster *c, const char *name, int grace_ms, err *e)
{
    (void)e;
    local *l = (local *)c;
    local_pod *p = find(l, name);
    if (!p)
        return 0;
    if (p->seen.phase == POD_ENDED) {
        forget(l, p);
        return 0;
    }
    p->asked = true;
    if (grace_ms > 0) {
        int64_t due = clock_deadline_ms(grace_ms);
        p->kill_ms = due < p->kill_ms ? due : p->kill_ms;
        send_signal(p, SIGTERM);
    } else {
        p->killed = true;
        p->kill_ms = INT64_MAX;
        send_signal(p, SIGKILL);
    }
    arm(l);
    return 0;
}

static void kill_due(local *l)
{
    uint64_t times;
    ssize_t got = read(l->timer_fd, &times, sizeof times);
    (void)got; /* read only to make it unreadable */
    int64_t now = clock_monotonic_ms();
    for (local_pod *p = l->pods; p; p = p->next)
        if (p->kill_ms <= now) {
            p->killed = true;
            p->kill_ms = INT64_MAX;
            send_signal(p, SIGKILL);
        }
    arm(l);
}

/* Sets the reason and the message of a pod's end. */
static void describe(local *l, local_pod *p)
{
    pod *s = &p->seen;
    const char *signal_name = s->signal ? sigabbrev_np(s->signal) : NULL;
    long oom = oom_kill_count();
    bool for_memory = s->signal == SIGKILL && !p->killed && oom > l->oom_kills;
    l->oom_kills = oom;
    const char *reason =
        for_memory ? "OutOfMemory"
                   : exit_cause_reason(s->exit_status, s->signal, s->role == POD_FUNCTION);
    snprintf(s->reason, sizeof s->reason, "%s", reason);
    /* A pod that was about to end before it was asked has another status than a stop makes. */
    bool made = s->signal ? s->signal == SIGTERM || (s->signal == SIGKILL && p->killed)
                          : s->exit_status <= 0;
    s->by_itself = !p->asked || !made;
    const char *who = s->by_itself ? "" : ", as it was asked to";
    if (for_memory)
        snprintf(s->message, sizeof s->message, "killed by the kernel for want of memory");
    else if (s->signal)
        snprintf(s->message, sizeof s->message, "ended by signal %d (SIG%s)%s", s->signal,
                 signal_name ? signal_name : "?", who);
    else if (s->exit_status >= 0)
        snprintf(s->message, sizeof s->message, "exited with status %d%s", s->exit_status, who);
    else
        snprintf(s->message, sizeof s->message,
                 "ended%s; how is not known, an earlier controller had started it", who);
}

static void has_ended(local *l, local_pod *p)
{
    /* Kills the rest of the leader's group. Our child is not reaped yet; an adopted pid may belong
     * to another process by now, and then the pod's group is empty. */
    if (p->child || start_time(p->pid) == 0)
        kill(-p->pid, SIGKILL);
    siginfo_t info = {0};
    if (p->child && waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG) == 0 && info.si_pid) {
        p->seen.exit_status = info.si_code == CLD_EXITED ? info.si_status : -1;
        p->seen.signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    }
    epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, p->pidfd, NULL);
    close(p->pidfd);
    p->pidfd = -1;
    p->kill_ms = INT64_MAX;
    p->seen.phase = POD_ENDED;
    p->untold = true;
    l->living--;
    l->ended++;
    describe(l, p);
    sockets_remove(l, p->seen.name);
}

static int local_event_fd(cluster *c)
{
    return ((local *)c)->epoll_fd;
}

static void take_ends(local *l)
{
    struct epoll_event events[64];
    int count = epoll_wait(l->epoll_fd, events, 64, 0);
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr)
            has_ended(l, events[i].data.ptr);
        else
            kill_due(l);
    }
}

static int local_next_event(cluster *c, pod *out, err *e)
{
    (void)e;
    local *l = (local *)c;
    take_ends(l);
    for (local_pod *p = l->pods; p; p = p->next) {
        if (!p->untold)
            continue;
        p->untold = false;
        *out = p->seen;
        forget_old(l);
        return 1;
    }
    return 0;
}

/* ---- what there is --------------------------------------------------------------------------- */

static int local_list(cluster *c, pod *out, size_t max, size_t *count, err *e)
{
    (void)e;
    *count = 0;
    for (local_pod *p = ((local *)c)->pods; p; p = p->next) {
        if (*count < max)
            out[*count] = p->seen;
        ++*count;
    }
    return 0;
}

static int local_slots(cluster *c, int *out, err *e)
{
    (void)e;
    *out = ((local *)c)->slots;
    return 0;
}

/* Pods have our CPUs: they inherit the set of processors, and are in our control group. */
static int local_cpus(cluster *c)
{
    (void)c;
    return parallel_cores();
}

_Static_assert((int)CLUSTER_GPU_BYTES == (int)NVML_NAME_BYTES,
               "a GPU's name passes from NVML to the cluster");

static int local_gpus(cluster *c, cluster_gpu *out, int max, int *count, err *e)
{
    nvml_gpu gpus[64];
    err why = ERR_INIT;
    *count = 0;
    const local *l = (local *)c;
    if (!l->gpus)
        return 0;
    if (nvml_list(l->gpus_must, gpus, max < 64 ? max : 64, count, &why)) {
        *count = 0;
        if (l->gpus_must)
            return err_set(e, why.code, "--gpus all: %s", why.message);
        /* A machine without NVIDIA's driver has no NVML. */
        log_write(why.code == ERR_NOT_FOUND ? LOG_INFO : LOG_WARN, "no GPU is used: %s",
                  why.message);
    }
    if (l->gpus_must && *count == 0)
        return err_set(e, ERR_UNAVAILABLE, "--gpus all: no GPU of this machine can be used");
    for (int i = 0; i < *count; i++) {
        memcpy(out[i].id, gpus[i].uuid, sizeof out[i].id); /* NUL-terminated, as NVML's */
        out[i].memory_bytes = gpus[i].memory_bytes;
    }
    return 0;
}

static int local_log_tail(cluster *c, const char *name, size_t bytes_max, cluster_log *out, err *e)
{
    local *l = (local *)c;
    char path[FS_PATH_BYTES];
    pod_path(l, name, ".log", path);
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat about;
    if (fd < 0 || fstat(fd, &about))
        return err_set_errno(e, errno, "the log of pod %s", name);
    bytes_max = bytes_max < LOG_TAIL_MAX ? bytes_max : LOG_TAIL_MAX;
    size_t want = (uint64_t)about.st_size < bytes_max ? (size_t)about.st_size : bytes_max;
    uint64_t from = (uint64_t)about.st_size - want;
    cleanup_free char *text = malloc(want + 1);
    if (!text)
        return err_set(e, ERR_NOMEM, "no memory for the log of pod %s", name);
    size_t got = 0;
    if (fs_pread_some(fd, text, want, from, &got, path, e))
        return -1;
    text[got] = '\0';
    *out = (cluster_log){.text = steal_ptr(text), .len = got, .from = from};
    return 0;
}

/* Looks for redis-server in the same PATH as kubeml-ps does. */
static int local_can_run(cluster *c, err *e)
{
    err why = ERR_INIT;
    (void)c;
    return redis_program_find(REDIS_PROGRAM, &why) ? err_set(e, ERR_UNSUPPORTED, "%s", why.message)
                                                   : 0;
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Finds a process with the address among its arguments: a pod whose controller died before it knew
 * the pid. */
static pid_t find_by_address(const char *address)
{
    DIR *proc = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *entry; proc && !found && (entry = readdir(proc));) {
        char path[300], line[1024];
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        cleanup_fclose FILE *f = pid > 1 ? fopen(path, "re") : NULL;
        size_t len = f ? fread(line, 1, sizeof line - 1, f) : 0;
        line[len] = '\0';
        for (size_t at = 0; at < len; at += strlen(line + at) + 1)
            if (strcmp(line + at, address) == 0)
                found = pid;
    }
    if (proc)
        closedir(proc);
    return found;
}

static local_pod *record_parse(const json_t *record)
{
    const char *name, *role, *address, *job;
    json_int_t pid, started;
    int function, incarnation;
    if (json_unpack((json_t *)(uintptr_t)record, "{s:s, s:s, s:I, s:I, s:s, s:s, s:i, s:i}", "name",
                    &name, "role", &role, "pid", &pid, "started", &started, "address", &address,
                    "job", &job, "function", &function, "incarnation", &incarnation))
        return NULL;
    local_pod *p = pod_new(name, strcmp(role, "ps") == 0 ? POD_PS : POD_FUNCTION);
    if (!p)
        return NULL;
    snprintf(p->seen.address, sizeof p->seen.address, "%s", address);
    snprintf(p->seen.job, sizeof p->seen.job, "%s", job);
    p->seen.function = function;
    p->seen.incarnation = incarnation;
    p->pid = (pid_t)pid;
    p->started = (unsigned long long)started;
    return p;
}

/* A record of an earlier version has no boot id, and counts as of this boot. */
static bool is_of_this_boot(const local *l, const json_t *record)
{
    const char *boot = json_string_value(json_object_get(record, "boot"));
    return !boot || strcmp(boot, l->boot) == 0;
}

/* Takes over the pod in a record of an earlier controller, living or not. */
static int adopt(local *l, const char *path, err *e)
{
    cleanup_buf buf text;
    buf_init(&text, RECORD_BYTES_MAX);
    cleanup_json json_t *record = NULL;
    if (fs_read_file(path, &text, e) || json_read(text.bytes, text.len, 4, &record, e))
        return -1;
    local_pod *p = record_parse(record);
    if (!p)
        return err_set(e, ERR_CORRUPT, "not a pod's record");
    if (p->pid == 0) {
        p->pid = find_by_address(p->seen.address);
        p->started = p->pid ? start_time(p->pid) : 0;
    } else if (!is_of_this_boot(l, record)) {
        p->pid = 0; /* the pid, as its group's number, is nobody's or another process's now */
    }
    bool living =
        p->pid > 1 && p->started && start_time(p->pid) == p->started && watch(l, p, e) == 0;
    /* Between start_time and pidfd_open the pid may have passed to another process. */
    if (living && start_time(p->pid) != p->started) {
        living = false;
        close(p->pidfd); /* another process's, whose end does not matter here */
        p->pidfd = -1;
    }
    if (!living) {
        /* The leader is gone. While no process has its pid, the group of that number is its
         * rest. */
        if (p->pid > 1 && start_time(p->pid) == 0)
            kill(-p->pid, SIGKILL);
        p->seen.phase = POD_ENDED;
        p->untold = true;
        describe(l, p);
        l->ended++;
    } else {
        l->living++;
    }
    add(l, p);
    return 0;
}

static int adopt_all(local *l, err *e)
{
    DIR *dir = opendir(l->dir);
    if (!dir)
        return err_set_errno(e, errno, "%.200s", l->dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t len = strlen(entry->d_name);
        char path[FS_PATH_BYTES + 300];
        snprintf(path, sizeof path, "%s/%s", l->dir, entry->d_name);
        err why = ERR_INIT;
        if (len > 9 && strcmp(entry->d_name + len - 9, ".json.new") == 0)
            unlink(path);
        else if (len > 5 && strcmp(entry->d_name + len - 5, ".json") == 0 && adopt(l, path, &why)) {
            log_warn("%s is left out: %s", path, why.message);
            unlink(path);
        }
    }
    closedir(dir);
    return 0;
}

/* Chooses the folder for control sockets: beside the records, or, since a socket's path has at most
 * 107 bytes, a folder of /tmp that no other user can have made. */
static int choose_sockets(local *l, err *e)
{
    if (strlen(l->dir) <= SOCKET_DIR_MAX - 20) {
        snprintf(l->sockets, sizeof l->sockets, "%.*s", SOCKET_DIR_MAX + 60, l->dir);
        return 0;
    }
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (const char *c = l->dir; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    snprintf(l->sockets, sizeof l->sockets, "/tmp/kubeml-%u-%016llx", (unsigned)getuid(),
             (unsigned long long)hash);
    struct stat about;
    if (mkdir(l->sockets, 0700) && errno != EEXIST)
        return err_set_errno(e, errno, "%s", l->sockets);
    if (lstat(l->sockets, &about) || !S_ISDIR(about.st_mode) || about.st_uid != getuid() ||
        (about.st_mode & 077))
        return err_set(e, ERR_FORBIDDEN, "%s is not a folder of ours alone", l->sockets);
    return 0;
}

static bool wait_for_ends(local *l, int64_t deadline)
{
    while (l->living && clock_monotonic_ms() < deadline) {
        struct epoll_event event;
        epoll_wait(l->epoll_fd, &event, 1, clock_left_ms(deadline));
        take_ends(l);
    }
    return l->living == 0;
}

static void stop_living(local *l, int grace_ms)
{
    for (local_pod *p = l->pods; p; p = p->next)
        if (p->seen.phase != POD_ENDED)
            local_stop(&l->base, p->seen.name, grace_ms, NULL);
}

static void stop_all_pods(local *l)
{
    stop_living(l, CLUSTER_LOCAL_CLOSE_MS);
    if (wait_for_ends(l, clock_deadline_ms(CLUSTER_LOCAL_CLOSE_MS)))
        return;
    stop_living(l, 0);
    wait_for_ends(l, clock_deadline_ms(2000));
}

static void local_close(cluster *c, bool stop_all)
{
    local *l = (local *)c;
    if (stop_all)
        stop_all_pods(l);
    for (local_pod *p = l->pods, *next; p; p = next) {
        next = p->next;
        /* the log of a job's pod waits for the next controller */
        if (stop_all && p->seen.phase == POD_ENDED && !p->seen.job[0])
            files_remove(l, p->seen.name);
        pod_free(p);
    }
    if (stop_all && strcmp(l->sockets, l->dir) != 0)
        rmdir(l->sockets);
    if (l->timer_fd >= 0)
        close(l->timer_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    free(l);
}

static const cluster_ops ops = {
    .name = "local",
    .start = local_start,
    .assign = local_assign,
    .stop = local_stop,
    .list = local_list,
    .event_fd = local_event_fd,
    .next_event = local_next_event,
    .slots = local_slots,
    .slots_stay = true,
    .cpus = local_cpus,
    .gpus = local_gpus,
    .log_tail = local_log_tail,
    .can_run = local_can_run,
    .close = local_close,
};

static int open_descriptors(local *l, err *e)
{
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    if (l->epoll_fd < 0 || l->timer_fd < 0 ||
        epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->timer_fd, &event))
        return err_set_errno(e, errno, "epoll and timer");
    return 0;
}

int cluster_local_open(const void *config, cluster **out, err *e)
{
    const cluster_local_config *c = config;
    local *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "no memory for the cluster");
    l->base.ops = &ops;
    l->slots = c->slots;
    l->gpus = c->gpus;
    l->gpus_must = c->gpus_must;
    l->epoll_fd = l->timer_fd = -1;
    l->oom_kills = oom_kill_count();
    fs_boot_id(l->boot);
    l->boot[strcspn(l->boot, "\n")] = '\0';
    snprintf(l->bin_dir, sizeof l->bin_dir, "%s", c->bin_dir);
    snprintf(l->token_file, sizeof l->token_file, "%s", c->token_file);
    if (fs_path(l->dir, e, "%s/run/pods", c->home) || fs_mkdirs(l->dir, 0700, e) ||
        choose_sockets(l, e) || open_descriptors(l, e) || adopt_all(l, e)) {
        local_close(&l->base, false);
        return -1;
    }
    *out = &l->base;
    return 0;
}
