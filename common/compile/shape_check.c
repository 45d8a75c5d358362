/* shape_check.c: see shape_check.h. */
#include "shape_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/process.h"

enum { ANSWER_BYTES = 4096 };

/* Reads the program's output: {}, or {"code", "message"}. Other output, which the user's code may
 * have caused, leaves the result unknown. */
static int read_answer(const buf *said, err *e)
{
    cleanup_json json_t *answer = NULL;
    if (json_read(said->bytes, said->len, 2, &answer, e))
        return -1;
    const char *code = json_string_value(json_object_get(answer, "code"));
    const char *message = json_string_value(json_object_get(answer, "message"));
    if (!code || !message)
        return json_object_size(answer) == 0 ? 0 : err_set(e, ERR_CORRUPT, "no answer");
    err_set(e, err_from_name(code), "%.240s", message);
    return e->code == ERR_INVALID || e->code == ERR_LIMIT ? 1 : -1;
}

static int judge(const process_run *r, const buf *said, const buf *text, err *e)
{
    if (r->timed_out || r->output_over)
        return err_set(e, ERR_LIMIT, "the code met a limit while its network was built");
    if (WIFSIGNALED(r->status))
        return err_set(e, ERR_INTERNAL, "the code ended by signal %d while its network was built",
                       WTERMSIG(r->status));
    if (WEXITSTATUS(r->status) != 0)
        return err_set(e, ERR_INTERNAL, "kubeml-function fit ended with status %d: %.160s",
                       WEXITSTATUS(r->status), text->len ? text->bytes : "");
    return read_answer(said, e);
}

int shape_check(const char *program, const void *object, size_t len, const json_t *dataset, err *e)
{
    char numbers[2][16];
    cleanup_free char *about = json_dumps(dataset, JSON_COMPACT);
    if (!about)
        return err_set(e, ERR_NOMEM, "no memory for the data set's record");
    cleanup_close int object_fd = builder_memory_file(object, len, e);
    cleanup_close int about_fd = object_fd < 0 ? -1 : builder_memory_file(about, strlen(about), e);
    if (about_fd < 0)
        return -1;
    snprintf(numbers[0], sizeof numbers[0], "%d", object_fd);
    snprintf(numbers[1], sizeof numbers[1], "%d", about_fd);
    char *argv[] = {(char *)(uintptr_t)program, "fit", numbers[0], numbers[1], NULL};
    char *envp[] = {NULL};
    process_run r = {.argv = argv,
                     .envp = envp,
                     .keep = {object_fd, about_fd},
                     .keep_count = 2,
                     .deadline_ms = clock_deadline_ms(SHAPE_CHECK_MS),
                     .cpu_s = SHAPE_CHECK_CPU_S};
    cleanup_buf buf said, text;
    buf_init(&said, ANSWER_BYTES);
    buf_init(&text, ANSWER_BYTES);
    return process_run_program(&r, &said, &text, e) ? -1 : judge(&r, &said, &text, e);
}
