/* cmd_task.c: kubeml task list | get | stop | suspend | resume | wait | prune, and kubeml
 * explain. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const cli_column columns[] = {
    {"ID", "id", false, NULL, false},
    {"STATE", "state", false, NULL, false},
    {"EPOCH", "epoch", false, NULL, true},
    {"OF", "request.epochs", false, NULL, true},
    {"ACC %", "accuracy", false, NULL, true},
    {"LOSS", "validation_loss", false, NULL, true},
    {"WORKERS", "parallelism", false, NULL, true},
    {"AGE", "created", false, output_age, true},
    {"FUNCTION", "request.function_name", true, NULL, false},
    {"DATASET", "request.dataset", true, NULL, false},
    {"K", "request.options.k", true, NULL, true},
    {"PRIORITY", "request.options.priority", true, NULL, true},
    {"USER", "user", true, NULL, false},
    {"REASON", "reason", true, NULL, false},
    {NULL, NULL, false, NULL, false},
};

/* Prints IDs for scripts; prints nothing if there are no jobs. */
static int list_ids(const cli *c, const char *path)
{
    err e = ERR_INIT;
    json_t *rows = NULL, *row;
    size_t i;
    if (cli_call_list(c, path, &rows, &e))
        return cli_fail(&e);
    output_sort(rows);
    json_array_foreach (rows, i, row)
        puts(json_string_value(json_object_get(row, "id")) ?: "");
    json_decref(rows);
    return CLI_OK;
}

int cmd_task_list(cli *c, int argc, char **argv)
{
    const char *format = "table";
    bool all = false, ids = false;
    const cli_option options[] = {
        OUTPUT_ROWS(&format),
        {"all", 'a', OPTION_FLAG, NULL, "include jobs that have ended", &all, NULL, false, false},
        {"short", 0, OPTION_FLAG, NULL, "print ids alone, one a line", &ids, NULL, false, false},
        {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    if (ids)
        return list_ids(c, all ? "/tasks?state=all" : "/tasks");
    return object_rows(c, all ? "/tasks?state=all" : "/tasks", columns, format, true,
                       all ? "no jobs" : "no job waits or runs; --all shows those that ended");
}

int cmd_task_get(cli *c, int argc, char **argv)
{
    return object_get(c, argc, argv, &object_job);
}

int cmd_task_stop(cli *c, int argc, char **argv)
{
    return object_act(c, argc, argv, &object_job, "DELETE", "", "stopped");
}

int cmd_task_suspend(cli *c, int argc, char **argv)
{
    return object_act(c, argc, argv, &object_job, "POST", "/suspend", "stops at its next merge");
}

int cmd_task_resume(cli *c, int argc, char **argv)
{
    return object_act(c, argc, argv, &object_job, "POST", "/resume", "resumed");
}

int cmd_task_wait(cli *c, int argc, char **argv)
{
    const char *id = NULL;
    long timeout_s = 0;
    bool watch = false;
    const cli_option more[] = {{"watch", 'w', OPTION_FLAG, NULL, "print a line for each epoch",
                                &watch, NULL, false, false},
                               {"timeout", 't', OPTION_INT, "SECONDS", "longest wait (0: no limit)",
                                &timeout_s, NULL, false, false},
                               {.name = NULL}};
    OBJECT_NAME(c, argc, argv, &object_job, more, &id);
    if (timeout_s < 0)
        return cli_usage(c, "--timeout wants 0 or more, not %ld", timeout_s);
    return watch_job(c, id, !watch, timeout_s);
}

int cmd_task_prune(cli *c, int argc, char **argv)
{
    return object_prune(c, argc, argv, &object_job, "/tasks", "stopped", "");
}

/* Explains the job with that ID, or else the function with that name; sets `kind`. */
static int explanation(const cli *c, const char *id, const char **kind, json_t **why, err *e)
{
    *kind = "job:";
    if (cli_call(c, "GET", cli_path("/tasks/", id, "/explain"), NULL, why, e) == 0)
        return 0;
    if (e->code != ERR_NOT_FOUND)
        return -1;
    *kind = "function:";
    if (cli_call(c, "GET", cli_path("/function/", id, "/explain"), NULL, why, e) == 0)
        return 0;
    /* An invalid name is the name of no function. */
    return e->code == ERR_NOT_FOUND || e->code == ERR_INVALID
               ? err_set(e, ERR_NOT_FOUND, "there is no job and no function \"%.64s\"", id)
               : -1;
}

int cmd_explain(cli *c, int argc, char **argv)
{
    static const object_kind either = {.the = "the job or function", .has_id = true};
    const char *id = NULL, *format = "text", *kind;
    const cli_option more[] = {OUTPUT_TEXT(&format), {.name = NULL}};
    OBJECT_NAME(c, argc, argv, &either, more, &id);
    err e = ERR_INIT;
    json_t *why = NULL, *line;
    size_t i;
    if (explanation(c, id, &kind, &why, &e))
        return cli_fail(&e);
    if (strcmp(format, "text") != 0) {
        output_value(why, format);
    } else {
        output_line(kind, id);
        output_line("state:", json_string_value(json_object_get(why, "state")) ?: "?");
        output_line("reason:", json_string_value(json_object_get(why, "reason")) ?: "-");
        output_line("because:", json_string_value(json_object_get(why, "message")) ?: "-");
        json_array_foreach(json_object_get(why, "evidence"), i, line)
        {
            char *text = json_is_string(line) ? NULL : json_dumps(line, JSON_ENCODE_ANY);
            output_line(i ? "" : "evidence:", text ? text : json_string_value(line));
            free(text);
        }
    }
    json_decref(why);
    return CLI_OK;
}
