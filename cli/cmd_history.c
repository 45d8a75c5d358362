/* cmd_history.c: kubeml history get | list | delete | prune. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static void last_of(const json_t *series, char *out, size_t size)
{
    const json_t *last = NULL;
    for (size_t i = json_array_size(series); i > 0 && !json_is_number(last); i--)
        last = json_array_get(series, i - 1);
    if (json_is_number(last))
        snprintf(out, size, "%.4g", json_number_value(last));
    else
        snprintf(out, size, "-");
}

static void length_of(const json_t *series, char *out, size_t size)
{
    snprintf(out, size, "%zu", json_array_size(series));
}

static const cli_column columns[] = {
    {"ID", "id", false, NULL, false},
    {"FUNCTION", "task.function_name", false, NULL, false},
    {"DATASET", "task.dataset", false, NULL, false},
    {"EPOCHS", "data.epoch_duration", false, length_of, true},
    {"ACC %", "data.accuracy", false, last_of, true},
    {"VAL LOSS", "data.validation_loss", false, last_of, true},
    {"TRAIN LOSS", "data.train_loss", false, last_of, true},
    {"BATCH", "task.batch_size", true, NULL, true},
    {"LR", "task.lr", true, NULL, true},
    {NULL, NULL, false, NULL, false},
};

static void print_epochs(const json_t *history)
{
    static const char *const keys[] = {"train_loss", "validation_loss", "accuracy",
                                       "epoch_duration", "parallelism"};
    static const int decimals[] = {4, 4, 2, 2, 0};
    const json_t *data = json_object_get(history, "data");
    printf("%5s %10s %10s %10s %9s %11s\n", "epoch", "train loss", "val loss", "accuracy %",
           "seconds", "parallelism");
    for (size_t i = 0; i < json_array_size(json_object_get(data, "epoch_duration")); i++) {
        printf("%5zu", i + 1);
        static const int width[] = {10, 10, 10, 9, 11};
        for (size_t k = 0; k < 5; k++) {
            const json_t *value = json_array_get(json_object_get(data, keys[k]), i);
            if (json_is_number(value))
                printf(" %*.*f", width[k], decimals[k], json_number_value(value));
            else
                printf(" %*s", width[k], "-");
        }
        putchar('\n');
    }
}

static int one_id(cli *c, int argc, char **argv, const char **id, const char **format)
{
    const char *given = NULL;
    const cli_option options[] = {
        {"id", 0, OPTION_TEXT, "ID", "the job", id, NULL, false, false},
        {format ? "output" : NULL, 'o', OPTION_TEXT, "FORMAT", "table, json or yaml", format, NULL, false, false},
        {NULL, 0, OPTION_FLAG, NULL, NULL, NULL, NULL, false, false}};
    int stop = cli_parse(c, argc, argv, options, 0, 1, &given);
    if (stop)
        return stop;
    if (given)
        *id = given;
    return *id ? 0 : cli_usage(c, "which job? give its id") + 1;
}

int cmd_history_get(cli *c, int argc, char **argv)
{
    const char *id = NULL, *format = "table";
    int stop = one_id(c, argc, argv, &id, &format);
    if (stop)
        return stop - 1;
    if (!output_known(c, format, OUTPUT_ROWS))
        return CLI_USAGE;
    err e = ERR_INIT;
    json_t *history = NULL;
    if (cli_call(c, "GET", cli_path("/history/", id, ""), NULL, &history, &e))
        return cli_fail(&e);
    if (strcmp(format, "table") == 0 || strcmp(format, "wide") == 0)
        print_epochs(history);
    else
        output_value(history, format);
    json_decref(history);
    return CLI_OK;
}

int cmd_history_list(cli *c, int argc, char **argv)
{
    return object_list(c, argc, argv, "/history", columns, true, "no histories: no job has trained yet");
}

int cmd_history_delete(cli *c, int argc, char **argv)
{
    const char *id = NULL;
    int stop = one_id(c, argc, argv, &id, NULL);
    if (stop)
        return stop - 1;
    err e = ERR_INIT;
    if (cli_call(c, "DELETE", cli_path("/history/", id, ""), NULL, NULL, &e))
        return cli_fail(&e);
    printf("history %s deleted\n", id);
    return CLI_OK;
}

int cmd_history_prune(cli *c, int argc, char **argv)
{
    const cli_option options[] = {{NULL, 0, OPTION_FLAG, NULL, NULL, NULL, NULL, false, false}};
    CLI_PARSE(c, argc, argv, options, 0, 0, NULL);
    err e = ERR_INIT;
    json_t *rows = NULL, *row;
    size_t i;
    if (cli_call(c, "GET", "/history", NULL, &rows, &e))
        return cli_fail(&e);
    int status = CLI_OK;
    json_array_foreach(rows, i, row)
    {
        const char *id = json_string_value(json_object_get(row, "id"));
        if (cli_call(c, "DELETE", cli_path("/history/", id, ""), NULL, NULL, &e) == 0)
            printf("history %s deleted\n", id);
        else if (e.code != ERR_CONFLICT && e.code != ERR_NOT_FOUND) /* it runs, or is gone */
            status = cli_fail(&e);
    }
    json_decref(rows);
    return status;
}
