/* cmd_train.c: kubeml train. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "common/contract/request.h"

#define TEXT_OF(value) #value
#define TEXT(value)    TEXT_OF(value)

typedef struct train_options {
    const char *function, *dataset, *init, *without, *merge, *mode, *optimizer_state, *on_loss,
        *process;
    const char *gpu_memory, *precision, *device;
    long epochs, batch, parallelism, k, validate_every, priority, seed, deadline, backoff, ttl,
        gpu_threads;
    double lr, goal;
    bool fixed, watch, once;
    bool validate_seen, goal_seen, priority_seen, seed_seen, parallelism_seen, k_seen;
    bool deadline_seen, backoff_seen, ttl_seen, gpu_threads_seen;
} train_options;

static json_t *gpu_json(const train_options *o)
{
    json_t *gpu = json_object();
    if (o->gpu_memory)
        json_object_set_new(gpu, "memory", json_string(o->gpu_memory));
    if (o->gpu_threads_seen)
        json_object_set_new(gpu, "threads", json_integer(o->gpu_threads));
    if (o->precision)
        json_object_set_new(gpu, "precision", json_string(o->precision));
    return gpu;
}

static json_t *options_json(const train_options *o)
{
    json_t *out = json_object();
    if (o->parallelism_seen)
        json_object_set_new(out, "default_parallelism", json_integer(o->parallelism));
    if (o->fixed)
        json_object_set_new(out, "static_parallelism", json_true());
    if (o->k_seen || o->once)
        json_object_set_new(out, "k", json_integer(o->once ? REQUEST_K : o->k));
    if (o->validate_seen)
        json_object_set_new(out, "validate_every", json_integer(o->validate_every));
    if (o->goal_seen)
        json_object_set_new(out, "goal_accuracy", json_real(o->goal));
    if (o->priority_seen)
        json_object_set_new(out, "priority", json_integer(o->priority));
    if (o->seed_seen)
        json_object_set_new(out, "seed", json_integer(o->seed));
    if (o->deadline_seen)
        json_object_set_new(out, "active_deadline_seconds", json_integer(o->deadline));
    if (o->backoff_seen)
        json_object_set_new(out, "backoff_limit", json_integer(o->backoff));
    if (o->ttl_seen)
        json_object_set_new(out, "ttl_seconds_after_finished", json_integer(o->ttl));
    const char *const names[] = {"merge",   "mode",   "optimizer_state",
                                 "on_loss", "device", "process"};
    const char *const values[] = {o->merge,   o->mode,   o->optimizer_state,
                                  o->on_loss, o->device, o->process};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (values[i])
            json_object_set_new(out, names[i], json_string(values[i]));
    if (o->gpu_memory || o->gpu_threads_seen || o->precision)
        json_object_set_new(out, "gpu", gpu_json(o));
    return out;
}

/* Whether --init names a file: what looks like a path or is one. Ids look like neither. */
static bool is_file(const char *init)
{
    size_t len = strlen(init), tail = strlen(".safetensors");
    return strchr(init, '/') || access(init, F_OK) == 0 ||
           (len > tail && strcmp(init + len - tail, ".safetensors") == 0);
}

/* A file of weights becomes a model on the platform first; its id replaces the path. */
static int upload_init(const cli *c, train_options *o, char *id, size_t size, err *e)
{
    http_part part;
    if (!o->init || !is_file(o->init))
        return 0;
    if (cli_part(&part, "model", o->init, e))
        return err_wrap(e, "--init");
    progress bar;
    progress_begin(&bar, o->init);
    http_call call = {.method = "POST",
                      .parts = &part,
                      .part_count = 1,
                      .progress = progress_of_call,
                      .context = &bar,
                      .idle_s = CLI_BUSY_S};
    http_reply reply;
    int status = cli_call_raw(c, &call, "/model", &reply, e);
    progress_end(&bar);
    if (status)
        err_wrap(e, "--init %.100s", o->init);
    json_t *answer = status ? NULL : http_reply_json(&reply, e);
    http_reply_free(&reply);
    const char *given = json_string_value(json_object_get(answer, "id"));
    if (answer && !given)
        err_set(e, ERR_CORRUPT, "the server named no id for %s", o->init);
    if (given) {
        snprintf(id, size, "%s", given);
        /* What is wrong with it the job says, by that name. */
        fprintf(stderr, "%s is uploaded as model %s\n", o->init, id);
    }
    json_decref(answer);
    o->init = id;
    return given ? 0 : -1;
}

