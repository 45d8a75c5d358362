/* kubeml-controller.c: the program: start, signals, end; its options: controller_options.h.
 *
 * HOME holds everything: `store/` (records, blobs, datasets), and `run/`, the present state:
 *   run/controller.lock  held while a controller runs; a second controller on this HOME fails
 *   run/controller.pid   its pid; written when the API answers, removed at the end
 *   run/controller.url   the API's address, written just before; for callers that asked for port 0
 *   run/pool-token, run/pods/  see cluster_local.h
 * A caller that starts it in the background waits for controller.pid, or gives --ready-fd: when the
 * API answers, the controller writes the URL as one line to that descriptor and closes it.
 *
 * SIGTERM and SIGINT: accepts no new requests and stops all pods, so that nothing is left running;
 * jobs stay in their records and go on at the next start. kill -9: pods go on and are adopted at
 * the next start. Exit status: 0 after a signal, 1 when it cannot start, 2 for wrong usage. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "controller/api/forward.h"
#include "controller/api/infer.h"
#include "controller/api/rest.h"
#include "controller/cluster/cluster_local.h"
#include "controller/ha/leading.h"
#include "controller/ha/store_watch.h"
#include "controller/jobs/job_manager.h"
#include "controller/kube/kube_end.h"
#include "controller/operator/operator_start.h"
#include "controller_options.h"
#include "metrics_controller.h"
#include "sweeper.h"

enum {
    DESCRIPTORS = 16384,
    REAP_S = 5, /* how often to look for idle runtimes of /infer */
    STOP_REQUESTS_MS = 3000,
    LOCK_MS = 2000,
    LOST_LOOK_MS = 250, /* how soon a lost lease is noticed */
};

typedef struct program {
    controller controller;
    operator *operator; /* NULL but on Kubernetes */
    sweeper *sweeper;
    kube_config lease_access;
    controller_options options;
    int lock_fd, listen_fd;
    bool announced; /* the files in run/ are this process's */
} program;

/* ---- paths and files ------------------------------------------------------------------------- */

static int find_programs(controller_config *c, err *e)
{
    ssize_t len = readlink("/proc/self/exe", c->bin_dir, sizeof c->bin_dir - 1);
    if (len <= 0)
        return err_set_errno(e, errno, "/proc/self/exe");
    c->bin_dir[len] = '\0';
    *strrchr(c->bin_dir, '/') = '\0';
    static const char *const beside[] = {"../include/kubeml", "../include",
                                         "../../../function-runtime/include"};
    const char *given = getenv("KUBEML_INCLUDE");
    char path[FS_PATH_BYTES];
    if (given && *given)
        snprintf(c->include_dir, sizeof c->include_dir, "%s", given);
    for (size_t i = 0; !c->include_dir[0] && i < sizeof beside / sizeof *beside; i++)
        if (fs_path(path, e, "%s/%s/kubeml.h", c->bin_dir, beside[i]) == 0 && fs_exists(path))
            snprintf(c->include_dir, sizeof c->include_dir, "%.900s/%s", c->bin_dir, beside[i]);
    return 0;
}

/* Takes the lock, and tries for a while: a child that a killed controller had just forked also
 * holds it, until it executes another program. */
static bool take_lock(int fd)
{
    int64_t until = clock_deadline_ms(LOCK_MS);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || clock_left_ms(until) == 0)
            return false;
        poll(NULL, 0, 10);
    }
    return true;
}

static int lock_home(program *p, err *e)
{
    char path[FS_PATH_BYTES];
    if (fs_path(path, e, "%s/run", p->controller.config.home) || fs_mkdirs(path, 0700, e) ||
        fs_path(path, e, "%s/run/controller.lock", p->controller.config.home))
        return -1;
    p->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (p->lock_fd < 0)
        return err_set_errno(e, errno, "%.200s", path);
    if (take_lock(p->lock_fd))
        return 0;
    return err_set(e, ERR_EXISTS, "another controller runs on %.200s", p->controller.config.home);
}

