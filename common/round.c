/* round.c: see round.h. round_member.c has the functions' side.
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
 *   An elastic job goes from MODEL to GROW: of its first functions too it trains with those that
 *   can be had, one at least.
 *   From every stage: STOP, a function's own failure, a bound that is passed ──► END.
 *   SUSPEND: END as soon as the round that is in training is merged, or the epoch committed.
 *   Redis restarted empty: PUT_BACK in any stage; TRAIN and MERGE redo their round.
 *
 * Invariants
 *  1. The rows of an epoch tile each function's share: row by row, sample_begin is where the last
 *     one of that function ended, and the epoch ends when all shares are covered. So each sample
 *     counts exactly once an epoch.
 *  2. A merge holds the open round's published rows in function order, at most one a function, and
 *     its divisor is the sum of their samples.
 *  3. The version grows by one a merge; MERGED counts only for the merge that is out, once.
 *  4. A report counts only from the present incarnation of its function, for the open round, for
 *     the task that was sent, once.
 *  5. With on_loss recompute a round is merged only with the contribution of every function that
 *     has batches left, so that losses change no bit. With continue a lost function's batches stay
 *     where they are in its share and come in later rounds of the epoch.
 *  6. No process is given a slot in which another, not known to be dead, may still write.
 *  7. An epoch is reported, and the job succeeds, only after COMMITTED.
 *  8. Every wait has a deadline: round_deadline is never later than the first of them.
 *  9. After FINISHED nothing is done any more.
 * 10. The functions of a shared process are in one state and have one incarnation; what they
 *     published is merged, or trained again, together. */
#include "round.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mutation.h"
#include "round_internal.h"

#define BACKOFF_FIRST_MS 100
#define BACKOFF_MOST_MS  2000
#define PHASE_EVERY_MS   250 /* phases of short rounds are not all told */
#define RETRAINS_MAX     5   /* of one round, before the model store is called broken */
#define AWAKE_SLACK_MS   1000
#define SLOT_BANKS       4 /* generations of kubeml-ps until a slot is used again */

static void train_epoch(round_machine *m, int epoch, int parallelism);
static void train_on(round_machine *m);
static void finish_epoch(round_machine *m);
static void commit(round_machine *m);
static void after_commit(round_machine *m);

void round_limits_default(round_limits *l)
{
    *l = (round_limits){.heartbeat_ms = 3500,
                        .stall_ms = 180000,
                        .function_wait_ms = 600000,
                        .end_wait_ms = 3000,
                        .grow_wait_ms = 30000,
                        .ask_ms = 3000,
                        .store_ms = 60000,
                        .straggler_ms = 2000,
                        .start_failures_max = 2,
                        .losses_max = 5,
                        .crashes_max = 2};
}

/* ---- what the machine says ------------------------------------------------------------------- */

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

/* `Exact` is the one that is good when it is true. */
static void emit_condition(round_machine *m, int which)
{
    const condition *c = &m->condition[which];
    round_action *a = round_emit(m, ROUND_CONDITION);
    a->name = condition_names[which];
    a->status = which == CONDITION_EXACT ? !c->raised : c->raised;
    memcpy(a->reason, c->reason, sizeof a->reason);
    memcpy(a->message, c->message, sizeof a->message);
}

void round_set_condition(round_machine *m, int which, bool status, const char *reason,
                         const char *fmt, ...)
{
    condition *c = &m->condition[which];
    if (c->raised == status)
        return;
    c->raised = status;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->message, sizeof c->message, fmt, ap);
    va_end(ap);
    emit_condition(m, which);
}

static void tell_phase(round_machine *m, const char *phase, bool always)
{
    if (!always && m->now_ms - m->phase_ms < PHASE_EVERY_MS)
        return;
    m->phase_ms = m->now_ms;
    m->phase = phase;
    round_emit(m, ROUND_PHASE)->phase = phase;
}

static void finish(round_machine *m, round_state state, bool superseded, const char *reason,
                   const char *message)
{
    for (int f = 0; f < m->config.functions_max; f++)
        if (m->member[f].state != MEMBER_NONE)
            member_release(m, f, true);
    m->stage = STAGE_END;
    round_action *a = round_emit(m, ROUND_FINISHED);
    a->state = state;
    a->superseded = superseded;
    a->epochs = m->committed;
    snprintf(a->reason, sizeof a->reason, "%s", reason);
    snprintf(a->message, sizeof a->message, "%s", message);
}

void round_fail(round_machine *m, const char *reason, const char *fmt, ...)
{
    char message[ERR_MESSAGE_BYTES];
    if (m->stage == STAGE_END)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    finish(m, ROUND_FAILED_STATE, false, reason, message);
}

static bool suspend_here(round_machine *m)
{
    if (!m->suspending)
        return false;
    finish(m, ROUND_SUSPENDED, false, "Suspended", m->suspend_message);
    return true;
}

