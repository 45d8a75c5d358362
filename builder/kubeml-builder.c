/* kubeml-builder.c: compiles uploaded functions where the controller has no compiler. It runs in a
 * pod of its own, which is the sandbox.
 *
 * POST /build and /fit, see builder_remote.h; GET /health. The program removes its token from the
 * environment, and no other process may read its memory: a source that includes /proc/1/environ
 * gets nothing. Besides, the pod has only the compiler, the SDK's headers and kubeml-function.
 * Sources and objects are in TMPDIR during their build. Exit status: 0 after a signal, 1 when it
 * cannot start, 2 for wrong usage. */
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "common/compile/builder_remote.h"
#include "common/net/http_server.h"

enum {
    WORKERS = 4, /* at most half of them build at once */
    STOP_MS = 2000,
};

static const char usage_text[] =
    "usage: kubeml-builder [--listen HOST:PORT]\n"
    "Compiles functions for kubeml-controller --builder, and asks them what samples they take.\n\n"
    "  --listen HOST:PORT     where it answers (127.0.0.1:10300; port 0: any)\n"
    "  --include DIR          the folder of kubeml.h (beside the program)\n"
    "  --ready-fd N           descriptor that the URL is written to when it answers\n\n"
    "environment: KUBEML_BUILDER_TOKEN, what callers must send; at least 16 characters\n";

typedef struct program {
    char host[128], include_dir[FS_PATH_BYTES], runtime[FS_PATH_BYTES]; /* kubeml-function */
    uint16_t port;
    int ready_fd;
    tokens *tokens;
    builder_config config;
} program;

/* ---- the API --------------------------------------------------------------------------------- */

static void handle_health(http_request *r, void *context)
{
    (void)context;
    http_response_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

static void handle_build(http_request *r, void *context)
{
    const program *p = context;
    err e = ERR_INIT;
    cleanup_json json_t *body = NULL;
    builder_source files[BUILDER_FILES_MAX];
    builder_result built = {0};
    size_t n = 0;
    int status = http_body_json(r, &body, &e) || builder_request_read(body, files, &n, &e) ||
                 builder_compile(files, n, NULL, &p->config, &built, &e);
    json_t *answer = status ? NULL : builder_built_json(&built);
    if (answer)
        http_response_json(r, 200, answer);
    else if (status == 0)
        err_set(&e, ERR_NOMEM, "no memory for the object");
    if (!answer)
        http_response_problem(r, (unsigned)err_http_status(e.code), &e, builder_said_json(&built));
    log_info("built %zu files in %.2f s: %s", n, built.seconds, status ? e.message : "ok");
    builder_result_free(&built);
}

static void handle_fit(http_request *r, void *context)
{
    const program *p = context;
    err e = ERR_INIT;
    cleanup_json json_t *body = NULL;
    cleanup_free unsigned char *object = NULL;
    json_t *dataset;
    size_t len;
    int status = http_body_json(r, &body, &e) || shape_check_read(body, &object, &len, &dataset, &e)
                     ? -1
                     : shape_check(p->runtime, object, len, dataset, &e);
    if (status < 0)
        http_response_error(r, &e);
    else
        http_response_json(r, 200, shape_check_json(status, &e));
    if (status)
        log_info("%s: %s", status < 0 ? "whether code fits its samples is not known" : "misfit",
                 e.message);
}

static const http_route routes[] = {
    {.method = "GET", .pattern = "/health", .handle = handle_health, .open = true},
    {.method = "POST",
     .pattern = "/build",
     .handle = handle_build,
     .body = HTTP_BODY_WHOLE,
     .takes = "application/json",
     .body_bytes_max = BUILDER_REQUEST_BYTES_MAX,
     .slow = true},
    {.method = "POST",
     .pattern = "/fit",
     .handle = handle_fit,
     .body = HTTP_BODY_WHOLE,
     .takes = "application/json",
     .body_bytes_max = SHAPE_CHECK_BYTES_MAX,
     .slow = true},
};

/* ---- options --------------------------------------------------------------------------------- */

static int parse_listen(program *p, const char *text)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    size_t len = colon ? (size_t)(colon - text) : 0;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 65536;
    if (len == 0 || len >= sizeof p->host || !end || end == colon + 1 || *end || port > 65535) {
        fprintf(stderr, "kubeml-builder: --listen must be HOST:PORT\n");
        return -1;
    }
    snprintf(p->host, sizeof p->host, "%.*s", (int)len, text);
    p->port = (uint16_t)port;
    return 0;
}

static int set_option(program *p, int option, const char *value)
{
    char *end = NULL;
    long fd;
    switch (option) {
    case 'l': return parse_listen(p, value);
    case 'i':
        if (strlen(value) >= sizeof p->include_dir) {
            fprintf(stderr, "kubeml-builder: --include is longer than %zu characters\n",
                    sizeof p->include_dir - 1);
            return -1;
        }
        strcpy(p->include_dir, value);
        return 0;
    case 'r':
        fd = strtol(value, &end, 10);
        p->ready_fd = (int)fd;
        if (end != value && !*end && fd >= 0 && fd <= INT_MAX)
            return 0;
        fprintf(stderr, "kubeml-builder: --ready-fd must be a descriptor's number\n");
        return -1;
    case 'H': fputs(usage_text, stdout); exit(0);
    default: return -1;
    }
}

