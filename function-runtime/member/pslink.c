/* pslink.c: see pslink.h. `lock` guards the members below it in the struct; `wake` is an eventfd
 * that interrupts the thread's poll; `arrived` wakes the computing thread. */
#include "pslink.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/wire.h"

enum { CONNECT_TRY_MS = 500 }; /* short, because the thread does not see a close meanwhile */

struct pslink {
    pslink_config config;
    wire *wire; /* owned by the thread once it runs */
    pthread_t thread;
    int wake;

    pthread_mutex_t lock;
    pthread_cond_t arrived;
    json_t *tasks[PSLINK_TASKS_MAX]; /* a ring */
    size_t task_first, task_count;
    json_t *current; /* a copy of the task in progress, to compare with */
    json_t *out;     /* array of messages to be sent */
    const char *phase;
    int64_t epoch, round;
    void (*look)(const void *, pslink_state *);
    const void *look_at;
    int left; /* the `set` of the last `leave`; 0: none */
    unsigned dials;
    bool begun;
    bool closing, over;
    int64_t closing_deadline_ms;
    err why; /* ERR_NONE after `stop` */
};

/* ---- the handshake --------------------------------------------------------------------------- */

static int refused(const json_t *m, err *e)
{
    const char *code = json_string_value(json_object_get(m, "code"));
    const char *message = json_string_value(json_object_get(m, "message"));
    return err_set(e, code ? err_from_name(code) : ERR_UNAUTHORIZED, "kubeml-ps refused: %.180s",
                   message ? message : wire_type(m));
}

static bool is_over(pslink *l)
{
    pthread_mutex_lock(&l->lock);
    bool yes = l->over || l->closing;
    pthread_mutex_unlock(&l->lock);
    return yes;
}

static int drain(int eventfd, err *e)
{
    uint64_t count;
    return read(eventfd, &count, sizeof count) < 0 && errno != EAGAIN
               ? err_set_errno(e, errno, "eventfd")
               : 0;
}

/* Waits for the answer to `hello`, or until the link is closed. */
static int receive_answer(pslink *l, wire *w, json_t **out, int64_t deadline_ms, err *e)
{
    int rc;
    while ((rc = wire_receive(w, out, e)) == 0) {
        struct pollfd p[2] = {{wire_fd(w), wire_wants_write(w) ? POLLIN | POLLOUT : POLLIN, 0},
                              {l->wake, POLLIN, 0}};
        if (is_over(l))
            return err_set(e, ERR_CANCELLED, "closed");
        if (clock_left_ms(deadline_ms) == 0)
            return err_set(e, ERR_TIMEOUT, "no answer by the deadline");
        if (poll(p, 2, clock_left_ms(deadline_ms)) < 0 && errno != EINTR)
            return err_set_errno(e, errno, "poll");
        if ((p[1].revents && drain(l->wake, e) != 0) || wire_flush(w, e) != 0)
            return -1;
    }
    return rc < 0 ? -1 : 0;
}

/* Does the handshake. `opening` is only queued: the thread sends the part that the socket does not
 * take at once. */
static int introduce(pslink *l, wire *w, int64_t deadline_ms, err *e)
{
    json_t *answer = NULL;
    wire_set_limit(w, WIRE_FRAME_BYTES_MAX);
    if (wire_send(w, l->config.hello, e) != 0 || receive_answer(l, w, &answer, deadline_ms, e) != 0)
        return -1;
    int rc = strcmp(wire_type(answer), "welcome") == 0 ? wire_send(w, l->config.opening, e)
                                                       : refused(answer, e);
    json_decref(answer);
    return rc;
}

static wire *dial(pslink *l, int64_t connect_deadline_ms, int64_t deadline_ms, err *e)
{
    wire *w = wire_dial(l->config.address, connect_deadline_ms, e);
    if (!w || introduce(l, w, deadline_ms, e) == 0)
        return w;
    wire_close(w);
    return NULL;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Ends the link for both threads; the lock is held. */
static void end(pslink *l, const err *why)
{
    l->over = true;
    if (why)
        l->why = *why;
    pthread_cond_broadcast(&l->arrived);
}

/* Takes a message from kubeml-ps. A message has one owner at a time: jansson's reference counts are
 * not for two threads at once. */
static void take(pslink *l, json_t *m)
{
    const char *type = wire_type(m);
    pthread_mutex_lock(&l->lock);
    if (strcmp(type, "stop") == 0) {
        end(l, NULL);
    } else if (strcmp(type, "leave") == 0) {
        l->left = (int)json_integer_value(json_object_get(m, "set"));
    } else if (l->current && json_equal(l->current, m)) {
        log_info("asked again for what is being done: %s", type);
    } else if (l->task_count == PSLINK_TASKS_MAX) {
        err e = ERR_INIT;
        err_set(&e, ERR_LIMIT, "kubeml-ps sent more than %d tasks at once", PSLINK_TASKS_MAX);
        end(l, &e);
    } else {
        l->tasks[(l->task_first + l->task_count++) % PSLINK_TASKS_MAX] = m;
        m = NULL;
        pthread_cond_broadcast(&l->arrived);
    }
    pthread_mutex_unlock(&l->lock);
    json_decref(m);
}

static int receive_all(pslink *l, err *e)
{
    json_t *m;
    int rc;
    while ((rc = wire_receive(l->wire, &m, e)) == 1)
        take(l, m);
    return rc;
}

/* Makes a heartbeat; the lock is held. */
static json_t *heartbeat(const pslink *l)
{
    pslink_state now = {0};
    if (l->look)
        l->look(l->look_at, &now);
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:o*,s:o*}", "type", "heartbeat", "phase", l->phase,
                     "epoch", (json_int_t)l->epoch, "round", (json_int_t)l->round, "batches",
                     (json_int_t)now.batches, "begun", l->begun ? json_true() : NULL, "waits",
                     now.waits[0] ? json_string(now.waits) : NULL);
}

