/* controller_options.c: see controller_options.h. */
#include "controller_options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "common/base/parallel.h"
#include "common/base/version.h"

enum {
    SLOTS_MIN = 4, /* the default is the number of cores, but at least four functions */
    SLOTS_MAX = 1024,
    POOL_FUNCTIONS = 4, /* defaults of the pool's floor */
    POOL_PS = 1,
};

static const char usage_text[] =
    "usage: kubeml-controller [options]\n"
    "The platform's API, scheduler and pool.\n\n"
    "  --listen HOST:PORT     where the API answers (127.0.0.1:10100; port 0: any)\n"
    "  --home DIR             where everything is kept ($KUBEML_HOME, or ~/.kubeml)\n"
    "  --store LOCATOR        records and datasets (lmdb:HOME/store)\n"
    "  --store-file FILE      the same, from a file, where the locator holds a password\n"
    "  --scratch-max SIZE     uploads on their way in have as much of their disk together (2Gi, 500M), and leave\n"
    "                         15 % of it free (0: no limit)\n"
    "  --slots N              functions that run at once (cores, at least 4)\n"
    "  --pool-functions N     warm functions to keep (4)\n"
    "  --pool-ps N            warm kubeml-ps to keep (1)\n"
    "  --function-memory SIZE of address space a function may have, such as 8Gi (0: no limit)\n"
    "  --gpus WHICH           local: auto, all or none of this machine's GPUs (auto: those that answer, where\n"
    "                         the CUDA engine was built; all: it does not start unless all answer)\n"
    "  --gpu-policy POLICY    where a function goes, of the GPUs here or of those that pods show:\n"
    "                         best-fit, spread or pack (best-fit)\n"
    "  --token-file FILE      callers must send one of the tokens in FILE, one a line, USER:TOKEN or TOKEN;\n"
    "                         may be given several times ($KUBEML_TOKEN: one token); without one its own user\n"
    "                         and root are answered, of this machine\n"
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

/* Parses a size as Kubernetes writes quantities. */
static int parse_size(const char *text, uint64_t *out, const char *name)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},        {"k", 1e3},     {"M", 1e6},     {"G", 1e9},     {"T", 1e12},
                 {"P", 1e15},    {"E", 1e18},    {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30},
                 {"Ti", 0x1p40}, {"Pi", 0x1p50}, {"Ei", 0x1p60}};
    size_t digits = strspn(text, "0123456789.");
    char *end = NULL;
    double number = digits ? strtod(text, &end) : 0;
    for (size_t i = 0; i < sizeof units / sizeof *units && end == text + digits; i++) {
        double bytes = number * units[i].bytes;
        if (strcmp(end, units[i].name) == 0 && bytes < 0x1p63) {
            *out = (uint64_t)bytes;
            return 0;
        }
    }
    fprintf(stderr, "kubeml-controller: --%s must be a size such as 2Gi or 500M\n", name);
    return -1;
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

/* Reads the builder's token: the first line. */
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

/* Adds callers' tokens, a list as in tokens.h. */
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

static void set_defaults(controller_config *c, controller_options *o)
{
    int cores = parallel_cores();
    const char *home = getenv("KUBEML_HOME"), *user = getenv("HOME");
    *o = (controller_options){.ready_fd = -1, .sandbox = true};
    snprintf(c->host, sizeof c->host, "127.0.0.1");
    c->port = 10100;
    c->cluster = "local";
    c->slots = cores > SLOTS_MIN ? cores : SLOTS_MIN;
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

static int set_option(controller_config *c, controller_options *o, int option, const char *value)
{
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
    case 'm': return parse_size(value, &c->function_memory, "function-memory");
    case 'd': return parse_size(value, &c->scratch_max, "scratch-max");
    case 'r':
        if (parse_number(value, 0, 1 << 20, &n, "ready-fd"))
            return -1;
        o->ready_fd = (int)n;
        return 0;
    case 'n': o->sandbox = false; return 0;
    case 'g': return take_gpus(value, c);
    case 'G': return take_policy(value, c);
    case 'c': c->cluster = value; return 0;
    case 'P': c->pods_file = value; return 0;
    case 'x': c->context = value; return 0;
    case 'L': o->lease_name = value; return 0;
    case 'T':
        return copy_text(c->pool_token_file, sizeof c->pool_token_file, value, "pool-token-file");
    case 'E': o->end_pods = value; return 0;
    case 'e': o->end_left = true; return 0;
    default: return -1;
    }
}

/* Makes a path absolute, since pods run in other folders and receive it. `path` has room for
 * `bytes`. */
static int make_absolute(char *path, size_t bytes, const char *name)
{
    cleanup_free char *here = *path == '/' ? NULL : getcwd(NULL, 0), *whole = NULL;
    if (*path == '/')
        return 0;
    if (!here || asprintf(&whole, "%s/%s", here, path) < 0) {
        fprintf(stderr, "kubeml-controller: --%s: %s\n", name, strerror(errno));
        return -1;
    }
    return copy_text(path, bytes, whole, name);
}

static int make_paths_absolute(controller_config *c)
{
    static const char lmdb[] = "lmdb:";
    size_t kind = sizeof lmdb - 1;
    bool far = strncmp(c->store_locator, lmdb, kind) != 0;
    return make_absolute(c->home, sizeof c->home, "home") ||
                   (!far && make_absolute(c->store_locator + kind, sizeof c->store_locator - kind,
                                          "store")) ||
                   (c->pool_token_file[0] &&
                    make_absolute(c->pool_token_file, sizeof c->pool_token_file, "pool-token-file"))
               ? -1
               : 0;
}

int controller_options_parse(controller_config *c, controller_options *o, int argc, char **argv)
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
                                          {"scratch-max", required_argument, NULL, 'd'},
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
    set_defaults(c, o);
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'H' || option == 'V') {
            printf("%s", option == 'H' ? usage_text : "kubeml-controller " KUBEML_VERSION "\n");
            exit(0);
        }
        if (set_option(c, o, option, optarg))
            return -1;
    }
    if (optind == argc)
        return make_paths_absolute(c);
    fprintf(stderr, "kubeml-controller: what is \"%s\"?\n", argv[optind]);
    return -1;
}
