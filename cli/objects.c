/* objects.c: what every kind of thing with a name has: list, get and delete. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

/* `options` has room for `more` behind the first one. */
static int one_of(cli *c, int argc, char **argv, cli_option *options, const cli_option *more,
                  const char **name)
{
    const char *given = NULL;
    for (size_t i = 0; more && more[i].name; i++)
        options[i + 1] = more[i];
    int stop = cli_parse(c, argc, argv, options, 0, 1, &given);
    if (stop)
        return stop;
    if (given && *name)
        return cli_usage(c, "\"%s\" is too much: --%s is given", given, options->name) + 1;
    if (given)
        *name = given;
    return *name ? 0 : cli_usage(c, "which %s?", options->help + strlen("the ")) + 1;
}

int object_name(cli *c, int argc, char **argv, const char *the, const cli_option *more,
                const char **name)
{
    cli_option options[CLI_OPTIONS_MAX] = {
        {"name", 'n', OPTION_TEXT, "NAME", the, name, NULL, false, false}};
    return one_of(c, argc, argv, options, more, name);
}

int object_id(cli *c, int argc, char **argv, const char *the, const cli_option *more,
              const char **id)
{
    cli_option options[CLI_OPTIONS_MAX] = {
        {"id", 0, OPTION_TEXT, "ID", the, id, NULL, false, false}};
    return one_of(c, argc, argv, options, more, id);
}

int object_list(cli *c, int argc, char **argv, const char *path, const cli_column *columns,
                bool by_time, const char *empty)
{
    const char *format = "table";
    const cli_option options[] = {OUTPUT_ROWS(&format), {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
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

int object_get(cli *c, int argc, char **argv, const char *prefix)
{
    const char *format = "yaml", *name = NULL;
    const cli_option options[] = {OUTPUT_VALUE(&format), {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 1, 1, &name);
    err e = ERR_INIT;
    json_t *value = NULL;
    if (cli_call(c, "GET", cli_path(prefix, name, ""), NULL, &value, &e))
        return cli_fail(&e);
    int status = output_value(value, format);
    json_decref(value);
    return status;
}

int object_delete(cli *c, int argc, char **argv, const char *prefix, const char *kind,
                  const char *the)
{
    const char *name = NULL;
    int stop = object_name(c, argc, argv, the, NULL, &name);
    if (stop)
        return stop - 1;
    err e = ERR_INIT;
    if (cli_call(c, "DELETE", cli_path(prefix, name, ""), NULL, NULL, &e))
        return cli_fail(&e);
    printf("%s %s deleted\n", kind, name);
    return CLI_OK;
}
