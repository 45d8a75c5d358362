/* job_end.c: the end of jobs: verdicts, the time that kubeml-ps has to carry them out, retries. See
 * job.c for the whole machine. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mutation.h"
#include "common/base/text.h"
#include "job_internal.h"

static void requeue(jobs *m, job *j)
{
    job_ps_forget(m, j);
    j->generation++;
    j->state = JOB_QUEUED;
    j->resumed = true;
    j->verdict = j->access = j->attaching = false;
    j->restarts = j->parallelism = 0;
    j->reference_seconds = 0;
    j->decided_epoch = -1;
    j->phase[0] = '\0';
}

static bool may_try_again(const job *j, const char *reason)
{
    return MUTATE(43, j->retries < j->request.backoff_limit, true) &&
           strcmp(reason, "DeadlineExceeded") != 0;
}

/* Whether a failed job stays suspended: it was to be suspended, and is tried again when it is
 * resumed. */
static bool stays_suspended(job *j, const char *reason, const char *message)
{
    if (!j->verdict || j->verdict_state != JOB_SUSPENDED || !may_try_again(j, reason))
        return false;
    text_print(j->message, sizeof j->message, "it failed before its next merge: %s: %.200s", reason,
               message);
    return true;
}

/* Queues a failed job to go on from its newest checkpoint; false: it has no retry left. Its active
 * deadline runs on. */
static bool try_again(jobs *m, job *j, const char *reason, const char *message)
{
    char text[ERR_MESSAGE_BYTES];
    if (!may_try_again(j, reason))
        return false;
    int64_t wait = m->limits.again_ms;
    for (int i = 0; i < j->retries && wait < JOB_AGAIN_MOST_MS; i++)
        wait *= 2;
    wait = wait < JOB_AGAIN_MOST_MS ? wait : JOB_AGAIN_MOST_MS;
    j->again_ms = m->now_ms + wait;
    j->again_wall_ms = m->wall_ms + wait;
    j->retries++;
    requeue(m, j);
    text_print(j->message, sizeof j->message, "%s: %.200s", reason, message);
    text_print(text, sizeof text, "retry %d of %d after %.200s", j->retries,
               j->request.backoff_limit, j->message);
    job_condition_set(m, j, "Retried", true, reason, text);
    job_save(m, j);
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
    for (int i = 0; i < j->conditions; i++) {
        const job_condition *c = &j->condition[i];
        bool lasts = strcmp(c->type, "Exact") == 0 || strcmp(c->type, "GpuUnused") == 0;
        if (c->status && !lasts)
            job_condition_set(m, j, c->type, false, "Ended", "the job has ended");
    }
    job_save(m, j);
    if (j->connected)
        jobs_emit(m, JOB_TELL_BYE, j);
    j->connected = false;
    if (MUTATE(20, true, state != JOB_CANCELLED))
        pods_stop(m, j, true);
}

void job_wait_again(jobs *m, job *j)
{
    requeue(m, j);
    memset(j->gpu, 0,
           sizeof j->gpu); /* its pods are still booked, by their own `gpu`, until they end */
    j->gpu_functions = 0;
    j->connected = false;
    job_condition_set(m, j, "PoolEmpty", false, "Queued",
                      "it waits for all of its functions' places");
    job_save(m, j);
    pods_stop(m, j, true);
}

void job_tell_stop(jobs *m, const job *j)
{
    job_action *a = jobs_emit(m, JOB_TELL_STOP, j);
    memcpy(a->reason, j->reason, sizeof a->reason);
    memcpy(a->message, j->message, sizeof a->message);
    a->value = j->verdict_state == JOB_SUSPENDED;
}

int64_t job_verdict_due_ms(const jobs *m, job_state state)
{
    return MUTATE(47, state == JOB_SUSPENDED, true) ? INT64_MAX : m->now_ms + m->limits.stop_ms;
}

/* Decides the end, and sends it to kubeml-ps, which has a bounded time to finish writing. A job
 * that is to be suspended has until its next merge, which kubeml-ps bounds. */
