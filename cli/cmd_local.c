/* cmd_local.c: kubeml up | down | status | run: the platform as local processes. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"

enum {
    UP_DEADLINE_MS = 30000,
    DOWN_DEADLINE_MS = 30000,
    LOG_TAIL_BYTES = 1500,
    LOG_MAX_BYTES = 16 << 20, /* from this size on a start begins a new log */
};

static int open_process(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static int make_home(char *log_path, size_t size, err *e)
{
    char home[PATH_MAX];
    snprintf(home, sizeof home, "%s", local_home());
    for (char *at = home + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        mkdir(home, 0755); /* the last mkdir reports an error */
        *at = '/';
    }
    if (mkdir(home, 0700) && errno != EEXIST)
        return err_set_errno(e, errno, "%s", home);
    snprintf(log_path, size, "%s/controller.log", home);
    return 0;
}

typedef struct start {
    const char *log_path;
    pid_t pid;
    int ready_fd;   /* the controller writes its URL there when it serves */
    off_t log_from; /* where this start's part of the log begins */
} start;

/* Executes the controller. It inherits `ready`, which --ready-fd names, and no other descriptor. */
static void run_controller(char **arguments, int log, int ready)
{
    setsid();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    fcntl(ready, F_SETFD, 0);
    execvp(arguments[0], arguments);
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

/* Starts the controller. `arguments` has room for two more words and the end. */
static int start_controller(char **arguments, size_t count, start *s, err *e)
{
    cleanup_close int log = open(s->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0)
        return err_set_errno(e, errno, "%s", s->log_path);
    s->log_from = lseek(log, 0, SEEK_END);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return err_set_errno(e, errno, "pipe");
    s->ready_fd = ends[0];
    cleanup_close int ready = ends[1];
    char number[16];
    snprintf(number, sizeof number, "%d", ready);
    arguments[count] = "--ready-fd";
    arguments[count + 1] = number;
    s->pid = fork();
    if (s->pid < 0)
        return err_set_errno(e, errno, "fork");
    if (s->pid == 0)
        run_controller(arguments, log, ready);
    return 0;
}

/* Prints the end of this start's part of the log. */
static void print_log_end(const start *s)
{
    cleanup_fclose FILE *log = fopen(s->log_path, "rb");
    char text[LOG_TAIL_BYTES + 1];
    if (!log || fseeko(log, 0, SEEK_END))
        return;
    off_t size = ftello(log);
    off_t from = size - s->log_from > LOG_TAIL_BYTES ? size - LOG_TAIL_BYTES : s->log_from;
    if (fseeko(log, from, SEEK_SET))
        return;
    size_t len = fread(text, 1, LOG_TAIL_BYTES, log);
    text[len] = '\0';
    fputs(text, stderr);
}

/* Opens the process that the controller's pid file names; *process is -1 where no controller runs.
 * The file may be stale, and another process may have the number by now. So the pidfd is opened
 * first, which always refers to the same process, and then the process's name is checked. */
static int open_controller(pid_t *pid, int *process, err *e)
{
    char path[PATH_MAX + 32], comm_path[64], comm[32] = "";
    snprintf(path, sizeof path, "%s/run/controller.pid", local_home());
    cleanup_fclose FILE *file = fopen(path, "r");
    long number = 0;
    *process = -1;
    if (!file || fscanf(file, "%ld", &number) != 1 || number <= 1)
        return 0;
    *pid = (pid_t)number;
    *process = open_process(*pid);
    if (*process < 0)
        return errno == ESRCH ? 0 : err_set_errno(e, errno, "controller, pid %ld", number);
    snprintf(comm_path, sizeof comm_path, "/proc/%ld/comm", number);
    cleanup_fclose FILE *about = fopen(comm_path, "r");
    struct pollfd ended = {.fd = *process, .events = POLLIN}; /* readable for a zombie too */
    if (poll(&ended, 1, 0) > 0 || !about || !fgets(comm, sizeof comm, about) ||
        strncmp(comm, "kubeml-control", 14) != 0) {
        close(*process);
        *process = -1;
    }
    return 0;
}

/* Prints that a platform runs in this home already; false: none runs. */
static bool tell_running(void)
{
    char path[PATH_MAX + 32], url[256] = "";
    pid_t pid = 0;
    cleanup_close int process = -1;
    if (open_controller(&pid, &process, NULL) || process < 0)
        return false;
    snprintf(path, sizeof path, "%s/run/controller.url", local_home());
    cleanup_fclose FILE *file = fopen(path, "r");
    if (!file || !fgets(url, sizeof url, file))
        return false;
    url[strcspn(url, "\n")] = '\0';
    fprintf(stderr, "kubeml: the platform is up already at %s (pid %d); `kubeml down` ends it\n",
            url, (int)pid);
    return true;
}

/* Renames a long log, so that a new log begins; not while a controller writes it. */
static void put_log_by(const char *log_path)
{
    char old[PATH_MAX + 40];
    struct stat about;
    pid_t pid = 0;
    cleanup_close int process = -1;
    if (stat(log_path, &about) || about.st_size < LOG_MAX_BYTES)
        return;
    snprintf(old, sizeof old, "%s.old", log_path);
    if (open_controller(&pid, &process, NULL) == 0 && process < 0 && rename(log_path, old))
        fprintf(stderr, "kubeml: %s cannot be renamed: %s\n", log_path, strerror(errno));
}

/* Waits until the controller reports its URL, ends, or the deadline passes. A request to its port
 * would not do, because another platform may have the port. */
static int wait_ready(const start *s, char *url, size_t size)
{
    int64_t deadline = clock_deadline_ms(UP_DEADLINE_MS);
    size_t len = 0;
    while (clock_monotonic_ms() < deadline) {
        struct pollfd said = {.fd = s->ready_fd, .events = POLLIN};
        if (poll(&said, 1, clock_left_ms(deadline)) <= 0)
            continue;
        ssize_t got = read(s->ready_fd, url + len, size - 1 - len);
        len += got > 0 ? (size_t)got : 0;
        url[len] = '\0';
        char *end = strchr(url, '\n');
        if (end) {
            *end = '\0';
            return CLI_OK;
        }
        if (got == 0) {
            int status = 0;
            waitpid(s->pid, &status, 0);
            print_log_end(s);
            bool misused = WIFEXITED(status) && WEXITSTATUS(status) == CLI_USAGE;
            if (misused || !tell_running())
                fprintf(stderr, "kubeml: the controller did not start; its log is %s\n",
                        s->log_path);
            return CLI_FAILED;
        }
    }
    print_log_end(s);
    kill(s->pid, SIGTERM);
    fprintf(stderr, "kubeml: the controller was not ready within %d s; its log is %s\n",
            UP_DEADLINE_MS / 1000, s->log_path);
    return CLI_FAILED;
}

static bool is_listen(const char *text)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    long port = colon && colon > text && colon[1] >= '0' && colon[1] <= '9'
                    ? strtol(colon + 1, &end, 10)
                    : -1;
    return port >= 0 && port <= 65535 && !*end;
}

int cmd_up(cli *c, int argc, char **argv)
{
    const char *listen = "127.0.0.1:10100", *token_file = NULL, *gpus = NULL, *gpu_policy = NULL,
               *function_memory = NULL;
    long slots = 0;
    bool slots_seen = false, foreground = false;
    const cli_option options[] = {
        {"listen", 'l', OPTION_TEXT, "HOST:PORT", "where the API answers (127.0.0.1:10100)",
         &listen, NULL, false, false},
        {"slots", 0, OPTION_INT, "N", "functions that run at once (cores, at least 4)", &slots,
         &slots_seen, false, false},
        {"function-memory", 0, OPTION_TEXT, "SIZE",
         "address space that a function may have, such as 8Gi (no limit)", &function_memory, NULL,
         false, false},
        {"gpus", 0, OPTION_TEXT, "WHICH",
         "auto, all or none of the GPUs (auto: those that answer, with the CUDA engine built)",
         &gpus, NULL, false, false},
        {"gpu-policy", 0, OPTION_TEXT, "POLICY",
         "where a function goes: best-fit, spread or pack (best-fit)", &gpu_policy, NULL, false,
         false},
        {"token-file", 0, OPTION_TEXT, "FILE", "callers must send the token in this file",
         &token_file, NULL, false, false},
        {"foreground", 0, OPTION_FLAG, NULL, "stay, and log to this terminal", &foreground, NULL,
         false, false},
        {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    if (!is_listen(listen))
        return cli_usage(c, "--listen wants HOST:PORT, not \"%s\"", listen);
    if (slots_seen && slots < 1)
        return cli_usage(c, "--slots wants 1 or more, not %ld", slots);
    err e = ERR_INIT;
    char log_path[PATH_MAX + 32], program[PATH_MAX + 64], slots_text[24], url[256];
    if (make_home(log_path, sizeof log_path, &e))
        return cli_fail(&e);
    snprintf(program, sizeof program, "%s", local_program("kubeml-controller"));
    snprintf(slots_text, sizeof slots_text, "%ld", slots);
    const char *const given[][2] = {{"--token-file", token_file},
                                    {"--gpus", gpus},
                                    {"--gpu-policy", gpu_policy},
                                    {"--function-memory", function_memory}};
    char *arguments[20] = {program, "--listen", (char *)listen, "--home", (char *)local_home()};
    size_t count = 5;
    if (slots_seen) {
        arguments[count++] = "--slots";
        arguments[count++] = slots_text;
    }
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (given[i][1]) {
            arguments[count++] = (char *)(uintptr_t)given[i][0];
            arguments[count++] = (char *)(uintptr_t)given[i][1];
        }
    if (foreground) {
        execvp(program, arguments);
        err_set_errno(&e, errno, "%s", program);
        return cli_fail(&e);
    }
    put_log_by(log_path);
    start s = {.log_path = log_path, .ready_fd = -1};
    int status =
        start_controller(arguments, count, &s, &e) ? cli_fail(&e) : wait_ready(&s, url, sizeof url);
    if (s.ready_fd >= 0)
        close(s.ready_fd);
    if (status != CLI_OK)
        return status;
    printf("kubeml is up at %s (pid %d); log: %s\n", url, (int)s.pid, log_path);
    if (strcmp(url, c->url) != 0) /* without it the next command would call another platform */
        printf("export KUBEML_URL=%s\n", url);
    return CLI_OK;
}

/* Ends the pods of a killed controller, which run on so that the next controller may take them
 * over. Sets *count to their number. */
static int end_left(long *count, err *e)
{
    char path[PATH_MAX + 32], program[PATH_MAX + 64], said[24] = "";
    int ends[2], status = -1;
    *count = 0;
    snprintf(path, sizeof path, "%s/run/pods", local_home());
    if (access(path, F_OK))
        return 0;
    snprintf(program, sizeof program, "%s", local_program("kubeml-controller"));
    char *const arguments[] = {program, "--home", (char *)(uintptr_t)local_home(), "--end-left",
                               NULL};
    if (pipe2(ends, O_CLOEXEC))
        return err_set_errno(e, errno, "pipe");
    cleanup_close int from = ends[0], to = ends[1];
    pid_t pid = fork();
    if (pid < 0)
        return err_set_errno(e, errno, "fork");
    if (pid == 0) {
        dup2(to, STDOUT_FILENO);
        execvp(program, arguments);
        _exit(127);
    }
    close(steal_fd(to));
    for (size_t len = 0; len < sizeof said - 1;) {
        ssize_t got = read(from, said + len, sizeof said - 1 - len);
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        len += got > 0 ? (size_t)got : 0;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    *count = atol(said);
    if (status == 0)
        return 0;
    return err_set(e, ERR_IO, "what is left running in %s cannot be ended", local_home());
}

/* Ends the controller and waits for its end; -1: it does not end. */
static int end_controller(pid_t pid, int process, err *e)
{
    if (syscall(SYS_pidfd_send_signal, process, SIGTERM, NULL, 0))
        return err_set_errno(e, errno, "controller, pid %d", (int)pid);
    struct pollfd ended = {.fd = process, .events = POLLIN};
    if (poll(&ended, 1, DOWN_DEADLINE_MS) > 0)
        return 0;
    return err_set(e, ERR_TIMEOUT, "the controller, pid %d, did not end within %d s", (int)pid,
                   DOWN_DEADLINE_MS / 1000);
}

int cmd_down(cli *c, int argc, char **argv)
{
    CLI_PARSE(c, argc, argv, NULL, 0, 0, NULL);
    err e = ERR_INIT;
    pid_t pid = 0;
    cleanup_close int process = -1;
    long left = 0;
    if (open_controller(&pid, &process, &e) ||
        (process >= 0 && end_controller(pid, process, &e)) || end_left(&left, &e))
        return cli_fail(&e);
    if (left)
        printf("ended %ld process%s that a killed controller had left\n", left,
               left == 1 ? "" : "es");
    if (process < 0 && !left)
        printf("no platform runs in %s\n", local_home());
    else
        printf("kubeml is down\n");
    return CLI_OK;
}

static long long number_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

int cmd_status(cli *c, int argc, char **argv)
{
    const char *format = "text";
    const cli_option options[] = {OUTPUT_TEXT(&format), {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    err e = ERR_INIT;
    json_t *about = NULL, *ready = NULL;
    if (cli_call(c, "GET", "/version", NULL, &about, &e))
        return cli_fail(&e);
    bool is_ready = cli_call(c, "GET", "/ready", NULL, &ready, &e) == 0;
    json_t *all = json_pack("{s:s, s:o, s:b, s:o*}", "url", c->url, "version", about, "ready",
                            is_ready, "checks", ready);
    if (strcmp(format, "text") != 0) {
        output_value(all, format);
    } else {
        printf("kubeml %s at %s: %s\n", json_string_value(json_object_get(about, "version")) ?: "?",
               c->url, is_ready ? "ready" : e.message);
        if (json_object_get(ready, "slots")) /* a standby controller may not know the slots */
            printf("jobs: %lld running, %lld queued; slots: %lld of %lld free\n",
                   number_of(ready, "running"), number_of(ready, "queued"),
                   number_of(ready, "slots_free"), number_of(ready, "slots"));
    }
    json_decref(all);
    return is_ready ? CLI_OK : CLI_FAILED;
}

int cmd_run(cli *c, int argc, char **argv)
{
    if (c->documents)
        return CLI_OK; /* the options are kubeml-function's: its help lists them */
    char program[PATH_MAX + 64];
    static char describe[] = "__options";
    snprintf(program, sizeof program, "%s", local_program("kubeml-function"));
    char **arguments = calloc((size_t)argc + 3, sizeof *arguments);
    if (!arguments)
        return CLI_FAILED;
    arguments[0] = program;
    arguments[1] = "run";
    for (int i = 1; i < argc; i++)
        arguments[i + 1] = argv[i];
    if (c->describe && c->before) {
        free(arguments);
        return CLI_OK; /* mostly file names, which the shell completes */
    }
    if (c->describe) {
        arguments[2] = describe;
        arguments[3] = NULL;
    }
    fflush(NULL);
    execvp(program, arguments);
    err e = ERR_INIT;
    err_set_errno(&e, errno, "%s", program);
    free(arguments);
    return cli_fail(&e);
}
