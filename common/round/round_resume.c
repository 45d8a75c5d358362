/* round_resume.c: where training begins and goes on: at version 0, at the state of a ledger or a
 * checkpoint, and after a restart of Redis. See round.c for the whole machine. */
#include <stdio.h>
#include <string.h>

#include "common/base/mutation.h"
#include "round_internal.h"

/* Replays the ledger; false: a row does not continue its share where the row before ended. */
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
        shard_plan_samples(&m->shard_plan, row->function, b->cursor, row->batches, &begin, &end);
        if (row->sample_begin != begin || row->sample_end != end || row->samples != end - begin)
            return false;
        b->cursor += MUTATE(10, row->batches, 0);
        m->loss_sum += row->loss_sum;
        m->samples += row->samples;
        m->round = row->round + 1 > m->round ? row->round + 1 : m->round;
    }
    return true;
}

/* The parallelism to resume with. After a committed epoch no share is open, so an elastic job may
 * have fewer functions than it had grown to, if there is room for fewer now. */
static int resumed_parallelism(const round_machine *m, const round_resume *r)
{
    int parallelism = r->parallelism > 0 ? r->parallelism : m->config.parallelism;
    bool fewer = r->committed && round_is_elastic(m) && parallelism > m->config.functions_max;
    return fewer ? m->config.functions_max : parallelism;
}

static bool is_of_job(const round_machine *m, const round_resume *r, int parallelism)
{
    bool shared = m->config.request.process == PROCESS_SHARED;
    return parallelism <= m->config.functions_max &&
           (!shared || parallelism == m->config.functions_max) && r->epoch >= 0 &&
           r->epoch < m->config.request.epochs;
}

static void resume(round_machine *m, const round_resume *r)
{
    int parallelism = resumed_parallelism(m, r);
    m->version = r->version;
    m->committed = r->committed ? r->epoch + 1 : r->epoch; /* FINISHED reports it on failure too */
    if (!is_of_job(m, r, parallelism)) {
        round_fail(m, "LedgerCorrupt", "epoch %d with %d functions is not of this job",
                   r->epoch + 1, parallelism);
        return;
    }
    if (!r->committed) /* else the number of functions of the next epoch is not decided yet */
        round_need_members(m, parallelism, "Resume");
    if (!round_plan_epoch(m, r->epoch, parallelism))
        return;
    if (!r->committed && !replay_rows(m, r)) {
        round_fail(m, "LedgerCorrupt", "the ledger of epoch %d does not fit its deal",
                   r->epoch + 1);
        return;
    }
    m->seconds_before = r->seconds;
    if (!r->committed) {
        round_train_on(m);
        return;
    }
    m->record = (round_epoch){.epoch = r->epoch,
                              .parallelism = parallelism,
                              .version = r->version,
                              .validated = r->validated,
                              .accuracy = r->accuracy,
                              .seconds = r->seconds};
    round_after_commit(m);
}

/* Begins with making version 0. */
static void begin(round_machine *m)
{
    m->stage = STAGE_MODEL;
    m->asked = false;
    retry_begin(&m->op);
    round_tell_phase(m, "starting", true);
    round_need_members(m, m->parallelism, "Start");
}

void round_start(round_machine *m, const round_event *event)
{
    if (m->stage != STAGE_NEW)
        return;
    snprintf(m->algorithms, sizeof m->algorithms, "%s", event->algorithms);
    m->losses = event->value;
    if (event->reason[0])
        round_set_condition(m, CONDITION_EXACT, true, event->reason, "%s", event->message);
    if (event->resume) {
        resume(m, event->resume);
        return;
    }
    m->parallelism = m->plan ? m->plan[0] : m->config.parallelism;
    begin(m);
}

void round_model_made(round_machine *m, bool by_function, const round_event *event)
{
    bool fresh = round_draws(m);
    if (m->stage != STAGE_MODEL || fresh != by_function || !m->asked)
        return;
    if (fresh && (event->function != 0 || !member_present(m, event)))
        return;
    m->version = 0;
    if (round_is_elastic(m))
        round_gather(m, 0, 0, m->parallelism, round_begin_due(m));
    else
        round_train_epoch(m, 0, m->parallelism);
}

