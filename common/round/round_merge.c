/* round_merge.c: merges the published contributions. A merge is tried again while the model store
 * does not answer; a contribution that the model store has lost is trained again. See round.c for
 * the whole machine. */
#include "common/base/mutation.h"
#include "round_internal.h"

#define RETRAINS_MAX 5 /* of one round; then the job fails with ModelStoreCorrupt */

bool round_all_published(const round_machine *m)
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

void round_emit_merge(round_machine *m)
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

/* The job is no longer exact: the function's batches come later, from another version of the model
 * than without the loss. */
static void note_left_out(round_machine *m, int function)
{
    round_set_condition(m, CONDITION_EXACT, true, "LeftOut",
                        "epoch %d, round %d is merged without function %d, which was lost",
                        m->epoch + 1, m->round + 1, function);
}

void round_begin_merge(round_machine *m)
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
        if (b->task == TASK_SKIPPED)
            note_left_out(m, f);
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
    round_tell_phase(m, "merging", false);
    round_emit_merge(m);
}

/* Whether the result belongs to the merge that is out. */
static bool merge_awaited(const round_machine *m, const round_event *event)
{
    return m->stage == STAGE_MERGE && event->epoch == m->epoch && event->round == m->round;
}

void round_merged(round_machine *m, const round_event *event)
{
    if (!MUTATE(7, merge_awaited(m, event) && event->version == m->version + 1, true))
        return;
    m->version++;
    for (size_t i = 0; i < m->merge.count; i++) {
        const round_row *row = &m->row[i];
        member *b = &m->member[row->function];
        b->cursor += MUTATE(8, row->batches, 0);
        member *leads = &m->member[member_process(m, row->function)];
        leads->losses = MUTATE(16, 0, leads->losses);
        leads->crashes = MUTATE(17, 0, leads->crashes);
        leads->lost_over = true;
        b->task = TASK_NONE;
        m->loss_sum += row->loss_sum;
        m->samples += row->samples;
    }
    m->round++;
    m->redis_ends = MUTATE(19, 0, m->redis_ends);
    round_set_condition(m, CONDITION_REDIS, false, "Answers", "the model store answers");
    round_train_on(m);
}

/* Trains again, in the same round, the contributions that the model store does not have. */
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

void round_merge_failed(round_machine *m, const round_event *event)
{
    if (!merge_awaited(m, event))
        return;
    switch (event->code) {
    case ERR_STALE:
        round_finish(m, ROUND_FAILED_STATE, true, "Superseded",
                     "another kubeml-ps goes on with this job");
        return;
    case ERR_INVALID:
        round_fail(m, "NaNLoss", "function %d published values that are not finite: %.180s",
                   event->function, event->message);
        return;
    case ERR_CORRUPT:
    case ERR_NOT_FOUND:
    case ERR_CONFLICT: retrain(m, event->function, event->message); return;
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
