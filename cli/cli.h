/* cli.h: what the commands of `kubeml` share.
 *
 * Each command is one file, cmd_<noun>.c, that gives a table of verbs: name, help, options, run.
 * The help pages, the parsing and the shell completion all follow from that table. A command
 * returns the process's exit status: 0 done, 1 failed, 2 wrong usage. */
#ifndef KUBEML_CLI_H
#define KUBEML_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/net/http_client.h"

enum { CLI_OPTIONS_MAX = 64, CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };
/* idle_s of a call during which the server is rightly at work for minutes without a byte: it looks
 * through what was uploaded, or fetches a model from its store. */
enum { CLI_BUSY_S = 600 };
/* What is followed is given up when nothing at all has come for so long, however often it was asked
 * for meanwhile. */
enum { CLI_SILENT_S = 180 };

typedef enum option_kind {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_FORMAT,
    OPTION_INT,
    OPTION_NUMBER
} option_kind;

/* One option. `into` is a bool*, const char**, long* or double* after its kind; it keeps the
 * caller's default where the option is not given. `seen`, if not NULL, tells whether it was. */
typedef struct cli_option {
    const char *name;
    char letter; /* 0: none */
    option_kind kind;
    const char *value; /* what the help calls its value; OPTION_FORMAT: the words that it may be */
    const char *help;
    void *into;
    bool *seen;
    bool required;
    bool repeats; /* OPTION_TEXT only: into is a cli_list */
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
    const char *details;   /* the help page's text: what it does, an example; may be NULL */
    int (*run)(cli *c, int argc, char **argv); /* argv[0] is the verb's last word */
} cli_verb;

/* ---- the platform of a cluster (cluster.c) ---- */
/* What --context and its like say. `cluster_reach` looks for the platform once, with what the
 * kubeconfig gives, through the API server's Service proxy. */
typedef struct cluster_access {
    const char *context, *kubeconfig, *namespace_name, *service; /* NULL: not given */
    bool wanted;         /* one of them is */
    kube_config *config; /* after cluster_reach, as the rest: */
    char base[1024];     /* of the proxy; what the API's paths are appended to */
    /* the platform's, out of its Secret; NULL: it asks for none, or KUBEML_TOKEN is set */
    char *token;
} cluster_access;
/* Takes the options before the verb; returns how many words they are, -1 with the complaint
 * printed. */
int cluster_options(cluster_access *a, int argc, char **argv);
bool cluster_is_option(const char *word);
void cluster_describe(void); /* prints their names for completion */
int cluster_reach(cluster_access *a, bool has_token, err *e);

struct cli {
    const char *url;   /* KUBEML_URL, else the local platform's */
    cluster_access *cluster; /* used instead of url when `wanted` */
    const char *token; /* KUBEML_TOKEN, else NULL */
    const cli_verb *verb;
    /* For completion: cli_parse prints the options' names and ends, or, */
    bool describe;
    const char *before; /* if not NULL, what may come behind this word */
    json_t *documents;  /* if not NULL, cli_parse adds the options to this array, and ends */
};

/* Every verb of every command, ended by a NULL name. */
extern const cli_verb cli_verbs[];

/* Parses argv by `options` (ended by a NULL name; NULL: there are none). Positional arguments go to
 * `arguments`, of which there must be between min and max. Returns 0 to go on, else the exit status
 * + 1 (help, usage). */
int cli_parse(cli *c, int argc, char **argv, const cli_option *options, int min, int max,
              const char **arguments);
#define CLI_PARSE(c, argc, argv, options, min, max, arguments)                                     \
    do {                                                                                           \
        int stop_ = cli_parse(c, argc, argv, options, min, max, arguments);                        \
        if (stop_)                                                                                 \
            return stop_ - 1;                                                                      \
    } while (0)

/* What may come behind c->before, the last of the verb's words so far (names.c). `max`: of
 * positional arguments. */
void names_print(const cli *c, const cli_option *options, int argc, char **argv, int max);

