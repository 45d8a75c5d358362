/* kubeml-controller.c: the program: options, start, signals, end.
 *
 * HOME holds everything: `store/` (records, blobs, datasets), and `run/`, which is about the
 * present:
 *   run/controller.lock held while a controller runs; a second one on the same HOME ends with an
 *   error
 *   run/controller.pid   its pid; written when the API answers, removed at the end
 *   run/controller.url   where the API answers, written just before; for whoever asked for port 0
 *   run/pool-token, run/pods/  see cluster_local.h
 * Whoever starts it in the background waits for controller.pid, or gives --ready-fd: one line, the
 * URL, is written to that descriptor when the API answers, and it is closed.
 *
 * SIGTERM and SIGINT: no new requests, all pods are stopped, nothing is left running; jobs stay in
 * their records and go on at the next start. kill -9: pods go on and are adopted at the next start.
 * Exit status: 0 after a signal, 1 when it cannot start, 2 for wrong usage. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "cluster_local.h"
#include "controller.h"
#include "failpoint.h"
#include "fs.h"
#include "forward.h"
#include "kube_end.h"
#include "kube_mirror.h"
#include "log.h"
#include "owner.h"
#include "store_watch.h"
#include "sweeper.h"

enum {
    SLOTS_MIN = 4,         /* the default is the number of cores, but four functions always fit */
    SLOTS_MAX = 1024,
    POOL_FUNCTIONS = 4,    /* defaults of the pool's floor */
    POOL_PS = 1,
    DESCRIPTORS = 16384,
    REAP_S = 5,            /* how often idle runtimes of /infer are looked for */
    STOP_REQUESTS_MS = 3000,
    LOST_LOOK_MS = 250, /* how soon a lost lease is noticed */
};

static const char usage_text[] =
    "usage: kubeml-controller [options]\n"
    "The platform's API, scheduler and pool.\n\n"
    "  --listen HOST:PORT     where the API answers (127.0.0.1:10100; port 0: any)\n"
    "  --home DIR             where everything is kept ($KUBEML_HOME, or ~/.kubeml)\n"
    "  --store LOCATOR        records and datasets (lmdb:HOME/store)\n"
    "  --store-file FILE      the same, from a file, where the locator holds a password\n"
    "  --slots N              functions that run at once (cores, at least 4)\n"
    "  --pool-functions N     warm functions to keep (4)\n"
    "  --pool-ps N            warm kubeml-ps to keep (1)\n"
    "  --function-memory N    bytes of address space a function may have (0: no limit)\n"
    "  --gpus WHICH           local: auto, all or none of this machine's GPUs (auto: all, where the CUDA\n"
    "                         engine was built)\n"
    "  --gpu-policy POLICY    where a function goes, of the GPUs here or of those that pods show:\n"
    "                         best-fit, spread or pack (best-fit)\n"
    "  --token-file FILE      callers must send one of the tokens in FILE, one a line, USER:TOKEN or TOKEN;\n"
    "                         may be given several times ($KUBEML_TOKEN: one token)\n"
    "  --cluster KIND         where pods run: local, or kubernetes (local)\n"
    "  --pods FILE            kubernetes: the pod templates, JSON\n"
    "  --context NAME         kubernetes: of the kubeconfig (in a pod: its service account)\n"
    "  --lease NAME           kubernetes: one of several controllers, that of the Lease NAME, leads; the\n"
    "                         others answer too, and hand on to it what is about jobs ($POD_NAME and\n"
    "                         $POD_IP say who this one is)\n"
    "  --end-pods NAME        kubernetes: deletes the pods of the installation NAME, and ends\n"
    "  --end-left             local: ends what a controller that was killed has left running, says how\n"
    "                         many that were, and ends\n"
    "  --pool-token-file FILE the token that warm pods know (made in HOME/run)\n"
    "  --ready-fd N           descriptor that the URL is written to when the API answers\n"
    "  --builder URL          a kubeml-builder that compiles functions, instead of this machine's compiler\n"
    "  --builder-token-file FILE  what it wants to be sent\n"
    "  --no-sandbox           compile functions without bubblewrap (in a container that is one)\n";