static void give_verdict(jobs *m, job *j, job_state state, const char *reason, const char *message)
{
    if (!job_active(j) ||
        (j->verdict && (j->verdict_state != JOB_SUSPENDED || state == JOB_SUSPENDED)))
        return;
    if (state == JOB_FAILED && stays_suspended(j, reason, message)) {
        if (j->due_ms == INT64_MAX) /* no merge may come any more */
            j->due_ms = m->now_ms + m->limits.stop_ms;
        job_save(m, j);
        return;
    }
    j->verdict = true;
    j->verdict_state = state;
    text_print(j->reason, sizeof j->reason, "%s", reason);
    text_print(j->message, sizeof j->message, "%s", message);
    j->due_ms = job_verdict_due_ms(m, state);
    job_save(m, j);
    const job_pod *ps = pod_ps(j);
    if (j->connected) {
        job_tell_stop(m, j);
    } else if (!ps ||
               (ps->phase != JOB_POD_TOLD && !(ps->phase == JOB_POD_WANTED && ps->name[0]))) {
        j->due_ms = m->now_ms; /* kubeml-ps has not begun the job */
    }
}

void job_carry_out(jobs *m, job *j)
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

void job_cancel(jobs *m, job *j, const char *message)
{
    if (!message[0])
        message = "cancelled on request";
    if (j->state == JOB_QUEUED)
        job_end(m, j, JOB_CANCELLED, "Cancelled", message);
    else
        give_verdict(m, j, JOB_CANCELLED, "Cancelled", message);
}

void job_suspend(jobs *m, job *j, const char *message)
{
    if (!message[0])
        message = "suspended on request";
    if (j->state == JOB_QUEUED)
        job_end(m, j, JOB_SUSPENDED, "Suspended", message);
    else
        give_verdict(m, j, JOB_SUSPENDED, "Suspended", message);
}

int64_t job_deadline_ms(const job *j)
{
    bool counts = j->request.active_deadline_seconds > 0 && j->begun_ms != 0 && !job_ended(j) &&
                  (!j->verdict || j->verdict_state == JOB_SUSPENDED);
    return counts ? j->begun_ms + (int64_t)j->request.active_deadline_seconds * 1000 : INT64_MAX;
}

void job_check_deadline(jobs *m, job *j)
{
    char text[ERR_MESSAGE_BYTES];
    if (MUTATE(46, m->now_ms < job_deadline_ms(j), true))
        return;
    snprintf(text, sizeof text, "it was active longer than %d s",
             j->request.active_deadline_seconds);
    if (j->state == JOB_QUEUED)
        job_end(m, j, JOB_FAILED, "DeadlineExceeded", text);
    else
        give_verdict(m, j, JOB_FAILED, "DeadlineExceeded", text);
}

/* What the pod of a missing function waits for: kubeml-ps, which reports FunctionMissing, does not
 * know it. */
static const char *what_lacks(const job *j, const char *reason)
{
    for (int i = 0; i < j->pods && strcmp(reason, "FunctionMissing") == 0; i++)
        if (j->pod[i].phase < JOB_POD_TOLD && j->pod[i].message[0])
            return j->pod[i].message;
    return "";
}

void job_finished(jobs *m, job *j, const job_event *event)
{
    char message[ERR_MESSAGE_BYTES];
    const char *lacks = what_lacks(j, event->reason);
    if (!job_active(j) || event->state < JOB_SUCCEEDED)
        return;
    if (event->value > j->epochs)
        j->epochs = event->value;
    /* The verdict stands, unless the job was done before kubeml-ps got it, or failed for good
     * before the merge at which it was to be suspended. */
    bool overtaken = event->state == JOB_SUCCEEDED ||
                     (j->verdict_state == JOB_SUSPENDED && event->state == JOB_FAILED &&
                      !stays_suspended(j, event->reason, event->message));
    text_print(message, sizeof message, "%s%s%s", event->message, lacks[0] ? ": " : "", lacks);
    if (j->verdict && !overtaken)
        job_carry_out(m, j);
    else
        job_end(m, j, event->state, event->reason, message);
}