/* The job was refused, and nothing else knows of what was uploaded for it. Where no answer came
 * there may be a job all the same. */
static void take_back(const cli *c, const char *uploaded, const err *why)
{
    err ignored = ERR_INIT;
    if (*uploaded && why->code != ERR_UNAVAILABLE && why->code != ERR_TIMEOUT)
        cli_call(c, "DELETE", cli_path("/model/", uploaded, ""), NULL, NULL, &ignored);
}

/* A request whose answer was lost may have been taken. */
static int fail_train(const err *e)
{
    bool lost = e->code == ERR_TIMEOUT ? e->os_errno != ETIMEDOUT
                                       : e->code == ERR_UNAVAILABLE && e->os_errno == ECONNRESET;
    cli_fail(e);
    if (lost)
        fprintf(stderr, "The job may have been taken all the same: `kubeml task list` shows it.\n");
    return CLI_FAILED;
}

static char runs_on[512];

/* ^C ends the watching alone, which is not what everybody means by it. */
static void tell_runs_on(int number)
{
    ssize_t ignored = write(STDERR_FILENO, runs_on, strlen(runs_on));
    (void)ignored;
    signal(number, SIG_DFL);
    raise(number); /* when this returns */
}

static int watch_trained(const cli *c, const char *id)
{
    fprintf(stderr, "job %s\n", id);
    snprintf(runs_on, sizeof runs_on,
             "%sjob %s runs on: `kubeml task wait %s --watch` follows it, `kubeml task stop %s` "
             "ends it\n",
             isatty(STDERR_FILENO) ? "\n" : "", id, id, id);
    if (signal(SIGINT, tell_runs_on) == SIG_IGN)
        signal(SIGINT, SIG_IGN);
    return watch_job(c, id, false, 0);
}