typedef struct program {
    controller controller;
    kube_mirror *mirror; /* NULL but on Kubernetes */
    sweeper *sweeper;
    kube_config lease_access;
    const char *lease_name, *end_pods;
    int ready_fd, lock_fd, listen_fd;
    bool sandbox, end_left;
    bool announced; /* the files in run/ are ours */
} program;

/* ---- options --------------------------------------------------------------------------------- */

static int parse_number(const char *text, long long low, long long high, long long *out,
                        const char *name)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (errno || end == text || *end || *out < low || *out > high) {
        fprintf(stderr, "kubeml-controller: --%s must be a number from %lld to %lld\n", name, low,
                high);
        return -1;
    }
    return 0;
}

static int copy_text(char *to, size_t bytes, const char *text, const char *name)
{
    if (strlen(text) >= bytes) {
        fprintf(stderr, "kubeml-controller: --%s is longer than %zu characters\n", name, bytes - 1);
        return -1;
    }
    strcpy(to, text); /* the length was just checked */
    return 0;
}

static int parse_listen(const char *text, controller_config *c)
{
    const char *colon = strrchr(text, ':');
    long long port;
    size_t len = colon ? (size_t)(colon - text) : 0;
    if (len > 1 && text[0] == '[' && text[len - 1] == ']')
        text++, len -= 2;
    if (!colon || len == 0 || len >= sizeof c->host) {
        fprintf(stderr, "kubeml-controller: --listen must be HOST:PORT\n");
        return -1;
    }
    memcpy(c->host, text, len);
    c->host[len] = '\0';
    if (parse_number(colon + 1, 0, 65535, &port, "listen"))
        return -1;
    c->port = (uint16_t)port;
    return 0;
}

/* Of the builder: the first line. */
static int read_token(const char *path, char **out)
{
    cleanup_buf buf text;
    buf_init(&text, 4096);
    err e = ERR_INIT;
    if (fs_read_file(path, &text, &e)) {
        fprintf(stderr, "kubeml-controller: %s\n", e.message);
        return -1;
    }
    size_t len = strcspn(text.bytes ? text.bytes : "", "\r\n");
    free(*out);
    *out = len ? strndup(text.bytes, len) : NULL;
    if (!*out)
        fprintf(stderr, "kubeml-controller: %s holds no token\n", path);
    return *out ? 0 : -1;
}

/* Callers': a list as in tokens.h. */
static int read_tokens(const char *path, tokens **out)
{
    cleanup_buf buf text;
    buf_init(&text, TOKENS_TEXT_BYTES_MAX);
    err e = ERR_INIT;
    if (!*out)
        *out = tokens_new(&e);
    if (!*out || fs_read_file(path, &text, &e)) {
        fprintf(stderr, "kubeml-controller: %s\n", e.message);
        return -1;
    }
    int status = tokens_read(*out, text.bytes ? text.bytes : "", &e);
    if (text.len)
        explicit_bzero(text.bytes, text.len);
    if (status)
        fprintf(stderr, "kubeml-controller: %s: %s\n", path, e.message);
    return status;
}

/* Where no file says which. */
static int take_token(const char *token, tokens **out, err *e)
{
    if (*out || !token || !*token)
        return 0;
    *out = tokens_new(e);
    return *out && tokens_add(*out, "", token, e) == 0 ? 0 : err_wrap(e, "KUBEML_TOKEN");
}

static int read_store_locator(const char *path, controller_config *c)
{
    cleanup_buf buf text;
    buf_init(&text, sizeof c->store_locator - 1);
    err e = ERR_INIT;
    if (fs_read_file(path, &text, &e)) {
        fprintf(stderr, "kubeml-controller: %s\n", e.message);
        return -1;
    }
    size_t len = strcspn(text.bytes ? text.bytes : "", "\r\n");
    snprintf(c->store_locator, sizeof c->store_locator, "%.*s", (int)len,
             text.bytes ? text.bytes : "");
    if (len == 0)
        fprintf(stderr, "kubeml-controller: %s holds no store's locator\n", path);
    return len ? 0 : -1;
}

