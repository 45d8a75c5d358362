/* sim_bounds.c: how often something may go wrong until a job fails of it. What kubeml-ps and the
 * controller are seen to do is counted here once more: a job that fails has a reason that these
 * counts give, and none goes on past a bound. */
#include <stdio.h>
#include <string.h>

#include "common/contract/exit_cause.h"
#include "sim.h"

/* One job is a world of small bounds, all others go on whatever happens. */
void bounds_choose(sim *s, round_limits *l)
{
    round_limits_default(l);
    if (s->strict) {
        l->start_failures_max = (int)sim_between(s, 2, 3);
        l->losses_max = (int)sim_between(s, 2, 5);
        l->crashes_max = (int)sim_between(s, 2, 3);
        l->redis_ends_max = (int)sim_between(s, 2, 4);
    } else {
        l->start_failures_max = l->losses_max = l->crashes_max = l->redis_ends_max = 1000;
    }
}

static void failed_fairly(sim *s, int who, bool fair, const char *reason, const char *why)
{
    sim_job *j = &s->job[who];
    if (fair)
        snprintf(j->fair, sizeof j->fair, "%s", reason);
    else
        sim_wrong(s, "job %s fails without a cause: %s: %s", j->id, reason, why);
}

/* ---- functions, as kubeml-ps loses them ------------------------------------------------------ */

/* It is asked for in the place of one that was lost. */
static bool replaces(const char *reason)
{
    static const char *const others[] = {"Start", "Grow", "Resume", "Attached"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(reason, others[i]) == 0)
            return false;
    return true;
}

static bool of_gpu(const char *reason)
{
    return strcmp(reason, "GpuFailed") == 0 || strcmp(reason, "GpuMemory") == 0;
}

/* By the controller, which takes a job's slots back, or its kubeml-ps. */
static bool was_stopped(const sim *s, int who, const round_action *a)
{
    for (int p = 0; p < s->processes; p++) {
        const process *f = &s->process[p];
        if (!f->is_ps && f->job == who && f->function == a->function && !f->alive &&
            f->incarnation == a->incarnation - 1 && strcmp(f->ended, "Stopped") == 0)
            return true;
    }
    return false;
}

static void replaced(sim *s, int p, const round_action *a)
{
    const round_limits *l = &s->job[s->process[p].job].limits;
    bound *b = &s->process[p].ps->bound[a->function];
    bool was_ready = b->ready == a->incarnation - 1;
    b->started = was_ready || exit_cause_is_disruption(a->reason) || of_gpu(a->reason);
    b->losses += b->started;
    b->starts += !b->started;
    b->lost = a->incarnation - 1;
    b->over = false;
    if (s->injected == 0 && s->lag <= 0 && !s->narrow && !was_stopped(s, s->process[p].job, a))
        sim_wrong(s, "%s: function %d is lost without a fault: %s", s->process[p].name, a->function,
                  a->reason);
    if (b->losses >= l->losses_max || b->starts >= l->start_failures_max)
        sim_wrong(s, "%s goes on after function %d was lost %d times, and %d times before it was ready",
                  s->process[p].name, a->function, b->losses, b->starts);
}

/* What a function is given up for, by the words that say so. The last loss is followed by nothing
 * and is not counted yet. */
static bool function_fails_fairly(const sim *s, int p, const char *why)
{
    const round_limits *l = &s->job[s->process[p].job].limits;
    int f = -1;
    if (sscanf(why, "function %d", &f) != 1 || f < 0 || f >= SIM_FUNCTIONS_MAX)
        return false;
    const bound *b = &s->process[p].ps->bound[f];
    if (strstr(why, "crashed before"))
        return b->crashes >= 1;
    if (strstr(why, "crashed"))
        return b->crashes >= l->crashes_max;
    bool untold = strstr(why, "ConnectionLost"); /* which had its time */
    if (strstr(why, "before it was ready"))
        return b->starts + 1 >= l->start_failures_max &&
               (!untold || s->now >= b->cut_ms + l->end_wait_ms);
    return strstr(why, "was lost") && b->losses + 1 >= l->losses_max;
}

static void finished(sim *s, int p, const round_action *a)
{
    const process *own = &s->process[p];
    const sim_job *j = &s->job[own->job];
    bool fair = false;
    if (a->state != ROUND_FAILED_STATE || j->writer > own->incarnation)
        return; /* or it is fenced, and that it has ended is told to nobody */
    if (strcmp(a->reason, "Crashed") == 0 || of_gpu(a->reason))
        fair = function_fails_fairly(s, p, a->message);
    else if (strcmp(a->reason, "NaNLoss") == 0)
        fair = j->nan;
    else if (strcmp(a->reason, "RedisGone") == 0)
        fair = own->ps->redis_ends >= j->limits.redis_ends_max ||
               (!own->ps->redis->up && s->now - own->ps->redis->down_ms >= j->limits.store_ms);
    else if (strcmp(a->reason, "StoreDown") == 0)
        fair = (!s->store_up && s->now - s->store_down_ms >= j->limits.store_ms) ||
               (!own->ps->redis->up && s->now - own->ps->redis->down_ms >= j->limits.store_ms);
    failed_fairly(s, own->job, fair, a->reason, a->message);
}

void bounds_store_away(sim *s, int p, int64_t waited_ms)
{
    failed_fairly(s, s->process[p].job, !s->store_up && s->now - s->store_down_ms >= waited_ms,
                  "StoreUnavailable", "the store is away");
}