/* No merge and no commit comes of what is under way. */
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

static void retry_begin(retry *r)
{
    *r = (retry){.due_ms = INT64_MAX, .give_up_ms = INT64_MAX};
}

/* Plans the next try. False when the bound is reached. */
static bool retry_later(round_machine *m, retry *r)
{
    if (r->tries++ == 0)
        r->give_up_ms = m->now_ms + m->config.limits.store_ms;
    if (m->now_ms >= r->give_up_ms)
        return false;
    int64_t wait = BACKOFF_MOST_MS;
    if (r->tries < 6 && (int64_t)BACKOFF_FIRST_MS << (r->tries - 1) < wait)
        wait = (int64_t)BACKOFF_FIRST_MS << (r->tries - 1);
    r->due_ms = m->now_ms + wait;
    return true;
}

static bool retry_due(const round_machine *m, const retry *r)
{
    return m->now_ms >= r->due_ms;
}

/* ---- the round ------------------------------------------------------------------------------- */

static bool paused(const round_machine *m)
{
    return m->redis_gone || m->putting_back;
}

static bool awaits_replacement(const round_machine *m, const member *b)
{
    return m->config.request.on_loss == ON_LOSS_CONTINUE && b->replacement &&
           b->state != MEMBER_READY;
}

/* A round needs somebody: with everybody lost it waits for the replacements after all. */
static void need_somebody(round_machine *m)
{
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].task != TASK_NONE && m->member[f].task != TASK_SKIPPED)
            return;
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].task == TASK_SKIPPED)
            m->member[f].task = TASK_TODO;
}

/* Opens the round: everybody who has batches left gets the next k of them. */
static void open_round(round_machine *m)
{
    m->stage = STAGE_TRAIN;
    m->retrains = 0;
    for (int f = 0; f < m->config.functions_max; f++) {
        member *b = &m->member[f];
        uint32_t left = f < m->parallelism ? b->batches - b->cursor : 0;
        uint32_t k = m->config.request.k < 0 ? left : (uint32_t)m->config.request.k;
        b->late = false;
        b->batch_begin = b->cursor;
        b->batch_count = left < k ? left : k;
        b->task = left == 0 ? TASK_NONE : awaits_replacement(m, b) ? TASK_SKIPPED : TASK_TODO;
    }
    need_somebody(m);
    tell_phase(m, "training", m->round == 0);
}

static bool epoch_trained(const round_machine *m)
{
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].cursor < m->member[f].batches)
            return false;
    return true;
}

/* After a merge, a start or a resume: the next round of the epoch, or its end. */
static void train_on(round_machine *m)
{
    if (epoch_trained(m))
        finish_epoch(m);
    else
        open_round(m);
}

static int slot_of(const round_machine *m, int f)
{
    return m->slot_first + m->member[member_process(m, f)].slot;
}

/* It has something to do from now on. */
static void begin_work(round_machine *m, int f)
{
    m->member[f].sent_ms = m->now_ms;
    m->member[member_process(m, f)].progress_ms = m->now_ms;
    m->member[f].late = false;
}

static void send_train(round_machine *m, int f)
{
    member *b = &m->member[f];
    b->task = TASK_SENT;
    begin_work(m, f);
    round_action *a = round_emit(m, ROUND_TRAIN);
    a->function = f;
    a->incarnation = b->incarnation;
    a->batch_begin = b->batch_begin;
    a->batch_count = b->batch_count;
    a->slot = slot_of(m, f);
    a->seed = m->config.request.seed;
}

static void send_validate(round_machine *m, int f)
{
    member *b = &m->member[f];
    b->check = TASK_SENT;
    begin_work(m, f);
    round_action *a = round_emit(m, ROUND_VALIDATE);
    a->function = f;
    a->incarnation = b->incarnation;
}

/* Version 0: function 0 makes it, or kubeml-ps loads it once a function told the layout. */
static void send_model(round_machine *m)
{
    bool fresh = m->config.request.init[0] == '\0';
    int f = 0;
    for (; f < m->parallelism; f++)
        if (m->member[f].state == MEMBER_READY)
            break;
    if (m->asked || f == m->parallelism || (fresh && f != 0) ||
        (m->op.tries > 0 && !retry_due(m, &m->op)))
        return;
    m->asked = true;
    m->op.due_ms = INT64_MAX;
    round_action *a = round_emit(m, fresh ? ROUND_INIT : ROUND_LOAD);
    a->function = f;
    a->incarnation = m->member[f].incarnation;
    a->slot = slot_of(m, f);
    a->seed = m->config.request.seed;
    m->member[f].progress_ms = m->now_ms;
}

