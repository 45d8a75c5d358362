/* round.c: see round.h. Here are the step that all events take, the helpers that emit actions, and
 * the machine's beginning and end; round_internal.h lists the files of the stages.
 *
 *            INITIALISED, LOADED            all published
 *   NEW ──► MODEL ──────────► TRAIN ──────────────────────► MERGE
 *    │                       ▲ │  ▲ ◄── contribution bad ──── │
 *    │ START with resume     │ │  └────── MERGED, batches left┤
 *    └───────────────────────┘ │                              │ MERGED, every share trained
 *                              │                              ▼
 *                GROW ─────────┤ next epoch               VALIDATE (or straight on)
 *                  ▲           │                              │ all validated
 *                  │ more      │ same, fewer                  ▼
 *                  └────────  ASK  ◄────── COMMITTED ───── COMMIT ──► last epoch, goal: END
 *
 *   An elastic job goes from MODEL to GROW: its first epoch too begins with the functions that can
 *   be had, at least one.
 *   From every stage: STOP, a function's own failure, a bound that is passed ──► END.
 *   SUSPEND: END as soon as the round in training is merged, or the epoch is committed.
 *   Redis restarted empty: RESTORE in any stage; TRAIN and MERGE redo their round.
 *
 * Invariants
 *  1. The rows of an epoch tile each function's share: a row's sample_begin is the sample_end of
 *     that function's row before, and the epoch ends when all shares are covered. So each sample
 *     counts exactly once an epoch.
 *  2. A merge holds the open round's published rows in function order, at most one a function, and
 *     its divisor is the sum of their samples.
 *  3. The version grows by one a merge; MERGED counts only for the merge that is out, once.
 *  4. A report counts only from the present incarnation of its function, for the open round, for
 *     the task that was sent, once.
 *  5. With on_loss recompute a round is merged only with the contribution of every function that
 *     has batches left, so that losses change no bit. With on_loss continue a lost function's
 *     batches keep their place in its share and are trained in later rounds of the epoch.
 *  6. No process gets a slot in which another process may still write. A slot is free when its
 *     process is known to be dead (round_member.c has the exception).
 *  7. An epoch is reported, and the job succeeds, only after COMMITTED.
 *  8. Every wait has a deadline: round_deadline is never later than the first of them.
 *  9. After FINISHED there are no more actions.
 * 10. The functions of a shared process are in one state and have one incarnation; their
 *     contributions are merged, or trained again, together. */
#include "round.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mutation.h"
#include "common/base/text.h"
#include "round_internal.h"

#define BACKOFF_FIRST_MS 100
#define BACKOFF_MOST_MS  2000
#define PHASE_EVERY_MS   250 /* phases of short rounds are not all reported */
#define AWAKE_SLACK_MS   250 /* half the time between two heartbeats */
#define SLOT_BANKS       4 /* generations of kubeml-ps until a slot is used again */

void round_limits_default(round_limits *l)
{
    *l = (round_limits){.heartbeat_ms = 3500,
                        .stall_ms = 180000,
                        .function_wait_ms = 600000,
                        .gpu_wait_ms = 1000,
                        .end_wait_ms = 3000,
                        .grow_wait_ms = 30000,
                        .ask_ms = 3000,
                        .store_ms = 60000,
                        .straggler_ms = 2000,
                        .start_failures_max = 2,
                        .losses_max = 5,
                        .crashes_max = 2,
                        .redis_ends_max = 5};
}

/* ---- actions --------------------------------------------------------------------------------- */

round_action *round_emit(round_machine *m, round_action_type type)
{
    assert(m->actions < m->actions_max);
    round_action *a = &m->action[m->actions++];
    *a = (round_action){.type = type,
                        .function = -1,
                        .epoch = m->epoch,
                        .round = m->round,
                        .parallelism = m->parallelism,
                        .version = m->version,
                        .slot = -1};
    return a;
}

