/* kubeml-function.c: the program: a warm generic runtime, which becomes a member of one job or
 * serves one model, and then ends; or a command.
 *
 *     kubeml-function --listen unix:PATH|tcp:HOST:PORT
 *         The runtime. KUBEML_POOL_TOKEN_FILE names the file of the pool's token.
 *     kubeml-function run FILE.c ...
 *         Trains a file in this process (run.h).
 *     kubeml-function zoo [MODEL [SHAPE]]
 *         For kubeml-controller, as JSON: the models of the zoo; or whether MODEL is valid; or
 *         whether it takes samples of SHAPE, [channels, height, width, outputs].
 *     kubeml-function fit OBJECT DATASET
 *         The shape check, for kubeml-builder and kubeml-controller (shape_check_run.h).
 *
 * Exit status: 0 stopped, 75 (exit_cause.h) failed, 2 wrong usage. A process that has run user code
 * ends; it never becomes warm again. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/parallel.h"
#include "common/base/version.h"
#include "common/contract/exit_cause.h"
#include "function-runtime/base/crash.h"
#include "function-runtime/base/function_gpu.h"
#include "function-runtime/shape_check/shape_check_run.h"
#include "function-runtime/member/member.h"
#include "function-runtime/member/warm.h"
#include "function-runtime/model/transform.h"
#include "function-runtime/run/run.h"
#include "function-runtime/sandbox/sandbox.h"
#include "function-runtime/serve/serve.h"
#include "kernels/graph.h"
#include "kernels/zoo/zoo.h"

enum { REPLY_MS = 10000 };

static int tell(wire *w, const char *reason, const char *averaging, const char *algorithms,
                const char *no_gpu, const err *e)
{
    cleanup_json json_t *m =
        reason ? json_pack("{s:s,s:s,s:s,s:s}", "type", "failed", "code", err_name(e->code),
                           "reason", reason, "message", e->message)
               : json_pack("{s:s,s:s*,s:s*,s:s*}", "type", "specialised", "averaging", averaging,
                           "algorithms", algorithms, "no_gpu", no_gpu);
    return m ? wire_send_wait(w, m, clock_deadline_ms(REPLY_MS), NULL) : -1;
}

/* Reports the result to the controller, and a failure to kubeml-ps too, if it can be reached:
 * either may act first. */
static int be_member(const json_t *order, wire *w, err *e)
{
    char reason[TRAINER_REASON_BYTES];
    member *m = NULL;
    int64_t began_ns = clock_monotonic_ns();
    int rc = member_open(order, &m, reason, e);
    if (rc != 0)
        log_error("%s: %s", reason, e->message);
    else
        log_info("specialised in %.1f ms", (double)(clock_monotonic_ns() - began_ns) * 1e-6);
    cleanup_free char *learned = rc == 0 ? member_autotune_dump(m) : NULL;
    if (learned)
        log_info("what was measured on the GPU is told for those that come after");
    if (tell(w, rc == 0 ? NULL : reason, rc == 0 ? member_averaging(m) : NULL, learned,
             rc == 0 ? member_without_gpu(m) : NULL, e) != 0)
        log_warn("the controller is gone; kubeml-ps decides");
    wire_close(w);
    if (m) {
        err joined = ERR_INIT;
        int ran = member_run(m, &joined);
        if (ran != 0 && rc == 0) {
            *e = joined;
            rc = -1;
        }
    }
    member_close(m);
    return rc;
}

static int listen_and_work(const char *address, err *e)
{
    char token[WARM_TOKEN_BYTES];
    wire *w = NULL;
    json_t *order = NULL;
    if (warm_token(token, e) != 0)
        return -1;
    int fd = wire_listen(address, e);
    if (fd < 0)
        return -1;
    /* Before CUDA opens its descriptors, which stay open; later code closes what it opens. */
    sandbox_close_others(&fd, 1);
    function_gpu_warm();
    log_info("kubeml-function %s waits at %s", KUBEML_VERSION, address);
    cleanup_json json_t *gpu = function_gpu_told();
    int rc = warm_wait(fd, token, gpu, &w, &order, e);
    explicit_bzero(token, sizeof token);
    unsetenv("KUBEML_POOL_TOKEN_FILE");
    if (rc != 0)
        return -1;
    if (strncmp(address, "unix:", 5) == 0)
        unlink(address + 5);
    if (strcmp(wire_type(order), "serve") == 0) {
        rc = serve(order, w, e);
        wire_close(w);
    } else {
        rc = be_member(order, w, e);
    }
    json_decref(order);
    return rc;
}

