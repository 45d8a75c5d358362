/* job_options.h: the table of a job's options.
 *
 * A row holds what the rest of the tree needs to know of an option:
 *
 *     request.c          reads, checks and writes a request
 *     cli/cmd_train.c    makes the flags of `kubeml train` and their help
 *     cli/names.c        completes an option's words
 *     kube_trainjob.c    translates between a TrainJob and a request
 *     docs/reference/job-options.md has the table that `kubeml __docs job-options` gives
 *
 * A new option is a row here, a field of `request` and the code that uses the field. Three texts
 * describe it in words: openapi.yaml, the CRD and the sections of job-options.md;
 * test_job_options.py compares names, types, ranges and defaults of the first two with the row. */
#ifndef KUBEML_JOB_OPTIONS_H
#define KUBEML_JOB_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"
#include "request.h"

typedef enum value_kind {
    VALUE_NAME,    /* char[REQUEST_NAME_BYTES]: letters, digits, '-', '_', '.' */
    VALUE_PATH,    /* the same with '/'; "": none */
    VALUE_TENSORS, /* char[REQUEST_TENSORS_BYTES]: names with commas between; "": none */
    VALUE_MEMORY,  /* uint64_t: bytes, written as "2Gi"; 0: no limit */
    VALUE_INT,     /* int, within low to high */
    VALUE_SEED,    /* uint64_t, at most 2^53, which every JSON reader keeps */
    VALUE_REAL,    /* double, above low and at most high */
    VALUE_BOOL,    /* bool */
    VALUE_WORD,    /* an enum, which numbers `words` from 0 */
    VALUE_OBJECT,  /* no field: holds the rows of the object `holds` */
    VALUE_IGNORED, /* no field: a text that is accepted and means nothing */
} value_kind;

/* The object of the request that has the option. */
typedef enum option_object { IN_REQUEST, IN_OPTIONS, IN_GPU } option_object;

/* What the help of `kubeml train` and the table of the page keep together, in this order. */
typedef enum option_group {
    GROUP_TASK,
    GROUP_ROUNDS,
    GROUP_JOB,
    GROUP_DEVICE,
    GROUP_INIT,
    OPTION_GROUPS
} option_group;

enum { JOB_OPTIONS_MAX = 64, OPTION_WORDS_MAX = 8, OPTION_PATH_BYTES = 64 };

typedef struct job_option {
    const char *name;  /* in the request */
    const char *alias; /* the first KubeML's name, or NULL */
    option_object in, holds;
    value_kind kind;
    size_t at;        /* of the field in request; the macros of job_options.c check its type */
    double low, high; /* VALUE_INT, VALUE_SEED, VALUE_REAL */
    /* The value in a request without this option; outside low to high it stands for "none".
     * `required` options have it in `kubeml train` alone. */
    double default_value;
    const char *words[OPTION_WORDS_MAX]; /* VALUE_WORD; ends with NULL */
    const char *unbuilt; /* VALUE_WORD: a further word, which is refused with ERR_UNSUPPORTED */
    bool required;       /* a request without it is refused */
    /* Written into the canonical form whatever its value. Other options are left out at their
     * default, so that the digests of requests from before they existed stay. */
    bool always;

    const char *spec; /* in a TrainJob's spec; NULL: as `name`, inside the object that has it */

    option_group group;
    const char *flag;        /* of `kubeml train`, or NULL */
    char letter;             /* 0: none */
    const char *placeholder; /* what the help calls the value; NULL for VALUE_BOOL */
    const char *help;        /* ends with the default, if any, in parentheses */
    /* A flag without a value that means `value`, whatever `flag` says; NULL: there is none. */
    struct {
        const char *flag, *help;
        int value;
    } shortcut;

    /* Cells of the page's table, in Markdown: what the option is; what it does to the weights. */
    const char *about, *weights;
} job_option;

/* All rows, at most JOB_OPTIONS_MAX, ended by a NULL name. Requests are read and written in their
 * order. */
extern const job_option job_options[];

/* By name or alias; NULL: the object has none of that name. */
const job_option *job_option_find(option_object in, const char *name);
/* By the long name of its flag; NULL. */
const job_option *job_option_of_flag(const char *flag);
/* The row whose object has the rows of `in`; NULL for IN_REQUEST. */
const job_option *job_option_parent(option_object in);

/* Checks what no row alone can: values that another option excludes. ERR_INVALID naming the option;
 * ERR_UNSUPPORTED where the platform cannot do it. */
int job_options_check(const request *r, err *e);

#endif