static int write_run_file(const program *p, const char *name, const char *text, err *e)
{
    char path[FS_PATH_BYTES];
    return fs_path(path, e, "%s/run/%s", p->controller.config.home, name) ||
                   fs_write_file(path, text, strlen(text), 0644, e)
               ? -1
               : 0;
}

static void remove_run_file(const program *p, const char *name)
{
    char path[FS_PATH_BYTES];
    if (fs_path(path, NULL, "%s/run/%s", p->controller.config.home, name) == 0)
        unlink(path);
}

/* ---- leading --------------------------------------------------------------------------------- */

/* Called in the lease's thread; the main thread waits for signals. */
static void wake_main(void *context)
{
    (void)context;
    kill(getpid(), SIGUSR1);
}

static int start_leader(program *p, err *e)
{
    controller *c = &p->controller;
    char host[64] = "", me[100], address[KUBE_LEASE_ADDRESS_BYTES];
    const char *name = getenv("POD_NAME"), *ip = getenv("POD_IP");
    ip = ip && *ip ? ip : c->config.host;
    gethostname(host, sizeof host - 1);
    if (name && *name)
        snprintf(me, sizeof me, "%s", name);
    else
        snprintf(me, sizeof me, "%s-%d", host, (int)getpid());
    snprintf(address, sizeof address, strchr(ip, ':') ? "http://[%s]:%u" : "http://%s:%u", ip,
             http_server_port(c->http));
    if (operator_access(c, &p->lease_access, e))
        return -1;
    leader *l = NULL;
    if (leader_start(&p->lease_access, p->options.lease_name, me, address, wake_main, NULL, &l, e))
        return -1;
    atomic_store(&c->leader, l); /* HTTP workers may already read it */
    return 0;
}

