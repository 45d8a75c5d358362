/* job.c: see job.h. job_pod.c has the pods, job_record.c the record and the one reason.
 *
 *                 slots are free            kubeml-ps trains
 *     QUEUED ─────────────────► STARTING ─────────────────────► RUNNING
 *        │                        │   ▲                           │
 *        │ cancel                 │   └─ kubeml-ps lost: anew ────┤
 *        ▼                        ▼                               ▼
 *     CANCELLED ◄─────── verdict: told to stop ──────► SUCCEEDED, FAILED, CANCELLED, SUSPENDED
 *     SUSPENDED          (bounded wait for `finished`; for the next merge where it is suspended)
 *
 * A failed job with retries left goes back to QUEUED instead, under the next generation; so does a
 * STARTING one whose functions' pods came on GPUs that have no room for them.
 *
 * Invariants
 *  1. The slots that jobs hold are never more than there are, except that the cluster shrank; nor
 *     is more of a GPU's memory (and threads, where they count) taken than it has, wherever that
 *     GPU is.
 *  2. Among queued jobs the highest priority starts first, the oldest among equals; nobody
 *     overtakes, but whom the platform could not hold if it were empty, by its slots and the GPUs
 *     that are known.
 *  3. A job has at most one kubeml-ps that is not being stopped, of the present generation; the
 *     generation is saved before its pod is asked for, so that no number is used twice.
 *  4. Every pod that was asked for is stopped or seen to end; JOB_DONE comes after the last one.
 *  5. A terminal state is reached once, is saved, and never changes.
 *  6. Every wait has a deadline: jobs_deadline is never later than the first of them.
 *  7. Nothing is started between jobs_restore and JOB_ADOPT. */
#include "job.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_internal.h"
#include "mutation.h"
#include "policy.h"
#include "text.h"

#define AGAIN_MOST_MS 360000

enum { ACTIONS_STEP = 16, ACTIONS_JOB = 24, ACTIONS_POD = 3 };

void job_limits_default(job_limits *l)
{
    *l = (job_limits){.pod_ms = 300000,
                      .told_ms = 60000,
                      .attach_ms = 15000,
                      .adopt_ms = 15000,
                      .stop_ms = 10000,
                      .end_ms = 30000,
                      .retry_ms = 200,
                      .ps_restarts_max = 5,
                      .pod_tries_max = 8,
                      .again_ms = 10000,
                      .grow_again_ms = 5000,
                      .room_ms = 5000,
                      .grace_ms = 2000};
}

bool job_active(const job *j)
{
    return j->state == JOB_STARTING || j->state == JOB_RUNNING;
}

bool job_ended(const job *j)
{
    return j->state >= JOB_SUCCEEDED;
}

/* ---- what the machine says ------------------------------------------------------------------- */

job_action *jobs_emit(jobs *m, job_action_type type, const job *j)
{
    assert(m->actions < m->actions_room);
    job_action *a = &m->action[m->actions++];
    *a = (job_action){.type = type, .job = j, .function = JOB_KUBEML_PS};
    return a;
}

/* Room for all that one step can say, so that a step never allocates. */
static int reserve_actions(jobs *m, size_t more)
{
    size_t room = m->reserved + more;
    if (room > m->actions_room) {
        job_action *grown = realloc(m->action, room * sizeof *grown);
        if (!grown)
            return -1;
        m->action = grown;
        m->actions_room = room;
    }
    m->reserved = room;
    return 0;
}

static size_t actions_of_pods(const job *j)
{
    return j->pod ? ACTIONS_POD * (size_t)j->pods_max : 0;
}

static void save(jobs *m, job *j)
{
    j->unsaved = false;
    jobs_emit(m, JOB_SAVE, j);
    jobs_emit(m, JOB_CHANGED, j);
}

void job_condition_set(jobs *m, job *j, const char *type, bool status, const char *reason,
                       const char *message)
{
    job_condition *c = NULL;
    for (int i = 0; i < j->conditions && !c; i++)
        if (strcmp(j->condition[i].type, type) == 0)
            c = &j->condition[i];
    if (!c && (!status || j->conditions == JOB_CONDITIONS_MAX) && strcmp(type, "Exact") != 0)
        return; /* what never was needs no denial */
    if (!c && j->conditions == JOB_CONDITIONS_MAX)
        return;
    bool changed = !c || c->status != status || strcmp(c->reason, reason) != 0;
    if (!c) {
        c = &j->condition[j->conditions++];
        *c = (job_condition){.status = !status};
        snprintf(c->type, sizeof c->type, "%s", type);
    }
    if (c->status != status)
        c->since_wall_ms = m->wall_ms;
    c->status = status;
    text_print(c->reason, sizeof c->reason, "%s", reason);
    text_print(c->message, sizeof c->message, "%s", message);
    if (changed)
        j->unsaved = true;
}

