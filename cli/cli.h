/* cli.h: shared by the commands of `kubeml`.
 *
 * Each noun has one file, cmd_<noun>.c, with a function for each verb. verbs.c has the table of
 * verbs: name, help, function. Each function has a table of its options. The help pages, the
 * parsing and the shell completion all follow from these tables. A command returns the process's
 * exit status: 0 done, 1 failed, 2 wrong usage. */
#ifndef KUBEML_CLI_H
#define KUBEML_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/net/http_client.h"

enum { CLI_OPTIONS_MAX = 64, CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };
/* idle_s of a call during which the server may work for minutes without sending a byte: it reads
 * through an upload, or fetches a model from its store. */
enum { CLI_BUSY_S = 600 };
/* How long a followed stream may bring nothing, whatever the number of tries, before the CLI gives
 * up. */
enum { CLI_SILENT_S = 180 };

typedef enum option_kind {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_FORMAT,
    OPTION_INT,
    OPTION_NUMBER
} option_kind;

/* One option. `into` is a bool*, const char**, long* or double*, by the option's kind; without the
 * option on the command line it keeps the caller's default. `seen` (may be NULL) becomes true if
 * the option is given. */
typedef struct cli_option {
    const char *name;
    char letter; /* 0: none */
    option_kind kind;
    const char *value; /* placeholder in the help; OPTION_FORMAT: the allowed words */
    const char *help;
    void *into;
    bool *seen;
    bool required;
    bool repeats; /* OPTION_TEXT only: `into` is a cli_list* */
} cli_option;

enum { CLI_LIST_MAX = 64 };
typedef struct cli_list {
    const char *item[CLI_LIST_MAX];
    size_t count;
} cli_list;

typedef struct cli cli;

typedef struct cli_verb {
    const char *name; /* "train", "dataset create" */
    const char *arguments; /* after the options, for the usage line: "ID", "" */
    const char *summary;   /* one line */
    const char *details;   /* the help page's text, with an example; may be NULL */
    int (*run)(cli *c, int argc, char **argv); /* argv[0] is the verb's last word */
} cli_verb;

/* ---- the platform of a cluster (cluster.c) ---- */
/* The options --context, --namespace, --kubeconfig and --service, and the platform that
 * `cluster_reach` finds with them. */
typedef struct cluster_access {
    const char *context, *kubeconfig, *namespace_name, *service; /* NULL: not given */
    bool wanted; /* one of the four is given */
    /* set by cluster_reach: */
    kube_config *config;
    char base[1024]; /* URL of the API server's proxy for the Service; API paths follow it */
    char *token;     /* the platform's, from its Secret; NULL: KUBEML_TOKEN is set */
} cluster_access;
/* Takes the options before the verb; returns their number of words, or -1 with an error printed. */
int cluster_options(cluster_access *a, int argc, char **argv);
bool cluster_is_option(const char *word);
void cluster_describe(void); /* prints the options' names for completion */
/* Finds the platform by the kubeconfig, once; later calls only renew credentials that expire.
 * `has_token`: does not read the platform's token. */
int cluster_reach(cluster_access *a, bool has_token, err *e);

struct cli {
    const char *url;   /* KUBEML_URL, else the local platform's */
    cluster_access *cluster; /* used instead of url when `wanted` */
    const char *token; /* KUBEML_TOKEN, else NULL */
    const cli_verb *verb;
    /* For completion: cli_parse prints the options' names and ends. */
    bool describe;
    const char *before; /* not NULL: with `describe`, prints the words that may follow this word */
    json_t *documents; /* not NULL: cli_parse adds the options to this array, and ends */
};

/* Every verb of every command, ended by a NULL name. */
extern const cli_verb cli_verbs[];

/* Parses argv by `options` (ended by a NULL name; NULL: no options). Positional arguments, between
 * min and max of them, go to `arguments`. Returns 0 to go on, else the exit status + 1 (help,
 * usage). */
int cli_parse(cli *c, int argc, char **argv, const cli_option *options, int min, int max,
              const char **arguments);
#define CLI_PARSE(c, argc, argv, options, min, max, arguments)                                     \
    do {                                                                                           \
        int stop_ = cli_parse(c, argc, argv, options, min, max, arguments);                        \
        if (stop_)                                                                                 \
            return stop_ - 1;                                                                      \
    } while (0)

/* Prints the words that may follow c->before, the last word so far (names.c). `max`: the most
 * positional arguments. */
void names_print(const cli *c, const cli_option *options, int argc, char **argv, int max);

/* Prints a table of the code as JSON, from which a page's table is made (docs.c). */
int docs_print(const char *table);
void docs_add_options(json_t *out, const cli_option *options);
/* What the help calls an option's value. */
const char *cli_placeholder(const cli_option *o);

/* For an error of standard output: as cli_fail, but prints nothing if the reader of a pipe is gone.
 */
