/* round_member.c: the functions of a job as kubeml-ps sees them. See round.c for the whole machine.
 *
 *               need                hello               ready
 *     NONE ───────────► NEEDED ───────────► JOINED ───────────► READY
 *       ▲                 │ ▲                 │                   │
 *       │ release         │ └──── lost: the next incarnation ─────┤
 *       └─────────────────┴───────────────────────────────────────┘
 *
 * Slots: a process writes into one slot of the model store as long as it lives, and a function that
 * was lost may still live and write. So another process gets the slot only when the process that
 * had it is known to have ended and none of its contributions waits to be merged. If the ends stay
 * unknown until all slots are used, the slot that was left first is taken: the model store checks
 * every block against its checksum, so that even then no half-written block is merged. A shared
 * process has one slot, function 0's. A new kubeml-ps does not know the functions of the kubeml-ps
 * before: it uses another bank of slots. */
#include <assert.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mutation.h"
#include "common/base/text.h"
#include "common/contract/exit_cause.h"
#include "round_internal.h"

int member_process(const round_machine *m, int f)
{
    return m->config.request.process == PROCESS_SHARED ? 0 : f;
}

/* One past the last function of the process that joined as function f. */
static int process_end(const round_machine *m, int f)
{
    return m->config.request.process == PROCESS_SHARED ? m->config.functions_max : f + 1;
}

static bool slot_pending(const round_machine *m, int s)
{
    for (int f = 0; f < m->config.functions_max; f++)
        if (m->member[f].task == TASK_DONE && m->member[f].row.slot == m->slot_first + s)
            return true;
    return false;
}

/* Whether no process writes into the slot any more, and the slot holds nothing to be merged. */
static bool slot_safe(const round_machine *m, int s)
{
    const slot *t = &m->slot[s];
    return !t->taken || (t->left && MUTATE(1, t->ended, true) && !slot_pending(m, s));
}

static int slot_take(round_machine *m, int function, int incarnation)
{
    int found = -1;
    for (int s = 0; s < m->slots && found < 0; s++)
        if (slot_safe(m, s))
            found = s;
    for (int s = 0; s < m->slots && (found < 0 || !slot_safe(m, found)); s++)
        if (m->slot[s].left && !slot_pending(m, s) &&
            (found < 0 || m->slot[s].left_order < m->slot[found].left_order))
            found = s;
    assert(found >= 0); /* round_slots: more than all functions and all pending rows together */
    m->slot[found] = (slot){.taken = true, .function = function, .incarnation = incarnation};
    return found;
}

static void slot_leave(round_machine *m, member *b)
{
    if (b->slot < 0)
        return;
    m->slot[b->slot].left = true;
    m->slot[b->slot].left_order = m->left_count++;
    b->slot = -1;
}

static void tell_need(round_machine *m, int f, const char *reason)
{
    member *b = &m->member[f];
    b->tell_ms = 0;
    if (member_process(m, f) != f)
        return; /* it lives in a process that was asked for */
    round_action *a = round_emit(m, ROUND_NEED);
    a->function = f;
    a->incarnation = b->incarnation;
    text_print(a->reason, sizeof a->reason, "%s", reason);
}

static void need(round_machine *m, int f)
{
    member *b = &m->member[f];
    assert(b->state == MEMBER_NONE);
    int first = m->config.generation * ROUND_GENERATION_STEP;
    b->incarnation = b->incarnation < first ? first : b->incarnation + 1;
    b->state = MEMBER_NEEDED;
    b->waits = false;
    b->needed_ms = m->now_ms;
}

void member_need(round_machine *m, int f, const char *reason)
{
    need(m, f);
    tell_need(m, f, reason);
}

/* Whether the controller was not asked for the function yet. */
static bool is_untold(const member *b)
{
    return b->state == MEMBER_NEEDED && b->tell_ms;
}

