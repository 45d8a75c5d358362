/* job_pod.c: the pods of a job. See job.c for the whole machine.
 *
 *    want          POD_READY          ACCEPTED, SPECIALISED
 *   ─────► TAKING ───────────► TOLD ──────────────────────► GIVEN
 *          │   ▲                │ no answer                   │ released, job ended
 *   FAILED │   │ due            ▼                             ▼
 *          └► WANTED        STOPPING ◄────────────────────────┘
 *                               │ POD_ENDED
 *                               ▼
 *                             GONE until kubeml-ps has JOB_TELL_LOST, then forgotten */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mutation.h"
#include "common/base/text.h"
#include "common/contract/exit_cause.h"
#include "common/contract/incarnation.h"
#include "job_internal.h"

#define RETRY_MOST_MS  5000
#define GROW_MOST_MS   60000
#define START_MOST_MS  600000 /* for a function that cannot start: it has delayed the job */
#define STOP_TRIES_MAX 10

int job_pods_room(jobs *m, job *j)
{
    if (j->pod)
        return 0;
    /* A restored job has its own number, which its kubeml-ps knows. */
    if (j->functions_max < j->request.default_parallelism)
        j->functions_max = j->request.default_parallelism;
    if (j->functions_max < m->slots)
        j->functions_max = m->slots;
    if (j->functions_max > REQUEST_PARALLELISM_MAX)
        j->functions_max = REQUEST_PARALLELISM_MAX;
    j->pods_max = 3 * j->functions_max + 8;
    j->pod = calloc((size_t)j->pods_max, sizeof *j->pod);
    return j->pod ? 0 : -1;
}

bool pod_exists(const job_pod *p)
{
    return p->phase != JOB_POD_GONE && (p->phase != JOB_POD_WANTED || p->name[0] != '\0');
}

/* Whether an earlier pod of the list belongs to the same function: a function that is stopped while
 * its replacement starts counts once. */
static bool counted_before(const job *j, int i)
{
    for (int k = 0; k < i; k++)
        if (j->pod[k].function == j->pod[i].function && pod_exists(&j->pod[k]))
            return true;
    return false;
}

int job_process(const job *j, int function)
{
    return j->request.process == PROCESS_SHARED ? 0 : function;
}

bool job_function_exists(const job *j, int function)
{
    for (int i = 0; i < j->pods; i++)
        if (j->pod[i].function == MUTATE(25, job_process(j, function), function) &&
            pod_exists(&j->pod[i]))
            return true;
    return false;
}

int pod_functions(const job *j, const job_pod *p)
{
    bool shared = p->function != JOB_KUBEML_PS && j->request.process == PROCESS_SHARED;
    return MUTATE(24, shared, false) ? j->request.default_parallelism : 1;
}

/* The granted functions, and functions beyond them that have not ended yet. */
int job_held(const job *j)
{
    return job_held_with(j, job_active(j) ? j->parallelism : 0);
}

int job_held_with(const job *j, int granted)
{
    int held = granted;
    for (int i = 0; i < j->pods; i++)
        if (j->pod[i].function >= granted && pod_exists(&j->pod[i]) && !counted_before(j, i))
            held += pod_functions(j, &j->pod[i]);
    return held;
}

static void pod_forget(job *j, job_pod *p)
{
    *p = j->pod[--j->pods];
}

job_pod *pod_of(job *j, int function, int incarnation)
{
    for (int i = 0; i < j->pods; i++) {
        job_pod *p = &j->pod[i];
        if (p->function == function && p->incarnation == incarnation &&
            p->phase < JOB_POD_STOPPING && !p->unwanted)
            return p;
    }
    return NULL;
}

job_pod *pod_ps(job *j)
{
    return pod_of(j, JOB_KUBEML_PS, j->generation);
}

/* Makes a function beyond the granted ones wait until there is a slot for it; false: it may be
 * taken. kubeml-ps asks for such a function when it has not received the last, smaller answer. */
