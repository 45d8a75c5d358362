/* cmd_train.c: kubeml train. The table of job_options.h has its flags, except --watch. */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "common/base/json_read.h"
#include "common/contract/job_options.h"

/* The value of one option on the command line. */
typedef struct flag_value {
    const char *text;
    long number;
    double real;
    bool is_true, seen, shortcut;
} flag_value;

/* ---- from the table of options to flags ------------------------------------------------------ */

static option_kind flag_kind(const job_option *o)
{
    switch (o->kind) {
    case VALUE_INT:
    case VALUE_SEED: return OPTION_INT;
    case VALUE_REAL: return OPTION_NUMBER;
    case VALUE_BOOL: return OPTION_FLAG;
    default: return OPTION_TEXT;
    }
}

static void *flag_target(const job_option *o, flag_value *v)
{
    switch (flag_kind(o)) {
    case OPTION_INT: return &v->number;
    case OPTION_NUMBER: return &v->real;
    case OPTION_FLAG: return &v->is_true;
    default: return &v->text;
    }
}

static cli_option flag_of(const job_option *o, flag_value *v)
{
    v->number = (long)o->default_value;
    v->real = o->default_value;
    return (cli_option){.name = o->flag,
                        .letter = o->letter,
                        .kind = flag_kind(o),
                        .value = o->placeholder,
                        .help = o->help,
                        .into = flag_target(o, v),
                        .seen = &v->seen,
                        /* a number that a request must have comes from the table */
                        .required = o->required && flag_kind(o) == OPTION_TEXT};
}

static cli_option shortcut_of(const job_option *o, flag_value *v)
{
    return (cli_option){.name = o->shortcut.flag,
                        .kind = OPTION_FLAG,
                        .help = o->shortcut.help,
                        .into = &v->shortcut};
}

/* Makes the flags of the rows, group by group. A flag stores what it gets in the item of `values`
 * that has the number of its row. Returns how many flags there are. */
static size_t flags_of_table(cli_option *out, flag_value *values)
{
    size_t count = 0;
    for (int group = 0; group < OPTION_GROUPS; group++)
        for (const job_option *o = job_options; o->name; o++) {
            flag_value *v = &values[o - job_options];
            if (!o->flag || (int)o->group != group)
                continue;
            assert(count + 3 < CLI_OPTIONS_MAX); /* a shortcut, --watch and the end */
            out[count++] = flag_of(o, v);
            if (o->shortcut.flag)
                out[count++] = shortcut_of(o, v);
        }
    return count;
}

/* ---- from flags to the request --------------------------------------------------------------- */

/* The object of the request that has the options `in`, which is made when it is first needed. */
static json_t *object_of(json_t *body, option_object in)
{
    const job_option *o = job_option_parent(in);
    if (!o)
        return body;
    json_t *parent = object_of(body, o->in);
    if (!json_object_get(parent, o->name))
        json_object_set_new(parent, o->name, json_object());
    return json_object_get(parent, o->name);
}

static json_t *value_json(const job_option *o, const flag_value *v)
{
    switch (flag_kind(o)) {
    case OPTION_INT: return json_integer(v->shortcut ? o->shortcut.value : v->number);
    case OPTION_NUMBER: return json_real(v->real);
    case OPTION_FLAG: return json_true();
    default: return json_string(v->text);
    }
}

/* Makes the request from the given and required options: the platform has the other defaults. */
static json_t *body_json(const flag_value *values, err *e)
{
    json_t *body = json_object();
    object_of(body, IN_OPTIONS);
    for (const job_option *o = job_options; o->name; o++) {
        const flag_value *v = &values[o - job_options];
        if (!o->flag || !(v->seen || v->shortcut || o->required))
            continue;
        if (json_object_set_new(object_of(body, o->in), o->name, value_json(o, v)) == 0)
            continue;
        json_decref(body);
        if (o->required)
            err_set(e, ERR_INVALID, "the names of the function and the dataset must be UTF-8");
        else
            err_set(e, ERR_INVALID, "--%s must be UTF-8", o->flag);
        return NULL;
    }
    return body;
}

