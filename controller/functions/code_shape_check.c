/* code_shape_check.c: whether a function takes a data set's samples, checked before there is a job.
 *
 * Models of the zoo are looked up (zoo_list.c). Uploaded code is built and asked (shape_check.h),
 * by the builder where there is one, and never in a controller's own pod, which holds more than
 * user code may see. An object and an upload never change, so answers are kept. Where there was no
 * answer, that is kept for a while: the next jobs need not wait for it again. */
#include "code_shape_check.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/fs.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/compile/builder_remote.h"

enum { UNKNOWN_MS = 60000 };
enum { ANSWERS_MAX = 256, ANSWER_KEY_BYTES = STORE_KEY_BYTES + STORE_ID_BYTES + 1 };

typedef struct answer {
    char key[ANSWER_KEY_BYTES]; /* "": free */
    int misfit;                 /* shape_check's result */
    int64_t until_ms;           /* INT64_MAX: for good */
    char message[ERR_MESSAGE_BYTES];
} answer;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static answer answers[ANSWERS_MAX]; /* guarded by the lock, as the next */
static size_t next_answer;

/* 1: there is an answer, and *misfit and `e` are set. */
static int recall(const char *key, int *misfit, err *e)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < ANSWERS_MAX && !found; i++)
        if (strcmp(answers[i].key, key) == 0 && clock_left_ms(answers[i].until_ms) > 0) {
            found = 1;
            *misfit = answers[i].misfit;
            err_set(e, ERR_INVALID, "%s", answers[i].message); /* of a misfit; else for the log */
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static void remember(const char *key, int misfit, const err *e)
{
    pthread_mutex_lock(&lock);
    answer *a = &answers[next_answer++ % ANSWERS_MAX];
    a->misfit = misfit;
    a->until_ms = misfit < 0 ? clock_deadline_ms(UNKNOWN_MS) : INT64_MAX;
    snprintf(a->key, sizeof a->key, "%s", key);
    snprintf(a->message, sizeof a->message, "%s", misfit ? e->message : "");
    pthread_mutex_unlock(&lock);
}

/* Asks as shape_check does. */
static int ask_code(controller *c, const void *object, size_t len, const json_t *data, err *e)
{
    const builder_remote there = {.url = c->config.builder_url, .token = c->config.builder_token};
    char program[FS_PATH_BYTES];
    if (there.url)
        return builder_remote_shape_check(&there, object, len, data, e);
    if (strcmp(c->config.cluster, "local") != 0)
        return err_set(e, ERR_UNAVAILABLE, "there is no builder to ask");
    if (fs_path(program, e, "%s/kubeml-function", c->config.bin_dir))
        return -1;
    return shape_check(program, object, len, data, e);
}

static int ask(controller *c, const char *object, const dataset_info *d, err *e)
{
    cleanup_json json_t *data = dataset_info_json(d);
    blob *b = NULL;
    int fd, result = -1;
    if (!data)
        return err_set(e, ERR_NOMEM, "no memory for the data set's record");
    if (store_blob_open(c->store, object, &b, e))
        return -1;
    size_t len = (size_t)blob_size(b);
    if (blob_fd(b, &fd, e) == 0) {
        void *bytes = mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            err_set(e, ERR_NOMEM, "no memory for the object");
        } else {
            result = ask_code(c, bytes, len, data, e);
            munmap(bytes, len);
        }
    }
    blob_close(b);
    return result;
}

int code_shape_check(controller *c, const json_t *function, const dataset_info *d, err *e)
{
    const char *object = json_string_value(json_object_get(function, "object"));
    const char *name = json_string_value(json_object_get(function, "name"));
    char key[ANSWER_KEY_BYTES];
    int misfit;
    err why = ERR_INIT;
    snprintf(key, sizeof key, "%s %s", object, d->upload);
    if (!recall(key, &misfit, &why)) {
        misfit = ask(c, object, d, &why);
        remember(key, misfit, &why);
    }
    if (misfit < 0)
        log_warn("whether function %s fits dataset %s shows when the job starts: %s", name, d->name,
                 why.message);
    return misfit > 0 ? err_set(e, ERR_UNSUPPORTED, "function %s does not fit dataset %s: %.180s",
                                name, d->name, why.message)
                      : 0;
}