static bool wait_for_slot(jobs *m, job *j, job_pod *p)
{
    int upto = p->function == JOB_KUBEML_PS ? 0 : p->function + pod_functions(j, p);
    bool granted = upto <= j->parallelism;
    if (p->function == JOB_KUBEML_PS || (granted && (!job_on_gpu(m, j) || j->gpu[p->function])))
        return false;
    /* A granted function without a GPU had one that is gone since the controller came back. */
    if ((granted || jobs_slots_for(m, j, upto)) && job_place(m, j, upto) == upto) {
        j->parallelism = granted ? j->parallelism : upto;
        j->unsaved = true;
        return false;
    }
    p->phase = JOB_POD_WANTED;
    p->due_ms = m->now_ms + RETRY_MOST_MS;
    return true;
}

static void take(jobs *m, job *j, job_pod *p)
{
    p->phase = JOB_POD_WANTED;
    if (wait_for_slot(m, j, p))
        return;
    p->phase = JOB_POD_TAKING;
    p->name[0] = p->reason[0] = '\0';
    p->gpu = 0;
    p->cold = false;
    p->room_ms = 0;
    p->due_ms = m->now_ms + m->limits.pod_ms;
    job_action *a = jobs_emit(m, JOB_TAKE, j);
    a->function = p->function;
    a->incarnation = p->incarnation;
}

void pod_want(jobs *m, job *j, int function, int incarnation)
{
    if (j->pods == j->pods_max) {
        job_fail(m, j, "TooManyPods", "%d pods of this job have not ended", j->pods);
        return;
    }
    job_pod *p = &j->pod[j->pods++];
    *p = (job_pod){.function = function, .incarnation = incarnation, .since_ms = m->now_ms};
    take(m, j, p);
}

static void untake(jobs *m, job *j, const job_pod *p, bool late)
{
    if (p->unwanted)
        return;
    job_action *a = jobs_emit(m, JOB_UNTAKE, j);
    a->function = p->function;
    a->incarnation = p->incarnation;
    a->value = late;
}

static void stop_within(jobs *m, job *j, job_pod *p, int grace_ms)
{
    if (p->phase == JOB_POD_TAKING) {
        untake(m, j, p, false);
        p->unwanted = true; /* if POD_READY comes first, the pod is stopped then */
        return;
    }
    if (p->phase >= JOB_POD_STOPPING)
        return;
    if (p->name[0] == '\0') {
        pod_forget(j, p);
        return;
    }
    p->phase = JOB_POD_STOPPING;
    p->tries = 0;
    p->due_ms = m->now_ms + m->limits.end_ms;
    job_action *a = jobs_emit(m, JOB_STOP, j);
    memcpy(a->pod, p->name, sizeof a->pod);
    a->function = p->function;
    a->incarnation = p->incarnation;
    a->value = grace_ms;
}

void pod_stop(jobs *m, job *j, job_pod *p)
{
    stop_within(m, j, p, m->limits.grace_ms);
}

void pod_kill(jobs *m, job *j, job_pod *p)
{
    stop_within(m, j, p, 0);
}

void pods_stop(jobs *m, job *j, bool ps_too)
{
    for (int i = j->pods - 1; i >= 0; i--)
        if (ps_too || j->pod[i].function != JOB_KUBEML_PS)
            pod_stop(m, j, &j->pod[i]);
    for (int i = j->pods - 1; i >= 0; i--) /* no kubeml-ps is there to hear of their end */
        if (j->pod[i].phase == JOB_POD_GONE && (ps_too || !j->connected))
            pod_forget(j, &j->pod[i]);
}

void pod_tell(jobs *m, job *j, job_pod *p)
{
    bool ps = p->function == JOB_KUBEML_PS;
    if (!ps && !j->access) { /* specialised once kubeml-ps has sent `access` */
        p->phase = JOB_POD_WANTED;
        p->due_ms = INT64_MAX;
        return;
    }
    p->phase = JOB_POD_TOLD;
    p->due_ms = m->now_ms + m->limits.told_ms;
    p->found = false;
    job_action *a = jobs_emit(m, !ps ? JOB_SPECIALISE : j->attaching ? JOB_ATTACH : JOB_SEND, j);
    memcpy(a->pod, p->name, sizeof a->pod);
    a->function = p->function;
    a->incarnation = p->incarnation;
}

