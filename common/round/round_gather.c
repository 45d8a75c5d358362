/* round_gather.c: the number of functions of an epoch, and the wait for functions that are to come,
 * which elastic jobs alone have. See round.c for the whole machine. */
#include <stdio.h>

#include "common/base/mutation.h"
#include "round_internal.h"

bool round_is_elastic(const round_machine *m)
{
    return !m->config.request.static_parallelism && !m->plan;
}

void round_need_members(round_machine *m, int parallelism, const char *reason)
{
    for (int f = 0; f < parallelism; f++)
        if (m->member[f].state == MEMBER_NONE)
            member_need(m, f, reason);
    for (int f = parallelism; f < m->config.functions_max; f++)
        if (m->member[f].state != MEMBER_NONE)
            member_release(m, f, true, "");
}

static int first_not_ready(const round_machine *m, int from, int to)
{
    while (from < to && m->member[from].state == MEMBER_READY)
        from++;
    return from;
}

void round_gathered(round_machine *m, bool late)
{
    int ready = first_not_ready(m, m->grow_from, m->parallelism);
    char why[ERR_MESSAGE_BYTES];
    if (ready < m->parallelism && !late)
        return;
    ready = ready > 1 ? ready : 1;
    snprintf(why, sizeof why, "function %d was not ready in time", ready);
    if (ready < m->parallelism)
        member_release(m, ready, true, why);
    m->parallelism = ready;
    member_all_there(m, "Missed"); /* the epoch is trained without the missing functions */
    round_train_epoch(m, m->next_epoch, ready);
}

/* Has `value` functions from `epoch` on: waits until `due_ms` for the functions from `from` on. */
void round_gather(round_machine *m, int epoch, int from, int value, int64_t due_ms)
{
    m->stage = STAGE_GROW;
    m->next_epoch = epoch;
    m->grow_from = from;
    m->parallelism = value;
    m->stage_due_ms = due_ms;
    round_need_members(m, value, "Grow");
    round_gathered(m, false);
}

/* When an elastic job begins without the functions that have not joined: before the first of them
 * would count as missing, which fails the job. */
int64_t round_begin_due(const round_machine *m)
{
    int64_t wait = m->config.limits.function_wait_ms, due = m->now_ms + wait;
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].state == MEMBER_NEEDED && m->member[f].needed_ms + wait < due)
            due = m->member[f].needed_ms + wait;
    return due;
}

/* Has `value` functions from the next epoch on; waits for additional functions, up to a limit. */
void round_grow(round_machine *m, int value)
{
    value = value < 1 ? 1 : value > m->config.functions_max ? m->config.functions_max : value;
    if (m->member[0].state == MEMBER_NONE) { /* after a resume */
        round_tell_phase(m, "starting", true);
        round_gather(m, m->epoch + 1, 0, value, m->now_ms + m->config.limits.function_wait_ms);
    } else if (value <= m->parallelism) {
        round_train_epoch(m, m->epoch + 1, value);
    } else {
        round_gather(m, m->epoch + 1, m->parallelism, value,
                     m->now_ms + m->config.limits.grow_wait_ms);
    }
}

/* Functions from `value` on cannot be had: the job no longer waits for them. */
static void go_without(round_machine *m, int value)
{
    int least = m->stage == STAGE_GROW && m->grow_from > 1 ? m->grow_from : 1;
    m->parallelism = value > least ? value : least;
    round_need_members(m, m->parallelism, "Start");
    if (m->stage == STAGE_GROW)
        round_gathered(m, false);
}

static bool is_waited_for(const round_machine *m, int f)
{
    return m->stage == STAGE_GROW && f > 0 && f >= m->grow_from && f < m->parallelism;
}

int round_waits_for(const round_machine *m, int function)
{
    if (!is_waited_for(m, function) || m->member[function].slot < 0)
        return -1;
    return m->slot_first + m->member[function].slot;
}

bool round_miss(round_machine *m, int f, const char *why)
{
    bool begins = m->stage == STAGE_MODEL && round_is_elastic(m);
    member *b = &m->member[f];
    if (f == 0 || !MUTATE(31, begins || is_waited_for(m, f), false))
        return false;
    b->start_failures = b->losses = b->crashes = 0; /* the next function of this index is new */
    member_release(m, f, true, why);
    go_without(m, f);
    return true;
}

void round_take_parallelism(round_machine *m, const round_event *event)
{
    bool waits = (m->stage == STAGE_MODEL && round_is_elastic(m)) ||
                 (m->stage == STAGE_GROW && event->epoch + 1 == m->next_epoch);
    if (m->stage == STAGE_ASK && event->epoch == m->epoch)
        round_grow(m, event->value);
    else if (waits && event->value < m->parallelism)
        go_without(m, event->value);
}
