/* job_receive.c: what controllers and functions say to a job, and what is done with it. What the
 * frames mean is read by frame_in.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "frame_in.h"
#include "frame_out.h"
#include "ps_job_internal.h"

/* ---- controllers ----------------------------------------------------------------------------- */

static void attach(job *j, conn *c, const frame_in *in)
{
    if (strcmp(in->job, j->spec.id) != 0) {
        job_refuse(j, c, ERR_NOT_FOUND, "another job runs here");
        return;
    }
    c->attached = true;
    if (j->stage == JOB_PREPARING)
        j->asker = c; /* the one that asked first went away */
    else
        job_tell_state(j, c, in->after_epoch);
}

/* The end of a function that was sent home is none. */
static bool is_news(const job *j, int function, int incarnation)
{
    return j->stage == JOB_RUNNING && !round_dismissed(j->machine, function, incarnation);
}

static void lost(job *j, const round_event *event)
{
    log_write(is_news(j, event->function, event->incarnation) ? LOG_INFO : LOG_DEBUG,
              "function %d (incarnation %d) ended: %s: %s", event->function, event->incarnation,
              event->reason, event->message);
    /* This came by another connection than its last words: that it failed, and why, weighs more
     * than that it ended. */
    conn *c = connections_function(j->host.connections, event->function);
    if (c && c->incarnation == event->incarnation) {
        connections_hear_out(j->host.connections, c);
        job_drop(j, c);
    }
    if (j->stage == JOB_RUNNING)
        job_step(j, *event);
}

static void stop(job *j, const round_event *event)
{
    bool suspend = event->type == ROUND_SUSPEND;
    const char *reason = event->message ? event->message : "";
    log_info("%s: %s", suspend ? "suspend" : "stop", reason);
    if (j->stage == JOB_RUNNING) {
        job_step(j, *event);
    } else if (j->stage < JOB_RUNNING) {
        free(j->stop); /* the last word counts */
        j->stop = strdup(reason);
        j->stop_suspends = suspend;
    }
}

void job_from_controller(job *j, conn *c, const json_t *message)
{
    frame_in in;
    err e = ERR_INIT;
    if (frame_in_controller(message, &in, &e)) {
        if (in.kind == FRAME_ATTACH) /* it waits for an answer */
            job_refuse(j, c, e.code, e.message);
        else
            log_warn("%s", e.message);
        return;
    }
    if (in.kind == FRAME_ATTACH)
        attach(j, c, &in);
    else if (in.kind == FRAME_LOST)
        lost(j, in.events);
    else if (in.kind == FRAME_STOP)
        stop(j, in.events);
    else if (j->stage == JOB_RUNNING)
        job_step(j, *in.events);
    frame_in_free(&in);
}

/* ---- functions ------------------------------------------------------------------------------- */

static int read_hello(const job *j, const json_t *message, frame_in *in, err *e)
{
    if (frame_in_hello(message, j->spec.id, in, e))
        return -1;
    if (j->stage == JOB_RUNNING)
        return 0;
    frame_in_free(in);
    return err_set(e, ERR_STALE, "the job takes no functions now");
}

void job_hello(job *j, conn *c, const json_t *message)
{
    frame_in in;
    err e = ERR_INIT;
    if (read_hello(j, message, &in, &e)) {
        log_warn("refused a function: %s", e.message);
        job_refuse(j, c, e.code, e.message);
        return;
    }
    c->function = in.event.function;
    c->incarnation = in.event.incarnation;
    j->current = c;
    job_step(j, in.event);
    j->current = NULL;
    /* Of a member alone: one that was refused is an older one, perhaps on another machine. */
    if (c->kind == CONN_FUNCTION) {
        json_decref(j->about[c->function]);
        j->about[c->function] = json_incref(in.about);
    }
    frame_in_free(&in);
}

/* Of one function; the first one's are the job's. */
static int algorithms_of(job *j, const conn *c, json_t *algorithms, char out[DIGEST_HEX_BYTES],
                         err *e)
{
    json_t *about = j->about[c->function];
    json_object_set(about, "algorithms", algorithms);
    const char *key;
    json_t *value;
    json_object_foreach (about, key, value)
        history_plan(j->record.history, key, json_incref(value));
    return job_record_algorithms(about, out, e);
}