void pods_tell_gone(jobs *m, job *j)
{
    for (int i = j->pods - 1; i >= 0; i--) {
        job_pod *p = &j->pod[i];
        if (p->phase != JOB_POD_GONE)
            continue;
        job_action *a = jobs_emit(m, JOB_TELL_LOST, j);
        a->function = p->function;
        a->incarnation = p->incarnation;
        memcpy(a->reason, p->reason, sizeof a->reason);
        memcpy(a->message, p->message, sizeof a->message);
        pod_forget(j, p);
    }
}

static void cold_condition(jobs *m, job *j)
{
    for (int i = 0; i < j->pods; i++)
        if (j->pod[i].phase < JOB_POD_TOLD && j->pod[i].cold)
            return;
    job_condition_set(m, j, "PoolEmpty", false, "Answered",
                      "every pod that was asked for is there");
}

/* Takes the GPU of a found pod. Of a function's pods the youngest says where the function is. */
static void found_on_gpu(job *j, job_pod *p, int gpu)
{
    bool youngest = true;
    p->gpu = (uint8_t)gpu;
    for (int i = 0; i < j->pods; i++)
        youngest = youngest &&
                   (j->pod[i].function != p->function || j->pod[i].incarnation <= p->incarnation);
    if (youngest)
        job_settle(j, p);
}

void pod_found(jobs *m, job *j, const job_event *event)
{
    bool ps = event->function == JOB_KUBEML_PS;
    if (j)
        job_ps_before(m, j, event->incarnation / (ps ? 1 : ROUND_GENERATION_STEP));
    if (!j || j->state == JOB_QUEUED || job_ended(j) || j->pods == j->pods_max) {
        job_action *a = jobs_emit(m, JOB_STOP, j);
        snprintf(a->pod, sizeof a->pod, "%s", event->pod);
        a->value = m->limits.grace_ms;
        return;
    }
    job_pod *p = &j->pod[j->pods++];
    *p = (job_pod){.function = event->function,
                   .incarnation = event->incarnation,
                   .phase = JOB_POD_GIVEN,
                   .since_ms = m->now_ms,
                   .found = true};
    snprintf(p->name, sizeof p->name, "%s", event->pod);
    if (ps && event->incarnation != j->generation)
        pod_stop(m, j, p);
    else if (event->value > 0)
        found_on_gpu(j, p, event->value);
}

/* Whether the job begins, or begins again: no function trains yet. */
static bool begins(const job *j)
{
    return strcmp(j->phase, "starting") == 0;
}

/* Whether kubeml-ps waits for this function of an elastic job before the next epoch, and can go on
 * without it: an additional function, or, when the job begins, any function but the first. */
static bool can_be_missed(const job *j, int function)
{
    if (j->request.static_parallelism || function < 1 || function >= j->parallelism)
        return false;
    return begins(j) ||
           (j->decided_epoch >= 0 && j->epoch == j->decided_epoch && function >= j->trained);
}

void pods_tell_no_more(jobs *m, job *j)
{
    job_action *a = jobs_emit(m, JOB_TELL_PARALLELISM, j);
    a->epoch = j->decided_epoch;
    a->value = j->parallelism;
}

/* Trains the next epoch with the functions before `function`, and later epochs too for a while, at
 * most for `most_ms`. */
static void no_more(jobs *m, job *j, int function, const char *message, int64_t most_ms)
{
    j->parallelism = j->most = function;
    j->reference_seconds = 0;      /* no function was added */
    if (m->now_ms >= j->grow_ms) { /* functions that fail together count once */
        int64_t wait = j->grow_wait_ms ? 2 * j->grow_wait_ms : m->limits.grow_again_ms;
        j->grow_wait_ms = wait < most_ms ? wait : most_ms;
        j->grow_ms = m->now_ms + j->grow_wait_ms;
    }
    text_print(j->no_more, sizeof j->no_more, "%s", message);
    j->unsaved = true;
    pods_tell_no_more(m, j);
}

bool pod_missed(jobs *m, job *j, int function, const char *message)
{
    if (!MUTATE(32, can_be_missed(j, function), false))
        return false;
    no_more(m, j, function, message, START_MOST_MS);
    return true;
}

