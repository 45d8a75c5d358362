/* write_behind.c: writes standard output in a thread of its own while more is received.
 *
 * A pager reads one screen, and then nothing while the user reads; a server takes a client that
 * reads nothing for a minute for dead. So received bytes wait here: up to WAITING_MAX, the size of
 * the longest log, and as many again in the thread. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"
#include "common/base/buf.h"

enum { WAITING_MAX = 128 << 20 };

struct write_behind {
    pthread_t thread;
    pthread_mutex_t lock; /* guards the following fields */
    pthread_cond_t changed;
    buf waiting;
    bool over;
    bool shown; /* a log, on a terminal */
    err why; /* error of the output; ends the writing */
};

/* Moves the waiting bytes to `taken`, which may still have the end of a log's last piece. Needs the
 * lock. */
static void take_waiting(write_behind *w, buf *taken)
{
    if (taken->len) {
        buf_append(taken, w->waiting.bytes, w->waiting.len, &w->why);
    } else {
        buf swap = *taken;
        *taken = w->waiting;
        w->waiting = swap;
    }
    buf_reset(&w->waiting);
}

static void write_out(bool shown, buf *taken, bool over, err *why)
{
    size_t written = shown ? output_log(stdout, taken->bytes, taken->len, over)
                           : fwrite(taken->bytes, 1, taken->len, stdout);
    if (ferror(stdout) || fflush(stdout))
        err_set_errno(why, errno, "standard output");
    buf_consume(taken, written);
}

static void *run(void *arg)
{
    write_behind *w = arg;
    buf taken;
    buf_init(&taken, WAITING_MAX + OUTPUT_KEPT_BYTES);
    pthread_mutex_lock(&w->lock);
    for (bool over = false; w->why.code == ERR_NONE && !over;) {
        while (!w->waiting.len && !w->over)
            pthread_cond_wait(&w->changed, &w->lock);
        over = !w->waiting.len;
        take_waiting(w, &taken);
        pthread_cond_signal(&w->changed);
        pthread_mutex_unlock(&w->lock);
        err why = ERR_INIT;
        if (taken.len)
            write_out(w->shown, &taken, over, &why);
        pthread_mutex_lock(&w->lock);
        if (w->why.code == ERR_NONE)
            w->why = why;
    }
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    buf_free(&taken);
    return NULL;
}

int write_behind_open(write_behind **out, bool log, err *e)
{
    write_behind *w = *out = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for the output");
    w->shown = log && isatty(STDOUT_FILENO);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    buf_init(&w->waiting, WAITING_MAX + OUTPUT_KEPT_BYTES);
    if (pthread_create(&w->thread, NULL, run, w) == 0)
        return 0;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
    *out = NULL;
    return err_set(e, ERR_NOMEM, "no thread for the output");
}

int write_behind_take(void *context, const char *bytes, size_t len)
{
    write_behind *w = context;
    pthread_mutex_lock(&w->lock);
    while (w->why.code == ERR_NONE && w->waiting.len && w->waiting.len + len > WAITING_MAX)
        pthread_cond_wait(&w->changed, &w->lock);
    if (w->why.code == ERR_NONE)
        buf_append(&w->waiting, bytes, len, &w->why);
    bool ended = w->why.code != ERR_NONE;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return ended;
}

bool write_behind_over(void *context)
{
    write_behind *w = context;
    struct pollfd reader = {.fd = STDOUT_FILENO};
    bool gone = poll(&reader, 1, 0) > 0 && reader.revents & POLLERR;
    pthread_mutex_lock(&w->lock);
    if (gone && w->why.code == ERR_NONE) {
        err_set_errno(&w->why, EPIPE, "standard output");
        pthread_cond_signal(&w->changed);
    }
    bool over = w->why.code != ERR_NONE;
    pthread_mutex_unlock(&w->lock);
    return over;
}

int write_behind_close(write_behind *w, err *e)
{
    pthread_mutex_lock(&w->lock);
    w->over = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    int status = w->why.code == ERR_NONE ? 0 : -1;
    if (status)
        *e = w->why;
    buf_free(&w->waiting);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return status;
}

int cli_print(const cli *c, const char *path, const char *accept, bool log, int idle_s)
{
    err e = ERR_INIT, why = ERR_INIT;
    write_behind *output;
    if (write_behind_open(&output, log, &e))
        return cli_fail(&e);
    http_call call = {.method = "GET",
                      .accept = accept,
                      .sink = write_behind_take,
                      .over = write_behind_over,
                      .context = output,
                      .idle_s = idle_s};
    http_reply reply;
    int status = cli_call_raw(c, &call, path, &reply, &e);
    http_reply_free(&reply);
    if (write_behind_close(output, &why))
        return cli_unwritten(&why);
    return status ? cli_fail(&e) : CLI_OK;
}