static void set_defaults(program *p)
{
    controller_config *c = &p->controller.config;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const char *home = getenv("KUBEML_HOME"), *user = getenv("HOME");
    *p = (program){.ready_fd = -1, .lock_fd = -1, .listen_fd = -1, .sandbox = true};
    snprintf(c->host, sizeof c->host, "127.0.0.1");
    c->port = 10100;
    c->cluster = "local";
    c->slots = cores > SLOTS_MIN ? (int)cores : SLOTS_MIN;
    c->pool_functions = POOL_FUNCTIONS;
    c->pool_ps = POOL_PS;
    if (home && *home)
        snprintf(c->home, sizeof c->home, "%s", home);
    else
        snprintf(c->home, sizeof c->home, "%.900s/.kubeml", user && *user ? user : "/root");
}

static int take_gpus(const char *text, controller_config *c)
{
    static const char *const names[] = {"auto", "all", "none"};
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            c->gpus = i;
            return 0;
        }
    fprintf(stderr, "kubeml-controller: --gpus must be auto, all or none\n");
    return -1;
}

static int take_policy(const char *text, controller_config *c)
{
    err e = ERR_INIT;
    if (gpu_policy_parse(text, &c->gpu_policy, &e) == 0)
        return 0;
    fprintf(stderr, "kubeml-controller: --gpu-policy: %s\n", e.message);
    return -1;
}

static int set_option(program *p, int option, const char *value)
{
    controller_config *c = &p->controller.config;
    long long n = 0;
    switch (option) {
    case 'l': return parse_listen(value, c);
    case 'h': return copy_text(c->home, sizeof c->home, value, "home");
    case 'S': return copy_text(c->store_locator, sizeof c->store_locator, value, "store");
    case 't': return read_tokens(value, &c->tokens);
    case 'b': return read_token(value, &c->builder_token);
    case 'B': c->builder_url = value; return 0;
    case 'U': return read_store_locator(value, c);
    case 's':
        if (parse_number(value, 1, SLOTS_MAX, &n, "slots"))
            return -1;
        c->slots = (int)n;
        return 0;
    case 'f':
    case 'p':
        if (parse_number(value, 0, SLOTS_MAX, &n, option == 'f' ? "pool-functions" : "pool-ps"))
            return -1;
        *(option == 'f' ? &c->pool_functions : &c->pool_ps) = (int)n;
        return 0;
    case 'm':
        if (parse_number(value, 0, INT64_MAX, &n, "function-memory"))
            return -1;
        c->function_memory = (uint64_t)n;
        return 0;
    case 'r':
        if (parse_number(value, 0, 1 << 20, &n, "ready-fd"))
            return -1;
        p->ready_fd = (int)n;
        return 0;
    case 'n': p->sandbox = false; return 0;
    case 'g': return take_gpus(value, c);
    case 'G': return take_policy(value, c);
    case 'c': c->cluster = value; return 0;
    case 'P': c->pods_file = value; return 0;
    case 'x': c->context = value; return 0;
    case 'L': p->lease_name = value; return 0;
    case 'T': c->pool_token_file = value; return 0;
    case 'E': p->end_pods = value; return 0;
    case 'e': p->end_left = true; return 0;
    default: return -1;
    }
}

static int parse_options(program *p, int argc, char **argv)
{
    static const struct option known[] = {{"listen", required_argument, NULL, 'l'},
                                          {"home", required_argument, NULL, 'h'},
                                          {"store", required_argument, NULL, 'S'},
                                          {"store-file", required_argument, NULL, 'U'},
                                          {"token-file", required_argument, NULL, 't'},
                                          {"slots", required_argument, NULL, 's'},
                                          {"pool-functions", required_argument, NULL, 'f'},
                                          {"pool-ps", required_argument, NULL, 'p'},
                                          {"function-memory", required_argument, NULL, 'm'},
                                          {"builder", required_argument, NULL, 'B'},
                                          {"builder-token-file", required_argument, NULL, 'b'},
                                          {"gpus", required_argument, NULL, 'g'},
                                          {"gpu-policy", required_argument, NULL, 'G'},
                                          {"ready-fd", required_argument, NULL, 'r'},
                                          {"no-sandbox", no_argument, NULL, 'n'},
                                          {"cluster", required_argument, NULL, 'c'},
                                          {"pods", required_argument, NULL, 'P'},
                                          {"lease", required_argument, NULL, 'L'},
                                          {"end-pods", required_argument, NULL, 'E'},
                                          {"end-left", no_argument, NULL, 'e'},
                                          {"context", required_argument, NULL, 'x'},
                                          {"pool-token-file", required_argument, NULL, 'T'},
                                          {"help", no_argument, NULL, 'H'},
                                          {"version", no_argument, NULL, 'V'},
                                          {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'H' || option == 'V') {
            printf("%s", option == 'H' ? usage_text : "kubeml-controller " KUBEML_VERSION "\n");
            exit(0);
        }
        if (set_option(p, option, optarg))
            return -1;
    }
    if (optind == argc)
        return 0;
    fprintf(stderr, "kubeml-controller: what is \"%s\"?\n", argv[optind]);
    return -1;
}