/* Whether another pod would wait for the same: space, a quota, an image. */
static bool is_no_room(const char *reason)
{
    static const char *const passing[] = {"", "PoolEmpty", "ContainerCreating",
                                          "ApiServerUnavailable"};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
        if (strcmp(reason, passing[i]) == 0)
            return false;
    return true;
}

void pod_waiting(jobs *m, job *j, const job_event *event)
{
    job_pod *p = pod_of(j, event->function, event->incarnation);
    if (!p || p->phase != JOB_POD_TAKING)
        return;
    bool missed = can_be_missed(j, p->function) && is_no_room(event->reason);
    if (missed && !begins(j)) {
        no_more(m, j, p->function, event->message, GROW_MOST_MS);
        return;
    }
    if (!missed)
        p->room_ms = 0;
    else if (!p->room_ms)
        p->room_ms = m->now_ms + m->limits.room_ms;
    text_print(p->message, sizeof p->message, "%s", event->message);
    p->cold = true;
    job_condition_set(m, j, "PoolEmpty", true, event->reason[0] ? event->reason : "PoolEmpty",
                      event->message);
}

static job_pod *taking(job *j, const job_event *event)
{
    for (int i = 0; j && i < j->pods; i++)
        if (j->pod[i].phase == JOB_POD_TAKING && j->pod[i].function == event->function &&
            j->pod[i].incarnation == event->incarnation)
            return &j->pod[i];
    return NULL;
}

void pod_ready(jobs *m, job *j, const job_event *event)
{
    job_pod *p = taking(j, event);
    if (!p) {
        job_action *a = jobs_emit(m, JOB_STOP, j);
        snprintf(a->pod, sizeof a->pod, "%s", event->pod);
        a->value = m->limits.grace_ms;
        return;
    }
    snprintf(p->name, sizeof p->name, "%s", event->pod);
    p->message[0] = '\0';
    if (p->unwanted) {
        p->unwanted = false;
        p->phase = JOB_POD_GIVEN;
        pod_stop(m, j, p);
    } else {
        if (p->function == JOB_KUBEML_PS)
            j->attaching = false;
        pod_tell(m, j, p);
    }
    cold_condition(m, j);
}

/* Whether no retry can help. ERR_FORBIDDEN may pass: an API server takes a moment to know a role
 * that was made together with the controller. */
static bool hopeless(err_code code)
{
    return code == ERR_INVALID || code == ERR_NOT_FOUND || code == ERR_UNSUPPORTED;
}

/* The pod could not be had: tries again later, within bounds. */
void pod_failed(jobs *m, job *j, job_pod *p, err_code code, const char *message)
{
    const char *what = p->function == JOB_KUBEML_PS ? "kubeml-ps" : "a function";
    if (p->unwanted) {
        pod_forget(j, p);
        if (job_active(j))
            cold_condition(m, j);
        return;
    }
    bool missed = can_be_missed(j, p->function), additional = missed && !begins(j);
    bool given_up = additional || hopeless(code) || ++p->tries >= m->limits.pod_tries_max;
    if (given_up && missed) {
        p->phase = JOB_POD_WANTED; /* until kubeml-ps releases it */
        p->name[0] = '\0';
        p->due_ms = m->now_ms + RETRY_MOST_MS;
        no_more(m, j, p->function, message, GROW_MOST_MS);
        return;
    }
    if (given_up) {
        int tries = p->tries;
        pod_forget(j, p);
        job_fail(m, j, "PodFailed", "no pod for %s after %d tr%s: %.170s", what,
                 tries > 0 ? tries : 1, tries > 1 ? "ies" : "y", message);
        return;
    }
    int64_t wait = RETRY_MOST_MS;
    if (p->tries < 6 && m->limits.retry_ms << (p->tries - 1) < wait)
        wait = m->limits.retry_ms << (p->tries - 1);
    p->phase = JOB_POD_WANTED;
    p->name[0] = '\0';
    p->cold = true;
    p->due_ms = m->now_ms + wait;
    job_condition_set(m, j, "PoolEmpty", true, "PodFailed", message);
}

