/* job_ps.c: a job's kubeml-ps: its start, its loss, its reports. See job.c for the whole
 * machine. */
#include <stdio.h>
#include <string.h>

#include "common/base/mutation.h"
#include "common/base/text.h"
#include "common/contract/exit_cause.h"
#include "job_internal.h"
#include "policy.h"

/* Lowers the conditions that speak of this kubeml-ps; the next kubeml-ps reports its own. */
void job_ps_forget(jobs *m, job *j)
{
    static const char *const said[] = {"FunctionLost", "Straggler", "RedisGone",
                                       "StoreUnavailable"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        job_condition_set(m, j, said[i], false, "PSEnded", "the kubeml-ps that said so has ended");
}

void job_start_ps(jobs *m, job *j)
{
    if (MUTATE(36, true, false))
        job_save(m, j); /* the generation is in the record before a pod has it */
    pod_want(m, j, JOB_KUBEML_PS, j->generation);
}

void job_ps_lost(jobs *m, job *j, const char *reason, const char *message)
{
    char text[ERR_MESSAGE_BYTES];
    j->connected = j->access = j->attaching = false;
    if (j->verdict) {
        job_carry_out(m, j);
        return;
    }
    job_ps_forget(m, j);
    pods_stop(m, j, true);
    j->generation += MUTATE(21, 1, 0);
    j->resumed = true;
    if (MUTATE(39, ++j->restarts > m->limits.ps_restarts_max, false)) {
        job_fail(m, j, "PSCrashed", "kubeml-ps ended %d times within an epoch: %s: %.170s",
                 j->restarts, reason, message);
        return;
    }
    snprintf(text, sizeof text, "kubeml-ps ended (%s: %.150s) and was started again", reason,
             message);
    job_condition_set(m, j, "PSRestarted", true, "PSRestarted", text);
    job_start_ps(m, j);
}

/* The record may have an older generation: the store was away until the controller ended. */
void job_ps_before(jobs *m, job *j, int generation)
{
    int least = j->state == JOB_QUEUED ? generation + 1 : generation;
    if (job_ended(j) || MUTATE(35, j->generation >= least, true))
        return;
    for (int i = j->pods - 1; i >= 0; i--)
        if (j->pod[i].function == JOB_KUBEML_PS && j->pod[i].incarnation < least)
            pod_stop(m, j, &j->pod[i]);
    j->generation = least;
    j->resumed = true;
    j->unsaved = true;
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
        job_tell_stop(m, j);
    else if (j->no_more[0]) /* it may not have received it, and wait */
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
        pod_stop(m, j, p); /* its end brings the next kubeml-ps, within the bound on restarts */
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
        p->since_ms = m->now_ms; /* the connection's end: pod_given_up_ms counts from here */
    p->phase = JOB_POD_WANTED;
    p->due_ms = m->now_ms + m->limits.retry_ms;
    if (pod_given_up_ms(m, p) > m->now_ms && pod_given_up_ms(m, p) < p->due_ms)
        p->due_ms = pod_given_up_ms(m, p);
}

/* Kills a silent kubeml-ps: its process stands still, and cannot end by itself. Its end brings the
 * next kubeml-ps. */
static void ps_silent(jobs *m, job *j, const job_event *event)
{
    job_pod *p = pod_ps(j);
    if (!p || p->phase != JOB_POD_GIVEN)
        return;
    j->connected = false;
    text_print(p->message, sizeof p->message, "%s", event->message);
    pod_kill(m, j, p);
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
    bool merges = !j->verdict || j->verdict_state == JOB_SUSPENDED; /* one more merge is to come */
    if (!job_active(j) || !MUTATE(41, merges, !j->verdict) || event->function < 0 ||
        event->function >= REQUEST_PARALLELISM_MAX)
        return;
    job_pod *same = pod_of(j, event->function, event->incarnation);
    if (same) {
        if (same->found && same->phase == JOB_POD_GIVEN) {
            /* adopted between its label and `specialise`, or while it loaded */
            text_print(same->reason, sizeof same->reason, "%s", EXIT_CAUSE_CONTROLLER_RESTARTED);
            text_print(same->message, sizeof same->message,
                       "the controller was started again before it had loaded");
            pod_tell(m, j, same);
        }
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
    if (event->message[0] && job_active(j))
        pod_missed(m, j, event->function, event->message);
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
        job_save(m, j);
    } else {
        jobs_emit(m, JOB_CHANGED, j);
    }
}

static void ps_epoch(jobs *m, job *j, const job_event *event)
{
    if (!job_active(j) || event->epoch + 1 <= j->epochs)
        return;
    j->epochs = event->epoch + 1;
    /* The parallelism that kubeml-ps trained with, if it is fewer, or if there are slots for it. */
    if (event->value > 0 && event->epoch > j->decided_epoch &&
        (event->value < j->parallelism ||
         (jobs_slots_for(m, j, event->value) && job_place(m, j, event->value) == event->value)))
        j->parallelism = event->value;
    if (event->value > j->most) {
        j->no_more[0] = '\0';
        j->grow_wait_ms = 0;
    }
    j->restarts = MUTATE(37, 0, j->restarts);
    job_condition_set(m, j, "PSRestarted", false, "Trains", "an epoch was committed since");
    job_save(m, j);
}

static int scaled_up(const job *j)
{
    int more = j->parallelism - j->request.default_parallelism;
    return job_active(j) && !j->verdict && !j->request.static_parallelism && more > 0 ? more : 0;
}

/* How many slots elastic jobs are to give back: the slots beyond their requests are lent to them,
 * and the next job of the queue can begin with them. 0 if they would not be enough. */
static int lacking(const jobs *m)
{
    const job *next = jobs_next(m);
    int lacks = next ? job_wants(m, next) - m->slots : 0, offered = 0;
    for (size_t k = 0; next && k < m->count; k++) {
        lacks += job_active(m->job[k]) ? m->job[k]->parallelism : 0; /* other slots become free */
        offered += scaled_up(m->job[k]);
    }
    return lacks > 0 && lacks <= offered ? lacks : 0;
}

/* The most functions of the job's next epoch: the functions that it holds and the free slots, less
 * `back`, which it gives back. Not counted from its last epoch, which an earlier run may have
 * trained. */
static int most_functions(const jobs *m, const job *j, int back)
{
    int free = m->slots - jobs_slots_held(m), most = j->parallelism;
    if (free > 0 && !jobs_waiting(m))
        most += free;
    if (most > j->functions_max)
        most = j->functions_max;
    most = job_useful(j, most);
    if (m->now_ms < j->grow_ms && most > j->most)
        most = j->parallelism > j->most ? j->parallelism : j->most;
    return back > 0 && most > j->parallelism - back ? j->parallelism - back : most;
}

/* Decides the next parallelism by the elastic policy; the answer grants the slots. */
static void ps_ask(jobs *m, job *j, const job_event *event)
{
    if (!job_active(j) || j->verdict)
        return;
    j->epoch = event->epoch; /* it may go back: an older state was restored in the next epoch */
    if (j->decided_epoch != event->epoch) {
        int back = lacking(m) < scaled_up(j) ? lacking(m) : scaled_up(j);
        int most = most_functions(m, j, back);
        j->trained = event->value;
        j->parallelism = policy_elastic(event->value, event->seconds, j->reference_seconds,
                                        MUTATE(22, most, j->functions_max));
        int placed = job_place(m, j, j->parallelism);
        j->parallelism = placed > 1 ? placed : 1;
        j->reference_seconds =
            policy_reference(event->value, event->seconds, j->reference_seconds, j->parallelism);
        j->decided_epoch = event->epoch;
        job_save(m, j);
    }
    job_action *a = jobs_emit(m, JOB_TELL_PARALLELISM, j);
    a->epoch = event->epoch;
    a->value = j->parallelism;
}

void job_ps_event(jobs *m, job *j, const job_event *event)
{
    switch (event->type) {
    case JOB_PS_ACCEPTED: ps_accepted(m, j); break;
    case JOB_PS_REFUSED: ps_refused(m, j, event); break;
    case JOB_PS_CLOSED: ps_closed(m, j, event); break;
    case JOB_PS_SILENT: ps_silent(m, j, event); break;
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
    case JOB_PS_FINISHED: job_finished(m, j, event); break;
    default: break;
    }
}