/* ---- a file of weights ----------------------------------------------------------------------- */

/* Whether --init names a file: a text that looks like a path, or is the path of a file. IDs do not
 * look like paths. */
static bool is_file(const char *init)
{
    size_t len = strlen(init), tail = strlen(".safetensors");
    return strchr(init, '/') || access(init, F_OK) == 0 ||
           (len > tail && strcmp(init + len - tail, ".safetensors") == 0);
}

/* Uploads a file of weights as a model of the platform; its ID becomes the request's `init`. */
static int upload_init(const cli *c, const char *file, json_t *body, char *id, size_t size, err *e)
{
    http_part part;
    if (cli_part(&part, "model", file, e))
        return err_wrap(e, "--init");
    progress bar;
    progress_begin(&bar, file);
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
        err_wrap(e, "--init %.100s", file);
    json_t *answer = status ? NULL : http_reply_json(&reply, e);
    http_reply_free(&reply);
    const char *given = json_string_value(json_object_get(answer, "id"));
    if (answer && !given)
        err_set(e, ERR_CORRUPT, "the server named no id for %s", file);
    if (given) {
        snprintf(id, size, "%s", given);
        json_object_set_new(body, "init", json_string(id));
        /* The job's errors name the model by this ID. */
        fprintf(stderr, "%s is uploaded as model %s\n", file, id);
    }
    json_decref(answer);
    return given ? 0 : -1;
}

/* Deletes the model that was uploaded for a refused job. If no response came, a job with the model
 * may exist: the model stays. */
static void take_back(const cli *c, const char *uploaded, const err *why)
{
    err ignored = ERR_INIT;
    if (*uploaded && why->code != ERR_UNAVAILABLE && why->code != ERR_TIMEOUT)
        cli_call(c, "DELETE", cli_path("/model/", uploaded, ""), NULL, NULL, &ignored);
}

/* Prints the error, with a hint if the response was lost: the job may exist. */
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

/* Prints after ^C that the job runs on: ^C ends the watching only, which users may not expect. */
static void tell_runs_on(int number)
{
    ssize_t ignored = write(STDERR_FILENO, runs_on, strlen(runs_on));
    (void)ignored;
    signal(number, SIG_DFL);
    raise(number); /* takes effect when this handler returns */
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

/* Submits the job and stores its ID. */
static int submit(const cli *c, const json_t *body, char *id, size_t size, err *e)
{
    json_t *answer = NULL;
    int status = cli_call(c, "POST", "/train", body, &answer, e);
    if (status == 0)
        snprintf(id, size, "%s", json_string_value(json_object_get(answer, "id")) ?: "");
    const char *note = json_string_value(json_object_get(answer, "note"));
    if (note)
        fprintf(stderr, "note: %s\n", note);
    json_decref(answer);
    return status;
}

int cmd_train(cli *c, int argc, char **argv)
{
    flag_value values[JOB_OPTIONS_MAX] = {{0}};
    cli_option options[CLI_OPTIONS_MAX];
    bool watch = false;
    size_t count = flags_of_table(options, values);
    options[count++] = (cli_option){.name = "watch",
                                    .letter = 'w',
                                    .kind = OPTION_FLAG,
                                    .help = "follow the job until its end",
                                    .into = &watch};
    options[count] = (cli_option){.name = NULL};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    err e = ERR_INIT;
    char uploaded[128] = "", id[128] = "";
    flag_value *init = &values[job_option_find(IN_REQUEST, "init") - job_options];
    const char *file = init->seen && is_file(init->text) ? init->text : NULL;
    if (file)
        init->seen = false; /* upload_init puts the uploaded model's ID into the request instead */
    cleanup_json json_t *body = body_json(values, &e);
    if (!body || (file && upload_init(c, file, body, uploaded, sizeof uploaded, &e)))
        return cli_fail(&e);
    if (submit(c, body, id, sizeof id, &e)) {
        take_back(c, uploaded, &e);
        return fail_train(&e);
    }
    if (!watch) {
        puts(id);
        return CLI_OK;
    }
    return watch_trained(c, id);
}