/* Whether the job goes back to the queue: of jobs that began while no GPU was known, each may hold
 * a part of what the other needs. */
static bool gives_way(const jobs *m, const job *j)
{
    bool starts = j->state == JOB_STARTING && !job_finds_room(m, j, j->parallelism);
    return !j->verdict && (starts || MUTATE(33, job_waits_behind(m, j), false));
}

/* The pod of JOB_TAKE came on a GPU without room for it. Another pod, asked for after a while that
 * doubles, may come on another GPU. A job that would hold up others goes back to the queue
 * (gives_way). */
void pod_unplaced(jobs *m, job *j, const job_event *event)
{
    job_pod *p = taking(j, event);
    if (!p)
        return;
    if (p->unwanted) {
        pod_failed(m, j, p, ERR_CANCELLED, event->message);
        return;
    }
    int64_t wait = (int64_t)RETRY_MOST_MS << (p->unplaced < 4 ? p->unplaced++ : 4);
    p->phase = JOB_POD_WANTED;
    p->cold = true;
    p->due_ms = m->now_ms + wait;
    if (can_be_missed(j, p->function))
        no_more(m, j, p->function, event->message, GROW_MOST_MS);
    else if (gives_way(m, j))
        job_wait_again(m, j);
    else
        job_condition_set(m, j, "PoolEmpty", true, "NoGpuMemory", event->message);
}

static job_pod *find_named(jobs *m, const char *name, job **owner)
{
    for (size_t k = 0; k < m->count; k++)
        for (int i = 0; i < m->job[k]->pods; i++)
            if (strcmp(m->job[k]->pod[i].name, name) == 0 &&
                m->job[k]->pod[i].phase != JOB_POD_GONE) {
                *owner = m->job[k];
                return &m->job[k]->pod[i];
            }
    return NULL;
}

/* Appends the end to the message, which says why the pod was stopped, if that was its own fault. */
static void end_in_words(job_pod *p, const char *end)
{
    char why[sizeof p->message];
    memcpy(why, p->message, sizeof why);
    text_print(p->message, sizeof p->message, "%.120s%s%s", why, why[0] ? ": " : "", end);
}

/* Reports a function's end to kubeml-ps, whatever the function was doing: its slot in the model
 * store becomes free. */
static void function_ended(jobs *m, job *j, job_pod *p, const job_event *event)
{
    if (p->phase == JOB_POD_WANTED) { /* it was never sent its work */
        pod_failed(m, j, p, ERR_CRASHED, event->message);
        return;
    }
    if (!job_active(j)) {
        pod_forget(j, p);
        return;
    }
    p->phase = JOB_POD_GONE;
    p->due_ms = INT64_MAX;
    if (!p->reason[0] || exit_cause_is_crash(event->reason))
        text_print(p->reason, sizeof p->reason, "%s", event->reason);
    end_in_words(p, event->message);
    if (j->connected)
        pods_tell_gone(m, j);
}

void pod_ended(jobs *m, const job_event *event)
{
    job *j = NULL;
    job_pod *p = event->pod[0] ? find_named(m, event->pod, &j) : NULL;
    if (!p)
        return;
    if (p->function != JOB_KUBEML_PS) {
        function_ended(m, j, p, event);
        return;
    }
    bool present = job_active(j) && p->incarnation == j->generation;
    char message[sizeof p->message];
    end_in_words(p, event->message);
    memcpy(message, p->message, sizeof message);
    pod_forget(j, p);
    if (present)
        job_ps_lost(m, j, event->reason, message);
}

void pod_unspecialised(jobs *m, job *j, const job_event *event)
{
    job_pod *p = pod_of(j, event->function, event->incarnation);
    if (!p || p->phase != JOB_POD_TOLD)
        return;
    if (!err_retry_may_help(event->code) && event->code != ERR_CRASHED) {
        if (pod_missed(m, j, p->function, event->message)) {
            pod_stop(m, j, p);
            return;
        }
        job_fail(m, j, event->reason[0] ? event->reason : "LoadFailed", "function %d: %.200s",
                 event->function, event->message);
        return;
    }
    /* It may have joined all the same. Its end is reported to kubeml-ps, which then needs the next
     * incarnation: two processes never have one number. */
    if (!p->reason[0])
        text_print(p->message, sizeof p->message, "%s", event->message);
    pod_stop(m, j, p);
}

