/* round_train.c: the open round: the task of each function, sent to functions that are ready, and
 * the contributions that they publish. See round.c for the whole machine. */
#include <math.h>

#include "common/base/mutation.h"
#include "round_internal.h"

static bool awaits_replacement(const round_machine *m, const member *b)
{
    return m->config.request.on_loss == ON_LOSS_CONTINUE && b->replacement &&
           b->state != MEMBER_READY;
}

/* A round needs at least one function: if all are lost, it waits for the replacements after all. */
void round_need_somebody(round_machine *m)
{
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].task != TASK_NONE && m->member[f].task != TASK_SKIPPED)
            return;
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].task == TASK_SKIPPED)
            m->member[f].task = TASK_TODO;
}

/* Opens the round: each function with batches left gets the next k of them. */
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
    round_tell_phase(m, "training", m->round == 0);
}

static bool epoch_trained(const round_machine *m)
{
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].cursor < m->member[f].batches)
            return false;
    return true;
}

/* Goes on after a merge, a start or a resume: opens the next round of the epoch, or ends it. */
void round_train_on(round_machine *m)
{
    if (epoch_trained(m))
        round_finish_epoch(m);
    else
        open_round(m);
}

static int slot_of(const round_machine *m, int f)
{
    return m->slot_first + m->member[member_process(m, f)].slot;
}

/* Starts the function's clocks: it has work from now on. */
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

bool round_draws(const round_machine *m)
{
    return !m->config.request.init[0] || m->config.request.init_without[0];
}

/* Version 0: function 0 makes it, or kubeml-ps loads it once a function has sent the layout. */
static void send_model(round_machine *m)
{
    bool fresh = round_draws(m);
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

/* Sends open tasks to the functions that are ready. */
void round_dispatch(round_machine *m)
{
    if (round_paused(m))
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

void round_published(round_machine *m, const round_event *event)
{
    member *b = member_present(m, event);
    if (!b || b->state != MEMBER_READY || m->stage != STAGE_TRAIN)
        return;
    if (b->task != TASK_SENT ||
        MUTATE(4, event->epoch != m->epoch || event->round != m->round, false))
        return;
    uint64_t begin, end;
    shard_plan_samples(&m->shard_plan, event->function, b->batch_begin, b->batch_count, &begin,
                       &end);
    if (event->sample_begin != begin || event->sample_end != end || event->samples != end - begin ||
        event->batches != b->batch_count) {
        if (m->rolled_back)
            return; /* of the same round, before an older state was restored */
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