static int parse_options(program *p, int argc, char **argv)
{
    static const struct option known[] = {{"listen", required_argument, NULL, 'l'},
                                          {"include", required_argument, NULL, 'i'},
                                          {"ready-fd", required_argument, NULL, 'r'},
                                          {"help", no_argument, NULL, 'H'},
                                          {NULL, 0, NULL, 0}};
    for (int got; (got = getopt_long(argc, argv, "", known, NULL)) != -1;)
        if (set_option(p, got, optarg))
            return -1;
    if (optind == argc)
        return 0;
    fprintf(stderr, "kubeml-builder: \"%s\" is too much\n", argv[optind]);
    return -1;
}

/* Moves the token out of the environment, which /proc shows: its memory is overwritten as well. */
static int take_token(program *p, err *e)
{
    char *given = getenv("KUBEML_BUILDER_TOKEN");
    if (!given || strlen(given) < 16)
        return err_set(e, ERR_INVALID,
                       "KUBEML_BUILDER_TOKEN must be set, to 16 characters or more");
    p->tokens = tokens_new(e);
    if (!p->tokens || tokens_add(p->tokens, "", given, e))
        return err_wrap(e, "KUBEML_BUILDER_TOKEN");
    explicit_bzero(given, strlen(given));
    unsetenv("KUBEML_BUILDER_TOKEN");
    /* From here on only root may read /proc/PID of this process, with its memory and descriptors.
     */
    return prctl(PR_SET_DUMPABLE, 0) ? err_set(e, ERR_IO, "prctl") : 0;
}

/* The folder of this program. */
static int own_folder(char out[FS_PATH_BYTES], err *e)
{
    ssize_t len = readlink("/proc/self/exe", out, FS_PATH_BYTES - 1);
    if (len <= 0)
        return err_set(e, ERR_NOT_FOUND, "/proc/self/exe cannot be read");
    out[len] = '\0';
    *strrchr(out, '/') = '\0';
    return 0;
}

static int find_headers(program *p, const char *folder, err *e)
{
    static const char *const beside[] = {"../include/kubeml", "../include",
                                         "../../../function-runtime/include"};
    char path[FS_PATH_BYTES];
    if (p->include_dir[0])
        return 0;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (fs_path(path, e, "%s/%s/kubeml.h", folder, beside[i]) == 0 && fs_exists(path))
            return fs_path(p->include_dir, e, "%s/%s", folder, beside[i]);
    return err_set(e, ERR_NOT_FOUND,
                   "kubeml.h is not beside the program; --include says where it is");
}

static int find_parts(program *p, err *e)
{
    char folder[FS_PATH_BYTES];
    return own_folder(folder, e) || fs_path(p->runtime, e, "%s/kubeml-function", folder)
               ? -1
               : find_headers(p, folder, e);
}

static int announce(const program *p, const http_server *http, err *e)
{
    char url[192];
    int len = snprintf(url, sizeof url, "http://%s:%u\n", p->host, http_server_port(http));
    log_info("kubeml-builder %s: api=%.*s files=%d source=%d object=%d seconds=%d", KUBEML_VERSION,
             len - 1, url, BUILDER_FILES_MAX, BUILDER_SOURCE_BYTES_MAX, BUILDER_OBJECT_BYTES_MAX,
             BUILDER_WALL_MS / 1000);
    if (p->ready_fd < 0)
        return 0;
    ssize_t written = write(p->ready_fd, url, (size_t)len);
    close(p->ready_fd);
    return written < 0 ? err_set(e, ERR_IO, "--ready-fd cannot be written") : 0;
}

int main(int argc, char **argv)
{
    static program p = {.host = "127.0.0.1", .port = 10300, .ready_fd = -1};
    log_open("kubeml-builder");
    if (parse_options(&p, argc, argv)) {
        fputs("See kubeml-builder --help.\n", stderr);
        return 2;
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL); /* before any thread starts */
    signal(SIGPIPE, SIG_IGN);
    err e = ERR_INIT;
    http_server *http = NULL;
    int status = find_parts(&p, &e) || take_token(&p, &e);
    p.config = (builder_config){.include_dir = p.include_dir,
                                .sandbox = BUILDER_SANDBOX_NONE,
                                .abi = builder_abi(p.include_dir)};
    http_config config = {.host = p.host,
                          .port = p.port,
                          .routes = routes,
                          .route_count = sizeof routes / sizeof *routes,
                          .context = &p,
                          .tokens = p.tokens,
                          .workers_max = WORKERS};
    if (status || http_server_start(&config, &http, &e) || announce(&p, http, &e)) {
        fprintf(stderr, "kubeml-builder: %s\n", e.message);
        status = 1;
    } else {
        int number;
        sigwait(&ends, &number);
    }
    /* after false, a build still runs until the process ends */
    if (http_server_stop(http, STOP_MS))
        tokens_free(p.tokens);
    return status ? 1 : 0;
}