/* What kubeml-ps says of its own time: of the next one's that one speaks. */
static void forget_said(jobs *m, job *j)
{
    static const char *const said[] = {"FunctionLost", "Straggler", "RedisGone",
                                       "StoreUnavailable"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        job_condition_set(m, j, said[i], false, "PSEnded", "the kubeml-ps that said so has ended");
}

/* ---- the end --------------------------------------------------------------------------------- */

static void requeue(jobs *m, job *j)
{
    forget_said(m, j);
    j->generation++;
    j->state = JOB_QUEUED;
    j->resumed = true;
    j->verdict = j->access = j->attaching = false;
    j->restarts = j->parallelism = 0;
    j->reference_seconds = 0;
    j->decided_epoch = -1;
    j->phase[0] = '\0';
}

/* A failed job goes on from its newest checkpoint, if it may. Its deadline goes on too. */
static bool try_again(jobs *m, job *j, const char *reason, const char *message)
{
    char text[ERR_MESSAGE_BYTES];
    if (j->retries >= j->request.backoff_limit || strcmp(reason, "DeadlineExceeded") == 0)
        return false;
    int64_t wait = m->limits.again_ms;
    for (int i = 0; i < j->retries && wait < AGAIN_MOST_MS; i++)
        wait *= 2;
    wait = wait < AGAIN_MOST_MS ? wait : AGAIN_MOST_MS;
    j->again_ms = m->now_ms + wait;
    j->again_wall_ms = m->wall_ms + wait;
    j->retries++;
    requeue(m, j);
    text_print(j->message, sizeof j->message, "%s: %.200s", reason, message);
    text_print(text, sizeof text, "retry %d of %d after %.200s", j->retries,
               j->request.backoff_limit, j->message);
    job_condition_set(m, j, "Retried", true, reason, text);
    save(m, j);
    return true;
}

void job_end(jobs *m, job *j, job_state state, const char *reason, const char *message)
{
    if (job_ended(j))
        return;
    if (state == JOB_FAILED && try_again(m, j, reason, message)) {
        if (j->connected)
            jobs_emit(m, JOB_TELL_BYE, j);
        j->connected = false;
        pods_stop(m, j, true);
        return;
    }
    j->state = state;
    j->verdict = false;
    j->finished_wall_ms = state == JOB_SUSPENDED ? 0 : m->wall_ms;
    text_print(j->reason, sizeof j->reason, "%s", reason);
    if (state == JOB_FAILED && j->retries > 0)
        text_print(j->message, sizeof j->message, "%.200s; after %d of %d retries", message,
                   j->retries, j->request.backoff_limit);
    else
        text_print(j->message, sizeof j->message, "%s", message);
    for (int i = 0; i < j->conditions; i++)
        if (strcmp(j->condition[i].type, "Exact") != 0 && j->condition[i].status)
            job_condition_set(m, j, j->condition[i].type, false, "Ended", "the job has ended");
    save(m, j);
    if (j->connected)
        jobs_emit(m, JOB_TELL_BYE, j);
    j->connected = false;
    if (MUTATE(20, true, state != JOB_CANCELLED))
        pods_stop(m, j, true);
}

void job_wait_again(jobs *m, job *j)
{
    requeue(m, j);
    j->connected = false;
    job_condition_set(m, j, "PoolEmpty", false, "Queued",
                      "it waits for all of its functions' places");
    save(m, j);
    pods_stop(m, j, true);
}

static void tell_stop(jobs *m, const job *j)
{
    job_action *a = jobs_emit(m, JOB_TELL_STOP, j);
    memcpy(a->reason, j->reason, sizeof a->reason);
    memcpy(a->message, j->message, sizeof a->message);
    a->value = j->verdict_state == JOB_SUSPENDED;
}

/* Decides the end; kubeml-ps is told and gets a bounded time to finish what it is writing. One that
 * is to be suspended has the time until its next merge, which kubeml-ps bounds. */
static void give_verdict(jobs *m, job *j, job_state state, const char *reason, const char *message)
{
    if (!job_active(j) ||
        (j->verdict && (j->verdict_state != JOB_SUSPENDED || state == JOB_SUSPENDED)))
        return;
    j->verdict = true;
    j->verdict_state = state;
    text_print(j->reason, sizeof j->reason, "%s", reason);
    text_print(j->message, sizeof j->message, "%s", message);
    j->due_ms = state == JOB_SUSPENDED ? INT64_MAX : m->now_ms + m->limits.stop_ms;
    save(m, j);
    const job_pod *ps = pod_ps(j);
    if (j->connected) {
        tell_stop(m, j);
    } else if (!ps ||
               (ps->phase != JOB_POD_TOLD && !(ps->phase == JOB_POD_WANTED && ps->name[0]))) {
        j->due_ms = m->now_ms; /* nobody has begun anything */
    }
}

static void carry_out(jobs *m, job *j)
{
    char reason[JOB_REASON_BYTES], message[ERR_MESSAGE_BYTES];
    memcpy(reason, j->reason, sizeof reason);
    memcpy(message, j->message, sizeof message);
    job_end(m, j, j->verdict_state, reason, message);
}

void job_fail(jobs *m, job *j, const char *reason, const char *fmt, ...)
{
    char message[ERR_MESSAGE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    text_vprint(message, sizeof message, fmt, ap);
    va_end(ap);
    give_verdict(m, j, JOB_FAILED, reason, message);
}

static void cancel(jobs *m, job *j, const char *message)
{
    if (!message[0])
        message = "cancelled on request";
    if (j->state == JOB_QUEUED)
        job_end(m, j, JOB_CANCELLED, "Cancelled", message);
    else
        give_verdict(m, j, JOB_CANCELLED, "Cancelled", message);
}

static void suspend(jobs *m, job *j, const char *message)
{
    if (!message[0])
        message = "suspended on request";
    if (j->state == JOB_QUEUED)
        job_end(m, j, JOB_SUSPENDED, "Suspended", message);
    else
        give_verdict(m, j, JOB_SUSPENDED, "Suspended", message);
}

/* active_deadline_seconds, counted from the first start. */
static int64_t deadline_of(const job *j)
{
    bool counts = j->request.active_deadline_seconds > 0 && j->begun_ms != 0 && !job_ended(j) &&
                  (!j->verdict || j->verdict_state == JOB_SUSPENDED);
    return counts ? j->begun_ms + (int64_t)j->request.active_deadline_seconds * 1000 : INT64_MAX;
}

static void check_deadline(jobs *m, job *j)
{
    char text[ERR_MESSAGE_BYTES];
    if (m->now_ms < deadline_of(j))
        return;
    snprintf(text, sizeof text, "it was active longer than %d s",
             j->request.active_deadline_seconds);
    if (j->state == JOB_QUEUED)
        job_end(m, j, JOB_FAILED, "DeadlineExceeded", text);
    else
        give_verdict(m, j, JOB_FAILED, "DeadlineExceeded", text);
}

static void finished(jobs *m, job *j, const job_event *event)
{
    if (!job_active(j) || event->state < JOB_SUCCEEDED)
        return;
    if (event->value > j->epochs)
        j->epochs = event->value;
    /* What was decided here stands, unless the job was done before it heard of it, or failed on the
     * way to the merge that it was to be suspended at. */
    bool overtaken = event->state == JOB_SUCCEEDED ||
                     (j->verdict_state == JOB_SUSPENDED && event->state == JOB_FAILED);
    if (j->verdict && !overtaken)
        carry_out(m, j);
    else
        job_end(m, j, event->state, event->reason, event->message);
}

/* ---- kubeml-ps ------------------------------------------------------------------------------- */

static void start_ps(jobs *m, job *j)
{
    save(m, j); /* the generation, before anything bears it */
    pod_want(m, j, JOB_KUBEML_PS, j->generation);
}

void job_ps_lost(jobs *m, job *j, const char *reason, const char *message)
{
    char text[ERR_MESSAGE_BYTES];
    j->connected = j->access = j->attaching = false;
    if (j->verdict) {
        carry_out(m, j);
        return;
    }
    forget_said(m, j);
    pods_stop(m, j, true);
    j->generation += MUTATE(21, 1, 0);
    j->resumed = true;
    if (++j->restarts > m->limits.ps_restarts_max) {
        job_fail(m, j, "PSCrashed", "kubeml-ps ended %d times within an epoch: %s: %.170s",
                 j->restarts, reason, message);
        return;
    }
    snprintf(text, sizeof text, "kubeml-ps ended (%s: %.150s) and was started again", reason,
             message);
    job_condition_set(m, j, "PSRestarted", true, "PSRestarted", text);
    start_ps(m, j);
}

static void ps_accepted(jobs *m, job *j)
{
    job_pod *p = pod_ps(j);
    if (!p || p->phase != JOB_POD_TOLD)
        return;
    p->phase = JOB_POD_GIVEN;
    p->mute = false;
    j->connected = true;
    j->attaching = false;
    pods_tell_gone(m, j);
    if (j->verdict)
        tell_stop(m, j);
    else if (j->no_more[0]) /* it may not have heard it, and waits */
        pods_tell_no_more(m, j);
}

static void ps_refused(jobs *m, job *j, const job_event *event)
{
    job_pod *p = pod_ps(j);
    if (!p || p->phase != JOB_POD_TOLD)
        return;
    if (j->attaching && event->code == ERR_NOT_FOUND) {
        j->attaching = false;
        pod_tell(m, j, p);
        return;
    }
    if (j->attaching || err_retry_may_help(event->code)) {
        pod_stop(m, j, p); /* its end brings the next one, within the bound on restarts */
        return;
    }
    job_fail(m, j, event->reason[0] ? event->reason : "PSRefused", "%s", event->message);
}

static void ps_closed(jobs *m, job *j, const job_event *event)
{
    job_pod *p = pod_ps(j);
    j->connected = false;
    if (!p || (p->phase != JOB_POD_GIVEN && p->phase != JOB_POD_TOLD))
        return;
    p->mute = p->mute && event->code == ERR_TIMEOUT;
    if (p->phase == JOB_POD_GIVEN || !j->attaching)
        p->since_ms = m->now_ms; /* the connection's end, for the bound on trying */
    p->phase = JOB_POD_WANTED;
    p->due_ms = m->now_ms + m->limits.retry_ms;
    if (pod_given_up_ms(m, p) > m->now_ms && pod_given_up_ms(m, p) < p->due_ms)
        p->due_ms = pod_given_up_ms(m, p);
}

static void ps_access(jobs *m, job *j)
{
    j->access = true;
    for (int i = 0; i < j->pods; i++) {
        job_pod *p = &j->pod[i];
        if (p->function != JOB_KUBEML_PS && p->phase == JOB_POD_WANTED && p->name[0])
            pod_tell(m, j, p);
    }
}

static void ps_need(jobs *m, job *j, const job_event *event)
{
    if (!job_active(j) || j->verdict || event->function < 0 ||
        event->function >= REQUEST_PARALLELISM_MAX)
        return;
    job_pod *same = pod_of(j, event->function, event->incarnation);
    if (same) {
        if (same->found && same->phase == JOB_POD_GIVEN)
            pod_tell(m, j, same); /* adopted between label and specialise, or still loading */
        return;
    }
    for (int i = j->pods - 1; i >= 0; i--)
        if (j->pod[i].function == event->function && j->pod[i].incarnation < event->incarnation)
            pod_stop(m, j, &j->pod[i]);
    pod_want(m, j, event->function, event->incarnation);
}

static void ps_release(jobs *m, job *j, const job_event *event)
{
    job_pod *p = pod_of(j, event->function, event->incarnation);
    if (p && event->function >= 0)
        pod_stop(m, j, p);
}

static void ps_phase(jobs *m, job *j, const job_event *event)
{
    if (!job_active(j))
        return;
    snprintf(j->phase, sizeof j->phase, "%s", event->phase);
    j->epoch = event->epoch;
    j->round = event->round;
    if (j->state == JOB_STARTING && strcmp(event->phase, "starting") != 0) {
        j->state = JOB_RUNNING;
        save(m, j);
    } else {
        jobs_emit(m, JOB_CHANGED, j);
    }
}

static int slots_held(const jobs *m)
{
    int held = 0;
    for (size_t k = 0; k < m->count; k++)
        held += job_held(m->job[k]);
    return held;
}

bool jobs_slots_for(const jobs *m, const job *j, int parallelism)
{
    int held = job_held(j), then = job_held_with(j, parallelism);
    return then <= held || slots_held(m) - held + then <= m->slots;
}

static void ps_epoch(jobs *m, job *j, const job_event *event)
{
    if (!job_active(j) || event->epoch + 1 <= j->epochs)
        return;
    j->epochs = event->epoch + 1;
    /* What kubeml-ps made of the last answer, as far as the slots are there. */
    if (event->value > 0 && event->epoch > j->decided_epoch &&
        (event->value < j->parallelism ||
         (jobs_slots_for(m, j, event->value) && job_place(m, j, event->value) == event->value)))
        j->parallelism = event->value;
    if (event->value > j->most) {
        j->no_more[0] = '\0';
        j->grow_wait_ms = 0;
    }
    j->restarts = 0;
    job_condition_set(m, j, "PSRestarted", false, "Trains", "an epoch was committed since");
    save(m, j);
}

static int grown(const job *j)
{
    int more = j->parallelism - j->request.default_parallelism;
    return job_active(j) && !j->verdict && !j->request.static_parallelism && more > 0 ? more : 0;
}

/* What elastic jobs grew beyond their requests is lent: they give back what the next job lacks,
 * where that lets it begin. */
static int lacking(const jobs *m)
{
    const job *next = jobs_next(m);
    int lacks = next ? job_wants(m, next) - m->slots : 0, lent = 0;
    for (size_t k = 0; next && k < m->count; k++) {
        lacks += job_active(m->job[k]) ? m->job[k]->parallelism : 0; /* the rest goes as it is */
        lent += grown(m->job[k]);
    }
    return lacks > 0 && lacks <= lent ? lacks : 0;
}

/* The most functions that its next epoch may have: what it holds, not what its last epoch had,
 * which may be of a run before, and what is free. `back` of them are to be given back. */
static int most_functions(const jobs *m, const job *j, int back)
{
    int free = m->slots - slots_held(m), most = j->parallelism;
    if (free > 0 && !jobs_waiting(m))
        most += free;
    if (most > j->functions_max)
        most = j->functions_max;
    if (m->now_ms < j->grow_ms && most > j->most)
        most = j->parallelism > j->most ? j->parallelism : j->most;
    return back > 0 && most > j->parallelism - back ? j->parallelism - back : most;
}

/* What the elastic policy makes of the epoch; the slots are granted with the answer. */
static void ps_ask(jobs *m, job *j, const job_event *event)
{
    if (!job_active(j) || j->verdict)
        return;
    if (j->decided_epoch != event->epoch) {
        int back = lacking(m) < grown(j) ? lacking(m) : grown(j);
        int most = most_functions(m, j, back);
        j->trained = event->value;
        j->parallelism = policy_elastic(event->value, event->seconds, j->reference_seconds,
                                        MUTATE(22, most, j->functions_max));
        int placed = job_place(m, j, j->parallelism);
        j->parallelism = placed > 1 ? placed : 1;
        j->reference_seconds =
            policy_reference(event->value, event->seconds, j->reference_seconds, j->parallelism);
        j->decided_epoch = event->epoch;
        save(m, j);
    }
    job_action *a = jobs_emit(m, JOB_TELL_PARALLELISM, j);
    a->epoch = event->epoch;
    a->value = j->parallelism;
}

/* ---- the queue ------------------------------------------------------------------------------- */

bool job_sooner(const job *a, const job *b)
{
    if (a->request.priority != b->request.priority)
        return a->request.priority > b->request.priority;
    return a->order < b->order;
}

/* A static job gets what it asks for or waits; an elastic one begins with what the cluster can
 * give. */
int job_wants(const jobs *m, const job *j)
{
    int want = j->request.default_parallelism;
    if (!j->request.static_parallelism && want > m->slots)
        want = m->slots > 0 ? m->slots : 1;
    if (!j->request.static_parallelism)
        want = job_gpu_room(m, j, want);
    return want > 0 ? want : 1;
}

bool job_possible(const jobs *m, const job *j)
{
    int wants = job_wants(m, j);
    return wants <= m->slots && MUTATE(29, job_gpus_hold(m, j, wants), true);
}

static job *first_queued(const jobs *m, bool possible)
{
    job *best = NULL;
    for (size_t k = 0; k < m->count; k++) {
        job *j = m->job[k];
        if (j->state == JOB_QUEUED && j->again_ms <= m->now_ms && (!best || job_sooner(j, best)) &&
            (possible ? job_possible(m, j) : job_wants(m, j) <= m->slots))
            best = j;
    }
    return best;
}

/* One that asks for more than there is waits for the cluster to grow, and nobody for it. */
job *jobs_next(const jobs *m)
{
    return first_queued(m, true);
}

job *jobs_head(const jobs *m)
{
    return first_queued(m, false);
}

static bool start_job(jobs *m, job *j)
{
    bool first = !j->pod; /* a retry has its room */
    if (job_pods_room(m, j) < 0)
        return false;
    if (first && reserve_actions(m, actions_of_pods(j)) < 0) {
        free(j->pod);
        j->pod = NULL;
        return false;
    }
    j->parallelism = job_wants(m, j);
    j->state = JOB_STARTING;
    j->message[0] = '\0';
    if (j->begun_ms == 0) {
        j->started_wall_ms = m->wall_ms;
        j->begun_ms = m->now_ms;
    }
    snprintf(j->phase, sizeof j->phase, "starting");
    start_ps(m, j);
    return true;
}

static void schedule(jobs *m)
{
    job *j;
    while ((j = jobs_next(m))) {
        int wants = job_wants(m, j);
        if (m->slots - slots_held(m) < wants)
            return;
        /* or memory is gone: it waits for the next step */
        if (job_place(m, j, wants) < wants || !start_job(m, j)) {
            job_unplace(j);
            return;
        }
    }
}

/* ---- after a restart ------------------------------------------------------------------------- */

/* How long it has been active is known by the calendar alone. */
static void recall_begin(const jobs *m, job *j)
{
    int64_t active_ms = m->wall_ms - j->started_wall_ms;
    if (j->started_wall_ms == 0 || job_ended(j))
        return;
    j->begun_ms = m->now_ms - (active_ms > 0 ? active_ms : 0);
    if (j->begun_ms == 0)
        j->begun_ms = -1;
}

/* Nor is how long it still waits. A clock that was set does not make that longer than any wait
 * is. */
static void recall_again(const jobs *m, job *j)
{
    int64_t left_ms = j->again_wall_ms - m->wall_ms;
    if (j->state == JOB_QUEUED && j->retries > 0 && left_ms > 0)
        j->again_ms = m->now_ms + (left_ms < AGAIN_MOST_MS ? left_ms : AGAIN_MOST_MS);
}

static void adopt(jobs *m, job *j)
{
    recall_begin(m, j);
    recall_again(m, j);
    if (!job_active(j))
        return;
    if (j->verdict && j->verdict_state == JOB_SUSPENDED)
        j->due_ms = INT64_MAX; /* told again when kubeml-ps answers */
    job_pod *ps = pod_ps(j);
    if (ps) {
        j->attaching = true;
        ps->since_ms = m->now_ms;
        ps->mute = true;
        pod_tell(m, j, ps);
    } else {
        job_ps_lost(m, j, "Gone", "it was not there when the controller came back");
    }
}

static void adopt_all(jobs *m)
{
    m->adopting = false;
    for (size_t k = 0; k < m->count; k++)
        adopt(m, m->job[k]);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void take_pod_event(jobs *m, job *j, const job_event *event)
{
    job_pod *p;
    switch (event->type) {
    case JOB_POD_FOUND: pod_found(m, j, event); break;
    case JOB_POD_READY: pod_ready(m, j, event); break;
    case JOB_POD_WAITING:
        if (j)
            pod_waiting(m, j, event);
        break;
    case JOB_POD_UNPLACED:
        if (j)
            pod_unplaced(m, j, event);
        break;
    case JOB_POD_FAILED:
        for (int i = 0; j && i < j->pods; i++) {
            p = &j->pod[i];
            if (p->phase == JOB_POD_TAKING && p->function == event->function &&
                p->incarnation == event->incarnation) {
                pod_failed(m, j, p, event->code, event->message);
                break;
            }
        }
        break;
    case JOB_SPECIALISED:
        p = j ? pod_of(j, event->function, event->incarnation) : NULL;
        if (p && p->phase == JOB_POD_TOLD)
            p->phase = JOB_POD_GIVEN;
        break;
    case JOB_UNSPECIALISED:
        if (j)
            pod_unspecialised(m, j, event);
        break;
    default: break;
    }
}

static void take_ps_event(jobs *m, job *j, const job_event *event)
{
    switch (event->type) {
    case JOB_CANCEL: cancel(m, j, event->message); break;
    case JOB_SUSPEND: suspend(m, j, event->message); break;
    case JOB_PS_ACCEPTED: ps_accepted(m, j); break;
    case JOB_PS_REFUSED: ps_refused(m, j, event); break;
    case JOB_PS_CLOSED: ps_closed(m, j, event); break;
    case JOB_PS_ACCESS: ps_access(m, j); break;
    case JOB_PS_NEED: ps_need(m, j, event); break;
    case JOB_PS_RELEASE: ps_release(m, j, event); break;
    case JOB_PS_PHASE: ps_phase(m, j, event); break;
    case JOB_PS_EPOCH: ps_epoch(m, j, event); break;
    case JOB_PS_ASK: ps_ask(m, j, event); break;
    case JOB_PS_CONDITION:
        if (job_active(j))
            job_condition_set(m, j, event->name, event->status, event->reason, event->message);
        break;
    case JOB_PS_FINISHED: finished(m, j, event); break;
    default: break;
    }
}

static job *find(const jobs *m, const char *id)
{
    for (size_t k = 0; k < m->count; k++)
        if (strcmp(m->job[k]->id, id) == 0)
            return m->job[k];
    return NULL;
}

static void take(jobs *m, const job_event *event)
{
    job *j = find(m, event->job);
    switch (event->type) {
    case JOB_TICK: break;
    case JOB_SLOTS: m->slots = event->value; break;
    case JOB_ADOPT: adopt_all(m); break;
    case JOB_POD_ENDED: pod_ended(m, event); break;
    case JOB_POD_FOUND:
    case JOB_POD_READY:
    case JOB_POD_WAITING:
    case JOB_POD_FAILED:
    case JOB_POD_UNPLACED:
    case JOB_SPECIALISED:
    case JOB_UNSPECIALISED: take_pod_event(m, j, event); break;
    default:
        if (j)
            take_ps_event(m, j, event);
    }
}

static void settle_job(jobs *m, job *j)
{
    if (!m->adopting) {
        pods_time(m, j);
        check_deadline(m, j);
        if (job_active(j) && j->verdict && m->now_ms >= j->due_ms)
            carry_out(m, j);
        if (job_ended(j) && j->pods == 0 && !j->done_told) {
            j->done_told = true;
            jobs_emit(m, JOB_DONE, j);
        }
    }
    if (j->unsaved)
        save(m, j);
}

size_t jobs_step(jobs *m, const job_event *event, const job_action **actions)
{
    job_event known = *event;
    known.job = event->job ? event->job : "";
    known.pod = event->pod ? event->pod : "";
    known.phase = event->phase ? event->phase : "";
    known.name = event->name ? event->name : "";
    known.reason = event->reason ? event->reason : "";
    known.message = event->message ? event->message : "";
    m->actions = 0;
    if (event->now_ms > m->now_ms)
        m->now_ms = event->now_ms;
    m->wall_ms = event->wall_ms;
    take(m, &known);
    if (!m->adopting) { /* until all pods are told, whoever seems not to be there may be */
        jobs_unplace(m);
        schedule(m);
    }
    for (size_t k = 0; k < m->count; k++)
        settle_job(m, m->job[k]);
    *actions = m->action;
    return m->actions;
}

int64_t jobs_deadline(const jobs *m)
{
    int64_t due = INT64_MAX;
    for (size_t k = 0; k < m->count; k++) {
        const job *j = m->job[k];
        if (j->unsaved)
            return m->now_ms;
        if (m->adopting)
            continue;
        int64_t at = pods_deadline(j);
        if (job_active(j) && j->verdict && j->due_ms < at)
            at = j->due_ms;
        int64_t last = deadline_of(j);
        at = last < at ? last : at;
        if (j->state == JOB_QUEUED && j->again_ms > m->now_ms && j->again_ms < at)
            at = j->again_ms;
        due = at < due ? at : due;
    }
    return due;
}

/* ---- open, submit, forget -------------------------------------------------------------------- */

int jobs_open(const job_limits *limits, int slots, jobs **out, err *e)
{
    jobs *m = calloc(1, sizeof *m);
    if (!m || (m->limits = *limits, m->slots = slots, reserve_actions(m, ACTIONS_STEP)) < 0) {
        free(m);
        return err_set(e, ERR_NOMEM, "no memory for the queue");
    }
    *out = m;
    return 0;
}

static void job_free(job *j)
{
    free(j->pod);
    free(j);
}

void jobs_close(jobs *m)
{
    if (!m)
        return;
    for (size_t k = 0; k < m->count; k++)
        job_free(m->job[k]);
    free(m->job);
    free(m->action);
    free(m);
}

int jobs_add(jobs *m, job *j, err *e)
{
    const char *why = NULL;
    err_code code = ERR_NOMEM;
    if (find(m, j->id)) {
        code = ERR_EXISTS;
        why = "there is a job of this id";
    } else if (m->count == JOB_COUNT_MAX) {
        code = ERR_LIMIT;
        why = "the queue is full";
    } else if (m->count == m->room) {
        size_t room = m->room ? 2 * m->room : 16;
        job **grown = realloc(m->job, room * sizeof(*grown));
        if (grown) {
            m->job = grown;
            m->room = room;
        } else {
            why = "no memory for a job";
        }
    }
    if (!why && reserve_actions(m, ACTIONS_JOB + actions_of_pods(j)) < 0)
        why = "no memory for a job";
    if (why) {
        err_set(e, code, "job %s: %s", j->id, why);
        job_free(j);
        return -1;
    }
    m->job[m->count++] = j;
    if (j->order >= m->next_order)
        m->next_order = j->order + 1;
    return 0;
}

static int submit(jobs *m, const char *id, const request *r, bool resumed, int generation,
                  int epochs, int64_t wall_ms, err *e)
{
    if (id[0] == '\0' || strlen(id) >= JOB_ID_BYTES)
        return err_set(e, ERR_INVALID, "id: 1 to %d characters", JOB_ID_BYTES - 1);
    job *j = calloc(1, sizeof *j);
    if (!j)
        return err_set(e, ERR_NOMEM, "no memory for a job");
    snprintf(j->id, sizeof j->id, "%s", id);
    j->request = *r;
    j->created_wall_ms = wall_ms;
    j->order = m->next_order;
    j->resumed = resumed;
    j->generation = generation;
    j->epochs = epochs;
    j->decided_epoch = -1;
    j->unsaved = true;
    return jobs_add(m, j, e);
}

int jobs_submit(jobs *m, const char *id, const request *r, bool resumed, int64_t wall_ms, err *e)
{
    return submit(m, id, r, resumed, 0, 0, wall_ms, e);
}

int jobs_resubmit(jobs *m, const char *id, const request *r, int generation, int epochs,
                  int64_t wall_ms, err *e)
{
    return submit(m, id, r, true, generation + 1, epochs, wall_ms, e);
}

int jobs_forget(jobs *m, const char *id, err *e)
{
    for (size_t k = 0; k < m->count; k++) {
        job *j = m->job[k];
        if (strcmp(j->id, id) != 0)
            continue;
        bool begun = !j->unsaved || j->state != JOB_QUEUED; /* a step has seen it */
        if (begun && !j->done_told)
            return err_set(e, ERR_CONFLICT, "job %s has not ended", id);
        m->reserved -= ACTIONS_JOB + actions_of_pods(j);
        memmove(&m->job[k], &m->job[k + 1], (m->count - k - 1) * sizeof(*m->job));
        m->count--;
        job_free(j);
        return 0;
    }
    return err_set(e, ERR_NOT_FOUND, "job %s", id);
}

/* ---- to look at ------------------------------------------------------------------------------ */

const job *jobs_find(const jobs *m, const char *id)
{
    return find(m, id);
}

size_t jobs_count(const jobs *m)
{
    return m->count;
}

const job *jobs_at(const jobs *m, size_t index)
{
    assert(index < m->count);
    return m->job[index];
}

int jobs_slots_free(const jobs *m)
{
    int free = m->slots - slots_held(m);
    return free > 0 ? free : 0;
}

bool jobs_waiting(const jobs *m)
{
    return jobs_next(m) != NULL;
}
