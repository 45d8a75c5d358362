/* zoo_list.c: which models the zoo has. Only the engine has the list, and the engine is in
 * kubeml-function. Its command `zoo` runs once for the list, which is kept, and once for each model
 * that a request names or a job trains. */
#include "zoo_list.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/process.h"
#include "common/contract/limits.h"

enum { ZOO_MS = 10000, ZOO_BYTES_MAX = 256 << 10, WORDS_BYTES_MAX = 1000 };

extern char **environ;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static json_t *known; /* guarded by the lock */

static int run(const char *program, const char *model, const char *sample, buf *out, err *e)
{
    char *const argv[] = {(char *)(uintptr_t)program, "zoo", (char *)(uintptr_t)model,
                          (char *)(uintptr_t)sample, NULL};
    process_run r = {.argv = argv, .envp = environ, .deadline_ms = clock_deadline_ms(ZOO_MS)};
    cleanup_buf buf words;
    buf_init(&words, WORDS_BYTES_MAX);
    if (process_run_program(&r, out, &words, e))
        return -1;
    if (r.timed_out)
        return err_set(e, ERR_TIMEOUT, "kubeml-function zoo did not answer");
    if (r.status == 0 && !r.output_over)
        return 0;
    if (words.len)
        log_warn("kubeml-function zoo: %.*s", (int)words.len, words.bytes);
    return err_set(e, ERR_UNAVAILABLE, "kubeml-function zoo ended with %s %d",
                   WIFSIGNALED(r.status) ? "signal" : "status",
                   WIFSIGNALED(r.status) ? WTERMSIG(r.status) : WEXITSTATUS(r.status));
}

/* Runs `kubeml-function zoo`: for the list, for one model, or for one model and samples of that
 * shape. */
static int ask(controller *c, const char *model, const char *sample, json_t **out, err *e)
{
    char program[FS_PATH_BYTES];
    cleanup_buf buf text;
    buf_init(&text, ZOO_BYTES_MAX);
    return fs_path(program, e, "%s/kubeml-function", c->config.bin_dir) ||
                   run(program, model, sample, &text, e) ||
                   json_read(text.bytes, text.len, 8, out, e)
               ? -1
               : 0;
}

static int ask_list(controller *c, json_t **out, err *e)
{
    if (ask(c, NULL, NULL, out, e))
        return -1;
    if (json_is_array(*out))
        return 0;
    json_decref(*out);
    *out = NULL;
    return err_set(e, ERR_CORRUPT, "kubeml-function zoo did not answer with a list");
}

int zoo_list(controller *c, json_t **out, err *e)
{
    pthread_mutex_lock(&lock);
    int status = known ? 0 : ask_list(c, &known, e);
    *out = status ? NULL : json_deep_copy(known);
    pthread_mutex_unlock(&lock);
    return status;
}

/* -1 where the answer has an error. */
static int said(const json_t *answer, err *e)
{
    const char *code = json_string_value(json_object_get(answer, "code"));
    const char *message = json_string_value(json_object_get(answer, "message"));
    if (!code || !message)
        return 0;
    return err_set(e, err_from_name(code), "%.240s", message);
}

int zoo_check(controller *c, const char *model, err *e)
{
    cleanup_json json_t *answer = NULL;
    if (strlen(model) >= LIMITS_MODEL_TEXT_BYTES)
        return err_set(e, ERR_INVALID, "model: %zu characters, at most %d", strlen(model),
                       LIMITS_MODEL_TEXT_BYTES - 1);
    return ask(c, model, NULL, &answer, e) ? -1 : said(answer, e);
}

int zoo_shape_check(controller *c, const char *model, const dataset_info *data, err *e)
{
    cleanup_json json_t *answer = NULL;
    char sample[80];
    err why = ERR_INIT;
    snprintf(sample, sizeof sample, "[%u,%u,%u,%u]", data->channels, data->height, data->width,
             data->classes ? data->classes : data->targets);
    if (ask(c, model, sample, &answer, &why)) {
        log_warn("whether %s fits dataset %s shows when the job starts: %s", model, data->name,
                 why.message);
        return 0;
    }
    if (said(answer, &why) == 0)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "model %s does not fit dataset %s, samples of (%u, %u, %u): %.100s", model,
                   data->name, data->channels, data->height, data->width, why.message);
}
