/* objects.c: verbs of all kinds of objects with a name or an ID: list, get, delete, ... */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli.h"

const object_kind object_job = {"/tasks/", "job", "the job", true};

int object_name(cli *c, int argc, char **argv, const object_kind *kind, const cli_option *more,
                const char **name)
{
    const char *given = NULL;
    cli_option options[CLI_OPTIONS_MAX] = {{kind->has_id ? "id" : "name", kind->has_id ? 0 : 'n',
                                            OPTION_TEXT, kind->has_id ? "ID" : "NAME", kind->the,
                                            name, NULL, false, false}};
    for (size_t i = 0; more && more[i].name; i++)
        options[i + 1] = more[i];
    int stop = cli_parse(c, argc, argv, options, 0, 1, &given);
    if (stop)
        return stop;
    if (given && *name)
        return cli_usage(c, "\"%s\" is too much: --%s is given", given, options->name) + 1;
    if (given)
        *name = given;
    return *name ? 0 : cli_usage(c, "which %s?", kind->the + strlen("the ")) + 1;
}

int object_rows(const cli *c, const char *path, const cli_column *columns, const char *format,
                bool by_time, const char *empty)
{
    err e = ERR_INIT;
    json_t *rows = NULL;
    if (cli_call_list(c, path, &rows, &e))
        return cli_fail(&e);
    if (by_time)
        output_sort(rows);
    int status = output_rows(rows, columns, format, empty);
    json_decref(rows);
    return status;
}

int object_list(cli *c, int argc, char **argv, const char *path, const cli_column *columns,
                bool by_time, const char *empty)
{
    const char *format = "table";
    const cli_option options[] = {OUTPUT_ROWS(&format), {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    return object_rows(c, path, columns, format, by_time, empty);
}

int object_get(cli *c, int argc, char **argv, const object_kind *kind)
{
    const char *format = "yaml", *name = NULL;
    const cli_option more[] = {OUTPUT_VALUE(&format), {.name = NULL}};
    OBJECT_NAME(c, argc, argv, kind, more, &name);
    err e = ERR_INIT;
    json_t *value = NULL;
    if (cli_call(c, "GET", cli_path(kind->path, name, ""), NULL, &value, &e))
        return cli_fail(&e);
    int status = output_value(value, format);
    json_decref(value);
    return status;
}

int object_act(cli *c, int argc, char **argv, const object_kind *kind, const char *method,
               const char *tail, const char *done)
{
    const char *name = NULL;
    OBJECT_NAME(c, argc, argv, kind, NULL, &name);
    err e = ERR_INIT;
    if (cli_call(c, method, cli_path(kind->path, name, tail), NULL, NULL, &e))
        return cli_fail(&e);
    printf("%s %s %s\n", kind->noun, name, done);
    return CLI_OK;
}

static void keep_of_user(json_t *rows, const char *user)
{
    for (size_t i = json_array_size(rows); i > 0; i--) {
        const char *whose = json_string_value(json_object_get(json_array_get(rows, i - 1), "user"));
        if (!whose || strcmp(whose, user) != 0)
            json_array_remove(rows, i - 1);
    }
}

/* Asks at the terminal, with the numbers of jobs and users, because the loss concerns all users. */
static bool is_wanted(const json_t *rows, const char *done, const char *with)
{
    char answer[16] = "", of[48] = "";
    json_t *users = json_object(), *row;
    size_t i, count = json_array_size(rows);
    json_array_foreach ((json_t *)(uintptr_t)rows, i, row) {
        const char *user = json_string_value(json_object_get(row, "user"));
        json_object_set_new(users, user ?: "", json_true());
    }
    size_t whose = json_object_size(users);
    if (whose > 1 || !json_object_get(users, "")) /* without tokens users have no names */
        snprintf(of, sizeof of, " of %zu user%s", whose, whose == 1 ? "" : "s");
    json_decref(users);
    fprintf(stderr, "%zu job%s%s will be %s%s: go on? (y/N) ", count, count == 1 ? "" : "s", of,
            done, with);
    if (fgets(answer, sizeof answer, stdin))
        answer[strcspn(answer, "\n")] = '\0';
    return strcasecmp(answer, "y") == 0 || strcasecmp(answer, "yes") == 0;
}

int object_prune(cli *c, int argc, char **argv, const object_kind *kind, const char *jobs,
                 const char *done, const char *with)
{
    const char *user = NULL;
    bool yes = false;
    const cli_option options[] = {
        {"user", 0, OPTION_TEXT, "NAME", "only jobs of this user (of all users)", &user, NULL,
         false, false},
        {"yes", 'y', OPTION_FLAG, NULL, "do not ask; required without a terminal", &yes, NULL,
         false, false},
        {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    if (!yes && !isatty(STDIN_FILENO))
        return cli_usage(c, "there is no terminal to ask on: --yes says that they are to be %s",
                         done);
    err e = ERR_INIT;
    json_t *rows = NULL, *row;
    size_t i;
    if (cli_call_list(c, jobs, &rows, &e))
        return cli_fail(&e);
    if (user)
        keep_of_user(rows, user);
    if (json_array_size(rows) > 0 && !yes && !is_wanted(rows, done, with)) {
        json_decref(rows);
        fprintf(stderr, "nothing is %s\n", done);
        return CLI_FAILED;
    }
    int status = CLI_OK;
    bool any = false; /* an object was deleted, or its conflict was printed */
    json_array_foreach (rows, i, row) {
        const char *id = json_string_value(json_object_get(row, "id"));
        if (cli_call(c, "DELETE", cli_path(kind->path, id, ""), NULL, NULL, &e) == 0) {
            printf("%s %s %s\n", kind->noun, id, done);
            any = true;
        } else if (e.code == ERR_CONFLICT) {
            fprintf(stderr, "%s %s is not %s: %s\n", kind->noun, id, done, e.message);
            any = true;
        } else if (e.code != ERR_NOT_FOUND) {
            status = cli_fail(&e);
        }
    }
    if (!any && status == CLI_OK)
        fprintf(stderr, "nothing to be %s\n", done);
    json_decref(rows);
    return status;
}
