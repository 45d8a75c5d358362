/* objects.c: what every kind of thing with a name has: list, get and delete. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

int object_list(cli *c, int argc, char **argv, const char *path, const cli_column *columns, bool by_time,
                const char *empty)
{
    const char *format = "table";
    const cli_option options[] = {
        {"output", 'o', OPTION_TEXT, "FORMAT", "table, wide, json or yaml", &format, NULL, false, false},
        {NULL, 0, OPTION_FLAG, NULL, NULL, NULL, NULL, false, false}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    if (!output_known(c, format, OUTPUT_ROWS))
        return CLI_USAGE;
    err e = ERR_INIT;
    json_t *rows = NULL;
    if (cli_call(c, "GET", path, NULL, &rows, &e))
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
    const cli_option options[] = {
        {"output", 'o', OPTION_TEXT, "FORMAT", "json or yaml", &format, NULL, false, false},
        {NULL, 0, OPTION_FLAG, NULL, NULL, NULL, NULL, false, false}};
    CLI_PARSE(c, argc, argv, options, 1, 1, &name);
    if (!output_known(c, format, OUTPUT_VALUE))
        return CLI_USAGE;
    err e = ERR_INIT;
    json_t *value = NULL;
    if (cli_call(c, "GET", cli_path(prefix, name, ""), NULL, &value, &e))
        return cli_fail(&e);
    int status = output_value(value, format);
    json_decref(value);
    return status;
}

int object_delete(cli *c, int argc, char **argv, const char *prefix, const char *kind, const char *the)
{
    const char *name = NULL, *given = NULL;
    const cli_option options[] = {
        {"name", 'n', OPTION_TEXT, "NAME", the, &name, NULL, false, false},
        {NULL, 0, OPTION_FLAG, NULL, NULL, NULL, NULL, false, false}};
    CLI_PARSE(c, argc, argv, options, 0, 1, &given);
    name = given ? given : name;
    if (!name)
        return cli_usage(c, "which %s?", the + strlen("the "));
    err e = ERR_INIT;
    if (cli_call(c, "DELETE", cli_path(prefix, name, ""), NULL, NULL, &e))
        return cli_fail(&e);
    printf("%s %s deleted\n", kind, name);
    return CLI_OK;
}
