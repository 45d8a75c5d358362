/* round_epoch.c: an epoch from its shard plan over validation and checkpoint to its commit; then
 * the next epoch or the end. See round.c for the whole machine. */
#include <stdio.h>

#include "round_internal.h"

static void commit(round_machine *m);

/* Makes the shard plan of `epoch`, with no batch trained yet. False when memory is gone: the job
 * has failed. */
bool round_plan_epoch(round_machine *m, int epoch, int parallelism)
{
    const round_config *c = &m->config;
    err e = ERR_INIT;
    shard_plan_free(&m->shard_plan);
    m->epoch = epoch;
    m->round = 0;
    m->parallelism = parallelism;
    m->loss_sum = 0;
    m->samples = 0;
    m->began_ms = m->now_ms;
    m->seconds_before = 0;
    if (shard_plan_init(&m->shard_plan,
                        &(shard_plan_spec){.seed = c->request.seed,
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
        b->share = f < parallelism ? m->shard_plan.share[f] : 0;
        b->batches = f < parallelism ? shard_plan_batches(&m->shard_plan, f) : 0;
        b->cursor = 0;
        b->task = b->check = TASK_NONE;
        b->replacement = b->replacement && b->state != MEMBER_READY;
    }
    return true;
}

void round_train_epoch(round_machine *m, int epoch, int parallelism)
{
    round_need_members(m, parallelism, "Grow");
    if (round_plan_epoch(m, epoch, parallelism))
        round_train_on(m);
}

static bool validates(const round_machine *m)
{
    const request *r = &m->config.request;
    if (m->config.test_samples == 0)
        return false;
    return m->epoch + 1 == r->epochs ||
           (r->validate_every > 0 && (m->epoch + 1) % r->validate_every == 0);
}

void round_finish_epoch(round_machine *m)
{
    m->record = (round_epoch){.epoch = m->epoch,
                              .parallelism = m->parallelism,
                              .rounds = m->round,
                              .version = m->version,
                              .train_loss = m->samples ? m->loss_sum / (double)m->samples : 0,
                              .seconds = round_seconds(m),
                              .samples = m->samples};
    if (!validates(m)) {
        commit(m);
        return;
    }
    m->stage = STAGE_VALIDATE;
    for (int f = 0; f < m->parallelism; f++) {
        member *b = &m->member[f];
        uint32_t begin, end;
        shard_plan_test_share(m->config.test_samples, m->config.chunk_samples, m->parallelism, f,
                              &begin, &end, &b->check_samples);
        b->check = b->check_samples > 0 ? TASK_TODO : TASK_NONE;
    }
    round_tell_phase(m, "validating", true);
}

void round_validated(round_machine *m, const round_event *event)
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

/* Sums in function order, so that the same results give the same bits. */
void round_sum_validation(round_machine *m)
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

void round_emit_commit(round_machine *m)
{
    m->op.due_ms = INT64_MAX;
    round_emit(m, ROUND_COMMIT)->record = m->record;
}

static void commit(round_machine *m)
{
    m->stage = STAGE_COMMIT;
    retry_begin(&m->op);
    round_tell_phase(m, "checkpointing", true);
    if (round_paused(m))
        m->op.due_ms = m->now_ms; /* the checkpoint is read from the model store */
    else
        round_emit_commit(m);
}

void round_committed(round_machine *m, const round_event *event)
{
    if (m->stage != STAGE_COMMIT || event->epoch != m->epoch)
        return;
    round_set_condition(m, CONDITION_STORE, false, "Answers", "the store answers");
    m->committed = m->epoch + 1;
    round_emit(m, ROUND_EPOCH)->record = m->record;
    round_after_commit(m);
}

void round_commit_failed(round_machine *m, const round_event *event)
{
    if (m->stage != STAGE_COMMIT)
        return;
    /* Retries ERR_IO too: a full disk or a lost mount may come back, and training is dear. */
    if (!err_retry_may_help(event->code) && event->code != ERR_IO) {
        round_fail(m, "CheckpointFailed", "epoch %d: %.200s", m->epoch + 1, event->message);
        return;
    }
    round_set_condition(m, CONDITION_STORE, true, "StoreDown", "%.240s", event->message);
    if (!retry_later(m, &m->op))
        round_fail(m, "StoreDown", "given up after %lld s: %.200s",
                   (long long)(m->config.limits.store_ms / 1000), event->message);
}

/* The epoch is durable: ends the job, or begins the next epoch with its number of functions. */
void round_after_commit(round_machine *m)
{
    const request *r = &m->config.request;
    char text[ERR_MESSAGE_BYTES];
    if (m->record.validated && r->goal_accuracy < 100 && m->record.accuracy >= r->goal_accuracy) {
        snprintf(text, sizeof text, "%.2f %% accuracy after %d epoch%s, the goal was %.2f %%",
                 m->record.accuracy, m->committed, m->committed == 1 ? "" : "s", r->goal_accuracy);
        round_finish(m, ROUND_SUCCEEDED, false, "GoalReached", text);
    } else if (m->committed >= r->epochs) {
        snprintf(text, sizeof text,
                 m->committed == 1 ? "%d epoch is trained" : "%d epochs are trained", m->committed);
        round_finish(m, ROUND_SUCCEEDED, false, "Completed", text);
    } else if (round_suspend_here(m)) {
        return;
    } else if (m->plan && m->epoch + 1 < m->config.plan_epochs) {
        round_train_epoch(m, m->epoch + 1, m->plan[m->epoch + 1]);
    } else if (!round_is_elastic(m)) {
        round_train_epoch(m, m->epoch + 1, m->parallelism);
    } else {
        m->stage = STAGE_ASK;
        m->stage_due_ms = m->now_ms + m->config.limits.ask_ms;
        round_emit(m, ROUND_ASK)->seconds = m->record.seconds;
    }
}