void round_load_failed(round_machine *m, const round_event *event)
{
    retry *r = m->restoring ? &m->back : &m->op;
    /* The disk that is read may come back, see round_commit_failed. */
    bool passes = err_retry_may_help(event->code) || event->code == ERR_IO;
    bool gone = event->code == ERR_NOT_FOUND || event->code == ERR_CONFLICT ||
                event->code == ERR_CORRUPT; /* the new model is lost: it is made again */
    if (!m->restoring && m->stage != STAGE_MODEL)
        return;
    if (!passes && (m->restoring || !gone))
        round_fail(m, "InitFailed", "%.240s", event->message);
    else if (m->restoring && event->code == ERR_IO && m->now_ms >= r->give_up_ms && !r->last)
        r->due_ms = m->now_ms; /* the last try, without files that cannot be read */
    else if (!retry_later(m, r))
        round_fail(m, m->restoring ? "RedisGone" : "StoreDown", "given up after %lld s: %.200s",
                   (long long)(m->config.limits.store_ms / 1000), event->message);
    m->asked = false;
}

/* ---- Redis restarted ------------------------------------------------------------------------- */

bool round_paused(const round_machine *m)
{
    return m->redis_gone || m->restoring;
}

/* Raises RedisGone; reports it again when the message is new. */
static void tell_redis(round_machine *m, const char *reason, const char *message)
{
    condition *said = &m->condition[CONDITION_REDIS];
    if (strncmp(said->message, message, 240) != 0)
        said->raised = false;
    round_set_condition(m, CONDITION_REDIS, true, reason, "%.240s", message);
}

void round_redis_gone(round_machine *m, const round_event *event)
{
    if (!m->redis_gone || m->redis_give_up_ms == INT64_MAX) {
        m->redis_give_up_ms = m->now_ms + m->config.limits.store_ms;
        m->redis_ends++;
    }
    m->redis_gone = true;
    tell_redis(m, "RedisGone", event->message);
    if (m->redis_ends >= m->config.limits.redis_ends_max)
        round_fail(m, "RedisGone", "Redis ended %d times without a merged round: %.180s",
                   m->redis_ends, event->message);
}

void round_redis_runs(round_machine *m, const round_event *event)
{
    if (!m->redis_gone)
        return;
    m->redis_give_up_ms = INT64_MAX;
    tell_redis(m, "Restarted", event->message);
}

void round_emit_restore(round_machine *m)
{
    m->back.due_ms = INT64_MAX;
    m->back.last = m->now_ms >= m->back.give_up_ms;
    round_emit(m, ROUND_RESTORE)->last = m->back.last;
}

void round_redis_back(round_machine *m, const round_event *event)
{
    m->redis_gone = false;
    if (event->empty) {
        /* A merge that was out may be committed or lost: the contributions are gone either way. */
        if (m->stage == STAGE_MERGE)
            m->stage = STAGE_TRAIN;
        if (m->stage == STAGE_MODEL) {
            m->asked = false;
            retry_begin(&m->op);
        }
        m->restoring = true;
        retry_begin(&m->back);
        round_emit_restore(m);
    } else if (!m->restoring) {
        round_set_condition(m, CONDITION_REDIS, false, "Answers", "the model store answers");
        if (m->stage == STAGE_MERGE && m->op.due_ms != INT64_MAX)
            m->op.due_ms = m->now_ms;
    }
}

/* Replaces the functions that train at this moment. Their contributions would bear the number of a
 * round that is opened again, perhaps with another shard plan; only another incarnation
 * distinguishes the old contribution from the new. */
static void lose_busy(round_machine *m)
{
    for (int f = 0; f < m->config.functions_max && m->stage != STAGE_END; f++)
        if (m->member[f].task == TASK_SENT)
            member_lose(m, member_process(m, f), "RolledBack",
                        "it trains on a state that was lost");
}

/* No copy of the model is left: begins the first epoch, which is not committed, once more. */
static void begin_again(round_machine *m)
{
    if (m->committed > 0) {
        round_fail(m, "CheckpointCorrupt", "after %d epochs no checkpoint is there", m->committed);
        return;
    }
    m->rolled_back = true;
    m->version = -1;
    lose_busy(m);
    if (m->stage == STAGE_END ||
        !round_plan_epoch(m, 0, m->plan ? m->plan[0] : m->config.parallelism))
        return;
    begin(m);
}

void round_loaded(round_machine *m, const round_event *event)
{
    if (!m->restoring) {
        round_model_made(m, false, event);
        return;
    }
    m->restoring = false;
    round_set_condition(m, CONDITION_REDIS, false, "PutBack",
                        "the model is back in the model store");
    if (event->resume) {
        m->rolled_back = true;
        lose_busy(m);
        if (m->stage != STAGE_END)
            resume(m, event->resume);
        return;
    }
    if (event->version < 0 && m->version >= 0) {
        begin_again(m);
        return;
    }
    for (int f = 0; f < m->parallelism && m->stage == STAGE_TRAIN; f++)
        if (m->member[f].task == TASK_DONE)
            m->member[f].task = MUTATE(11, TASK_TODO, TASK_DONE);
}