static const char *const condition_names[CONDITION_COUNT] = {
    [CONDITION_LOST] = "FunctionLost",
    [CONDITION_STRAGGLER] = "Straggler",
    [CONDITION_EXACT] = "Exact",
    [CONDITION_REDIS] = "RedisGone",
    [CONDITION_STORE] = "StoreUnavailable",
};

/* `Exact` alone is good when its status is true. */
static void emit_condition(round_machine *m, int which)
{
    const condition *c = &m->condition[which];
    round_action *a = round_emit(m, ROUND_CONDITION);
    a->name = condition_names[which];
    a->status = which == CONDITION_EXACT ? !c->raised : c->raised;
    memcpy(a->reason, c->reason, sizeof a->reason);
    memcpy(a->message, c->message, sizeof a->message);
}

__attribute__((format(printf, 4, 0))) static void
word_condition(round_machine *m, int which, const char *reason, const char *fmt, va_list ap)
{
    condition *c = &m->condition[which];
    text_print(c->reason, sizeof c->reason, "%s", reason);
    text_vprint(c->message, sizeof c->message, fmt, ap);
    emit_condition(m, which);
}

void round_set_condition(round_machine *m, int which, bool status, const char *reason,
                         const char *fmt, ...)
{
    va_list ap;
    if (m->condition[which].raised == status)
        return;
    m->condition[which].raised = status;
    va_start(ap, fmt);
    word_condition(m, which, reason, fmt, ap);
    va_end(ap);
}

void round_word_condition(round_machine *m, int which, const char *reason, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    word_condition(m, which, reason, fmt, ap);
    va_end(ap);
}

void round_tell_phase(round_machine *m, const char *phase, bool always)
{
    if (!always && m->now_ms - m->phase_ms < PHASE_EVERY_MS)
        return;
    m->phase_ms = m->now_ms;
    m->phase = phase;
    round_emit(m, ROUND_PHASE)->phase = phase;
}

void round_finish(round_machine *m, round_state state, bool superseded, const char *reason,
                  const char *message)
{
    for (int f = 0; f < m->config.functions_max; f++)
        if (m->member[f].state != MEMBER_NONE)
            member_release(m, f, true, "");
    m->stage = STAGE_END;
    round_action *a = round_emit(m, ROUND_FINISHED);
    a->state = state;
    a->superseded = superseded;
    a->epochs = m->committed;
    text_print(a->reason, sizeof a->reason, "%s", reason);
    text_print(a->message, sizeof a->message, "%s", message);
}

void round_fail(round_machine *m, const char *reason, const char *fmt, ...)
{
    char message[ERR_MESSAGE_BYTES];
    if (m->stage == STAGE_END)
        return;
    va_list ap;
    va_start(ap, fmt);
    text_vprint(message, sizeof message, fmt, ap);
    va_end(ap);
    round_finish(m, ROUND_FAILED_STATE, false, reason, message);
}

bool round_suspend_here(round_machine *m)
{
    if (!m->suspending)
        return false;
    round_finish(m, ROUND_SUSPENDED, false, "Suspended", m->suspend_message);
    return true;
}

/* Whether neither a merge nor a commit will follow from the work under way. */
static bool idle(const round_machine *m)
{
    if (m->stage == STAGE_MERGE || m->stage == STAGE_VALIDATE || m->stage == STAGE_COMMIT)
        return false;
    for (int f = 0; f < m->parallelism && m->stage == STAGE_TRAIN; f++)
        if (m->member[f].task == TASK_SENT)
            return false;
    return true;
}

/* ---- tries ----------------------------------------------------------------------------------- */

void retry_begin(retry *r)
{
    *r = (retry){.due_ms = INT64_MAX, .give_up_ms = INT64_MAX};
}