/* Sends what is to do to those who are ready. */
static void dispatch(round_machine *m)
{
    if (paused(m))
        return;
    if (m->stage == STAGE_MODEL)
        send_model(m);
    for (int f = 0; f < m->parallelism; f++) {
        const member *b = &m->member[f];
        if (b->state != MEMBER_READY)
            continue;
        if (m->stage == STAGE_TRAIN && b->task == TASK_TODO)
            send_train(m, f);
        if (m->stage == STAGE_VALIDATE && b->check == TASK_TODO)
            send_validate(m, f);
    }
}

static void published(round_machine *m, const round_event *event)
{
    member *b = member_present(m, event);
    if (!b || b->state != MEMBER_READY || m->stage != STAGE_TRAIN)
        return;
    if (b->task != TASK_SENT ||
        MUTATE(4, event->epoch != m->epoch || event->round != m->round, false))
        return;
    uint64_t begin, end;
    deal_samples(&m->deal, event->function, b->batch_begin, b->batch_count, &begin, &end);
    if (event->sample_begin != begin || event->sample_end != end ||
        event->samples != end - begin || event->batches != b->batch_count) {
        if (m->rolled_back)
            return; /* of the same round, before an older state was put back */
        round_fail(m, "Protocol",
                   "function %d reports samples %llu to %llu of its share instead of %llu to %llu",
                   event->function, (unsigned long long)event->sample_begin,
                   (unsigned long long)event->sample_end, (unsigned long long)begin,
                   (unsigned long long)end);
        return;
    }
    if (!isfinite(event->loss_sum)) {
        round_fail(m, "NaNLoss", "the loss of function %d is not finite in epoch %d, round %d",
                   event->function, m->epoch + 1, m->round + 1);
        return;
    }
    b->heard_ms = b->done_ms = m->now_ms;
    b->task = TASK_DONE;
    b->row = (round_row){.epoch = m->epoch,
                         .round = m->round,
                         .function = event->function,
                         .incarnation = b->incarnation,
                         .samples = event->samples,
                         .sample_begin = event->sample_begin,
                         .sample_end = event->sample_end,
                         .loss_sum = event->loss_sum,
                         .batches = event->batches,
                         .slot = slot_of(m, event->function),
                         .complete = end == b->share};
}

/* ---- the merge ------------------------------------------------------------------------------- */

static bool all_published(const round_machine *m)
{
    int done = 0;
    for (int f = 0; f < m->parallelism; f++) {
        const member *b = &m->member[f];
        if (b->task == TASK_TODO || b->task == TASK_SENT)
            return false;
        done += b->task == TASK_DONE;
    }
    return done > 0;
}

static void emit_merge(round_machine *m)
{
    m->op.due_ms = INT64_MAX;
    round_emit(m, ROUND_MERGE)->merge = m->merge;
}

static bool ends_epoch(const round_machine *m)
{
    for (int f = 0; f < m->parallelism; f++) {
        const member *b = &m->member[f];
        uint32_t after = b->cursor + (b->task == TASK_DONE ? b->batch_count : 0);
        if (after < b->batches)
            return false;
    }
    return true;
}

static void merge(round_machine *m)
{
    bool last = ends_epoch(m);
    m->merge =
        (round_merge){.epoch = m->epoch,
                      .round = m->round,
                      .next_epoch = last ? m->epoch + 1 : m->epoch,
                      .next_round = last ? 0 : m->round + 1,
                      .parallelism = m->parallelism,
                      .base_version = m->version,
                      .as_one = MUTATE(14, m->config.request.process == PROCESS_SHARED, false),
                      .rows = m->row};
    for (int f = 0; f < m->parallelism; f++) {
        const member *b = &m->member[f];
        if (b->task == TASK_DONE) {
            m->row[m->merge.count++] = b->row;
            m->merge.samples += MUTATE(5, b->row.samples, m->row[0].samples);
        }
    }
    if (MUTATE(6, false, m->merge.count > 1 && m->member[0].done_ms > m->member[1].done_ms)) {
        round_row swap = m->row[0];
        m->row[0] = m->row[1];
        m->row[1] = swap;
    }
    m->stage = STAGE_MERGE;
    retry_begin(&m->op);
    tell_phase(m, "merging", false);
    emit_merge(m);
}

/* Whether the result is that of the merge which is out. */
static bool merge_awaited(const round_machine *m, const round_event *event)
{
    return m->stage == STAGE_MERGE && event->epoch == m->epoch && event->round == m->round;
}

static void merged(round_machine *m, const round_event *event)
{
    if (!MUTATE(7, merge_awaited(m, event) && event->version == m->version + 1, true))
        return;
    m->version++;
    for (size_t i = 0; i < m->merge.count; i++) {
        const round_row *row = &m->row[i];
        member *b = &m->member[row->function];
        b->cursor += MUTATE(8, row->batches, 0);
        member *leads = &m->member[member_process(m, row->function)];
        leads->losses = leads->crashes = 0;
        b->task = TASK_NONE;
        m->loss_sum += row->loss_sum;
        m->samples += row->samples;
    }
    m->round++;
    round_set_condition(m, CONDITION_REDIS, false, "Answers", "the model store answers");
    train_on(m);
}