int cmd_train(cli *c, int argc, char **argv)
{
    train_options o = {.epochs = REQUEST_EPOCHS, .batch = REQUEST_BATCH, .lr = REQUEST_LR};
    const cli_option options[] = {
        {"function", 'f', OPTION_TEXT, "NAME", "what to train", &o.function, NULL, true, false},
        {"dataset", 'd', OPTION_TEXT, "NAME", "on what", &o.dataset, NULL, true, false},
        {"epochs", 'e', OPTION_INT, "N", "how often over the data (" TEXT(REQUEST_EPOCHS) ")",
         &o.epochs, NULL, false, false},
        {"batch", 'b', OPTION_INT, "N", "samples a step of each function (" TEXT(REQUEST_BATCH) ")",
         &o.batch, NULL, false, false},
        {"lr", 0, OPTION_NUMBER, "RATE",
         "learning rate (" TEXT(REQUEST_LR) ", whatever the code's own is)", &o.lr, NULL, false,
         false},
        {"parallelism", 'p', OPTION_INT, "N", "functions to begin with (4)", &o.parallelism,
         &o.parallelism_seen, false, false},
        {"static", 's', OPTION_FLAG, NULL, "keep the parallelism as it is", &o.fixed, NULL, false,
         false},
        {"K", 'K', OPTION_INT, "N",
         "local steps between two merges; -1: once an epoch (" TEXT(REQUEST_K) ")", &o.k, &o.k_seen,
         false, false},
        {"sparse-avg", 0, OPTION_FLAG, NULL, "merge once an epoch, whatever --K says", &o.once,
         NULL, false, false},
        {"validate-every", 0, OPTION_INT, "N", "epochs between validations; 0: at the end (1)",
         &o.validate_every, &o.validate_seen, false, false},
        {"goal-accuracy", 0, OPTION_NUMBER, "PERCENT",
         "stop when the validation reaches it; not on targets", &o.goal, &o.goal_seen, false,
         false},
        {"merge", 0, OPTION_TEXT, "WHERE",
         "database, server, or nccl: between the functions' GPUs (database)", &o.merge, NULL, false,
         false},
        {"mode", 0, OPTION_TEXT, "MODE", "ps", &o.mode, NULL, false, false},
        {"optimizer-state", 0, OPTION_TEXT, "RULE", "average or reset (average)",
         &o.optimizer_state, NULL, false, false},
        {"on-loss", 0, OPTION_TEXT, "RULE", "a lost function: recompute or continue (recompute)",
         &o.on_loss, NULL, false, false},
        {"process", 0, OPTION_TEXT, "RULE",
         "own: each function is a process; shared, with --static: all are threads of one (own)",
         &o.process, NULL, false, false},
        {"priority", 0, OPTION_INT, "N", "higher is sooner (0)", &o.priority, &o.priority_seen,
         false, false},
        {"seed", 0, OPTION_INT, "N", "of everything that is drawn (0)", &o.seed, &o.seed_seen,
         false, false},
        {"active-deadline", 0, OPTION_INT, "SECONDS", "a job that is active longer fails",
         &o.deadline, &o.deadline_seen, false, false},
        {"backoff-limit", 0, OPTION_INT, "N",
         "how often a failed job goes on from its checkpoint (0)", &o.backoff, &o.backoff_seen,
         false, false},
        {"ttl-after-finished", 0, OPTION_INT, "SECONDS",
         "in a cluster: then its TrainJob is removed", &o.ttl, &o.ttl_seen, false, false},
        {"device", 0, OPTION_TEXT, "KIND",
         "auto, cpu or cuda (auto: a GPU where the platform knows one)", &o.device, NULL, false,
         false},
        {"gpu-memory", 0, OPTION_TEXT, "SIZE",
         "GPU memory a function may take, such as 2Gi (an eighth where functions are placed)",
         &o.gpu_memory, NULL, false, false},
        {"gpu-threads", 0, OPTION_INT, "PERCENT", "of the GPU's threads, where MPS runs (no limit)",
         &o.gpu_threads, &o.gpu_threads_seen, false, false},
        {"precision", 0, OPTION_TEXT, "KIND", "fp32, tf32 or bf16 (fp32)", &o.precision, NULL,
         false, false},
        {"init", 0, OPTION_TEXT, "ID|FILE", "begin with a job's model, or a safetensors file",
         &o.init, NULL, false, false},
        {"init-without", 0, OPTION_TEXT, "NAMES",
         "but for these layers or tensors, with commas between, which are drawn: fc", &o.without,
         NULL, false, false},
        {"watch", 'w', OPTION_FLAG, NULL, "follow the job until its end", &o.watch, NULL, false,
         false},
        {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    err e = ERR_INIT;
    char uploaded[128] = "", id[128] = "";
    json_t *body = json_pack("{s:s, s:s, s:I, s:I, s:f, s:o}", "function_name", o.function,
                             "dataset", o.dataset, "epochs", (json_int_t)o.epochs, "batch_size",
                             (json_int_t)o.batch, "lr", o.lr, "options", options_json(&o));
    if (!body) {
        err_set(&e, ERR_INVALID, "the names of the function and the dataset must be UTF-8");
        return cli_fail(&e);
    }
    if (upload_init(c, &o, uploaded, sizeof uploaded, &e)) {
        json_decref(body);
        return cli_fail(&e);
    }
    if (o.init)
        json_object_set_new(body, "init", json_string(o.init));
    if (o.without)
        json_object_set_new(body, "init_without", json_string(o.without));
    json_t *answer = NULL;
    int status = cli_call(c, "POST", "/train", body, &answer, &e);
    json_decref(body);
    if (status == 0)
        snprintf(id, sizeof id, "%s", json_string_value(json_object_get(answer, "id")) ?: "");
    const char *note = json_string_value(json_object_get(answer, "note"));
    if (note)
        fprintf(stderr, "note: %s\n", note);
    json_decref(answer);
    if (status) {
        take_back(c, uploaded, &e);
        return fail_train(&e);
    }
    if (!o.watch) {
        puts(id);
        return CLI_OK;
    }
    return watch_trained(c, id);
}
