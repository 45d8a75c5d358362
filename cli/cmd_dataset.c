/* cmd_dataset.c: kubeml dataset create | list | get | delete. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static void format_shape(const json_t *shape, char *out, size_t size)
{
    size_t used = 0, i;
    json_t *side;
    out[0] = '\0';
    json_array_foreach(shape, i, side)
    {
        int n = snprintf(out + used, size - used, "%s%lld", i ? "x" : "",
                         (long long)json_integer_value(side));
        used += n > 0 && (size_t)n < size - used ? (size_t)n : 0;
    }
}

/* Prints "-" for 0: a data set's labels are either classes or targets. */
static void format_count(const json_t *count, char *out, size_t size)
{
    long long n = json_integer_value(count);
    snprintf(out, size, n ? "%lld" : "-", n);
}

static const object_kind kind = {"/dataset/", "dataset", "the data set", false};

static const cli_column columns[] = {
    {"NAME", "name", false, NULL, false},
    {"TRAIN", "train_set_size", false, NULL, true},
    {"TEST", "test_set_size", false, NULL, true},
    {"SHAPE", "shape", false, format_shape, false},
    {"TYPE", "dtype", true, NULL, false},
    {"CLASSES", "classes", false, format_count, true},
    {"TARGETS", "targets", true, format_count, true},
    {"DIGEST", "digest", true, NULL, false},
    {NULL, NULL, false, NULL, false},
};

static int add_files(http_part *parts, size_t *count, const char *field, const cli_list *files,
                     err *e)
{
    for (size_t i = 0; i < files->count; i++)
        if (cli_part(&parts[(*count)++], field, files->item[i], e))
            return -1;
    return 0;
}

/* Makes the query from the options; the server checks their values. Static. */
static const char *query_of(bool regression, const char *layout, long seed, bool seed_seen)
{
    static char query[256];
    char layout_part[160] = "", seed_part[40] = "";
    if (layout)
        snprintf(layout_part, sizeof layout_part, "layout=%s&", cli_path("", layout, ""));
    if (seed_seen)
        snprintf(seed_part, sizeof seed_part, "seed=%ld&", seed);
    snprintf(query, sizeof query, "?%s%s%s", layout_part, seed_part,
             regression ? "regression=true" : "");
    size_t len = strlen(query);
    if (query[len - 1] == '&' || query[len - 1] == '?')
        query[len - 1] = '\0';
    return query;
}

/* Checks before the upload that the name is free, because the server reads a whole upload before it
 * reports a taken name. The upload still reports a name that is taken meanwhile. */
static int check_free(const cli *c, const char *name, err *e)
{
    err why = ERR_INIT;
    if (cli_call(c, "GET", cli_path("/dataset/", name, ""), NULL, NULL, &why) == 0)
        return err_set(e, ERR_EXISTS, "dataset \"%s\" exists", name);
    if (why.code == ERR_NOT_FOUND)
        return 0;
    *e = why;
    return -1;
}

typedef struct upload {
    progress bar;
    bool sent; /* all of it */
} upload;

static void tell_upload(void *context, uint64_t done, uint64_t total)
{
    upload *u = context;
    u->sent = done == total;
    progress_of_call(&u->bar, done, total);
}

/* Prints the error, with a hint if the whole upload was sent: it may succeed although the response
 * was lost. */
static int fail_upload(const upload *u, const http_reply *reply, const err *e)
{
    cli_fail(e);
    if (u->sent && (reply->status == 0 || e->code == ERR_TIMEOUT))
        fprintf(stderr, "All of it was sent, and the platform may still be at work on it: "
                        "`kubeml dataset list` shows it once it is there.\n");
    return CLI_FAILED;
}

/* Prints the platform's note, if any: how it reads the samples, where the user may have meant
 * something else. */
static void tell_note(const http_reply *reply)
{
    json_t *answer = http_reply_json(reply, NULL);
    const char *note = json_string_value(json_object_get(answer, "note"));
    if (note)
        fprintf(stderr, "note: %s\n", note);
    json_decref(answer);
}

int cmd_dataset_create(cli *c, int argc, char **argv)
{
    const char *name = NULL, *layout = NULL;
    bool regression = false, seed_seen = false;
    long seed = 0;
    cli_list files[4] = {{{0}, 0}};
    const cli_option options[] = {
        {"traindata", 0, OPTION_TEXT, "FILE", "training samples", &files[0], NULL, true, true},
        {"trainlabels", 0, OPTION_TEXT, "FILE", "their labels", &files[1], NULL, false, true},
        {"testdata", 0, OPTION_TEXT, "FILE", "test samples, if --traindata has none", &files[2],
         NULL, false, true},
        {"testlabels", 0, OPTION_TEXT, "FILE", "their labels", &files[3], NULL, false, true},
        {"regression", 0, OPTION_FLAG, NULL, "the labels are numbers, not classes", &regression,
         NULL, false, false},
        {"layout", 0, OPTION_TEXT, "ORDER", "order of an image's axes: auto, chw or hwc (auto)",
         &layout, NULL, false, false},
        {"seed", 0, OPTION_INT, "N", "seed of the order of the samples (0)", &seed, &seed_seen,
         false, false},
        {.name = NULL}};
    OBJECT_NAME(c, argc, argv, &kind, options, &name);
    static const char *const fields[] = {"x-train", "y-train", "x-test", "y-test"};
    http_part parts[4 * CLI_LIST_MAX];
    size_t count = 0;
    err e = ERR_INIT;
    for (size_t i = 0; i < 4; i++)
        if (add_files(parts, &count, fields[i], &files[i], &e))
            return cli_fail(&e);
    if (check_free(c, name, &e))
        return cli_fail(&e);
    upload u = {.sent = false};
    progress_begin(&u.bar, name);
    http_call call = {.method = "POST",
                      .parts = parts,
                      .part_count = count,
                      .progress = tell_upload,
                      .context = &u,
                      .idle_s = CLI_BUSY_S};
    http_reply reply;
    char query[256];
    snprintf(query, sizeof query, "%s", query_of(regression, layout, seed, seed_seen));
    int status = cli_call_raw(c, &call, cli_path("/dataset/", name, query), &reply, &e);
    progress_end(&u.bar);
    if (status) {
        http_reply_free(&reply);
        return fail_upload(&u, &reply, &e);
    }
    printf("dataset %s created\n", name);
    tell_note(&reply);
    http_reply_free(&reply);
    return CLI_OK;
}

int cmd_dataset_list(cli *c, int argc, char **argv)
{
    return object_list(c, argc, argv, "/dataset", columns, false,
                       "no data sets; kubeml dataset create makes one");
}

int cmd_dataset_get(cli *c, int argc, char **argv)
{
    return object_get(c, argc, argv, &kind);
}

int cmd_dataset_delete(cli *c, int argc, char **argv)
{
    return object_act(c, argc, argv, &kind, "DELETE", "", "deleted");
}
