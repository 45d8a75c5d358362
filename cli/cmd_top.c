/* cmd_top.c: kubeml top. */
#include <stdio.h>
#include <unistd.h>

#include "cli.h"

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

int cmd_top(cli *c, int argc, char **argv)
{
    const char *format = "table";
    bool watch = false;
    const cli_option options[] = {
        OUTPUT_ROWS(&format),
        {"watch", 'w', OPTION_FLAG, NULL, "again and again", &watch, NULL, false, false},
        {.name = NULL}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    for (;;) {
        err e = ERR_INIT;
        json_t *rows = NULL;
        if (cli_call(c, "GET", "/usage", NULL, &rows, &e))
            return cli_fail(&e);
        if (watch && isatty(STDOUT_FILENO))
            printf("\033[H\033[J"); /* from the top of an empty screen */
        int status = output_rows(rows, columns, format, "no function of a job runs");
        json_decref(rows);
        if (!watch || status || fflush(stdout))
            return status;
        usleep(TOP_AGAIN_MS * 1000);
    }
}