/* Contributions that the model store does not have are trained again, in the same round. */
static void retrain(round_machine *m, int function, const char *message)
{
    if (++m->retrains > RETRAINS_MAX) {
        round_fail(m, "ModelStoreCorrupt", "epoch %d, round %d: %.180s", m->epoch + 1, m->round + 1,
                   message);
        return;
    }
    m->stage = STAGE_TRAIN;
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].task == TASK_DONE &&
            (function < 0 || function == MUTATE(13, member_process(m, f), f)))
            m->member[f].task = MUTATE(9, TASK_TODO, TASK_DONE);
}

static void merge_failed(round_machine *m, const round_event *event)
{
    if (!merge_awaited(m, event))
        return;
    switch (event->code) {
    case ERR_STALE:
        finish(m, ROUND_FAILED_STATE, true, "Superseded",
               "another kubeml-ps goes on with this job");
        return;
    case ERR_INVALID:
        round_fail(m, "NaNLoss", "function %d published values that are not finite: %.180s",
                   event->function, event->message);
        return;
    case ERR_CORRUPT:
    case ERR_NOT_FOUND:
    case ERR_CONFLICT:
        retrain(m, event->function, event->message);
        return;
    default: break;
    }
    if (!err_retry_may_help(event->code) && event->code != ERR_NOMEM) {
        round_fail(m, "MergeFailed", "%.240s", event->message);
        return;
    }
    round_set_condition(m, CONDITION_REDIS, true, "RedisGone", "%.240s", event->message);
    if (!retry_later(m, &m->op))
        round_fail(m, "RedisGone", "given up after %lld s: %.200s",
                   (long long)(m->config.limits.store_ms / 1000), event->message);
}

/* ---- the epoch ------------------------------------------------------------------------------- */

static void need_members(round_machine *m, int parallelism, const char *reason)
{
    for (int f = 0; f < parallelism; f++)
        if (m->member[f].state == MEMBER_NONE)
            member_need(m, f, reason);
    for (int f = parallelism; f < m->config.functions_max; f++)
        if (m->member[f].state != MEMBER_NONE)
            member_release(m, f, true);
}

/* Deals epoch `epoch`; no batch of it is trained yet. False when memory is gone: the job has
 * failed. */
static bool deal_epoch(round_machine *m, int epoch, int parallelism)
{
    const round_config *c = &m->config;
    err e = ERR_INIT;
    deal_free(&m->deal);
    m->epoch = epoch;
    m->round = 0;
    m->parallelism = parallelism;
    m->loss_sum = 0;
    m->samples = 0;
    m->began_ms = m->now_ms;
    m->seconds_before = 0;
    if (deal_init(&m->deal,
                  &(deal_spec){.seed = c->request.seed,
                               .samples = c->train_samples,
                               .chunk_samples = c->chunk_samples,
                               .batch_size = (uint32_t)c->request.batch_size,
                               .parallelism = parallelism,
                               .epoch = (uint32_t)epoch},
                  &e) < 0) {
        round_fail(m, "NoMemory", "%s", e.message);
        return false;
    }
    for (int f = 0; f < c->functions_max; f++) {
        member *b = &m->member[f];
        b->share = f < parallelism ? m->deal.share[f] : 0;
        b->batches = f < parallelism ? deal_batches(&m->deal, f) : 0;
        b->cursor = 0;
        b->task = b->check = TASK_NONE;
        b->replacement = b->replacement && b->state != MEMBER_READY;
    }
    return true;
}

static void train_epoch(round_machine *m, int epoch, int parallelism)
{
    need_members(m, parallelism, "Grow");
    if (deal_epoch(m, epoch, parallelism))
        train_on(m);
}

static bool validates(const round_machine *m)
{
    const request *r = &m->config.request;
    if (m->config.test_samples == 0)
        return false;
    return m->epoch + 1 == r->epochs ||
           (r->validate_every > 0 && (m->epoch + 1) % r->validate_every == 0);
}

static void finish_epoch(round_machine *m)
{
    m->record = (round_epoch){.epoch = m->epoch,
                              .parallelism = m->parallelism,
                              .rounds = m->round,
                              .version = m->version,
                              .train_loss = m->samples ? m->loss_sum / (double)m->samples : 0,
                              .seconds = m->seconds_before +
                                         (double)(m->now_ms - m->began_ms) / 1000,
                              .samples = m->samples};
    if (!validates(m)) {
        commit(m);
        return;
    }
    m->stage = STAGE_VALIDATE;
    for (int f = 0; f < m->parallelism; f++) {
        member *b = &m->member[f];
        uint32_t begin, end;
        deal_test_share(m->config.test_samples, m->config.chunk_samples, m->parallelism, f, &begin,
                        &end, &b->check_samples);
        b->check = b->check_samples > 0 ? TASK_TODO : TASK_NONE;
    }
    tell_phase(m, "validating", true);
}