static int ready(job *j, conn *c, frame_in *in, err *e)
{
    char algorithms[DIGEST_HEX_BYTES];
    round_event event = in->event;
    if (algorithms_of(j, c, in->algorithms, algorithms, e))
        return -1;
    event.algorithms = algorithms;
    if (!j->effects.layout) {
        j->effects.layout = in->layout;
        in->layout = NULL;
    }
    history_plan(j->record.history, "layout_digest", json_string(in->layout_digest));
    j->needs_losses |= in->needs_losses;
    job_average_in_step(j, in->averaging);
    /* An additional function: there has to be room for what it publishes before it has a share of
     * an epoch. In its first round a full model store would end the job, whoever of its functions
     * finds it full. */
    int slot = in->averaging.offer.handle ? -1 : round_waits_for(j->machine, c->function);
    if (slot >= 0)
        return effects_room(&j->effects, &event, slot, e);
    job_step(j, event);
    return 0;
}

static void step_all(job *j, const frame_in *in)
{
    for (size_t i = 0; i < in->count; i++)
        job_step(j, in->events[i]);
}

/* A function has trained a batch: a heartbeat says so, or that it has published. */
static void note_begun(job *j)
{
    if (!j->begun)
        connections_tell(j->host.connections, frame_out_plain("begun"));
    j->begun = true;
}

static int published(job *j, conn *c, frame_in *in, err *e)
{
    (void)c;
    (void)e;
    if (!job_is_shared(j))
        job_average_in_step(j, in->averaging);
    note_begun(j);
    job_record_seconds(&j->record, &in->seconds, in->count);
    step_all(j, in);
    return 0;
}

static int heartbeat(job *j, conn *c, frame_in *in, err *e)
{
    if (in->usage && job_usage_take(&j->usage, c->function, c->incarnation, in->usage,
                                    clock_monotonic_ms(), e) != 0)
        return err_wrap(e, "heartbeat");
    if (in->begun)
        note_begun(j);
    step_all(j, in);
    return 0;
}

static int take(job *j, conn *c, frame_in *in, err *e)
{
    switch (in->kind) {
    case FRAME_READY: return ready(j, c, in, e);
    case FRAME_PUBLISHED: return published(j, c, in, e);
    case FRAME_HEARTBEAT: return heartbeat(j, c, in, e);
    case FRAME_INITIALISED:
        if (c->function == 0)
            effects_initialised(&j->effects, c->incarnation);
        return 0;
    case FRAME_AVERAGING:
        in->averaging.store_down = j->database.down;
        job_average(j, in->averaging);
        return 0;
    case FRAME_FAILED:
        log_warn("function %d (incarnation %d) failed: %s: %s", c->function, c->incarnation,
                 in->event.reason, in->event.message);
        break;
    default: break;
    }
    step_all(j, in);
    return 0;
}

static round_event lost_of(const conn *c, const char *reason, const char *message)
{
    return (round_event){.type = ROUND_LOST,
                         .function = c->function,
                         .incarnation = c->incarnation,
                         .reason = reason,
                         .message = message};
}

void job_from_function(job *j, conn *c, const json_t *message)
{
    const frame_from from = {c->function, c->incarnation, job_is_shared(j)};
    frame_in in = {0};
    err e = ERR_INIT;
    if (j->stage != JOB_RUNNING)
        return;
    int status = frame_in_function(message, &from, &in, &e) || take(j, c, &in, &e);
    frame_in_free(&in);
    if (status == 0)
        return;
    log_warn("function %d (incarnation %d): %s", c->function, c->incarnation, e.message);
    job_drop(j, c);
    job_step(j, lost_of(c, "Protocol", e.message));
}

void job_closed(job *j, conn *c, const err *why)
{
    if (c == j->asker)
        j->asker = NULL;
    if (c->kind != CONN_FUNCTION)
        return;
    log_write(is_news(j, c->function, c->incarnation) ? LOG_INFO : LOG_DEBUG,
              "function %d (incarnation %d): %s", c->function, c->incarnation, why->message);
    job_drop(j, c);
    if (j->stage == JOB_RUNNING)
        job_step(j, lost_of(c, "ConnectionLost", why->message));
}