static int send_heartbeat(pslink *l, err *e)
{
    pthread_mutex_lock(&l->lock);
    json_t *m = heartbeat(l);
    pthread_mutex_unlock(&l->lock);
    json_t *used = m && l->config.usage ? usage_json(l->config.usage) : NULL;
    if (used)
        json_object_set_new(m, "usage", used);
    int rc = m ? wire_send(l->wire, m, e) : err_set(e, ERR_NOMEM, "no memory for a heartbeat");
    json_decref(m);
    return rc;
}

/* Sends the queued messages. A message leaves the queue when the wire's buffer has it. */
static int send_queued(pslink *l, err *e)
{
    for (;;) {
        pthread_mutex_lock(&l->lock);
        json_t *m = json_incref(json_array_get(l->out, 0));
        json_array_remove(l->out, 0);
        pthread_mutex_unlock(&l->lock);
        if (!m)
            return 0;
        int rc = wire_send(l->wire, m, e);
        if (rc == 0) {
            json_decref(m);
            continue;
        }
        pthread_mutex_lock(&l->lock);
        if (json_array_insert_new(l->out, 0, m) != 0)
            log_error("no memory to keep a message for kubeml-ps");
        pthread_mutex_unlock(&l->lock);
        return -1;
    }
}

/* One turn of the thread: waits for an event, and handles it. */
static int turn(pslink *l, int64_t *beat_ms, err *e)
{
    struct pollfd p[2] = {{wire_fd(l->wire), POLLIN, 0}, {l->wake, POLLIN, 0}};
    if (wire_wants_write(l->wire))
        p[0].events |= POLLOUT;
    if (poll(p, 2, clock_left_ms(*beat_ms)) < 0 && errno != EINTR)
        return err_set_errno(e, errno, "poll");
    if (p[1].revents && drain(l->wake, e) != 0)
        return -1;
    if ((p[0].revents & (POLLIN | POLLHUP | POLLERR)) && receive_all(l, e) != 0)
        return -1;
    if (clock_left_ms(*beat_ms) == 0) {
        *beat_ms = clock_deadline_ms(PSLINK_HEARTBEAT_MS);
        if (send_heartbeat(l, e) != 0)
            return -1;
    }
    return send_queued(l, e) != 0 || wire_flush(l->wire, e) != 0 ? -1 : 0;
}

/* Whether the link is closing, and there is nothing more to send or no time left. */
static bool finished(pslink *l)
{
    pthread_mutex_lock(&l->lock);
    bool empty = json_array_size(l->out) == 0 && (!l->wire || !wire_wants_write(l->wire));
    bool yes = l->closing && (empty || !l->wire || clock_left_ms(l->closing_deadline_ms) == 0);
    pthread_mutex_unlock(&l->lock);
    return yes;
}

/* Dials until it works, the time is up or kubeml-ps refuses. */
static int dial_again(pslink *l, err *e)
{
    int64_t deadline_ms = clock_deadline_ms(PSLINK_REDIAL_MS);
    int pause_ms = 20;
    while (!is_over(l)) {
        *e = (err)ERR_INIT;
        int64_t try_ms = clock_deadline_ms(CONNECT_TRY_MS);
        if ((l->wire = dial(l, try_ms < deadline_ms ? try_ms : deadline_ms, deadline_ms, e)))
            return 0;
        if (!err_retry_may_help(e->code) && e->code != ERR_IO && e->code != ERR_NOT_FOUND)
            return -1;
        if (clock_left_ms(deadline_ms) == 0)
            return err_wrap(e, "kubeml-ps did not come back in %d s", PSLINK_REDIAL_MS / 1000);
        /* A wake-up may mean that the link is closed. Messages that were queued wait in `out`;
         * their wake-up is drained, so that it does not end every later pause too. */
        struct pollfd p = {l->wake, POLLIN, 0};
        if (poll(&p, 1, pause_ms) > 0 && drain(l->wake, e) != 0)
            return -1;
        pause_ms = pause_ms < 500 ? 2 * pause_ms : 500;
    }
    return err_set(e, ERR_CANCELLED, "closed");
}

/* Forgets `leave`: another kubeml-ps begins to number communicators again. */
static void forget_sets(pslink *l)
{
    pthread_mutex_lock(&l->lock);
    l->dials++;
    l->left = 0;
    pthread_mutex_unlock(&l->lock);
}

