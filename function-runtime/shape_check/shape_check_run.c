/* shape_check_run.c: see shape_check_run.h. */
#include "shape_check_run.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json_read.h"
#include "common/dataset/dataset.h"
#include "function-runtime/model/program.h"
#include "function-runtime/sandbox/sandbox.h"
#include "function-runtime/train/trainer.h"

/* Private memory for a graph and the code that builds it; and all mapped memory, with the program
 * and shared libraries. */
#define SHAPE_CHECK_MEMORY_BYTES  ((uint64_t)512 << 20)
#define SHAPE_CHECK_ADDRESS_BYTES ((uint64_t)1 << 30)

static int descriptor(const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);
    return end != text && !*end && number >= 0 && fcntl((int)number, F_GETFD) >= 0 ? (int)number
                                                                                   : -1;
}

static int read_dataset(int fd, dataset_info *out, err *e)
{
    json_error_t problem;
    cleanup_json json_t *record = json_loadfd(fd, 0, &problem);
    return record ? dataset_info_parse(record, out, e)
                  : err_set(e, ERR_INVALID, "the data set's record: %s", problem.text);
}

/* Sends the code's output to stderr, so that it is no part of the answer. Returns a descriptor for
 * the answer. */
static int take_stdout(err *e)
{
    int own = dup(STDOUT_FILENO);
    return own < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0 ? err_set_errno(e, errno, "stdout")
                                                             : own;
}

static int enter(int fd, int *answers, err *e)
{
    sandbox walls = {.memory_bytes = SHAPE_CHECK_MEMORY_BYTES,
                     .address_bytes = SHAPE_CHECK_ADDRESS_BYTES,
                     .file_bytes = 4096,
                     .open_files = 16,
                     .files_must = true}; /* a builder has other users' sources */
    char report[SANDBOX_REPORT_BYTES];
    if ((*answers = take_stdout(e)) < 0)
        return -1;
    sandbox_close_others((int[]){fd, *answers}, 2);
    return sandbox_enter(&walls, report, e);
}

static int answer(int to, const err *e)
{
    cleanup_json json_t *out =
        e ? json_pack("{s:s, s:s}", "code", err_name(e->code), "message", e->message)
          : json_object();
    int rc = json_dumpfd(out, to, JSON_COMPACT);
    _exit(rc ? 1 : 0); /* not exit, which would run the code's handlers */
}

int shape_check_command(const char *object, const char *about)
{
    dataset_info info = {0};
    program *p = NULL;
    int object_fd = descriptor(object), about_fd = descriptor(about), answers;
    err e = ERR_INIT;
    if (object_fd < 0 || about_fd < 0) {
        fputs("kubeml-function fit: there is no such descriptor\n", stderr);
        return 2;
    }
    if (read_dataset(about_fd, &info, &e) || enter(object_fd, &answers, &e)) {
        fprintf(stderr, "kubeml-function fit: %s\n", e.message);
        return 1;
    }
    bool good = program_open_fd(object_fd, &p, &e) == 0 && program_check_options(p, &e) == 0 &&
                trainer_shape_check(p, &info, &e) == 0;
    return answer(answers, good ? NULL : &e);
}