int cli_unwritten(const err *e);
int cli_fail(const err *e); /* prints "kubeml: message", and a hint where one helps; CLI_FAILED */
int cli_usage(const cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Calls the API. `path` begins with '/'. *out is the response's JSON (new reference); `out` may be
 * NULL. */
int cli_call(const cli *c, const char *method, const char *path, const json_t *body, json_t **out,
             err *e);
/* All rows of a list, page after page (new reference). `path` may have a query. */
int cli_call_list(const cli *c, const char *path, json_t **rows, err *e);
/* Sets `part` to upload a file as that field. The error names a path that is no regular file. */
int cli_part(http_part *part, const char *field, const char *path, err *e);
/* Calls the API, and retries for some seconds while a controller takes over from another
 * controller: only if the failed call changed nothing. The caller frees `reply`. */
int cli_call_raw(const cli *c, http_call *call, const char *path, http_reply *reply, err *e);
/* The same without retries, for a stream, whose caller retries by itself. */
int cli_call_once(const cli *c, http_call *call, const char *path, http_reply *reply, err *e);
/* "/tasks/" + percent-encoded name + tail, in a static buffer. */
const char *cli_path(const char *prefix, const char *name, const char *tail);
/* A stream that is requested again when its controller goes or a proxy ends it. */
typedef struct cli_stream {
    int64_t heard_ms; /* set by the caller at the beginning, and whenever the stream brings data */
    bool begun;       /* the stream was there once */
    int64_t told_ms;  /* the heard_ms for which the user was told that nothing comes */
    bool given_up;    /* because nothing came for CLI_SILENT_S */
} cli_stream;
/* Whether to request the stream again; pauses first. `status` and `e` are from the call that ended.
 * False when the stream was refused, was never there, or has brought nothing for CLI_SILENT_S.
 * Tells the user when nothing comes. */
bool cli_again(cli_stream *s, long status, const err *e);
/* cli_fail after cli_again has returned false, for the stream of that job. */
int cli_stream_fail(const cli_stream *s, const char *job, const err *e);

/* ---- output (output.c) ---- */
typedef struct cli_column {
    const char *title;
    const char *path; /* keys with dots, as "request.epochs" */
    bool wide;        /* only with -o wide */
    /* Formats the value; NULL: strings as they are, integers, reals with 4 digits. */
    void (*format)(const json_t *value, char *out, size_t size);
    bool right;
} cli_column;
/* The table of a job's epochs, for `train --watch` and `history get`. */
enum {
    EPOCH_TRAIN_LOSS,
    EPOCH_VALIDATION_LOSS,
    EPOCH_ACCURACY,
    EPOCH_SECONDS,
    EPOCH_PARALLELISM,
    EPOCH_VALUES
};
void output_epochs_head(void);
void output_epoch(int number, json_t *const value[EPOCH_VALUES]); /* "-" for a missing number */
/* The option -o of commands that print rows, a table, a value or a text. */
#define OUTPUT_OPTION(words, help, format)                                                         \
    {                                                                                              \
        "output", 'o', OPTION_FORMAT, words, help, format, NULL, false, false                      \
    }
#define OUTPUT_ROWS(format)                                                                        \
    OUTPUT_OPTION("table wide json yaml", "table, wide, json or yaml", format)
#define OUTPUT_TABLE(format) OUTPUT_OPTION("table json yaml", "table, json or yaml", format)
#define OUTPUT_VALUE(format) OUTPUT_OPTION("json yaml", "json or yaml", format)
#define OUTPUT_TEXT(format)  OUTPUT_OPTION("text json yaml", "text, json or yaml", format)
/* Prints rows (an array) in `format`; prints `empty` on stderr when a table has no rows. */
int output_rows(const json_t *rows, const cli_column *columns, const char *format,
                const char *empty);
int output_value(const json_t *value, const char *format); /* json or yaml */
/* Sorts an array of objects by `created`, the newest last. */
void output_sort(json_t *rows);
/* Prints text that may come from user code. Control bytes are escaped as in log lines, so that they
 * have no effect on a terminal and the text stays on one line; `lines`: newlines are kept. */
void output_said(FILE *to, const char *text, bool lines);
void output_line(const char *title, const char *text); /* one line, with the title in a column */
/* Prints a piece of a log to a terminal: keeps lines and colours, escapes other control bytes.
 * Returns the number of bytes consumed. Fewer than OUTPUT_KEPT_BYTES at the end may belong to the
 * next piece and stay, unless `over`. ferror reports write errors. */
enum { OUTPUT_KEPT_BYTES = 32 };
size_t output_log(FILE *to, const char *bytes, size_t len, bool over);
void output_age(const json_t *rfc3339, char *out, size_t size);
const json_t *output_at(const json_t *value, const char *path);

/* ---- standard output beside a transfer (write_behind.c) ---- */
/* Writes the body of an http_call to standard output from a thread of its own, so that a slow
 * reader does not stall the call. A log on a terminal goes through output_log. */
typedef struct write_behind write_behind;
int write_behind_open(write_behind **out, bool log, err *e);
/* The call's `sink` and `over`, with the write_behind as their context: they end the call when
 * nobody reads any more, or nothing can be written. */
int write_behind_take(void *w, const char *bytes, size_t len);
bool write_behind_over(void *w);
/* Waits until everything is written, and frees it; -1 with the error of standard output. */
int write_behind_close(write_behind *w, err *e);
/* GETs the path and writes the body to standard output; returns the process's exit status. `idle_s`
 * as in http_call. */
int cli_print(const cli *c, const char *path, const char *accept, bool log, int idle_s);

/* ---- verbs that several nouns share: list, get, delete, ... (objects.c) ---- */
typedef struct object_kind {
    const char *path; /* "/dataset/": the name follows it */
    const char *noun; /* in the message after the verb has succeeded */
    const char *the;  /* "the data set", in the help */
    bool has_id;      /* the option is --id, not --name */
} object_kind;
extern const object_kind object_job;
/* Parses the options `more` (ended by a NULL name; may be NULL) and the object's name or ID, which
 * is the one argument, or the value of --name or --id. Returns as cli_parse does. */
int object_name(cli *c, int argc, char **argv, const object_kind *kind, const cli_option *more,
                const char **name);
#define OBJECT_NAME(c, argc, argv, kind, more, name)                                               \
    do {                                                                                           \
        int stop_ = object_name(c, argc, argv, kind, more, name);                                  \
        if (stop_)                                                                                 \
            return stop_ - 1;                                                                      \
    } while (0)
/* Gets a list and prints it. `by_time`: sorted by `created`. */
int object_rows(const cli *c, const char *path, const cli_column *columns, const char *format,
                bool by_time, const char *empty);
/* Whole verbs: they parse the options, call the API and print. */
int object_list(cli *c, int argc, char **argv, const char *path, const cli_column *columns,
                bool by_time, const char *empty);
int object_get(cli *c, int argc, char **argv, const object_kind *kind);
/* One call for one object, to its path with `tail`; `done` is the message's verb: "deleted". */
int object_act(cli *c, int argc, char **argv, const object_kind *kind, const char *method,
               const char *tail, const char *done);
/* Deletes the object of `kind` of each job in the list at path `jobs`, or of the jobs of --user,
 * after a confirmation; `with` is a further text of the question, or "". Skips objects that are
 * gone, and prints on stderr a conflict (409) for an object. */
int object_prune(cli *c, int argc, char **argv, const object_kind *kind, const char *jobs,
                 const char *done, const char *with);

/* ---- progress (progress.c) ---- */
/* A bar on stderr while it is a terminal, nothing otherwise. */
typedef struct progress {
    const char *label;
    int64_t started_ms, drawn_ms;
    bool shown;
} progress;
void progress_begin(progress *p, const char *label);
void progress_update(progress *p, uint64_t done, uint64_t total);
/* progress_update as an http_call.progress, with the bar as its context. */
void progress_of_call(void *bar, uint64_t done, uint64_t total);
void progress_end(progress *p);

/* ---- following a job (follow.c, watch.c) ---- */
/* Prints the job's log until the job ends; returns the exit status. */
int follow_log(const cli *c, const char *id);
bool watch_is_end(const char *state); /* whether the job has ended; state NULL: false */
/* Prints a line an epoch until the job ends; 0 when it succeeded, else CLI_FAILED. `quiet`: only
 * waits. `timeout_s` 0: no limit. */
int watch_job(const cli *c, const char *id, bool quiet, long timeout_s);

/* ---- files of the local platform (local.c) ---- */
const char *local_home(void);       /* KUBEML_HOME, else ~/.kubeml */
const char *local_program(const char *name); /* beside this program, else on PATH */

/* The commands' entries, one file each. */
#define CLI_VERB(f) int f(cli *c, int argc, char **argv)
CLI_VERB(cmd_up);
CLI_VERB(cmd_down);
CLI_VERB(cmd_status);
CLI_VERB(cmd_top);
CLI_VERB(cmd_dataset_create);
CLI_VERB(cmd_dataset_list);
CLI_VERB(cmd_dataset_get);
CLI_VERB(cmd_dataset_delete);
CLI_VERB(cmd_function_create);
CLI_VERB(cmd_function_update);
CLI_VERB(cmd_function_list);
CLI_VERB(cmd_function_get);
CLI_VERB(cmd_function_delete);
CLI_VERB(cmd_function_logs);
CLI_VERB(cmd_train);
CLI_VERB(cmd_task_list);
CLI_VERB(cmd_task_get);
CLI_VERB(cmd_task_stop);
CLI_VERB(cmd_task_suspend);
CLI_VERB(cmd_task_resume);
CLI_VERB(cmd_task_wait);
CLI_VERB(cmd_task_prune);
CLI_VERB(cmd_history_get);
CLI_VERB(cmd_history_list);
CLI_VERB(cmd_history_delete);
CLI_VERB(cmd_history_prune);
CLI_VERB(cmd_logs);
CLI_VERB(cmd_infer);
CLI_VERB(cmd_model_export);
CLI_VERB(cmd_run);
CLI_VERB(cmd_explain);
CLI_VERB(cmd_zoo_list);
CLI_VERB(cmd_completion);
CLI_VERB(cmd_version);

#endif