/* Plans the next try. False when the bound is reached. */
bool retry_later(round_machine *m, retry *r)
{
    if (r->tries++ == 0)
        r->give_up_ms = m->now_ms + MUTATE(49, m->config.limits.store_ms, 5000);
    if (m->now_ms >= r->give_up_ms)
        return false;
    int64_t wait = BACKOFF_MOST_MS;
    if (r->tries < 6 && (int64_t)BACKOFF_FIRST_MS << (r->tries - 1) < wait)
        wait = (int64_t)BACKOFF_FIRST_MS << (r->tries - 1);
    r->due_ms = m->now_ms + wait;
    return true;
}

bool retry_due(const round_machine *m, const retry *r)
{
    return m->now_ms >= r->due_ms;
}

/* ---- the step -------------------------------------------------------------------------------- */

static void take(round_machine *m, const round_event *event)
{
    switch (event->type) {
    case ROUND_TICK: break;
    case ROUND_START: round_start(m, event); break;
    case ROUND_HELLO: member_hello(m, event); break;
    case ROUND_READY: member_ready(m, event); break;
    case ROUND_INITIALISED: round_model_made(m, true, event); break;
    case ROUND_LOADED: round_loaded(m, event); break;
    case ROUND_LOAD_FAILED: round_load_failed(m, event); break;
    case ROUND_PUBLISHED: round_published(m, event); break;
    case ROUND_VALIDATED: round_validated(m, event); break;
    case ROUND_HEARTBEAT: member_heartbeat(m, event); break;
    case ROUND_FAILED: member_failed(m, event); break;
    case ROUND_LOST: member_lost(m, event); break;
    case ROUND_MERGED: round_merged(m, event); break;
    case ROUND_MERGE_FAILED: round_merge_failed(m, event); break;
    case ROUND_COMMITTED: round_committed(m, event); break;
    case ROUND_COMMIT_FAILED: round_commit_failed(m, event); break;
    case ROUND_PARALLELISM: round_take_parallelism(m, event); break;
    case ROUND_REDIS_GONE: round_redis_gone(m, event); break;
    case ROUND_REDIS_RUNS: round_redis_runs(m, event); break;
    case ROUND_REDIS_BACK: round_redis_back(m, event); break;
    case ROUND_STOP: round_finish(m, ROUND_CANCELLED, false, "Cancelled", event->message); break;
    case ROUND_SUSPEND:
        m->suspending = true;
        text_print(m->suspend_message, sizeof m->suspend_message, "%s", event->message);
        break;
    }
}

static void pass_time(round_machine *m)
{
    if (m->redis_gone && m->now_ms >= m->redis_give_up_ms) {
        round_fail(m, "RedisGone", "Redis did not come back within %lld s: %.200s",
                   (long long)(m->config.limits.store_ms / 1000),
                   m->condition[CONDITION_REDIS].message);
        return;
    }
    if (m->stage == STAGE_ASK && m->now_ms >= m->stage_due_ms)
        round_grow(m, m->parallelism);
    if (m->stage == STAGE_GROW)
        round_gathered(m, m->now_ms >= m->stage_due_ms);
    if (m->stage == STAGE_MERGE && !round_paused(m) && retry_due(m, &m->op))
        round_emit_merge(m);
    if (m->stage == STAGE_COMMIT && !round_paused(m) && retry_due(m, &m->op))
        round_emit_commit(m);
    if (m->restoring && retry_due(m, &m->back))
        round_emit_restore(m);
}

/* Takes the steps that need no further event. */
static void settle(round_machine *m)
{
    if (m->stage == STAGE_TRAIN) {
        round_need_somebody(m);
        if (!round_paused(m) && round_all_published(m))
            round_begin_merge(m);
    }
    if (m->stage == STAGE_VALIDATE)
        round_sum_validation(m);
    if (m->stage != STAGE_END && m->suspending && idle(m))
        round_suspend_here(m);
    member_lateness(m);
    if (m->stage != STAGE_END)
        round_dispatch(m);
}