static void validated(round_machine *m, const round_event *event)
{
    member *b = member_present(m, event);
    if (!b || b->state != MEMBER_READY || m->stage != STAGE_VALIDATE || event->epoch != m->epoch ||
        b->check != TASK_SENT)
        return;
    if (event->samples != b->check_samples || event->correct > event->samples) {
        round_fail(m, "Protocol", "function %d validated %llu samples instead of %llu",
                   event->function, (unsigned long long)event->samples,
                   (unsigned long long)b->check_samples);
        return;
    }
    b->heard_ms = b->done_ms = m->now_ms;
    b->check = TASK_DONE;
    b->check_correct = event->correct;
    b->check_loss = event->loss_sum;
}

/* Sums in function order, like everything that must give the same bits again. */
static void sum_validation(round_machine *m)
{
    double loss = 0;
    uint64_t correct = 0, samples = 0;
    for (int f = 0; f < m->parallelism; f++) {
        const member *b = &m->member[f];
        if (b->check == TASK_TODO || b->check == TASK_SENT)
            return;
        if (b->check == TASK_DONE) {
            loss += b->check_loss;
            correct += b->check_correct;
            samples += b->check_samples;
        }
    }
    m->record.validated = true;
    m->record.validation_loss = loss / (double)samples;
    m->record.accuracy = 100.0 * (double)correct / (double)samples;
    commit(m);
}

static void emit_commit(round_machine *m)
{
    m->op.due_ms = INT64_MAX;
    round_emit(m, ROUND_COMMIT)->record = m->record;
}

static void commit(round_machine *m)
{
    m->stage = STAGE_COMMIT;
    retry_begin(&m->op);
    tell_phase(m, "checkpointing", true);
    if (paused(m))
        m->op.due_ms = m->now_ms; /* the checkpoint is read from the model store */
    else
        emit_commit(m);
}

static void committed(round_machine *m, const round_event *event)
{
    if (m->stage != STAGE_COMMIT || event->epoch != m->epoch)
        return;
    round_set_condition(m, CONDITION_STORE, false, "Answers", "the store answers");
    m->committed = m->epoch + 1;
    round_emit(m, ROUND_EPOCH)->record = m->record;
    after_commit(m);
}

static void commit_failed(round_machine *m, const round_event *event)
{
    if (m->stage != STAGE_COMMIT)
        return;
    /* A full disk or a lost mount may come back: an hour of training is worth the wait for it. */
    if (!err_retry_may_help(event->code) && event->code != ERR_IO) {
        round_fail(m, "CheckpointFailed", "epoch %d: %.200s", m->epoch + 1, event->message);
        return;
    }
    round_set_condition(m, CONDITION_STORE, true, "StoreDown", "%.240s", event->message);
    if (!retry_later(m, &m->op))
        round_fail(m, "StoreDown", "given up after %lld s: %.200s",
                   (long long)(m->config.limits.store_ms / 1000), event->message);
}

static bool is_elastic(const round_machine *m)
{
    return !m->config.request.static_parallelism && !m->plan;
}

/* The epoch is durable: the end, or the next one with as many functions as there shall be. */
static void after_commit(round_machine *m)
{
    const request *r = &m->config.request;
    char text[ERR_MESSAGE_BYTES];
    if (m->record.validated && r->goal_accuracy < 100 && m->record.accuracy >= r->goal_accuracy) {
        snprintf(text, sizeof text, "%.2f %% accuracy after %d epoch%s, the goal was %.2f %%",
                 m->record.accuracy, m->committed, m->committed == 1 ? "" : "s", r->goal_accuracy);
        finish(m, ROUND_SUCCEEDED, false, "GoalReached", text);
    } else if (m->committed >= r->epochs) {
        snprintf(text, sizeof text,
                 m->committed == 1 ? "%d epoch is trained" : "%d epochs are trained", m->committed);
        finish(m, ROUND_SUCCEEDED, false, "Completed", text);
    } else if (suspend_here(m)) {
        return;
    } else if (m->plan && m->epoch + 1 < m->config.plan_epochs) {
        train_epoch(m, m->epoch + 1, m->plan[m->epoch + 1]);
    } else if (!is_elastic(m)) {
        train_epoch(m, m->epoch + 1, m->parallelism);
    } else {
        m->stage = STAGE_ASK;
        m->stage_due_ms = m->now_ms + m->config.limits.ask_ms;
        round_emit(m, ROUND_ASK)->seconds = m->record.seconds;
    }
}

