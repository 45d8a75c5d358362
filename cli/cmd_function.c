/* cmd_function.c: kubeml function create | update | list | get | delete | logs. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const object_kind kind = {"/function/", "function", "the function", false};

static const cli_column columns[] = {
    {"NAME", "name", false, NULL, false},
    {"VERSION", "version", false, NULL, true},
    {"KIND", "kind", false, NULL, false},
    {"MODEL", "model", false, NULL, false},
    {"CREATED", "created", false, output_age, true},
    {"DIGEST", "digest", true, NULL, false},
    {NULL, NULL, false, NULL, false},
};

/* Prints the compiler's messages as a compiler would; returns whether there were any. */
static bool print_diagnostics(const http_reply *reply)
{
    json_t *problem =
        reply->body.len ? json_loadb(reply->body.bytes, reply->body.len, 0, NULL) : NULL;
    const char *text = json_string_value(json_object_get(problem, "compiler_output"));
    if (text && *text)
        fprintf(stderr, "%s%s", text, text[strlen(text) - 1] == '\n' ? "" : "\n");
    bool any = text && *text;
    json_decref(problem);
    return any;
}

/* Uploads the files. *record: the function's record afterwards (new reference). */
static int upload(const cli *c, const char *method, const char *name, const cli_list *files,
                  json_t **record)
{
    err e = ERR_INIT;
    http_part parts[CLI_LIST_MAX];
    for (size_t i = 0; i < files->count; i++)
        if (cli_part(&parts[i], "code", files->item[i], &e))
            return cli_fail(&e);
    http_call call = {.method = method, .parts = parts, .part_count = files->count, .idle_s = 300};
    http_reply reply;
    int status = cli_call_raw(c, &call, cli_path("/function/", name, ""), &reply, &e);
    bool said = print_diagnostics(&reply); /* also the warnings of a successful build */
    /* Other errors, such as a limit, keep their own message. */
    if (status && said && e.code == ERR_INVALID)
        err_set(&e, ERR_INVALID, "function %.64s: the code does not compile; nothing has changed",
                name);
    *record = status ? NULL : http_reply_json(&reply, &e);
    http_reply_free(&reply);
    return *record ? CLI_OK : cli_fail(&e);
}

static int put(cli *c, int argc, char **argv, bool update)
{
    const char *method = update ? "PUT" : "POST";
    const char *name = NULL, *model = NULL, *stem = NULL;
    cli_list files = {{0}, 0};
    const cli_option options[] = {
        {"code", 'c', OPTION_TEXT, "FILE", "a C file against kubeml.h; may be repeated", &files,
         NULL, false, true},
        {"model", 'm', OPTION_TEXT, "NAME[,KEY=VALUE]",
         "a model of the zoo instead of code; its options: zoo list --help", &model, NULL, false,
         false},
        {"stem", 0, OPTION_TEXT, "KIND",
         "the model's first layers: cifar or imagenet (auto: by the data set)", &stem, NULL, false,
         false},
        {.name = NULL}};
    OBJECT_NAME(c, argc, argv, &kind, options, &name);
    if ((files.count > 0) == (model != NULL))
        return cli_usage(c, "either --code FILE or --model NAME");
    if (stem && !model)
        return cli_usage(c, "--stem goes with --model");
    int status = CLI_OK;
    json_t *record = NULL;
    if (model) {
        err e = ERR_INIT;
        json_t *body = json_pack("{s:s, s:s*}", "model", model, "stem", stem);
        if (cli_call(c, method, cli_path("/function/", name, ""), body, &record, &e))
            status = cli_fail(&e);
        json_decref(body);
    } else {
        status = upload(c, method, name, &files, &record);
    }
    if (status == CLI_OK && update) /* the same code makes no new version */
        printf("function %s is at version %lld\n", name,
               (long long)json_integer_value(json_object_get(record, "version")));
    else if (status == CLI_OK)
        printf("function %s created\n", name);
    json_decref(record);
    return status;
}

int cmd_function_create(cli *c, int argc, char **argv)
{
    return put(c, argc, argv, false);
}

int cmd_function_update(cli *c, int argc, char **argv)
{
    return put(c, argc, argv, true);
}

int cmd_function_list(cli *c, int argc, char **argv)
{
    return object_list(c, argc, argv, "/function", columns, false,
                       "no functions; kubeml function create makes one");
}

int cmd_function_get(cli *c, int argc, char **argv)
{
    return object_get(c, argc, argv, &kind);
}

int cmd_function_delete(cli *c, int argc, char **argv)
{
    return object_act(c, argc, argv, &kind, "DELETE", "", "deleted");
}

/* Finds the ID of the newest job of this function; -1 where there is no job. */
static int newest_job(const cli *c, const char *function, char *id, size_t size, err *e)
{
    json_t *rows = NULL, *row;
    size_t i;
    if (cli_call_list(c, "/tasks?state=all", &rows, e))
        return -1;
    const char *newest = "";
    id[0] = '\0';
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(output_at(row, "request.function_name"));
        const char *created = json_string_value(json_object_get(row, "created"));
        if (!name || !created || strcmp(name, function) != 0 || strcmp(created, newest) < 0)
            continue;
        newest = created;
        snprintf(id, size, "%s", json_string_value(json_object_get(row, "id")));
    }
    json_decref(rows);
    return id[0] ? 0 : err_set(e, ERR_NOT_FOUND, "no job ran function \"%s\"", function);
}

int cmd_function_logs(cli *c, int argc, char **argv)
{
    const char *name = NULL;
    bool follow = false;
    const cli_option options[] = {{"follow", 'f', OPTION_FLAG, NULL, "continue until the job ends",
                                   &follow, NULL, false, false},
                                  {.name = NULL}};
    OBJECT_NAME(c, argc, argv, &kind, options, &name);
    err e = ERR_INIT;
    char id[128];
    if (newest_job(c, name, id, sizeof id, &e))
        return cli_fail(&e);
    char *arguments[] = {argv[0], id, follow ? "--follow" : NULL, NULL};
    return cmd_logs(c, follow ? 3 : 2, arguments);
}