/* ---- where things are ------------------------------------------------------------------------ */

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

static int lock_home(program *p, err *e)
{
    char path[FS_PATH_BYTES];
    if (fs_path(path, e, "%s/run", p->controller.config.home) || fs_mkdirs(path, 0700, e) ||
        fs_path(path, e, "%s/run/controller.lock", p->controller.config.home))
        return -1;
    p->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (p->lock_fd < 0)
        return err_set_errno(e, errno, "%.200s", path);
    if (flock(p->lock_fd, LOCK_EX | LOCK_NB) == 0)
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

/* In the lease's thread: the main one waits for signals. */
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
    if (kube_mirror_access(c, &p->lease_access, e))
        return -1;
    leader *l = NULL;
    if (leader_start(&p->lease_access, p->lease_name, me, address, wake_main, NULL, &l, e))
        return -1;
    atomic_store(&c->leader, l); /* requests are answered already */
    return 0;
}

/* From here on jobs and pods are ours. */
static int lead(program *p, err *e)
{
    controller *c = &p->controller;
    if (owner_start(c, &c->owner, e))
        return -1;
    atomic_store(&c->leads, true);
    if (strcmp(c->config.cluster, "kubernetes") == 0)
        p->mirror = kube_mirror_start(c);
    log_info("leads");
    return 0;
}

/* ---- start ----------------------------------------------------------------------------------- */

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

static void observe(void *context, const char *method, const char *pattern, unsigned status,
                    double seconds)
{
    controller *c = context;
    char text[8];
    snprintf(text, sizeof text, "%u", status);
    metric_add(c->metrics.http_requests, 1, method, pattern, text);
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
        "code=%d infer=%d upload=%llu model=%llu followers=%d serving=%d log=%d",
        c->slots, c->pool_functions, c->pool_ps, (unsigned long long)c->function_memory,
        HTTP_URI_BYTES_MAX, HTTP_JSON_BYTES_MAX, HTTP_JSON_DEPTH_MAX, CONTROLLER_CODE_BYTES_MAX,
        CONTROLLER_INFER_BYTES_MAX, (unsigned long long)CONTROLLER_UPLOAD_BYTES_MAX,
        (unsigned long long)CONTROLLER_MODEL_BYTES_MAX, OWNER_FOLLOWERS_MAX, OWNER_SERVERS_MAX,
        CONTROLLER_LOG_BYTES_MAX);
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
    if (p->ready_fd < 0)
        return 0;
    ssize_t written = write(p->ready_fd, url, strlen(url));
    close(p->ready_fd);
    return written < 0 ? err_set_errno(e, errno, "--ready-fd") : 0;
}