static int first_not_ready(const round_machine *m, int from, int to)
{
    while (from < to && m->member[from].state == MEMBER_READY)
        from++;
    return from;
}

static void gathered(round_machine *m, bool late)
{
    int ready = first_not_ready(m, m->grow_from, m->parallelism);
    if (ready == m->parallelism || late)
        train_epoch(m, m->next_epoch, ready > 1 ? ready : 1);
}

/* With `value` functions from `epoch` on: those from `from` on are waited for, until `due_ms`. */
static void gather(round_machine *m, int epoch, int from, int value, int64_t due_ms)
{
    m->stage = STAGE_GROW;
    m->next_epoch = epoch;
    m->grow_from = from;
    m->parallelism = value;
    m->stage_due_ms = due_ms;
    need_members(m, value, "Grow");
    gathered(m, false);
}

/* When an elastic job that nobody works for yet begins without those who have not joined: before
 * one of them is called missing. */
static int64_t begin_due(const round_machine *m)
{
    int64_t wait = m->config.limits.function_wait_ms, due = m->now_ms + wait;
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].state == MEMBER_NEEDED && m->member[f].needed_ms + wait < due)
            due = m->member[f].needed_ms + wait;
    return due;
}

/* With `value` functions from now on; additional ones are waited for, but not for ever. */
static void grow(round_machine *m, int value)
{
    value = value < 1 ? 1 : value > m->config.functions_max ? m->config.functions_max : value;
    if (m->member[0].state == MEMBER_NONE) { /* after a resume */
        tell_phase(m, "starting", true);
        gather(m, m->epoch + 1, 0, value, m->now_ms + m->config.limits.function_wait_ms);
    } else if (value <= m->parallelism) {
        train_epoch(m, m->epoch + 1, value);
    } else {
        gather(m, m->epoch + 1, m->parallelism, value, m->now_ms + m->config.limits.grow_wait_ms);
    }
}

/* Functions from `value` on cannot be had: nobody waits for them any more. */
static void go_without(round_machine *m, int value)
{
    int least = m->stage == STAGE_GROW && m->grow_from > 1 ? m->grow_from : 1;
    m->parallelism = value > least ? value : least;
    need_members(m, m->parallelism, "Start");
    if (m->stage == STAGE_GROW)
        gathered(m, false);
}

static void take_parallelism(round_machine *m, const round_event *event)
{
    bool waits = (m->stage == STAGE_MODEL && is_elastic(m)) ||
                 (m->stage == STAGE_GROW && event->epoch + 1 == m->next_epoch);
    if (m->stage == STAGE_ASK && event->epoch == m->epoch)
        grow(m, event->value);
    else if (waits && event->value < m->parallelism)
        go_without(m, event->value);
}

/* ---- begin and resume ------------------------------------------------------------------------ */

/* Row by row the ledger must continue each share where it stands. */
static bool replay_rows(round_machine *m, const round_resume *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const round_row *row = &r->rows[i];
        uint64_t begin, end;
        if (row->function < 0 || row->function >= m->parallelism || row->epoch != m->epoch)
            return false;
        member *b = &m->member[row->function];
        if (row->batches > b->batches - b->cursor)
            return false;
        deal_samples(&m->deal, row->function, b->cursor, row->batches, &begin, &end);
        if (row->sample_begin != begin || row->sample_end != end || row->samples != end - begin)
            return false;
        b->cursor += MUTATE(10, row->batches, 0);
        m->loss_sum += row->loss_sum;
        m->samples += row->samples;
        m->round = row->round + 1 > m->round ? row->round + 1 : m->round;
    }
    return true;
}

static void resume(round_machine *m, const round_resume *r)
{
    int parallelism = r->parallelism > 0 ? r->parallelism : m->config.parallelism;
    m->version = r->version;
    bool shared = m->config.request.process == PROCESS_SHARED;
    if (parallelism > m->config.functions_max ||
        (shared && parallelism < m->config.functions_max) || r->epoch < 0 ||
        r->epoch >= m->config.request.epochs) {
        round_fail(m, "LedgerCorrupt", "epoch %d with %d functions is not of this job",
                   r->epoch + 1, parallelism);
        return;
    }
    if (!r->committed) /* else it is open how many the next epoch has */
        need_members(m, parallelism, "Resume");
    if (!deal_epoch(m, r->epoch, parallelism))
        return;
    if (!replay_rows(m, r)) {
        round_fail(m, "LedgerCorrupt", "the ledger of epoch %d does not fit its deal",
                   r->epoch + 1);
        return;
    }
    m->seconds_before = r->seconds;
    m->committed = r->committed ? r->epoch + 1 : r->epoch;
    if (!r->committed) {
        train_on(m);
        return;
    }
    m->record = (round_epoch){.epoch = r->epoch,
                              .parallelism = parallelism,
                              .version = r->version,
                              .validated = r->validated,
                              .accuracy = r->accuracy,
                              .seconds = r->seconds};
    after_commit(m);
}