size_t round_step(round_machine *m, const round_event *event, const round_action **actions)
{
    round_event known = *event;
    known.phase = event->phase ? event->phase : "";
    known.reason = event->reason ? event->reason : "";
    known.message = event->message ? event->message : "";
    known.layout = event->layout ? event->layout : "";
    known.algorithms = event->algorithms ? event->algorithms : "";
    m->actions = 0;
    *actions = m->action;
    if (m->stage == STAGE_END)
        return 0;
    /* This process stood still and read nothing: no function counts as silent for that time. */
    if (m->promised_ms != INT64_MAX && event->now_ms > m->promised_ms + AWAKE_SLACK_MS)
        member_forgive(m, event->now_ms);
    if (event->now_ms > m->now_ms)
        m->now_ms = event->now_ms;
    take(m, &known);
    if (m->stage != STAGE_END && m->stage != STAGE_NEW) {
        pass_time(m);
        if (event->type == ROUND_TICK) /* before a tick, functions' frames may still be unread */
            member_time(m);
    }
    if (m->stage != STAGE_END)
        settle(m);
    m->promised_ms = round_deadline(m);
    return m->actions;
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t round_deadline(const round_machine *m)
{
    if (m->stage == STAGE_END || m->stage == STAGE_NEW)
        return INT64_MAX;
    int64_t due = member_deadline(m);
    if (m->stage == STAGE_ASK || m->stage == STAGE_GROW)
        due = sooner(due, m->stage_due_ms);
    if (m->redis_gone)
        due = sooner(due, m->redis_give_up_ms);
    if (m->restoring)
        due = sooner(due, m->back.due_ms);
    if ((m->stage == STAGE_COMMIT || m->stage == STAGE_MERGE ||
         (m->stage == STAGE_MODEL && m->op.due_ms > m->now_ms)) &&
        !round_paused(m))
        due = sooner(due, m->op.due_ms);
    return due;
}

/* ---- open, close, look ----------------------------------------------------------------------- */

static int bank_slots(const round_config *c)
{
    return 2 * c->functions_max + 8;
}

int round_slots(const round_config *c)
{
    return SLOT_BANKS * bank_slots(c);
}

static int check_config(const round_config *c, err *e)
{
    if (c->functions_max < 1 || c->functions_max > ROUND_FUNCTIONS_MAX)
        return err_set(e, ERR_INVALID, "functions_max: %d is not within 1 to %d", c->functions_max,
                       ROUND_FUNCTIONS_MAX);
    if (c->parallelism < 1 || c->parallelism > c->functions_max)
        return err_set(e, ERR_INVALID, "parallelism: %d is not within 1 to %d", c->parallelism,
                       c->functions_max);
    if (c->generation < 0 || c->generation > INT32_MAX / ROUND_GENERATION_STEP - 1)
        return err_set(e, ERR_INVALID, "generation: %d", c->generation);
    if (c->plan_epochs < 0 || (c->plan_epochs > 0 && !c->plan))
        return err_set(e, ERR_INVALID, "plan: missing");
    bool shared = c->request.process == PROCESS_SHARED;
    if (shared && (!c->request.static_parallelism || c->parallelism != c->functions_max))
        return err_set(e, ERR_INVALID,
                       "parallelism: %d functions of %d, which share a process, is not all",
                       c->parallelism, c->functions_max);
    for (int i = 0; i < c->plan_epochs; i++)
        if (c->plan[i] < (shared ? c->parallelism : 1) || c->plan[i] > c->functions_max)
            return err_set(e, ERR_INVALID, "plan: %d functions in epoch %d", c->plan[i], i);
    return shard_plan_check(&(shard_plan_spec){.samples = c->train_samples,
                                               .chunk_samples = c->chunk_samples,
                                               .batch_size = (uint32_t)c->request.batch_size,
                                               .parallelism = c->parallelism},
                            e);
}

static int allocate(round_machine *m, err *e)
{
    size_t functions = (size_t)m->config.functions_max;
    m->slots = bank_slots(&m->config);
    m->slot_first = m->config.generation % SLOT_BANKS * m->slots;
    m->actions_max = 8 * functions + 32;
    m->member = calloc(functions, sizeof *m->member);
    m->slot = calloc((size_t)m->slots, sizeof *m->slot);
    m->row = calloc(functions, sizeof *m->row);
    m->action = calloc(m->actions_max, sizeof *m->action);
    if (m->config.plan_epochs > 0)
        m->plan = calloc((size_t)m->config.plan_epochs, sizeof *m->plan);
    if (!m->member || !m->slot || !m->row || !m->action || (m->config.plan_epochs > 0 && !m->plan))
        return err_set(e, ERR_NOMEM, "no memory for a job of %d functions",
                       m->config.functions_max);
    if (m->plan)
        memcpy(m->plan, m->config.plan, (size_t)m->config.plan_epochs * sizeof *m->plan);
    m->config.plan = m->plan;
    return 0;
}

int round_open(const round_config *config, round_machine **out, err *e)
{
    if (check_config(config, e) < 0)
        return -1;
    round_machine *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for a job");
    m->config = *config;
    if (allocate(m, e) < 0) {
        round_close(m);
        return -1;
    }
    for (int f = 0; f < config->functions_max; f++) {
        m->member[f].incarnation = m->member[f].lost = -1;
        m->member[f].slot = -1;
    }
    m->version = -1;
    m->promised_ms = INT64_MAX;
    m->phase_ms = -PHASE_EVERY_MS;
    m->phase = "starting";
    retry_begin(&m->op);
    retry_begin(&m->back);
    *out = m;
    return 0;
}

void round_close(round_machine *m)
{
    if (!m)
        return;
    shard_plan_free(&m->shard_plan);
    free(m->plan);
    free(m->member);
    free(m->slot);
    free(m->row);
    free(m->action);
    free(m);
}

bool round_finished(const round_machine *m)
{
    return m->stage == STAGE_END;
}

int64_t round_version(const round_machine *m)
{
    return m->version;
}

double round_seconds(const round_machine *m)
{
    return m->seconds_before + (double)(m->now_ms - m->began_ms) / 1000;
}

int round_losses(const round_machine *m)
{
    return m->losses;
}

size_t round_tell(round_machine *m, const round_action **actions)
{
    m->actions = 0;
    *actions = m->action;
    if (m->stage == STAGE_END)
        return 0;
    round_emit(m, ROUND_PHASE)->phase = m->phase;
    for (int which = 0; which < CONDITION_COUNT; which++)
        if (m->condition[which].reason[0]) /* it is raised, or was */
            emit_condition(m, which);
    for (int f = 0; f < m->config.functions_max; f++)
        if (m->member[f].state == MEMBER_NEEDED && !m->member[f].tell_ms &&
            member_process(m, f) == f) {
            round_action *a = round_emit(m, ROUND_NEED);
            a->function = f;
            a->incarnation = m->member[f].incarnation;
            snprintf(a->reason, sizeof a->reason, "Attached");
        }
    if (m->stage == STAGE_ASK)
        round_emit(m, ROUND_ASK)->seconds = m->record.seconds;
    return m->actions;
}

const char *round_event_name(round_event_type t)
{
    static const char *const names[] = {
        "tick",        "start",        "hello",     "ready",         "initialised", "loaded",
        "load-failed", "published",    "validated", "heartbeat",     "failed",      "lost",
        "merged",      "merge-failed", "committed", "commit-failed", "parallelism", "redis-gone",
        "redis-runs",  "redis-back",   "stop",      "suspend"};
    return names[t];
}

const char *round_action_name(round_action_type t)
{
    static const char *const names[] = {"need",      "release",  "welcome", "refuse",   "close",
                                        "init",      "load",     "train",   "validate", "merge",
                                        "commit",    "put-back", "phase",   "epoch",    "ask",
                                        "condition", "halt",     "finished"};
    return names[t];
}

const char *round_state_name(round_state s)
{
    static const char *const names[] = {"succeeded", "failed", "cancelled", "suspended"};
    return names[s];
}
