/* cmd_top.c: kubeml top. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "common/base/clock.h"

enum { TOP_AGAIN_MS = 2000 };

static void mib(const json_t *value, char *out, size_t size)
{
    snprintf(out, size, json_is_number(value) ? "%.0fMi" : "-",
             json_number_value(value) / (1 << 20));
}

static void whole(const json_t *value, char *out, size_t size)
{
    snprintf(out, size, json_is_number(value) ? "%.0f" : "-", json_number_value(value));
}

static const cli_column columns[] = {
    {"JOB", "job", false, NULL, false},
    {"FUNCTION", "function", false, NULL, true},
    {"CPU %", "cpu_percent", false, whole, true},
    {"MEMORY", "memory_bytes", false, mib, true},
    {"GPU %", "gpu.percent", false, whole, true},
    {"GPU MEMORY", "gpu.memory_bytes", false, mib, true},
    {"OWN", "gpu.own_bytes", true, mib, true},
    {"OWN %", "gpu.own_percent", true, whole, true},
    {"WATTS", "gpu.watts", false, whole, true},
    {"GPU", "gpu.name", true, NULL, false},
    {"INCARNATION", "incarnation", true, NULL, true},
    {NULL, NULL, false, NULL, false},
};

/* Separates a table from the last: on a terminal it takes the last table's place. JSON values need
 * no separator. */
static void set_apart(const char *format, bool table_follows)
{
    if (isatty(STDOUT_FILENO))
        printf("\033[H\033[J"); /* clears the screen, and goes to its top */
    else if (strcmp(format, "yaml") == 0)
        puts("---");
    else if (table_follows && strcmp(format, "json") != 0)
        putchar('\n');
}

int cmd_top(cli *c, int argc, char **argv)
{
    const char *format = "table";
    bool watch = false;
    const cli_option options[] = {OUTPUT_ROWS(&format),
                                  {"watch", 'w', OPTION_FLAG, NULL, "print again every two seconds",
                                   &watch, NULL, false, false},
                                  {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    cli_stream stream = {.heard_ms = clock_monotonic_ms()};
    bool printed = false;
    for (err e = ERR_INIT;; err_clear(&e)) {
        json_t *rows = NULL;
        if (cli_call(c, "GET", "/usage", NULL, &rows, &e)) {
            if (watch && cli_again(&stream, 0, &e))
                continue;
            return cli_fail(&e);
        }
        stream.begun = true;
        stream.heard_ms = clock_monotonic_ms();
        bool any = json_array_size(rows) > 0;
        if (watch)
            set_apart(format, any && printed);
        printed |= any;
        int status = output_rows(rows, columns, format, "no function of a job runs");
        json_decref(rows);
        if (!watch || status || fflush(stdout))
            return status;
        usleep(TOP_AGAIN_MS * 1000);
    }
}