/* A database that is not there yet, or lets nobody in, is waited for: the API answers meanwhile,
 * and says what is wrong. ERR_CANCELLED when a signal asks for the end. */
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
    if (take_token(getenv("KUBEML_TOKEN"), &c->config.tokens, e) || check_config(&c->config, e) ||
        lock_home(p, e))
        return -1;
    p->listen_fd = http_server_listen(c->config.host, c->config.port, e);
    if (p->listen_fd < 0 || find_programs(&c->config, e) || controller_metrics_open(&c->metrics, e))
        return -1;
    if (!c->config.store_locator[0])
        snprintf(c->config.store_locator, sizeof c->config.store_locator, "lmdb:%.480s/store",
                 c->config.home);
    c->watch = store_watch_new(c);
    if (!c->watch)
        return err_set(e, ERR_NOMEM, "no memory to start");
    /* A database may be long in coming, and that is to be seen; a disk is not: who asks early waits
     * for it. */
    if ((store_watch_is_far(c->watch) && start_http(p, e)) || await_store(p, signals, e))
        return -1;
    c->builder =
        (builder_config){.include_dir = c->config.include_dir,
                         .sandbox = p->sandbox ? BUILDER_SANDBOX_BWRAP : BUILDER_SANDBOX_NONE,
                         .abi = builder_abi(c->config.include_dir)};
    c->infer = infer_open(c);
    if (!c->infer)
        return err_set(e, ERR_NOMEM, "no memory to start");
    bool alone = !p->lease_name || !in_cluster;
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
    kube_mirror_stop(p->mirror);
    store_watch_stop(c->watch); /* it asks the owner */
    sweeper_stop(p->sweeper);
    if (!http_server_stop(c->http, STOP_REQUESTS_MS)) {
        /* Handlers that are still at work stand on all that follows: nothing is given back but to
         * others. */
        owner_leave(c->owner);
        leader_release(c->leader);
        remove_announced(p);
        _exit(status);
    }
    forward_drain();
    owner *o = c->owner;
    c->owner = NULL;
    infer_close(c->infer);
    owner_stop(o, true);
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
            log_error("the lease %s is lost: another controller may lead", p->lease_name);
            _exit(1);
        }
        if (number == SIGTERM || number == SIGINT) {
            log_info("ends by %s", number == SIGTERM ? "SIGTERM" : "SIGINT");
            return 0;
        }
        if (number == SIGUSR1 && c->leader && leader_is_us(c->leader) && !c->owner && lead(p, e))
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
        status = kube_end_pods(&access, p->end_pods, clock_deadline_ms(KUBE_END_LATE_MS),
                               clock_deadline_ms(KUBE_END_MS), &count, &e);
    kube_config_free(&access);
    if (status)
        fprintf(stderr, "kubeml-controller: %s\n", e.message);
    else
        log_info("ended %d pods of %s", count, p->end_pods);
    return status ? 1 : 0;
}

/* As the next controller would take it over, only to end it. */
static int end_left(program *p)
{
    controller_config *c = &p->controller.config;
    cluster_local_config local = {.home = c->home, .bin_dir = c->bin_dir, .token_file = ""};
    cluster *left = NULL;
    size_t known = 0, living = 0;
    err e = ERR_INIT;
    cleanup_free pod *all = calloc(CLUSTER_LOCAL_PODS_MAX, sizeof *all);
    int status = !all ? err_set(&e, ERR_NOMEM, "no memory for the pods")
                 : lock_home(p, &e) || find_programs(c, &e) ||
                         cluster_open("local", &local, &left, &e)
                     ? -1
                     : 0;
    pod ended; /* one that nobody has waited for yet runs no more */
    while (status == 0 && left->ops->next_event(left, &ended, &e) > 0)
        ;
    if (status || left->ops->list(left, all, CLUSTER_LOCAL_PODS_MAX, &known, &e)) {
        fprintf(stderr, "kubeml-controller: %s\n", e.message);
        return 1;
    }
    for (size_t i = 0; i < known && i < CLUSTER_LOCAL_PODS_MAX; i++)
        living += all[i].phase != POD_ENDED;
    left->ops->close(left, true);
    printf("%zu\n", living);
    return 0;
}

int main(int argc, char **argv)
{
    static program p;
    log_open("kubeml-controller");
    mallopt(M_ARENA_MAX, 2); /* many threads that allocate little */
    set_defaults(&p);
    if (parse_options(&p, argc, argv)) {
        fputs("See kubeml-controller --help.\n", stderr);
        return 2;
    }
    if (p.end_pods)
        return end_pods(&p);
    if (p.end_left)
        return end_left(&p);
    raise_descriptors();
    failpoint_open("controller.");
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1); /* the lease is ours */
    sigprocmask(SIG_BLOCK, &signals, NULL); /* before any thread is there */
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