int64_t pod_given_up_ms(const jobs *m, const job_pod *p)
{
    return p->since_ms + (p->mute ? m->limits.adopt_ms : m->limits.attach_ms) + 1;
}

/* The pod did not come. Untakes it, because the next pod is asked for under the same number: of two
 * pods, one would stay. */
static void not_come(jobs *m, job *j, job_pod *p)
{
    char text[ERR_MESSAGE_BYTES];
    text_print(text, sizeof text, "not there after %d s%s%.200s", (int)(m->limits.pod_ms / 1000),
               p->message[0] ? ": " : "", p->message);
    if (MUTATE(30, true, false))
        untake(m, j, p, true);
    pod_failed(m, j, p, ERR_TIMEOUT, text);
}

static void pod_due(jobs *m, job *j, job_pod *p)
{
    bool ps = p->function == JOB_KUBEML_PS;
    char text[80];
    switch (p->phase) {
    case JOB_POD_TAKING: not_come(m, j, p); break;
    case JOB_POD_WANTED:
        if (p->name[0] == '\0') {
            take(m, j, p);
        } else if (m->now_ms >= pod_given_up_ms(m, p)) {
            /* it cannot be reached and is given up; its end brings the next kubeml-ps */
            pod_kill(m, j, p);
        } else {
            j->attaching = true;
            pod_tell(m, j, p);
        }
        break;
    case JOB_POD_TOLD:
        if (ps) {
            text_print(p->message, sizeof p->message, "it did not answer within %d s",
                       (int)(m->limits.told_ms / 1000));
            pod_stop(m, j, p);
        } else {
            snprintf(text, sizeof text, "its code was not loaded and its model made within %d s",
                     (int)(m->limits.told_ms / 1000));
            pod_unspecialised(m, j,
                              &(job_event){.function = p->function,
                                           .incarnation = p->incarnation,
                                           .code = ERR_TIMEOUT,
                                           .reason = "",
                                           .message = text});
        }
        break;
    case JOB_POD_STOPPING:
        if (++p->tries >= STOP_TRIES_MAX) { /* its node is gone, and must not block the job */
            pod_ended(m, &(job_event){.pod = p->name, .reason = "Unreachable",
                                      .message = "it was stopped and its end never seen"});
            break;
        }
        p->due_ms = m->now_ms + m->limits.end_ms;
        job_action *a = jobs_emit(m, JOB_STOP, j);
        memcpy(a->pod, p->name, sizeof a->pod);
        a->function = p->function;
        a->incarnation = p->incarnation;
        break;
    default: p->due_ms = INT64_MAX;
    }
}

/* Begins the job without a function that there is still no room for. */
static void begin_without(jobs *m, job *j, job_pod *p)
{
    if (p->phase != JOB_POD_TAKING || !p->room_ms || m->now_ms < p->room_ms)
        return;
    p->room_ms = 0;
    if (begins(j) && can_be_missed(j, p->function))
        no_more(m, j, p->function, p->message, GROW_MOST_MS);
}

void pods_time(jobs *m, job *j)
{
    for (int i = j->pods - 1; i >= 0; i--)
        begin_without(m, j, &j->pod[i]);
    for (int i = j->pods - 1; i >= 0; i--)
        if (i < j->pods && j->pod[i].phase != JOB_POD_GIVEN && m->now_ms >= j->pod[i].due_ms)
            pod_due(m, j, &j->pod[i]);
}

int64_t pods_deadline(const job *j)
{
    int64_t due = INT64_MAX;
    for (int i = 0; i < j->pods; i++)
        if (j->pod[i].phase != JOB_POD_GIVEN && j->pod[i].phase != JOB_POD_GONE &&
            j->pod[i].due_ms < due)
            due = j->pod[i].due_ms;
    for (int i = 0; i < j->pods; i++)
        if (j->pod[i].phase == JOB_POD_TAKING && j->pod[i].room_ms && j->pod[i].room_ms < due)
            due = j->pod[i].room_ms;
    return due;
}