/* Prints a table of the code as JSON, from which a page's table is made (docs.c). */
int docs_print(const char *table);
void docs_add_options(json_t *out, const cli_option *options);
/* What the help calls an option's value. */
const char *cli_placeholder(const cli_option *o);

/* Standard output did not take it: said, unless that is because nobody reads any more. */
int cli_unwritten(const err *e);
int cli_fail(const err *e); /* prints "kubeml: message", and a hint where one helps; CLI_FAILED */
int cli_usage(const cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* One call of the API. `path` begins with '/'. *out is the reply's JSON (new reference), NULL where
 * `out` is NULL. */
int cli_call(const cli *c, const char *method, const char *path, const json_t *body, json_t **out,
             err *e);
/* All rows of a list, page after page. `path` may have a query. */
int cli_call_list(const cli *c, const char *path, json_t **rows, err *e);
/* A file to upload as that field; what is no file, or is not there, is told by its name. */
int cli_part(http_part *part, const char *field, const char *path, err *e);
/* Again for some seconds where nothing was done, or nothing but read: while a controller takes over
 * from another. Frees no reply. */
int cli_call_raw(const cli *c, http_call *call, const char *path, http_reply *reply, err *e);
/* A stream, whose caller goes on with it where it ended. */
int cli_call_once(const cli *c, http_call *call, const char *path, http_reply *reply, err *e);
/* "/tasks/" + percent-encoded name + tail, in a static buffer. */
const char *cli_path(const char *prefix, const char *name, const char *tail);
/* A stream that is read again where its controller went, or a proxy ended it. */
typedef struct cli_stream {
    int64_t heard_ms; /* set by the caller: when it began, and whenever it has brought something */
    bool begun;       /* it was there once */
    int64_t told_ms;  /* the heard_ms since which nothing comes, as was said */
    bool given_up;    /* for that */
} cli_stream;
/* Whether to ask for it again, after a pause: `status` and `e` are of the call that is over. Not
 * when it was refused, when it could not be had at first, or has brought nothing for CLI_SILENT_S.
 * Who looks on is told where nothing comes. */
bool cli_again(cli_stream *s, long status, const err *e);
/* cli_fail for the stream of that job, when it is not asked for again. */
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
/* The table of a job's epochs, as `train --watch` and `history get` show it. */
enum {
    EPOCH_TRAIN_LOSS,
    EPOCH_VALIDATION_LOSS,
    EPOCH_ACCURACY,
    EPOCH_SECONDS,
    EPOCH_PARALLELISM,
    EPOCH_VALUES
};
void output_epochs_head(void);
void output_epoch(int number, json_t *const value[EPOCH_VALUES]); /* "-" for what is no number */
/* The option -o of what prints rows, a table, a value or a text. */
#define OUTPUT_OPTION(words, help, format)                                                         \
    {                                                                                              \
        "output", 'o', OPTION_FORMAT, words, help, format, NULL, false, false                      \
    }
#define OUTPUT_ROWS(format)                                                                        \
    OUTPUT_OPTION("table wide json yaml", "table, wide, json or yaml", format)
#define OUTPUT_TABLE(format) OUTPUT_OPTION("table json yaml", "table, json or yaml", format)
#define OUTPUT_VALUE(format) OUTPUT_OPTION("json yaml", "json or yaml", format)
#define OUTPUT_TEXT(format)  OUTPUT_OPTION("text json yaml", "text, json or yaml", format)
/* Prints rows (an array) as `format` says; `empty` is said on stderr when a table has no rows. */
int output_rows(const json_t *rows, const cli_column *columns, const char *format,
                const char *empty);
int output_value(const json_t *value, const char *format); /* json or yaml */
/* Sorts an array of objects by when they were created, the newest last. */
void output_sort(json_t *rows);
/* What code said is escaped as the logger does it: it does nothing to a terminal, and stays on its
 * line, unless it may be of `lines`. */
void output_said(FILE *to, const char *text, bool lines);
void output_line(const char *title, const char *text); /* under one as wide as the others */
/* Of a log, for a terminal: lines and colours are left as they are. Returns how much of it is
 * written: fewer than OUTPUT_KEPT_BYTES at its end may belong to what follows, unless it is over.
 * Whether it could be written is ferror's. */
enum { OUTPUT_KEPT_BYTES = 32 };
size_t output_log(FILE *to, const char *bytes, size_t len, bool over);
void output_age(const json_t *rfc3339, char *out, size_t size);
const json_t *output_at(const json_t *value, const char *path);

/* ---- standard output beside a transfer (write_behind.c) ---- */
/* What an http_call receives goes to standard output as fast as that takes it, and the call goes on
 * meanwhile; a log, where that is a terminal, by output_log. The two in the middle are its sink and
 * its over, with the write_behind as their context: they end it when nobody reads any more, or
 * nothing can be written. */
typedef struct write_behind write_behind;
int write_behind_open(write_behind **out, bool log, err *e);
int write_behind_take(void *w, const char *bytes, size_t len);
bool write_behind_over(void *w);
/* Waits until all is written, and frees it; -1 with what kept it from being written. */
int write_behind_close(write_behind *w, err *e);
/* GETs the path and writes what comes; the process's exit status. `idle_s` as of an http_call. */
int cli_print(const cli *c, const char *path, const char *accept, bool log, int idle_s);

/* ---- list, get, delete and the like (objects.c) ---- */
typedef struct object_kind {
    const char *path; /* "/dataset/": the name comes behind it */
    const char *noun; /* in what is said when something is done */
    const char *the;  /* "the data set", in the help */
    bool has_id;      /* what it is called by is --id, not --name */
} object_kind;
extern const object_kind object_job;
/* Parses the options `more` (ended by a NULL name; may be NULL) and what the verb is about, which
 * is given either as the one argument or by --name or --id. Returns as cli_parse does. */
int object_name(cli *c, int argc, char **argv, const object_kind *kind, const cli_option *more,
                const char **name);
#define OBJECT_NAME(c, argc, argv, kind, more, name)                                               \
    do {                                                                                           \
        int stop_ = object_name(c, argc, argv, kind, more, name);                                  \
        if (stop_)                                                                                 \
            return stop_ - 1;                                                                      \
    } while (0)
/* Asks for a list and prints it. `by_time`: in order of when they were created. */
int object_rows(const cli *c, const char *path, const cli_column *columns, const char *format,
                bool by_time, const char *empty);
/* Whole verbs: they parse the options, ask the API and print. */
int object_list(cli *c, int argc, char **argv, const char *path, const cli_column *columns,
                bool by_time, const char *empty);
int object_get(cli *c, int argc, char **argv, const object_kind *kind);
/* One call about one thing, to its path with `tail`; `done` says what it did: "deleted". */
int object_act(cli *c, int argc, char **argv, const object_kind *kind, const char *method,
               const char *tail, const char *done);
/* DELETE of what is of `kind` of each job in the list `jobs`, or of those of --user, once somebody
 * has said yes; `with` is what else the question tells of it, or "". One that is gone is passed
 * over, and one for which it is too early or too late told on stderr. */
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
/* The same for http_call.progress, with the bar as its context. */
void progress_of_call(void *bar, uint64_t done, uint64_t total);
void progress_end(progress *p);

/* ---- following a job (follow.c, watch.c) ---- */
/* Its log until it ends; the exit status. */
int follow_log(const cli *c, const char *id);
bool watch_is_end(const char *state); /* NULL: of nothing that is known */
/* Prints a line an epoch until the job ends; 0 when it succeeded, else CLI_FAILED. `quiet`: only
 * waits. `timeout_s` 0: no limit. */
int watch_job(const cli *c, const char *id, bool quiet, long timeout_s);

/* ---- where the local platform lives (local.c) ---- */
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
