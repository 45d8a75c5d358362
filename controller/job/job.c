/* job.c: see job.h. Here are the step that all events take, the helpers that emit actions,
 * restarts, and the machine's list of jobs; job_internal.h lists the other files.
 *
 *                 slots are free            kubeml-ps trains
 *     QUEUED ─────────────────► STARTING ─────────────────────► RUNNING
 *        │                        │   ▲                           │
 *        │ cancel                 │   └─ kubeml-ps lost: anew ────┤
 *        ▼                        ▼                               ▼
 *     CANCELLED ◄─────── verdict: `stop` is sent ────► SUCCEEDED, FAILED, CANCELLED, SUSPENDED
 *     SUSPENDED          (bounded wait for `finished`; a suspension waits for the next merge)
 *
 * These go back to QUEUED, under the next generation:
 *   - a failed job with retries left; if it was to be suspended, it is SUSPENDED instead
 *   - a STARTING job whose functions' pods came on GPUs that have no room for them
 *   - a RUNNING job that waits for such room together with a job that began before it
 *
 * Invariants
 *  1. Jobs never hold more slots than there are, unless the cluster has shrunk. No GPU, wherever it
 *     is, has more memory booked than it has, nor more threads, where they count.
 *  2. Among queued jobs the highest priority starts first, and the oldest among equals. No job
 *     overtakes another, except a job that would not fit even an empty platform, by its slots and
 *     known GPUs.
 *  3. A job has at most one kubeml-ps that is not being stopped, of the present generation. No
 *     generation is used twice: it is saved before its pod is asked for. If it could not be saved
 *     and the controller ended, the next controller finds it in the pod's label and the history.
 *  4. Every pod that was asked for is stopped or seen to end; JOB_DONE comes after the last pod.
 *  5. A terminal state is reached once, is saved, and never changes.
 *  6. Every wait has a deadline: jobs_deadline is never later than the first of them.
 *  7. Nothing is started between jobs_restore and JOB_ADOPT. */
#include "job.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mutation.h"
#include "common/base/text.h"
#include "job_internal.h"

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

/* ---- actions --------------------------------------------------------------------------------- */

job_action *jobs_emit(jobs *m, job_action_type type, const job *j)
{
    assert(m->actions < m->actions_room);
    job_action *a = &m->action[m->actions++];
    *a = (job_action){.type = type, .job = j, .function = JOB_KUBEML_PS};
    return a;
}

int jobs_reserve_actions(jobs *m, size_t more)
{
    size_t room = m->reserved + more;
    if (room > m->actions_room) {
        job_action *scaled_up = realloc(m->action, room * sizeof *scaled_up);
        if (!scaled_up)
            return -1;
        m->action = scaled_up;
        m->actions_room = room;
    }
    m->reserved = room;
    return 0;
}

size_t job_pod_actions(const job *j)
{
    return j->pod ? ACTIONS_POD * (size_t)j->pods_max : 0;
}

void job_save(jobs *m, job *j)
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
        return; /* a condition that was never raised needs no lowering */
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

/* ---- after a restart ------------------------------------------------------------------------- */

/* Finds out by the calendar for how long the job has been active. */
static void recall_begin(const jobs *m, job *j)
{
    int64_t active_ms = m->wall_ms - j->started_wall_ms;
    if (j->started_wall_ms == 0 || job_ended(j))
        return;
    j->begun_ms = m->now_ms - (active_ms > 0 ? active_ms : 0);
    if (j->begun_ms == 0)
        j->begun_ms = -1;
}

/* Finds out by the calendar how long the job still waits for its retry; at most the longest wait,
 * in case the clock was set. */
static void recall_again(const jobs *m, job *j)
{
    int64_t left_ms = j->again_wall_ms - m->wall_ms;
    if (j->state == JOB_QUEUED && j->retries > 0 && left_ms > 0)
        j->again_ms = m->now_ms + (left_ms < JOB_AGAIN_MOST_MS ? left_ms : JOB_AGAIN_MOST_MS);
}