static void start(round_machine *m, const round_event *event)
{
    if (m->stage != STAGE_NEW)
        return;
    snprintf(m->algorithms, sizeof m->algorithms, "%s", event->algorithms);
    if (event->resume) {
        resume(m, event->resume);
        return;
    }
    m->stage = STAGE_MODEL;
    m->parallelism = m->plan ? m->plan[0] : m->config.parallelism;
    retry_begin(&m->op);
    tell_phase(m, "starting", true);
    need_members(m, m->parallelism, "Start");
}

static void model_made(round_machine *m, bool by_function, const round_event *event)
{
    bool fresh = m->config.request.init[0] == '\0';
    if (m->stage != STAGE_MODEL || fresh != by_function || !m->asked)
        return;
    if (fresh && (event->function != 0 || !member_present(m, event)))
        return;
    m->version = 0;
    if (is_elastic(m))
        gather(m, 0, 0, m->parallelism, begin_due(m));
    else
        train_epoch(m, 0, m->parallelism);
}

static void load_failed(round_machine *m, const round_event *event)
{
    retry *r = m->putting_back ? &m->back : &m->op;
    bool gone = event->code == ERR_NOT_FOUND || event->code == ERR_CONFLICT ||
                event->code == ERR_CORRUPT; /* what was made is lost: it is made again */
    if (!m->putting_back && m->stage != STAGE_MODEL)
        return;
    if (!err_retry_may_help(event->code) && (m->putting_back || !gone))
        round_fail(m, "InitFailed", "%.240s", event->message);
    else if (!retry_later(m, r))
        round_fail(m, m->putting_back ? "RedisGone" : "StoreDown", "given up after %lld s: %.200s",
                   (long long)(m->config.limits.store_ms / 1000), event->message);
    m->asked = false;
}

/* ---- Redis restarted ------------------------------------------------------------------------- */

static void redis_gone(round_machine *m, const round_event *event)
{
    if (!m->redis_gone)
        m->redis_give_up_ms = m->now_ms + m->config.limits.store_ms;
    m->redis_gone = true;
    condition *said = &m->condition[CONDITION_REDIS];
    if (strncmp(said->message, event->message, 240) != 0)
        said->raised = false; /* told again, with why it cannot be restarted */
    round_set_condition(m, CONDITION_REDIS, true, "RedisGone", "%.240s", event->message);
}

static void emit_put_back(round_machine *m)
{
    m->back.due_ms = INT64_MAX;
    round_emit(m, ROUND_PUT_BACK);
}

static void redis_back(round_machine *m, const round_event *event)
{
    m->redis_gone = false;
    if (event->empty && m->version < 0) {
        m->asked = false; /* nothing to put back: version 0 is made again */
        retry_begin(&m->op);
        round_set_condition(m, CONDITION_REDIS, false, "Answers", "the model store answers");
    } else if (event->empty) {
        /* A merge that was out may be committed or lost: what was published is gone either way. */
        if (m->stage == STAGE_MERGE)
            m->stage = STAGE_TRAIN;
        m->putting_back = true;
        retry_begin(&m->back);
        emit_put_back(m);
    } else if (!m->putting_back) {
        round_set_condition(m, CONDITION_REDIS, false, "Answers", "the model store answers");
        if (m->stage == STAGE_MERGE && m->op.due_ms != INT64_MAX)
            m->op.due_ms = m->now_ms;
    }
}

/* What is trained at this moment may come with the numbers of a round that is opened anew, of
 * another deal where the parallelism is asked for again: only another incarnation tells it from
 * that one's. */
static void lose_busy(round_machine *m)
{
    for (int f = 0; f < m->config.functions_max && m->stage != STAGE_END; f++)
        if (m->member[f].task == TASK_SENT)
            member_lose(m, member_process(m, f), "RolledBack",
                        "it trains on a state that was lost");
}

static void loaded(round_machine *m, const round_event *event)
{
    if (!m->putting_back) {
        model_made(m, false, event);
        return;
    }
    m->putting_back = false;
    round_set_condition(m, CONDITION_REDIS, false, "PutBack",
                        "the model is back in the model store");
    if (event->resume) {
        m->rolled_back = true;
        lose_busy(m);
        if (m->stage != STAGE_END)
            resume(m, event->resume);
        return;
    }
    for (int f = 0; f < m->parallelism && m->stage == STAGE_TRAIN; f++)
        if (m->member[f].task == TASK_DONE)
            m->member[f].task = MUTATE(11, TASK_TODO, TASK_DONE);
}