static void *run(void *arg)
{
    pslink *l = arg;
    int64_t beat_ms = clock_deadline_ms(0);
    while (!finished(l)) {
        err e = ERR_INIT;
        if (turn(l, &beat_ms, &e) == 0)
            continue;
        wire_close(l->wire);
        l->wire = NULL;
        forget_sets(l);
        if (is_over(l))
            break;
        log_warn("kubeml-ps: %s; dialling again", e.message);
        if (dial_again(l, &e) != 0) {
            pthread_mutex_lock(&l->lock);
            end(l, &e);
            pthread_mutex_unlock(&l->lock);
            break;
        }
        log_info("kubeml-ps is back");
    }
    return NULL;
}

/* ---- the computing thread's side ------------------------------------------------------------- */

static void wake(pslink *l)
{
    uint64_t one = 1;
    ssize_t wrote = write(l->wake, &one, sizeof one);
    (void)wrote; /* it fails when the counter is full: the thread is awake then */
}

int pslink_open(const pslink_config *c, pslink **out, err *e)
{
    pslink *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "no memory for the pslink");
    *l = (pslink){.config = *c, .phase = "wait", .epoch = -1, .round = -1, .out = json_array(),
                .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->arrived, NULL);
    int rc = l->out && l->wake >= 0 ? 0 : err_set(e, ERR_NOMEM, "no memory for the pslink");
    int64_t deadline_ms = clock_deadline_ms(PSLINK_DIAL_MS);
    if (rc == 0 && !(l->wire = dial(l, deadline_ms, deadline_ms, e)))
        rc = -1;
    /* Signals go to the computing thread, which has the signal stack for crash.c. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = rc == 0 ? pthread_create(&l->thread, NULL, run, l) : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        rc = err_set_errno(e, code, "the link's thread");
    if (rc == 0) {
        *out = l;
        return 0;
    }
    wire_close(l->wire);
    json_decref(l->out);
    if (l->wake >= 0)
        close(l->wake);
    free(l);
    return -1;
}

void pslink_close(pslink *l, int64_t deadline_ms)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    l->closing_deadline_ms = deadline_ms;
    pthread_mutex_unlock(&l->lock);
    wake(l);
    pthread_join(l->thread, NULL);
    wire_close(l->wire);
    for (size_t i = 0; i < l->task_count; i++)
        json_decref(l->tasks[(l->task_first + i) % PSLINK_TASKS_MAX]);
    json_decref(l->current);
    json_decref(l->out);
    close(l->wake);
    pthread_cond_destroy(&l->arrived);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

json_t *pslink_task(pslink *l, err *e)
{
    pthread_mutex_lock(&l->lock);
    json_decref(l->current);
    l->current = NULL;
    while (l->task_count == 0 && !l->over)
        pthread_cond_wait(&l->arrived, &l->lock);
    json_t *task = NULL;
    if (!l->over) {
        task = l->tasks[l->task_first];
        l->task_first = (l->task_first + 1) % PSLINK_TASKS_MAX;
        l->task_count--;
        l->current = json_deep_copy(task);
    } else if (e && l->why.code != ERR_NONE) {
        *e = l->why;
    }
    pthread_mutex_unlock(&l->lock);
    return task;
}

void pslink_send(pslink *l, json_t *message)
{
    pthread_mutex_lock(&l->lock);
    json_decref(l->current); /* the task is answered: an equal task is a new one from now on */
    l->current = NULL;
    if (!message || json_array_append_new(l->out, message) != 0) {
        err e = ERR_INIT;
        err_set(&e, ERR_INTERNAL, "a message for kubeml-ps could not be made");
        end(l, &e);
    }
    pthread_mutex_unlock(&l->lock);
    wake(l);
}

unsigned pslink_dials(pslink *l)
{
    pthread_mutex_lock(&l->lock);
    unsigned dials = l->dials;
    pthread_mutex_unlock(&l->lock);
    return dials;
}

bool pslink_left(pslink *l, int set, unsigned dials)
{
    pthread_mutex_lock(&l->lock);
    bool left = l->left >= set || l->dials != dials || l->over;
    pthread_mutex_unlock(&l->lock);
    return left;
}

void pslink_phase(pslink *l, const char *phase, int64_t epoch, int64_t round)
{
    pthread_mutex_lock(&l->lock);
    l->phase = phase;
    l->epoch = epoch;
    l->round = round;
    pthread_mutex_unlock(&l->lock);
}

void pslink_begun(pslink *l)
{
    pthread_mutex_lock(&l->lock);
    bool first = !l->begun;
    l->begun = true;
    /* if there is no memory, the next heartbeat reports it */
    json_t *m = first ? heartbeat(l) : NULL;
    if (m && json_array_append_new(l->out, m) != 0)
        log_warn("no memory for a heartbeat");
    pthread_mutex_unlock(&l->lock);
    if (first)
        wake(l);
}

void pslink_progress(pslink *l, void (*look)(const void *of, pslink_state *out), const void *of)
{
    pthread_mutex_lock(&l->lock);
    l->look = look;
    l->look_at = of;
    pthread_mutex_unlock(&l->lock);
}
