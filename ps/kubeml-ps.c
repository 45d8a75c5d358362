/* kubeml-ps: drives one job's epochs and rounds, beside a redis-server of its own.
 *
 * It is started generic: Redis runs already when its control address answers, so that a job begins
 * at once. One controller gives it one job; functions dial the same address with the job's secret.
 * The owner thread's loop never blocks: the keeper's and the database's workers do what does. It
 * ends after the job, or on SIGTERM, and leaves no process, socket or segment; killed with -9, its
 * Redis dies too, and the next kubeml-ps of the job removes the segment. In a pod Redis is a
 * container of its own, which this program becomes with --serve-redis. */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/modelstore/shm.h"
#include "common/net/tokens.h"
#include "ps/conn/connections.h"
#include "ps/job/ps_job.h"
#include "ps/redis/redis_serve.h"

enum {
    FIXED_FDS = 4,    /* signals, keeper, nurse, Redis */
    ALONE_MS = 60000, /* after `finished`, without any controller */
    TOKEN_BYTES_MAX = 256,
    STOP_WORKERS_MS = 1500, /* a task that still waits for the model store is left behind */
};

typedef struct options {
    const char *listen, *run_dir, *advertise, *shm_dir;
    const char *serve; /* the folder of the redis-server to become, or NULL */
    const char *ping;  /* of the one to ask, or NULL */
    database_config database;
} options;

typedef struct program {
    options options;
    char folder[FS_PATH_BYTES], module[FS_PATH_BYTES];
    char token[TOKEN_BYTES_MAX];
    job_host host;
    job *job;
    int signals;
    int64_t alone_since_ms; /* INT64_MAX: not alone, or not finished */
    bool ending;
} program;

/* ---- options --------------------------------------------------------------------------------- */

static void usage(FILE *to)
{
    fprintf(to, "usage: kubeml-ps --listen unix:PATH|tcp:HOST:PORT --run-dir DIR [options]\n"
                "Drives the epochs and rounds of one job; started by kubeml-controller.\n\n"
                "  --redis-server PATH    the redis-server to run (default: the one in PATH)\n"
                "  --module PATH          kubeml-redis.so, which merges inside Redis\n"
                "                         (default: ../lib beside this program)\n"
                "  --shm-dir DIR          where segments lie (default: /dev/shm)\n"
                "  --carrier shm|socket   how tensors travel (default: shm)\n"
                "  --redis-listen H:P     Redis listens there too, for --carrier socket\n"
                "  --advertise ADDRESS    where functions dial (default: --listen)\n"
                "  --redis-folder DIR     redis-server is another container's, which shares DIR\n"
                "       kubeml-ps --serve-redis DIR [options]\n"
                "is that container: it becomes the redis-server.\n"
                "       kubeml-ps --ping-redis DIR\n"
                "says by its exit status whether that one answers within 5 s.\n\n"
                "The pool's token is in the file that KUBEML_POOL_TOKEN_FILE names.\n");
}