void member_release(round_machine *m, int f, bool halt, const char *why)
{
    member *b = &m->member[f];
    if (member_process(m, f) != f || (is_untold(b) && !why[0])) {
        b->state = MEMBER_NONE;
        return;
    }
    if (halt && b->state >= MEMBER_JOINED) {
        round_action *a = round_emit(m, ROUND_HALT);
        a->function = f;
        a->incarnation = b->incarnation;
    } else if (b->state >= MEMBER_JOINED) {
        round_action *a = round_emit(m, ROUND_CLOSE);
        a->function = f;
        a->incarnation = b->incarnation;
    }
    round_action *a = round_emit(m, ROUND_RELEASE);
    a->function = f;
    a->incarnation = b->incarnation;
    text_print(a->message, sizeof a->message, "%s", why);
    if (b->slot >= 0)
        m->slot[b->slot].dismissed = halt;
    slot_leave(m, b);
    b->state = MEMBER_NONE;
}

/* Whether the reason is a failed GPU; another process may find the GPU in order. */
static bool of_gpu(const char *reason)
{
    return strcmp(reason, "GpuFailed") == 0 || strcmp(reason, "GpuMemory") == 0;
}

/* Whether the exit cause is not known yet: the pod's end, if seen, is reported a moment later. */
static bool unexplained(const char *reason)
{
    return strcmp(reason, "ConnectionLost") == 0;
}

/* Gives the function up: the job goes on without it, or fails. `reason`: why its last process
 * ended. */