static void adopt(jobs *m, job *j)
{
    recall_begin(m, j);
    recall_again(m, j);
    if (!job_active(j))
        return;
    if (j->verdict) /* sent again when kubeml-ps answers */
        j->due_ms = job_verdict_due_ms(m, j->verdict_state);
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

/* Raises GpuUnused. It stays true of the job when a later incarnation uses its GPU. */
static void note_no_gpu(jobs *m, job *j, const job_event *event)
{
    char text[ERR_MESSAGE_BYTES];
    if (!event->message || !event->message[0])
        return;
    text_print(text, sizeof text, "function %d: %s", event->function, event->message);
    job_condition_set(m, j, "GpuUnused", true, "GpuUnused", text);
}

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
            bool late = event->code == ERR_CANCELLED && !p->unwanted; /* for an earlier JOB_TAKE */
            if (p->phase == JOB_POD_TAKING && !late && p->function == event->function &&
                p->incarnation == event->incarnation) {
                pod_failed(m, j, p, event->code, event->message);
                break;
            }
        }
        break;
    case JOB_SPECIALISED:
        p = j ? pod_of(j, event->function, event->incarnation) : NULL;
        if (p && p->phase == JOB_POD_TOLD) {
            p->phase = JOB_POD_GIVEN;
            p->reason[0] = '\0';
            note_no_gpu(m, j, event);
        }
        break;
    case JOB_UNSPECIALISED:
        if (j)
            pod_unspecialised(m, j, event);
        break;
    default: break;
    }
}

static void take_job_event(jobs *m, job *j, const job_event *event)
{
    switch (event->type) {
    case JOB_PS_BEFORE: job_ps_before(m, j, event->incarnation); break;
    case JOB_CANCEL: job_cancel(m, j, event->message); break;
    case JOB_SUSPEND: job_suspend(m, j, event->message); break;
    default: job_ps_event(m, j, event);
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
    case JOB_SLOTS: m->slots = MUTATE(48, event->value, m->slots); break;
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
            take_job_event(m, j, event);
    }
}

/* Settles one job. True: it gave up slots or its turn to the next of the queue, for which no other
 * event may come. */
static bool settle_job(jobs *m, job *j)
{
    int held = job_held(j);
    bool queued = j->state == JOB_QUEUED;
    if (!m->adopting) {
        pods_time(m, j);
        job_check_deadline(m, j);
        if (job_active(j) && j->verdict && m->now_ms >= j->due_ms)
            job_carry_out(m, j);
        if (job_ended(j) && j->pods == 0 && !j->done_told) {
            j->done_told = true;
            jobs_emit(m, JOB_DONE, j);
        }
    }
    if (j->unsaved)
        job_save(m, j);
    bool left_queue = queued && j->state != JOB_QUEUED;
    return job_held(j) < held || MUTATE(50, left_queue, false);
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
    if (!m->adopting) { /* before JOB_ADOPT, pods that seem to be missing may be there */
        jobs_unplace(m);
        jobs_schedule(m);
    }
    bool left = false;
    for (size_t k = 0; k < m->count; k++)
        left |= settle_job(m, m->job[k]);
    if (MUTATE(38, left, false)) {
        jobs_unplace(m);
        jobs_schedule(m);
    }
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
        int64_t last = job_deadline_ms(j);
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
    if (!m || (m->limits = *limits, m->slots = slots, jobs_reserve_actions(m, ACTIONS_STEP)) < 0) {
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
    free(m->queue);
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
        job **scaled_up = realloc(m->job, room * sizeof(*scaled_up)),
            **queue = realloc(m->queue, room * sizeof(*queue));
        m->job = scaled_up ? scaled_up : m->job;
        m->queue = queue ? queue : m->queue;
        if (scaled_up && queue)
            m->room = room;
        else
            why = "no memory for a job";
    }
    if (!why && jobs_reserve_actions(m, ACTIONS_JOB + job_pod_actions(j)) < 0)
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
                  int epochs, int threads, int64_t wall_ms, err *e)
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
    j->threads = threads;
    j->decided_epoch = -1;
    j->unsaved = true;
    return jobs_add(m, j, e);
}

int jobs_submit(jobs *m, const char *id, const request *r, bool resumed, int64_t wall_ms, err *e)
{
    return submit(m, id, r, resumed, 0, 0, 0, wall_ms, e);
}

int jobs_resubmit(jobs *m, const char *id, const request *r, int generation, int epochs,
                  int threads, int64_t wall_ms, err *e)
{
    return submit(m, id, r, true, generation + 1, epochs, threads, wall_ms, e);
}

void jobs_recall(jobs *m, const char *id, const json_t *record)
{
    job *j = find(m, id);
    if (j)
        job_recall_exact(j, record);
}

void jobs_chunks(jobs *m, const char *id, int chunks)
{
    job *j = find(m, id);
    if (j)
        j->chunks = chunks;
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
        m->reserved -= ACTIONS_JOB + job_pod_actions(j);
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