void bounds_ps_hears(sim *s, int p, const round_event *e)
{
    ps *o = s->process[p].ps;
    bool of_function = e->function >= 0 && e->function < SIM_FUNCTIONS_MAX;
    bound *b = of_function ? &o->bound[e->function] : NULL;
    if (e->type == ROUND_REDIS_GONE)
        o->redis_ends++;
    if (b && e->type == ROUND_READY && o->joined[e->function].incarnation == e->incarnation) {
        b->ready = e->incarnation;
        b->starts = 0;
    }
    if (b && e->type == ROUND_LOST && !e->ended)
        b->cut_ms = s->now;
    if (b && e->type == ROUND_LOST && e->ended && exit_cause_is_crash(e->reason) &&
        (e->incarnation != b->lost || !b->over))
        b->crashes++;
    if (b && e->type == ROUND_LOST && e->ended && e->incarnation == b->lost && !b->started &&
        b->starts > 0 && exit_cause_is_disruption(e->reason)) { /* that is told only now */
        b->started = true;
        b->starts--;
        b->losses++;
    }
}

void bounds_ps_merged(sim *s, int p)
{
    ps *o = s->process[p].ps;
    bool shared = s->job[s->process[p].job].request.process == PROCESS_SHARED;
    for (size_t i = 0; i < o->out.count; i++) {
        bound *b = &o->bound[shared ? 0 : o->out_row[i].function];
        b->losses = b->crashes = o->redis_ends = 0;
        b->over = true;
    }
}

void bounds_ps_does(sim *s, int p, const round_action *a)
{
    if (a->type == ROUND_NEED && replaces(a->reason))
        replaced(s, p, a);
    if (a->type == ROUND_RELEASE && a->message[0]) { /* the next one is another one's successor */
        bound *b = &s->process[p].ps->bound[a->function];
        b->starts = b->losses = b->crashes = 0;
    }
    if (a->type == ROUND_FINISHED)
        finished(s, p, a);
}

/* ---- kubeml-ps and pods, as the controller loses them ---------------------------------------- */

void bounds_restored(sim_job *j)
{
    j->generation = (int)json_integer_value(json_object_get(j->record, "generation"));
    j->ps_lost = (int)json_integer_value(json_object_get(j->record, "restarts"));
    j->epochs_heard = (int)json_integer_value(json_object_get(j->record, "epochs"));
    memset(j->pod_failed, 0, sizeof j->pod_failed);
    j->retries = (int)json_integer_value(json_object_get(j->record, "retries"));
    j->again_ms = j->retries ? json_integer_value(json_object_get(j->record, "again_ms")) : 0;
}

static void controller_gave_up(sim *s, int who, const job *from)
{
    const sim_job *j = &s->job[who];
    bool decided = from->verdict ? from->verdict_state == JOB_FAILED : from->state == JOB_FAILED;
    int failed = 0;
    if (decided && strcmp(from->reason, "PSCrashed") == 0)
        failed_fairly(s, who, j->ps_lost > s->limits.ps_restarts_max, from->reason, from->message);
    if (decided && strcmp(from->reason, "DeadlineExceeded") == 0)
        failed_fairly(s, who,
                      from->request.active_deadline_seconds &&
                          s->now - from->started_wall_ms >=
                              1000 * (int64_t)from->request.active_deadline_seconds,
                      from->reason, from->message);
    for (int i = 0; i <= SIM_FUNCTIONS_MAX; i++)
        failed = j->pod_failed[i].times > failed ? j->pod_failed[i].times : failed;
    if (decided && strcmp(from->reason, "PodFailed") == 0)
        failed_fairly(s, who, failed >= s->limits.pod_tries_max, from->reason, from->message);
}

/* It fails for good when it has been tried again as often as it asks for, and not sooner. */
static void check_retries(sim *s, int who, const job *from)
{
    sim_job *j = &s->job[who];
    int asked = from->request.backoff_limit;
    if (from->state == JOB_FAILED && from->retries < asked &&
        strcmp(from->reason, "DeadlineExceeded") != 0)
        sim_wrong(s, "job %s fails after %d of %d retries", j->id, from->retries, asked);
    if (from->retries > asked)
        sim_wrong(s, "job %s is tried again %d times, and asks for %d", j->id, from->retries,
                  asked);
    if (from->retries > j->retries)
        j->again_ms = s->now + (s->limits.again_ms << (from->retries - 1));
    if (from->state == JOB_STARTING && s->now < j->again_ms)
        sim_wrong(s, "job %s is tried again %lld ms too soon", j->id,
                  (long long)(j->again_ms - s->now));
    j->retries = from->retries;
}

void bounds_saved(sim *s, int who, const job *from)
{
    sim_job *j = &s->job[who];
    if (from->epochs > j->epochs_heard)
        j->ps_lost = 0;
    if (from->generation > j->generation && !s->adopting) /* what is found was counted before */
        j->ps_lost++;
    if (from->state == JOB_QUEUED)
        j->ps_lost = 0;
    j->epochs_heard = from->epochs;
    j->generation = from->generation;
    controller_gave_up(s, who, from);
    check_retries(s, who, from);
    if (!job_ended(from) && !from->verdict && j->ps_lost > s->limits.ps_restarts_max)
        sim_wrong(s, "job %s goes on after %d kubeml-ps without an epoch", j->id, j->ps_lost);
}

void bounds_pod_failed(sim *s, int who, int function, int incarnation)
{
    sim_job *j = &s->job[who];
    for (int i = 0; i <= SIM_FUNCTIONS_MAX; i++) {
        if (i != function + 1)
            continue;
        if (j->pod_failed[i].incarnation != incarnation)
            j->pod_failed[i].times = 0;
        j->pod_failed[i].incarnation = incarnation;
        j->pod_failed[i].times++;
    }
}