/* ---- the step -------------------------------------------------------------------------------- */

static void take(round_machine *m, const round_event *event)
{
    switch (event->type) {
    case ROUND_TICK: break;
    case ROUND_START: start(m, event); break;
    case ROUND_HELLO: member_hello(m, event); break;
    case ROUND_READY: member_ready(m, event); break;
    case ROUND_INITIALISED: model_made(m, true, event); break;
    case ROUND_LOADED: loaded(m, event); break;
    case ROUND_LOAD_FAILED: load_failed(m, event); break;
    case ROUND_PUBLISHED: published(m, event); break;
    case ROUND_VALIDATED: validated(m, event); break;
    case ROUND_HEARTBEAT: member_heartbeat(m, event); break;
    case ROUND_FAILED:
        if (member_present(m, event))
            round_fail(m, event->reason, "function %d: %.220s", event->function, event->message);
        break;
    case ROUND_LOST: member_lost(m, event); break;
    case ROUND_MERGED: merged(m, event); break;
    case ROUND_MERGE_FAILED: merge_failed(m, event); break;
    case ROUND_COMMITTED: committed(m, event); break;
    case ROUND_COMMIT_FAILED: commit_failed(m, event); break;
    case ROUND_PARALLELISM: take_parallelism(m, event); break;
    case ROUND_REDIS_GONE: redis_gone(m, event); break;
    case ROUND_REDIS_BACK: redis_back(m, event); break;
    case ROUND_STOP:
        finish(m, ROUND_CANCELLED, false, "Cancelled", event->message);
        break;
    case ROUND_SUSPEND:
        m->suspending = true;
        snprintf(m->suspend_message, sizeof m->suspend_message, "%s", event->message);
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
        grow(m, m->parallelism);
    if (m->stage == STAGE_GROW)
        gathered(m, m->now_ms >= m->stage_due_ms);
    if (m->stage == STAGE_MERGE && !paused(m) && retry_due(m, &m->op))
        emit_merge(m);
    if (m->stage == STAGE_COMMIT && !paused(m) && retry_due(m, &m->op))
        emit_commit(m);
    if (m->putting_back && retry_due(m, &m->back))
        emit_put_back(m);
}

/* What follows without a further event, until nothing does. */
static void settle(round_machine *m)
{
    if (m->stage == STAGE_TRAIN) {
        need_somebody(m);
        if (!paused(m) && all_published(m))
            merge(m);
    }
    if (m->stage == STAGE_VALIDATE)
        sum_validation(m);
    if (m->stage != STAGE_END && m->suspending && idle(m))
        suspend_here(m);
    member_lateness(m);
    if (m->stage != STAGE_END)
        dispatch(m);
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
    /* Stopped or starved ourselves, we have not listened: nobody is called silent for that. */
    if (m->promised_ms != INT64_MAX && event->now_ms > m->promised_ms + AWAKE_SLACK_MS)
        member_forgive(m, event->now_ms - m->promised_ms);
    if (event->now_ms > m->now_ms)
        m->now_ms = event->now_ms;
    take(m, &known);
    if (m->stage != STAGE_END && m->stage != STAGE_NEW) {
        pass_time(m);
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
    if (m->putting_back)
        due = sooner(due, m->back.due_ms);
    if ((m->stage == STAGE_COMMIT || m->stage == STAGE_MERGE ||
         (m->stage == STAGE_MODEL && m->op.due_ms > m->now_ms)) &&
        !paused(m))
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
    return deal_check(&(deal_spec){.samples = c->train_samples,
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
    deal_free(&m->deal);
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

size_t round_tell(round_machine *m, const round_action **actions)
{
    m->actions = 0;
    *actions = m->action;
    if (m->stage == STAGE_END)
        return 0;
    round_emit(m, ROUND_PHASE)->phase = m->phase;
    for (int which = 0; which < CONDITION_COUNT; which++)
        if (m->condition[which].raised)
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
        "tick",         "start",         "hello",        "ready",       "initialised",
        "loaded",       "load-failed",   "published",    "validated",   "heartbeat",
        "failed",       "lost",          "merged",       "merge-failed", "committed",
        "commit-failed", "parallelism",  "redis-gone",   "redis-back",  "stop", "suspend"};
    return names[t];
}

const char *round_action_name(round_action_type t)
{
    static const char *const names[] = {"need",     "release",  "welcome",   "refuse", "close",
                                        "init",     "load",     "train",     "validate", "merge",
                                        "commit",   "put-back", "phase",     "epoch",  "ask",
                                        "condition", "halt",    "finished"};
    return names[t];
}

const char *round_state_name(round_state s)
{
    static const char *const names[] = {"succeeded", "failed", "cancelled", "suspended"};
    return names[s];
}