/* Prints [{"name", "summary", "parameters"}]. */
static int print_zoo(void)
{
    cleanup_json json_t *list = json_array();
    const zoo_model *m;
    for (int i = 0; (m = zoo_at(i)); i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:I}", "name", m->name, "summary",
                                              m->summary, "parameters", (json_int_t)m->params));
    return json_dumpf(list, stdout, JSON_INDENT(1)) || putchar('\n') == EOF ? 1 : 0;
}

/* Checks that the network and its crop take samples of that shape. ERR_INVALID names the layer. */
static int check_shape(const zoo_model *model, zoo_options *o, const char *text, err *e)
{
    cleanup_json json_t *numbers = NULL;
    shape of = {.rank = 3};
    int outputs;
    if (json_read(text, strlen(text), 1, &numbers, e))
        return -1;
    if (json_unpack(numbers, "[i,i,i,i!]", &of.c, &of.h, &of.w, &outputs) || of.c < 1 || of.h < 1 ||
        of.w < 1 || outputs < 1)
        return err_set(e, ERR_INVALID, "%.60s is not [channels, height, width, outputs]", text);
    const transform t = {.crop = o->crop};
    const dataset_info d = {.height = (uint32_t)of.h, .width = (uint32_t)of.w};
    if (transform_check(&t, &d, e))
        return -1;
    graph *g = graph_new(of);
    if (!g)
        return err_set(e, ERR_NOMEM, "no memory for the model's graph");
    int rc = graph_finish(g, model->build(g, 0, outputs, o), outputs, e);
    graph_free(g);
    return rc;
}

/* Prints {} if there is such a model and it takes samples of the shape (NULL: any), otherwise
 * {"code", "message"}. */
static int check_zoo(const char *text, const char *sample)
{
    err e = ERR_INIT;
    zoo_options o = {0};
    const zoo_model *model = zoo_parse(text, &o, &e);
    bool good = model && (!sample || check_shape(model, &o, sample, &e) == 0);
    cleanup_json json_t *answer =
        good ? json_object()
             : json_pack("{s:s, s:s}", "code", err_name(e.code), "message", e.message);
    return json_dumpf(answer, stdout, JSON_COMPACT) || putchar('\n') == EOF ? 1 : 0;
}

static void end_now(int number)
{
    crash_over();
    _exit(128 + number);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    /* Line buffering, so that the code's output is in the log before its next action, which may be
     * a crash: to a file or a pipe, stdout is written only when its buffer is full. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* The first process of a container ignores signals without a handler, and would be killed only
     * at the end of its grace period. */
    if (getpid() == 1)
        signal(SIGTERM, end_now);
    log_open("kubeml-function");
    if (argc >= 2 && strcmp(argv[1], "run") == 0)
        return run_command(argc - 1, argv + 1);
    if (argc == 2 && strcmp(argv[1], "zoo") == 0)
        return print_zoo();
    if ((argc == 3 || argc == 4) && strcmp(argv[1], "zoo") == 0)
        return check_zoo(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "fit") == 0)
        return shape_check_command(argv[2], argv[3]);
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("kubeml-function %s\n", KUBEML_VERSION);
        return 0;
    }
    if (argc != 3 || strcmp(argv[1], "--listen") != 0) {
        fputs("usage: kubeml-function --listen unix:PATH|tcp:HOST:PORT\n"
              "       kubeml-function run FILE.c ...   (--help says more)\n", stderr);
        return 2;
    }
    failpoint_open(NULL);
    parallel_cores(); /* reads files that the sandbox does not allow */
    err e = ERR_INIT;
    if (listen_and_work(argv[2], &e) == 0)
        return 0;
    log_error("%s", e.message);
    return EXIT_CAUSE_GAVE_UP;
}