static int parse_options(int argc, char **argv, options *o)
{
    static const struct option known[] = {{"listen", required_argument, NULL, 'l'},
                                          {"run-dir", required_argument, NULL, 'r'},
                                          {"redis-server", required_argument, NULL, 'p'},
                                          {"module", required_argument, NULL, 'm'},
                                          {"shm-dir", required_argument, NULL, 's'},
                                          {"carrier", required_argument, NULL, 'c'},
                                          {"redis-listen", required_argument, NULL, 'L'},
                                          {"advertise", required_argument, NULL, 'a'},
                                          {"redis-folder", required_argument, NULL, 'R'},
                                          {"serve-redis", required_argument, NULL, 'S'},
                                          {"ping-redis", required_argument, NULL, 'P'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    *o = (options){.shm_dir = SHM_FOLDER};
    int c;
    while ((c = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        switch (c) {
        case 'l':
            o->listen = optarg;
            break;
        case 'r':
            o->run_dir = optarg;
            break;
        case 'p':
            o->database.program = optarg;
            break;
        case 'm':
            o->database.module = optarg;
            break;
        case 's':
            o->shm_dir = optarg;
            break;
        case 'c':
            o->database.socket = strcmp(optarg, "socket") == 0;
            if (o->database.socket || strcmp(optarg, "shm") == 0)
                break;
            fprintf(stderr, "kubeml-ps: --carrier is shm or socket, not %s\n", optarg);
            return -1;
        case 'L':
            o->database.listen = optarg;
            break;
        case 'a':
            o->advertise = optarg;
            break;
        case 'R':
            o->database.folder = optarg;
            o->database.joined = true;
            break;
        case 'S':
            o->serve = optarg;
            break;
        case 'P': o->ping = optarg; break;
        case 'h':
            usage(stdout);
            exit(0);
        default:
            usage(stderr);
            return -1;
        }
    }
    if ((o->serve || o->ping || (o->listen && o->run_dir)) && optind == argc)
        return 0;
    fprintf(stderr, "kubeml-ps: %s\n",
            optind < argc ? "an argument too many"
            : !o->listen  ? "--listen is missing"
                          : "--run-dir is missing");
    usage(stderr);
    return -1;
}

static int read_token(program *p, err *e)
{
    const char *path = getenv("KUBEML_POOL_TOKEN_FILE");
    if (!path || !*path)
        return err_set(e, ERR_INVALID, "KUBEML_POOL_TOKEN_FILE is not set");
    cleanup_buf buf text;
    buf_init(&text, sizeof p->token - 1);
    if (fs_read_file(path, &text, e))
        return -1;
    size_t len = strcspn(text.bytes ? text.bytes : "", "\r\n");
    if (len == 0)
        return err_set(e, ERR_INVALID, "%s is empty", path);
    memcpy(p->token, text.bytes, len);
    p->token[len] = '\0';
    explicit_bzero(text.bytes, text.len);
    return 0;
}

/* kubeml-redis.so lies in ../lib beside the program, wherever it was built or installed. */
static void find_module(program *p)
{
    char self[FS_PATH_BYTES / 2];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (p->options.database.module || len <= 0)
        return;
    self[len] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    snprintf(p->module, sizeof p->module, "%s/../lib/kubeml-redis.so", self);
    if (fs_exists(p->module))
        p->options.database.module = p->module;
}

/* ---- who says what --------------------------------------------------------------------------- */

static void hello(program *p, conn *c, json_t *m)
{
    const char *token = json_string_value(json_object_get(m, "token"));
    bool is_function = json_object_get(m, "function") != NULL;
    if (!token)
        token = "";
    if (is_function && p->job && job_secret_is(p->job, token)) {
        job_hello(p->job, c, m);
        return;
    }
    if (!is_function && tokens_same(token, p->token)) {
        connections_admit(p->host.connections, c, CONN_CONTROLLER);
        connections_send(p->host.connections, c,
                         json_pack("{s:s,s:s,s:i,s:i}", "type", "welcome", "role", "ps", "abi",
                                   WIRE_ABI, "pid", (int)getpid()));
        return;
    }
    log_warn("a hello with a wrong token");
    connections_drop(p->host.connections, c);
}

static void refuse(program *p, conn *c, err_code code, const char *message)
{
    connections_send(
        p->host.connections, c,
        json_pack("{s:s,s:s,s:s}", "type", "refused", "code", err_name(code), "message", message));
}

static void begin_job(program *p, conn *c, const json_t *m)
{
    err e = ERR_INIT;
    if (p->job) {
        refuse(p, c, ERR_CONFLICT, "a job is here already");
        return;
    }
    p->job = job_begin(&p->host, c, m, &e);
    if (!p->job) {
        log_warn("refused a job: %s", e.message);
        refuse(p, c, e.code, e.message);
    }
}

static void from_controller(program *p, conn *c, json_t *m)
{
    const char *type = wire_type(m);
    if (strcmp(type, "job") == 0)
        begin_job(p, c, m);
    else if (strcmp(type, "bye") == 0)
        p->ending = !p->job || job_over(p->job);
    else if (p->job)
        job_from_controller(p->job, c, m);
    else
        refuse(p, c, ERR_NOT_FOUND, "no job is here");
}

static void on_message(void *ctx, conn *c, json_t *m)
{
    program *p = ctx;
    if (c->kind == CONN_CONTROLLER) {
        from_controller(p, c, m);
    } else if (c->kind == CONN_FUNCTION) {
        job_from_function(p->job, c, m);
    } else if (strcmp(wire_type(m), "hello") == 0) {
        hello(p, c, m);
    } else {
        log_warn("a connection begins without a hello");
        connections_drop(p->host.connections, c);
    }
}

static void on_closed(void *ctx, conn *c, const err *why)
{
    program *p = ctx;
    if (c->kind == CONN_STRANGER)
        log_debug("a stranger went: %s", why->message);
    else if (c->kind == CONN_CONTROLLER)
        log_info("a controller's connection ended: %s", why->message);
    if (p->job)
        job_closed(p->job, c, why);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void take_results(program *p)
{
    work *w;
    /* The keeper's first: what the old Redis still did comes before the news of the new one. */
    while ((w = worker_take(p->host.storage_worker)))
        job_task_done(p->job, (task *)w);
    while ((w = worker_take(p->host.nurse)))
        job_database_done(p->job, (database_task *)w);
}

/* A Redis that dies while there is no job is started anew when one comes. */
static void redis_died(program *p)
{
    char words[ERR_MESSAGE_BYTES];
    database_epitaph(p->host.database, words, sizeof words);
    job_database_died(p->job, words);
}

static bool watches_redis(const program *p)
{
    return p->job && !job_over(p->job) && !job_database_busy(p->job);
}

static void watch_end(program *p)
{
    if (!p->job || !(job_over(p->job) || job_refused(p->job)))
        return;
    if (job_refused(p->job)) {
        p->ending = true;
        return;
    }
    if (connections_controllers(p->host.connections) > 0)
        p->alone_since_ms = INT64_MAX;
    else if (p->alone_since_ms == INT64_MAX)
        p->alone_since_ms = clock_monotonic_ms();
    else if (clock_monotonic_ms() >= p->alone_since_ms + ALONE_MS)
        p->ending = true;
}

static int64_t next_deadline(const program *p)
{
    int64_t due = p->job ? job_deadline(p->job) : INT64_MAX;
    if (p->alone_since_ms != INT64_MAX && p->alone_since_ms + ALONE_MS < due)
        due = p->alone_since_ms + ALONE_MS;
    return due;
}

static void turn(program *p)
{
    struct pollfd list[FIXED_FDS + CONNECTIONS_MAX + 1] = {
        {.fd = p->signals, .events = POLLIN},
        {.fd = worker_fd(p->host.storage_worker), .events = POLLIN},
        {.fd = worker_fd(p->host.nurse), .events = POLLIN},
        {.fd = watches_redis(p) ? database_death_fd(p->host.database) : -1, .events = POLLIN}};
    int64_t deadline = next_deadline(p);
    size_t count = connections_prepare(p->host.connections, list + FIXED_FDS, &deadline);
    int ready = poll(list, FIXED_FDS + count, clock_left_ms(deadline));
    if (ready < 0 && errno != EINTR)
        log_error("poll: %s", strerror(errno));
    if (ready < 0)
        return;
    int64_t polled_ms = clock_monotonic_ms();
    if (list[0].revents) {
        log_write(p->job && job_over(p->job) ? LOG_DEBUG : LOG_INFO, "asked to end by a signal");
        p->ending = true;
        return;
    }
    if (list[1].revents || list[2].revents)
        take_results(p);
    if (list[3].revents && watches_redis(p))
        redis_died(p);
    connections_turn(p->host.connections, list + FIXED_FDS, count);
    if (p->job)
        job_tick(p->job, polled_ms);
    watch_end(p);
}

/* ---- begin and end ------------------------------------------------------------------------- */

static int catch_signals(program *p, err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    p->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return p->signals >= 0 ? 0 : err_set_errno(e, errno, "signalfd");
}

static int open_all(program *p, err *e)
{
    static const connections_ops ops = {.message = on_message, .closed = on_closed};
    const options *o = &p->options;
    if (fs_mkdirs(o->run_dir, 0700, e) || fs_path(p->folder, e, "%s/redis", o->run_dir) ||
        fs_remove_tree(p->folder, e) || catch_signals(p, e))
        return -1;
    find_module(p);
    if (!p->options.database.joined)
        p->options.database.folder = p->folder;
    p->options.database.shm_dir = o->shm_dir;
    err why = ERR_INIT;
    p->host.database = database_start(&p->options.database, &why);
    if (why.code)
        log_error("redis-server does not run (yet): %s", why.message);
    if (!p->host.database || !(p->host.storage_worker = worker_start(e)) ||
        !(p->host.nurse = worker_start(e)) ||
        !(p->host.connections = connections_open(o->listen, &ops, p, e)))
        return -1;
    if (!o->advertise)
        return connections_address(p->host.connections, p->host.address, e);
    snprintf(p->host.address, sizeof p->host.address, "%s", o->advertise);
    return 0;
}

/* What a later kubeml-ps of this job begins from is in the store; here nothing stays. */
static void close_all(program *p)
{
    connections_close(p->host.connections);
    if (p->job && job_pings_database(p->job)) /* and may wait for long */
        database_kill(p->host.database);
    bool nursed = worker_stop(p->host.nurse, database_task_drop, STOP_WORKERS_MS);
    bool joined = worker_stop(p->host.storage_worker, task_drop, STOP_WORKERS_MS) && nursed;
    char id[64] = "", shm_dir[FS_PATH_BYTES] = "";
    if (p->job) {
        snprintf(id, sizeof id, "%s", job_id(p->job));
        snprintf(shm_dir, sizeof shm_dir, "%s", job_shm_dir(p->job));
    }
    if (joined)
        job_free(p->job, false);
    if (nursed) /* else it is in use, and our end is Redis's */
        database_stop(p->host.database);
    if (id[0])
        shm_sweep(shm_dir, id);
    err e = ERR_INIT;
    if (p->folder[0] && fs_remove_tree(p->folder, &e))
        log_warn("%s", e.message);
    if (p->options.run_dir)
        rmdir(p->options.run_dir); /* stays when others have put something there */
    if (p->signals >= 0)
        close(p->signals);
    if (!joined) {
        log_warn("a task was left behind");
        _exit(0);
    }
}

static int serve_redis(program *p)
{
    err e = ERR_INIT;
    find_module(p);
    const redis_server_spec spec = {
        .program = p->options.database.program,
        .folder = p->options.serve,
        .module = p->options.database.module,
        .segment_dir = p->options.shm_dir,
        .listen = p->options.database.listen,
        .memory_bytes =
            redis_serve_memory(getenv("KUBEML_REDIS_MEMORY_LIMIT"), "/sys/fs/cgroup/memory.max")};
    redis_serve(&spec, &e);
    log_error("%s", e.message);
    return err_exit_status(e.code);
}

static int ping_redis(const char *folder)
{
    err e = ERR_INIT;
    if (redis_serve_ping(folder, clock_deadline_ms(DATABASE_PING_MS), &e) == 0)
        return 0;
    log_error("redis-server: %s", e.message);
    return err_exit_status(e.code);
}

int main(int argc, char **argv)
{
    static program p = {.signals = -1, .alone_since_ms = INT64_MAX};
    err e = ERR_INIT;
    log_open("kubeml-ps");
    failpoint_open(NULL);
    if (parse_options(argc, argv, &p.options))
        return 2;
    if (p.options.serve)
        return serve_redis(&p);
    if (p.options.ping)
        return ping_redis(p.options.ping);
    failpoint("ps-starts");
    if (read_token(&p, &e) || open_all(&p, &e)) {
        log_error("%s", e.message);
        close_all(&p);
        return err_exit_status(e.code);
    }
    if (p.options.database.joined)
        log_info("listens on %s, redis-server is another container's", p.host.address);
    else if (database_pid(p.host.database) > 0)
        log_info("listens on %s, redis-server is process %d", p.host.address,
                 (int)database_pid(p.host.database));
    else
        log_info("listens on %s, without a redis-server", p.host.address);
    while (!p.ending)
        turn(&p);
    close_all(&p);
    return 0;
}
