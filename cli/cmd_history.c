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

static const object_kind kind = {"/history/", "history", "the job", true};

static const cli_column columns[] = {
    {"ID", "id", false, NULL, false},
    {"FUNCTION", "task.function_name", false, NULL, false},
    {"DATASET", "task.dataset", false, NULL, false},
    {"EPOCHS", "data.epoch_duration", false, length_of, true},
    {"ACC %", "data.accuracy", false, last_of, true},
    {"VAL LOSS", "data.validation_loss", false, last_of, true},
    {"TRAIN LOSS", "data.train_loss", false, last_of, true},
    {"STATE", "state", false, NULL, false},
    {"AGE", "created", false, output_age, true},
    {"BATCH", "task.batch_size", true, NULL, true},
    {"LR", "task.lr", true, NULL, true},
    {"K", "task.options.k", true, NULL, true},
    {"FUNCTIONS", "data.parallelism", true, last_of, true},
    {"SEED", "plan.seed", true, NULL, true},
    {NULL, NULL, false, NULL, false},
};

static void print_epochs(const json_t *history)
{
    static const char *const keys[EPOCH_VALUES] = {"train_loss", "validation_loss", "accuracy",
                                                   "epoch_duration", "parallelism"};
    const json_t *data = json_object_get(history, "data");
    json_t *value[EPOCH_VALUES];
    output_epochs_head();
    for (size_t i = 0; i < json_array_size(json_object_get(data, "epoch_duration")); i++) {
        for (size_t k = 0; k < EPOCH_VALUES; k++)
            value[k] = json_array_get(json_object_get(data, keys[k]), i);
        output_epoch((int)i + 1, value);
    }
}

int cmd_history_get(cli *c, int argc, char **argv)
{
    const char *id = NULL, *format = "table";
    const cli_option more[] = {OUTPUT_TABLE(&format), {.name = NULL}};
    OBJECT_NAME(c, argc, argv, &kind, more, &id);
    err e = ERR_INIT;
    json_t *history = NULL;
    if (cli_call(c, "GET", cli_path(kind.path, id, ""), NULL, &history, &e))
        return cli_fail(&e);
    if (strcmp(format, "table") == 0)
        print_epochs(history);
    else
        output_value(history, format);
    json_decref(history);
    return CLI_OK;
}

int cmd_history_list(cli *c, int argc, char **argv)
{
    return object_list(c, argc, argv, "/history", columns, true,
                       "no histories: no job has trained yet");
}

int cmd_history_delete(cli *c, int argc, char **argv)
{
    return object_act(c, argc, argv, &kind, "DELETE", "", "deleted");
}

/* Takes the list of jobs, not of histories: a job that was stopped before its start has no history.
 */
int cmd_history_prune(cli *c, int argc, char **argv)
{
    return object_prune(c, argc, argv, &kind, "/tasks?state=all", "deleted",
                        ", with histories, logs and models, where they have ended");
}