/* Begins to lead: from here on jobs and pods are this controller's. */
static int lead(program *p, err *e)
{
    controller *c = &p->controller;
    if (job_manager_start(c, &c->job_manager, e))
        return -1;
    atomic_store(&c->leads, true);
    if (strcmp(c->config.cluster, "kubernetes") == 0)
        p->operator = operator_start(c, controller_may_act);
    log_info("leads");
    return 0;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Takes KUBEML_TOKEN where no file has given tokens. */
static int take_token(const char *token, tokens **out, err *e)
{
    if (*out || !token || !*token)
        return 0;
    *out = tokens_new(e);
    return *out && tokens_add(*out, "", token, e) == 0 ? 0 : err_wrap(e, "KUBEML_TOKEN");
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 ||
           strcmp(host, "::1") == 0;
}

static int check_config(const controller_config *c, err *e)
{
    if (!c->tokens && !is_loopback(c->host))
        return err_set(e, ERR_INVALID,
                       "an API that others can reach (%s) needs a token: --token-file FILE",
                       c->host);
    if (c->builder_url && !c->builder_token)
        return err_set(e, ERR_INVALID, "--builder URL needs --builder-token-file FILE");
    if (strcmp(c->cluster, "kubernetes") == 0 && !c->pods_file)
        return err_set(e, ERR_INVALID, "--cluster kubernetes needs the pod templates: --pods FILE");
    return 0;
}

/* A label for a request's method: only methods of routes. Clients can send any text without a
 * token. */
static const char *known_method(const char *method)
{
    for (size_t i = 0; i < rest_route_count; i++)
        if (strcmp(rest_routes[i].method, method) == 0)
            return method;
    return strcmp(method, "HEAD") == 0 ? method : "other";
}

static void observe(void *context, const char *method, const char *pattern, unsigned status,
                    double seconds)
{
    controller *c = context;
    char text[8];
    method = known_method(method);
    snprintf(text, sizeof text, "%u", status);
    metric_add(c->metrics.http_requests, 1, method, pattern, text);
    if (seconds >= 0)
        metric_observe(c->metrics.http_seconds, seconds, method, pattern, NULL);
}

static int start_http(program *p, err *e)
{
    controller *c = &p->controller;
    http_config config = {.listen_fd = p->listen_fd,       .routes = rest_routes,
                          .route_count = rest_route_count, .context = c,
                          .tokens = c->config.tokens,      .observe = observe,
                          .refuse = rest_refuse,           .divert = forward_divert};
    p->listen_fd = -1;
    return http_server_start(&config, &c->http, e);
}

static int open_store(controller *c, err *e)
{
    store *s = store_open(c->config.store_locator, e);
    if (!s || sweeper_sweep(s, e)) {
        store_close(s);
        return -1;
    }
    c->store = s;
    return 0;
}

static void raise_descriptors(void)
{
    struct rlimit now;
    if (getrlimit(RLIMIT_NOFILE, &now))
        return;
    rlim_t want = now.rlim_max < DESCRIPTORS ? now.rlim_max : DESCRIPTORS;
    if (now.rlim_cur < want) {
        now.rlim_cur = want;
        setrlimit(RLIMIT_NOFILE, &now);
    }
}

static void print_config(const controller_config *c, const char *url)
{
    char where[STORE_LOCATOR_BYTES];
    store_redact(c->store_locator, where);
    log_info("kubeml-controller %s: api=%s home=%s store=%s token=%s", KUBEML_VERSION, url, c->home,
             where, c->tokens ? "yes" : "no");
    log_info(
        "limits: slots=%d pool-functions=%d pool-ps=%d function-memory=%llu uri=%d json=%d json-depth=%d "
        "code=%d infer=%d bodies=%d upload=%llu model=%llu followers=%d serving=%d log=%d logs-held=%d",
        c->slots, c->pool_functions, c->pool_ps, (unsigned long long)c->function_memory,
        HTTP_URI_BYTES_MAX, HTTP_JSON_BYTES_MAX, HTTP_JSON_DEPTH_MAX, CONTROLLER_CODE_BYTES_MAX,
        REQUEST_INFER_BYTES_MAX, HTTP_BODIES_BYTES_MAX,
        (unsigned long long)CONTROLLER_UPLOAD_BYTES_MAX,
        (unsigned long long)CONTROLLER_MODEL_BYTES_MAX, JOB_MANAGER_FOLLOWERS_MAX,
        JOB_MANAGER_SERVERS_MAX, CONTROLLER_LOG_BYTES_MAX, JOB_MANAGER_LOGS_HELD_MAX);
}

static int announce(program *p, err *e)
{
    const controller_config *c = &p->controller.config;
    char url[192], pid[24];
    if (p->announced)
        return 0;
    p->announced = true;
    snprintf(url, sizeof url, strchr(c->host, ':') ? "http://[%s]:%u" : "http://%s:%u", c->host,
             http_server_port(p->controller.http));
    print_config(c, url);
    size_t len = strlen(url);
    url[len] = '\n';
    url[len + 1] = '\0';
    snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (write_run_file(p, "controller.url", url, e) || write_run_file(p, "controller.pid", pid, e))
        return -1;
    if (p->options.ready_fd < 0)
        return 0;
    ssize_t written = write(p->options.ready_fd, url, strlen(url));
    close(p->options.ready_fd);
    return written < 0 ? err_set_errno(e, errno, "--ready-fd") : 0;
}

/* Waits for a database that is not there yet, or refuses the login. The API answers meanwhile, and
 * reports the cause. ERR_CANCELLED when a signal asks for the end. */
static int await_store(program *p, const sigset_t *signals, err *e)
{
    controller *c = &p->controller;
    for (bool first = true;; first = false) {
        err why = ERR_INIT;
        if (store_watch_try(c->watch, &why) == 0 && open_store(c, &why) == 0)
            return 0;
        if (why.code != ERR_UNAVAILABLE && why.code != ERR_FORBIDDEN) {
            *e = why;
            return -1;
        }
        if (first) {
            log_warn("waits for the database: %s", why.message);
            if (announce(p, e))
                return -1;
        }
        struct timespec wait = {STORE_WATCH_EVERY_MS / 1000, 0};
        if (sigtimedwait(signals, NULL, &wait) > 0)
            return err_set(e, ERR_CANCELLED, "asked to end while the database is waited for");
    }
}

static int start(program *p, const sigset_t *signals, err *e)
{
    controller *c = &p->controller;
    bool in_cluster = strcmp(c->config.cluster, "kubernetes") == 0;
    c->started_wall_ms = clock_wall_ms();
    c->uploads.bytes_max = c->config.scratch_max;
    c->uploads.kept_percent = CONTROLLER_DISK_KEPT_PERCENT;
    if (take_token(getenv("KUBEML_TOKEN"), &c->config.tokens, e) || check_config(&c->config, e) ||
        lock_home(p, e))
        return -1;
    p->listen_fd = http_server_listen(c->config.host, c->config.port, e);
    if (p->listen_fd < 0 || find_programs(&c->config, e) || controller_metrics_open(&c->metrics, e))
        return -1;
    if (!c->config.store_locator[0])
        snprintf(c->config.store_locator, sizeof c->config.store_locator, "lmdb:%.480s/store",
                 c->config.home);
    c->watch = store_watch_new(c, job_manager_store_back);
    if (!c->watch)
        return err_set(e, ERR_NOMEM, "no memory to start");
    /* A database may take long, so the API starts before it and reports that. A disk does not:
     * early requests wait for it. */
    if ((store_watch_is_far(c->watch) && start_http(p, e)) || await_store(p, signals, e))
        return -1;
    c->builder = (builder_config){.include_dir = c->config.include_dir,
                                  .sandbox = p->options.sandbox ? BUILDER_SANDBOX_BWRAP
                                                                : BUILDER_SANDBOX_NONE,
                                  .abi = builder_abi(c->config.include_dir)};
    c->infer = infer_open(c);
    if (!c->infer)
        return err_set(e, ERR_NOMEM, "no memory to start");
    store_watch_opened(c->watch); /* lead() writes at once what became of jobs meanwhile */
    bool alone = !p->options.lease_name || !in_cluster;
    if ((alone && lead(p, e)) || (!c->http && start_http(p, e)) || (!alone && start_leader(p, e)))
        return -1;
    if (store_watch_start(c->watch, e))
        return -1;
    p->sweeper = sweeper_start(c, e);
    return p->sweeper ? announce(p, e) : -1;
}

/* ---- end ------------------------------------------------------------------------------------- */

static void remove_announced(const program *p)
{
    if (p->announced) {
        remove_run_file(p, "controller.pid");
        remove_run_file(p, "controller.url");
    }
}

static void stop(program *p, int status)
{
    controller *c = &p->controller;
    operator_stop(p->operator);
    store_watch_stop(c->watch); /* it calls the job manager */
    sweeper_stop(p->sweeper);
    if (!http_server_stop(c->http, STOP_REQUESTS_MS)) {
        /* Handlers that still run use everything below: frees nothing, only ends pods and releases
         * the lease. */
        job_manager_leave(c->job_manager);
        leader_release(c->leader);
        remove_announced(p);
        _exit(status);
    }
    forward_drain();
    job_manager *o = c->job_manager;
    c->job_manager = NULL;
    infer_close(c->infer);
    job_manager_stop(o, true);
    leader_stop(atomic_exchange(&c->leader, NULL));
    kube_config_free(&p->lease_access);
    remove_announced(p);
    store_close(c->store);
    store_watch_free(c->watch);
    if (c->metrics.all)
        metrics_close(c->metrics.all);
    tokens_free(c->config.tokens);
    free(c->config.builder_token);
    if (p->listen_fd >= 0)
        close(p->listen_fd);
    if (p->lock_fd >= 0)
        close(p->lock_fd);
}

static int wait_for_end(program *p, const sigset_t *signals, err *e)
{
    controller *c = &p->controller;
    for (;;) {
        struct timespec wait = {c->leader ? 0 : REAP_S, c->leader ? LOST_LOOK_MS * 1000000L : 0};
        int number = sigtimedwait(signals, NULL, &wait);
        if (c->leader && leader_lost(c->leader)) {
            log_error("the lease %s is lost: another controller may lead", p->options.lease_name);
            _exit(1);
        }
        if (number == SIGTERM || number == SIGINT) {
            log_info("ends by %s", number == SIGTERM ? "SIGTERM" : "SIGINT");
            return 0;
        }
        /* Checks the lease after every wake-up: a lease that was won may have run out before this
         * thread woke, and been renewed since. */
        if (c->leader && leader_is_us(c->leader) && !c->job_manager && lead(p, e))
            return -1;
        if (controller_may_act(c))
            infer_reap(c->infer);
    }
}

static int end_pods(const program *p)
{
    err e = ERR_INIT;
    int count = 0;
    kube_config access = {0};
    int status = kube_config_find(p->controller.config.context, &access, &e);
    if (status == 0)
        status = kube_end_pods(&access, p->options.end_pods, clock_deadline_ms(KUBE_END_LATE_MS),
                               clock_deadline_ms(KUBE_END_MS), &count, &e);
    kube_config_free(&access);
    if (status)
        fprintf(stderr, "kubeml-controller: %s\n", e.message);
    else
        log_info("ended %d pods of %s", count, p->options.end_pods);
    return status ? 1 : 0;
}

/* Takes over the pods of a killed controller as the next controller would, and ends them. */
static int end_left(program *p)
{
    controller_config *c = &p->controller.config;
    cluster_local_config local = {.home = c->home, .bin_dir = c->bin_dir, .token_file = ""};
    cluster *left = NULL;
    size_t known = 0, living = 0;
    err e = ERR_INIT;
    cleanup_free pod *all = NULL;
    int status =
        lock_home(p, &e) || find_programs(c, &e) || cluster_open("local", &local, &left, &e) ? -1
                                                                                             : 0;
    pod ended; /* an ended pod that nobody has waited for yet runs no more */
    while (status == 0 && left->ops->next_event(left, &ended, &e) > 0)
        ;
    if (status || cluster_list(left, &all, &known, &e)) {
        fprintf(stderr, "kubeml-controller: %s\n", e.message);
        return 1;
    }
    for (size_t i = 0; i < known; i++)
        living += all[i].phase != POD_ENDED;
    left->ops->close(left, true);
    printf("%zu\n", living);
    return 0;
}

int main(int argc, char **argv)
{
    static program p = {.lock_fd = -1, .listen_fd = -1};
    log_open("kubeml-controller");
    mallopt(M_ARENA_MAX, 2); /* many threads that allocate little */
    if (controller_options_parse(&p.controller.config, &p.options, argc, argv)) {
        fputs("See kubeml-controller --help.\n", stderr);
        return 2;
    }
    if (p.options.end_pods)
        return end_pods(&p);
    if (p.options.end_left)
        return end_left(&p);
    raise_descriptors();
    failpoint_open("controller.");
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1); /* this controller has won the lease */
    sigprocmask(SIG_BLOCK, &signals, NULL); /* before the first thread */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    err e = ERR_INIT;
    int status = start(&p, &signals, &e);
    if (status == 0)
        status = wait_for_end(&p, &signals, &e);
    if (status && e.code == ERR_CANCELLED) {
        log_info("%s", e.message);
        status = 0;
    }
    if (status)
        fprintf(stderr, "kubeml-controller: %s\n", e.message);
    status = status ? 1 : 0;
    stop(&p, status);
    return status;
}