__attribute__((format(printf, 4, 5))) static void give_up(round_machine *m, int f,
                                                          const char *reason, const char *fmt, ...)
{
    char why[ERR_MESSAGE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    text_vprint(why, sizeof why, fmt, ap);
    va_end(ap);
    if (!round_miss(m, f, why))
        round_fail(m, of_gpu(reason) ? reason : "Crashed", "%s", why);
}

/* Gives up a function whose code crashes at the start, or repeatedly: no retry can help. False: it
 * does not. */
static bool is_bad_code(round_machine *m, int f, bool was_ready, const char *reason,
                        const char *message)
{
    member *b = &m->member[f];
    if (!exit_cause_is_crash(reason))
        return false;
    if (!was_ready)
        give_up(m, f, reason, "function %d crashed before it was ready: %.200s", f, message);
    else if (++b->crashes >= m->config.limits.crashes_max)
        give_up(m, f, reason, "function %d crashed %d times without a contribution: %.190s", f,
                b->crashes, message);
    else
        return false;
    return true;
}

static bool is_one_loss_too_many(round_machine *m, int f, const char *reason, const char *message)
{
    member *b = &m->member[f];
    if (++b->losses < MUTATE(40, m->config.limits.losses_max, INT_MAX))
        return false;
    give_up(m, f, reason, "function %d was lost %d times without a contribution: %s: %.190s", f,
            b->losses, reason, message);
    return true;
}

static void give_up_starting(round_machine *m, int f, const char *reason, const char *message)
{
    give_up(m, f, reason, "function %d ended %d times before it was ready: %s: %.190s", f,
            m->member[f].start_failures, reason, message);
}

/* Whether the function has failed to start too often, unless its exit cause, which is not known
 * yet, shows that the cluster ended it. */
static bool start_in_doubt(const round_machine *m, const member *b)
{
    return is_untold(b) && !b->lost_ready && unexplained(b->lost_reason) &&
           b->start_failures >= m->config.limits.start_failures_max;
}

static bool lost_too_often(round_machine *m, int f, const char *reason, const char *message)
{
    member *b = &m->member[f];
    if (is_bad_code(m, f, b->state == MEMBER_READY, reason, message))
        return true;
    bool starts = b->state != MEMBER_READY && !exit_cause_is_disruption(reason) && !of_gpu(reason);
    if (starts && ++b->start_failures >= m->config.limits.start_failures_max &&
        MUTATE(51, !unexplained(reason), true)) {
        give_up_starting(m, f, reason, message);
        return true;
    }
    return !starts && is_one_loss_too_many(m, f, reason, message);
}

static void lose_one(round_machine *m, int f)
{
    member *b = &m->member[f];
    member_release(m, f, false, "");
    if (b->task == TASK_SENT)
        b->task = m->config.request.on_loss == ON_LOSS_CONTINUE ? TASK_SKIPPED
                                                                : MUTATE(2, TASK_TODO, TASK_NONE);
    if (b->check == TASK_SENT)
        b->check = TASK_TODO;
    if (f == 0 && m->stage == STAGE_MODEL && round_draws(m))
        m->asked = false, m->op.due_ms = m->now_ms; /* the replacement makes version 0 */
    b->late = false;
    b->replacement = true;
}

/* Lowers FunctionLost, as all functions are there again; its message counts the losses. */
static void say_losses(round_machine *m, const char *reason)
{
    m->condition[CONDITION_LOST].raised = false;
    if (m->losses == 1)
        round_word_condition(m, CONDITION_LOST, reason, "a function was lost: %.200s",
                             m->last_loss);
    else
        round_word_condition(m, CONDITION_LOST, reason,
                             "functions were lost %d times, last: %.200s", m->losses, m->last_loss);
}

static void note_loss(round_machine *m, int f, const char *message)
{
    text_print(m->last_loss, sizeof m->last_loss, "function %d: %.190s", f, message);
}

/* Reports the exit cause of a lost function, which is known a moment after the end of its
 * connection. */
static void tell_cause(round_machine *m, int f, const char *reason, const char *message)
{
    char before[ROUND_REASON_BYTES];
    note_loss(m, f, message);
    memcpy(before, m->condition[CONDITION_LOST].reason, sizeof before);
    if (m->condition[CONDITION_LOST].raised)
        round_word_condition(m, CONDITION_LOST, reason, "function %d (incarnation %d): %.200s", f,
                             m->member[f].lost, message);
    else
        say_losses(m, before);
}

/* How long to wait before asking for the replacement. The exit cause comes a moment after the end
 * of the connection, and may show that a replacement is of no use. The first loss of a function
 * that was ready costs no wait. A GPU that failed may be in order a little later. */
static int64_t pause_of(const round_machine *m, const member *b, bool was_ready, const char *reason)
{
    const round_limits *l = &m->config.limits;
    int again = b->losses - 1;
    if (of_gpu(reason))
        return l->gpu_wait_ms << (again < 4 ? again : 4);
    if (!unexplained(reason))
        return 0;
    return (was_ready ? again : 1) * l->end_wait_ms;
}

void member_lose(round_machine *m, int f, const char *reason, const char *message)
{
    int incarnation = m->member[f].incarnation;
    bool was_ready = m->member[f].state == MEMBER_READY;
    if (lost_too_often(m, f, reason, message))
        return;
    int64_t pause_ms = pause_of(m, &m->member[f], was_ready, reason);
    text_print(m->member[f].lost_reason, sizeof m->member[f].lost_reason, "%s", reason);
    text_print(m->member[f].lost_message, sizeof m->member[f].lost_message, "%s", message);
    m->member[f].lost = incarnation;
    m->member[f].lost_ready = was_ready;
    m->member[f].lost_over = false;
    m->losses++;
    note_loss(m, f, message);
    for (int g = f; g < process_end(m, f); g++)
        lose_one(m, g);
    round_set_condition(m, CONDITION_LOST, true, reason, "function %d (incarnation %d): %.200s", f,
                        incarnation, message);
    for (int g = f; g < process_end(m, f); g++) {
        need(m, g);
        if (pause_ms > 0)
            m->member[g].tell_ms = m->now_ms + pause_ms;
        else
            tell_need(m, g, reason);
    }
}

static void tell_all(round_machine *m, int f, const char *reason)
{
    for (int g = f; g < process_end(m, f); g++)
        tell_need(m, g, reason);
}

member *member_present(round_machine *m, const round_event *event)
{
    int f = event->function;
    if (f < 0 || f >= m->config.functions_max)
        return NULL;
    member *b = &m->member[f];
    if (b->state == MEMBER_NONE || MUTATE(3, b->incarnation != event->incarnation, false))
        return NULL;
    return b;
}

static void refuse(round_machine *m, const round_event *event, err_code code, const char *message)
{
    round_action *a = round_emit(m, ROUND_REFUSE);
    a->function = event->function;
    a->incarnation = event->incarnation;
    a->code = code;
    text_print(a->message, sizeof a->message, "%s", message);
}

/* The functions of one process load and are ready together. */
static void enter_all(round_machine *m, int f, member_state state)
{
    for (int g = f; g < process_end(m, f); g++)
        m->member[g].state = state;
}

void member_hello(round_machine *m, const round_event *event)
{
    member *b = member_present(m, event);
    if (!b || member_process(m, event->function) != event->function) {
        refuse(m, event, ERR_STALE, "this function and incarnation is not awaited");
        return;
    }
    if (b->state != MEMBER_NEEDED) {
        refuse(m, event, ERR_CONFLICT, "this incarnation has joined already");
        return;
    }
    enter_all(m, event->function, MEMBER_JOINED);
    b->heard_ms = b->progress_ms = m->now_ms;
    b->phase[0] = '\0';
    b->beat_batches = 0;
    b->slot = slot_take(m, event->function, event->incarnation);
    round_action *a = round_emit(m, ROUND_WELCOME);
    a->function = event->function;
    a->incarnation = event->incarnation;
    a->slot = m->slot_first + b->slot;
}

/* All functions must have made the same model. Other algorithms only make the job inexact. */
static bool same_code(round_machine *m, const round_event *event)
{
    if (m->layout[0] == '\0')
        snprintf(m->layout, sizeof m->layout, "%s", event->layout);
    if (m->algorithms[0] == '\0')
        snprintf(m->algorithms, sizeof m->algorithms, "%s", event->algorithms);
    if (strncmp(m->layout, event->layout, sizeof m->layout - 1) != 0) {
        round_fail(m, "ShapeMismatch",
                   "function %d made another model (%.60s) than the others (%.60s)",
                   event->function, event->layout, m->layout);
        return false;
    }
    if (strncmp(m->algorithms, event->algorithms, sizeof m->algorithms - 1) != 0)
        round_set_condition(m, CONDITION_EXACT, true, "OtherAlgorithms",
                            "function %d computes with %.70s, the job's first with %.70s",
                            event->function, event->algorithms, m->algorithms);
    return true;
}

static bool any_missing(const round_machine *m)
{
    for (int f = 0; f < m->parallelism; f++)
        if (m->member[f].state != MEMBER_READY)
            return true;
    return false;
}

void member_all_there(round_machine *m, const char *reason)
{
    if (m->condition[CONDITION_LOST].raised && !any_missing(m))
        say_losses(m, reason);
}

void member_ready(round_machine *m, const round_event *event)
{
    member *b = member_present(m, event);
    if (!b || b->state != MEMBER_JOINED || !same_code(m, event))
        return;
    enter_all(m, event->function, MEMBER_READY);
    b->start_failures = MUTATE(15, 0, b->start_failures);
    b->heard_ms = b->progress_ms = m->now_ms;
    member_all_there(m, "Replaced");
}

/* Raises or lowers StoreUnavailable. A store that is away stops functions, which read samples, and
 * the commit, which lowers the condition itself when the store is back. */
static void hear_of_store(round_machine *m, member *b, const round_event *event)
{
    b->waits = event->message[0] != '\0';
    bool any = false;
    for (int f = 0; f < m->config.functions_max; f++)
        any |= m->member[f].state != MEMBER_NONE && m->member[f].waits;
    if (b->waits)
        round_set_condition(m, CONDITION_STORE, true, "StoreDown", "function %d waits: %.220s",
                            event->function, event->message);
    else if (!any && m->stage != STAGE_COMMIT)
        round_set_condition(m, CONDITION_STORE, false, "Answers", "the store answers");
}

void member_heartbeat(round_machine *m, const round_event *event)
{
    member *b = member_present(m, event);
    if (!b || b->state < MEMBER_JOINED)
        return;
    b->heard_ms = m->now_ms;
    hear_of_store(m, b, event);
    if (b->beat_batches == event->batches &&
        strncmp(b->phase, event->phase, sizeof b->phase - 1) == 0)
        return;
    b->progress_ms = m->now_ms;
    b->beat_batches = event->batches;
    snprintf(b->phase, sizeof b->phase, "%s", event->phase);
}

bool round_dismissed(const round_machine *m, int function, int incarnation)
{
    bool lost = false;
    for (int s = 0; s < m->slots; s++)
        if (m->slot[s].taken && m->slot[s].function == function &&
            m->slot[s].incarnation == incarnation)
            lost = !m->slot[s].dismissed;
    bool needed = function >= 0 && function < m->config.functions_max &&
                  m->member[function].state != MEMBER_NONE &&
                  m->member[function].incarnation == incarnation;
    return !lost && !needed;
}

/* Whether the exit cause, known now, shows that the cluster ended the lost function: then the end
 * counts as a loss, and no longer as a failed start. */
static bool did_not_fail_to_start(round_machine *m, int f, const char *reason)
{
    member *b = &m->member[f];
    if (b->lost_ready || b->start_failures == 0 ||
        !MUTATE(42, exit_cause_is_disruption(reason), false))
        return false;
    b->lost_ready = true;
    b->start_failures--;
    return true;
}

void member_lost(round_machine *m, const round_event *event)
{
    for (int s = 0; event->ended && s < m->slots; s++)
        if (m->slot[s].taken && m->slot[s].function == event->function &&
            m->slot[s].incarnation == event->incarnation)
            m->slot[s].ended = true;
    if (member_present(m, event)) {
        member_lose(m, event->function, event->reason, event->message);
        return;
    }
    if (!event->ended || event->function < 0 || event->function >= m->config.functions_max)
        return;
    const member *b = &m->member[event->function];
    if (b->state == MEMBER_NONE || b->lost != event->incarnation)
        return;
    if (MUTATE(18, !b->lost_over, true) &&
        is_bad_code(m, event->function, b->lost_ready, event->reason, event->message))
        return;
    if (did_not_fail_to_start(m, event->function, event->reason) &&
        is_one_loss_too_many(m, event->function, event->reason, event->message))
        return;
    if (start_in_doubt(m, b)) {
        give_up_starting(m, event->function, event->reason, event->message);
        return;
    }
    tell_cause(m, event->function, event->reason, event->message);
    if (is_untold(b) && !of_gpu(b->lost_reason))
        tell_all(m, event->function, event->reason);
}

void member_failed(round_machine *m, const round_event *event)
{
    char why[ERR_MESSAGE_BYTES];
    if (!member_present(m, event))
        return;
    if (of_gpu(event->reason) && err_retry_may_help(event->code)) {
        member_lose(m, event->function, event->reason, event->message);
        return;
    }
    text_print(why, sizeof why, "function %d: %.220s", event->function, event->message);
    if (!round_miss(m, event->function, why))
        round_fail(m, event->reason, "%s", why);
}

/* ---- time ------------------------------------------------------------------------------------ */

static bool works(const round_machine *m, int f)
{
    for (int g = f; g < process_end(m, f); g++)
        if (m->member[g].task == TASK_SENT || m->member[g].check == TASK_SENT)
            return true;
    return m->member[f].state == MEMBER_JOINED || (f == 0 && m->stage == STAGE_MODEL && m->asked);
}

static void time_of(round_machine *m, int f)
{
    const round_limits *l = &m->config.limits;
    member *b = &m->member[f];
    char text[ERR_MESSAGE_BYTES];
    if (start_in_doubt(m, b) && m->now_ms >= b->tell_ms) {
        give_up_starting(m, f, b->lost_reason, b->lost_message);
    } else if (is_untold(b) && m->now_ms >= b->tell_ms) {
        tell_all(m, f, b->lost_reason);
    } else if (b->state == MEMBER_NEEDED && m->now_ms >= b->needed_ms + l->function_wait_ms) {
        round_fail(m, "FunctionMissing", "function %d (incarnation %d) did not join within %lld s",
                   f, b->incarnation, (long long)(l->function_wait_ms / 1000));
    } else if (b->state >= MEMBER_JOINED && m->now_ms >= b->heard_ms + l->heartbeat_ms) {
        snprintf(text, sizeof text, "nothing was heard of it for %.1f s",
                 (double)(m->now_ms - b->heard_ms) / 1000);
        member_lose(m, f, "Silent", text);
    } else if (b->state >= MEMBER_JOINED && works(m, f) &&
               m->now_ms >= b->progress_ms + l->stall_ms) {
        snprintf(text, sizeof text, "no progress for %.0f s in phase \"%s\"",
                 (double)(m->now_ms - b->progress_ms) / 1000, b->phase);
        member_lose(m, f, "Stalled", text);
    }
}

void member_time(round_machine *m)
{
    for (int f = 0; f < m->config.functions_max && m->stage != STAGE_END; f++)
        if (member_process(m, f) == f)
            time_of(m, f);
}

/* The function's task in this stage. */
static task duty(const round_machine *m, const member *b)
{
    return m->stage == STAGE_TRAIN ? b->task : m->stage == STAGE_VALIDATE ? b->check : TASK_NONE;
}

int64_t member_deadline(const round_machine *m)
{
    const round_limits *l = &m->config.limits;
    int64_t due = INT64_MAX;
    for (int f = 0; f < m->config.functions_max; f++) {
        const member *b = &m->member[f];
        int64_t at = INT64_MAX;
        if (member_process(m, f) != f)
            continue; /* function 0 has the waits of the shared process */
        if (is_untold(b))
            at = b->tell_ms;
        else if (b->state == MEMBER_NEEDED)
            at = b->needed_ms + l->function_wait_ms;
        else if (b->state >= MEMBER_JOINED)
            at = b->heard_ms + l->heartbeat_ms;
        if (b->state >= MEMBER_JOINED && works(m, f) && b->progress_ms + l->stall_ms < at)
            at = b->progress_ms + l->stall_ms;
        if (b->state == MEMBER_READY && duty(m, b) == TASK_SENT && !b->late &&
            b->sent_ms + l->straggler_ms > m->now_ms && b->sent_ms + l->straggler_ms < at)
            at = b->sent_ms + l->straggler_ms;
        due = at < due ? at : due;
    }
    return due;
}

/* Functions may have stood still together with this process, and get their whole wait again. The
 * second time in a row without a heartbeat they get only the time lost: so a process that is always
 * late still finds a silent function. */
void member_forgive(round_machine *m, int64_t now_ms)
{
    int64_t late_ms = now_ms - m->promised_ms;
    for (int f = 0; f < m->config.functions_max; f++) {
        member *b = &m->member[f];
        b->needed_ms += late_ms;
        if (b->tell_ms)
            b->tell_ms += late_ms;
        b->heard_ms = b->heard_ms == b->excused_ms ? b->heard_ms + late_ms : now_ms;
        b->excused_ms = b->heard_ms;
        b->progress_ms += late_ms;
    }
}

/* ---- stragglers ------------------------------------------------------------------------------ */

/* The median time of the functions that are done; -1 while fewer than half are. */
static int64_t usual_ms(const round_machine *m)
{
    int64_t took[ROUND_FUNCTIONS_MAX];
    int done = 0, open = 0;
    for (int f = 0; f < m->parallelism; f++) {
        const member *b = &m->member[f];
        open += duty(m, b) == TASK_SENT;
        if (duty(m, b) != TASK_DONE)
            continue;
        int64_t ms = b->done_ms - b->sent_ms;
        int at = done++;
        for (; at > 0 && took[at - 1] > ms; at--)
            took[at] = took[at - 1];
        took[at] = ms;
    }
    return done == 0 || done < open ? -1 : took[done / 2];
}

void member_lateness(round_machine *m)
{
    int late = -1;
    int64_t usual = usual_ms(m);
    int64_t limit =
        2 * usual > m->config.limits.straggler_ms ? 2 * usual : m->config.limits.straggler_ms;
    for (int f = 0; f < m->parallelism; f++) {
        member *b = &m->member[f];
        if (duty(m, b) != TASK_SENT)
            b->late = false;
        else if (usual >= 0 && m->now_ms - b->sent_ms >= limit)
            b->late = true;
        if (b->late)
            late = f;
    }
    if (late >= 0)
        round_set_condition(m, CONDITION_STRAGGLER, true, "Straggler",
                            "function %d (incarnation %d) has not %s epoch %d, round %d; the "
                            "others took %.1f s",
                            late, m->member[late].incarnation,
                            m->stage == STAGE_TRAIN ? "published" : "validated", m->epoch + 1,
                            m->round + 1, (double)usual / 1000);
    else
        round_set_condition(m, CONDITION_STRAGGLER, false, "InTime", "no function is late");
}
