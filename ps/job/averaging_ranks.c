/* averaging_ranks.c: communicators of NCCL; see averaging.h. */
#include <stdio.h>
#include <string.h>

#include "averaging_internal.h"

static bool rank_is_here(const averaging *a, int rank)
{
    return averaging_is_here(a, a->ranks.function[rank], a->ranks.incarnation[rank]);
}

bool ranks_have(const averaging *a, const averaging_event *event)
{
    const averaging_ranks *r = &a->ranks;
    for (int i = 0; i < r->count; i++)
        if (r->function[i] == event->function && r->incarnation[i] == event->incarnation)
            return r->stage != RANKS_NONE;
    return false;
}

/* To all ranks that are there; steals the frame. */
static void tell_ranks(averaging *a, json_t *frame)
{
    for (int i = 0; i < a->ranks.count; i++)
        if (rank_is_here(a, i))
            averaging_send(a, a->ranks.function[i], json_incref(frame));
    json_decref(frame);
}

/* Whoever is still in the communicator. */
static void leave(averaging *a)
{
    averaging_ranks *r = &a->ranks;
    if (r->stage != RANKS_NONE)
        tell_ranks(a, json_pack("{s:s,s:i}", "type", "leave", "set", r->set));
    r->stage = RANKS_NONE;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* NCCL takes one rank of a GPU. */
static bool find_pair(const averaging *a, int *one, int *other)
{
    for (*other = 1; *other < a->functions; ++*other)
        for (*one = 0; *one < *other; ++*one)
            if (strcmp(a->of[*one].gpu, a->of[*other].gpu) == 0)
                return true;
    return false;
}

static bool all_on_one(const averaging *a)
{
    for (int f = 1; f < a->functions; f++)
        if (strcmp(a->of[0].gpu, a->of[f].gpu) != 0)
            return false;
    return true;
}

static bool all_said(const averaging *a)
{
    for (int f = 0; f < a->functions; f++)
        if (!a->of[f].gpu[0] || !a->of[f].here)
            return false;
    return true;
}

void ranks_offer(averaging *a, const averaging_event *event)
{
    const averaging_offer *o = &event->offer;
    gpu_model *m = &a->of[event->function];
    char text[128];
    int one, other;
    snprintf(m->gpu, sizeof m->gpu, "%s", o->gpu ? o->gpu : "");
    if (a->stage == AVERAGING_ON_HOST || a->functions < 2)
        return;
    if (o->no_gpu) {
        averaging_choose(a, REDUCE_HOST, o->no_gpu);
    } else if (!all_said(a)) {
        return;
    } else if (all_on_one(a)) {
        /* NCCL has nothing to do there: by CUDA IPC the mean has the host's bits */
        if (o->no_handle)
            averaging_choose(a, REDUCE_HOST, o->no_handle);
        else
            averaging_ask_root(a);
    } else if (find_pair(a, &one, &other)) {
        snprintf(text, sizeof text,
                 "functions %d and %d are on one GPU, of which NCCL takes one rank", one, other);
        averaging_choose(a, REDUCE_HOST, text);
    } else if (!a->ranks.chosen) {
        a->ranks.chosen = true;
        averaging_choose(a, REDUCE_NCCL, NULL);
    }
}

/* ---- a communicator -------------------------------------------------------------------------- */

static bool in_merge(const averaging *a, int function)
{
    for (size_t i = 0; i < a->merge.count; i++)
        if (a->merge.rows[i].function == function)
            return true;
    return false;
}

/* A function that has nothing to do in the round is a rank too, with no weight: the communicator
 * stays the same where shares are of different lengths, and all have the mean. */
static bool takes_part(const averaging *a, int function)
{
    const gpu_model *m = &a->of[function];
    bool busy = m->task_epoch == a->merge.epoch && m->task_round == a->merge.round;
    return m->here && m->gpu[0] && (in_merge(a, function) || !busy);
}

bool ranks_have_root(const averaging *a)
{
    return takes_part(a, 0);
}

static bool is_of_merge(const averaging *a)
{
    const averaging_ranks *r = &a->ranks;
    int rank = 0;
    if (r->stage != RANKS_READY)
        return false;
    for (int f = 0; f < a->functions; f++) {
        if (!takes_part(a, f))
            continue;
        if (rank == r->count || r->function[rank] != f ||
            r->incarnation[rank] != a->of[f].incarnation)
            return false;
        rank++;
    }
    return rank == r->count;
}

static void make(averaging *a)
{
    averaging_ranks *r = &a->ranks;
    leave(a);
    r->set++;
    r->count = r->joined = 0;
    for (int f = 0; f < a->functions; f++) {
        if (!takes_part(a, f))
            continue;
        r->function[r->count] = f;
        r->incarnation[r->count++] = a->of[f].incarnation;
    }
    r->stage = RANKS_IDENTIFY;
    a->root = r->incarnation[0];
    averaging_send(a, r->function[0], json_pack("{s:s,s:i}", "type", "identify", "set", r->set));
}

static void ask_for_mean(averaging *a)
{
    json_t *frame = averaging_question(a);
    json_object_set_new(frame, "set", json_integer(a->ranks.set));
    tell_ranks(a, frame);
}

void ranks_merge(averaging *a)
{
    a->out = true;
    a->due_ms = a->now_ms + AVERAGING_CALL_MS;
    if (is_of_merge(a))
        ask_for_mean(a);
    else
        make(a);
}

/* False: the answer is of another set, nobody waits for it, or it is why there is no mean. */
static bool is_joining(averaging *a, const averaging_event *event, ranks_stage stage)
{
    const averaging_ranks *r = &a->ranks;
    if (event->set != r->set || r->stage != stage || !ranks_have(a, event))
        return false;
    if (event->code == ERR_NONE)
        return true;
    ranks_failed(a, event->code, -1, event->message);
    return false;
}

void ranks_identified(averaging *a, const averaging_event *event)
{
    averaging_ranks *r = &a->ranks;
    if (!is_joining(a, event, RANKS_IDENTIFY))
        return;
    r->stage = RANKS_CONNECT;
    for (int i = 0; i < r->count; i++)
        if (rank_is_here(a, i))
            averaging_send(a, r->function[i],
                           json_pack("{s:s,s:i,s:s,s:i,s:i}", "type", "connect", "set", r->set,
                                     "id", event->id, "rank", i, "ranks", r->count));
}

void ranks_connected(averaging *a, const averaging_event *event)
{
    averaging_ranks *r = &a->ranks;
    if (!is_joining(a, event, RANKS_CONNECT) || ++r->joined < r->count)
        return;
    averaging_log(a, AVERAGING_INFO, "%d functions' GPUs are connected by NCCL", r->count);
    r->stage = RANKS_READY;
    if (a->out)
        ranks_merge(a);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void merge_again(averaging *a)
{
    if (takes_part(a, 0))
        ranks_merge(a);
    else
        averaging_give_up(a, ERR_NOT_FOUND, -1, "nobody leads");
}

void ranks_failed(averaging *a, err_code code, int about, const char *message)
{
    if (code == ERR_CANCELLED)
        return; /* it was told to leave */
    averaging_log(a, AVERAGING_WARN, "not averaged by NCCL: %s: %s", err_name(code), message);
    leave(a);
    a->ask++; /* what the other ranks say of it is no news */
    if (about >= 0 && a->out) {
        averaging_give_up(a, code == ERR_INVALID ? code : ERR_NOT_FOUND, about, message);
    } else if (averaging_never(code) || ++a->failures >= AVERAGING_FAILURES_MAX) {
        averaging_choose(a, REDUCE_HOST, message);
        if (a->out)
            averaging_give_up(a, ERR_NOT_FOUND, -1, message);
    } else if (a->out) {
        merge_again(a);
    }
}

/* How many ranks of the communicator have ended; `lost` of them with what they trained, `whose`
 * is one of those. */
static int count_ended(const averaging *a, int *lost, int *whose)
{
    const averaging_ranks *r = &a->ranks;
    int ended = 0;
    *lost = 0;
    *whose = -1;
    for (int i = 0; i < r->count && r->stage != RANKS_NONE; i++) {
        if (rank_is_here(a, i))
            continue;
        ended++;
        if (!in_merge(a, r->function[i]))
            continue;
        ++*lost;
        *whose = r->function[i];
    }
    return ended;
}

/* Ends are counted too: a communicator that kills its ranks is not tried for ever. */
void ranks_settle(averaging *a)
{
    int lost, whose;
    if (count_ended(a, &lost, &whose) == 0)
        return;
    leave(a);
    if (!a->out)
        return;
    a->ask++;
    if (++a->failures >= AVERAGING_FAILURES_MAX) {
        averaging_choose(a, REDUCE_HOST,
                         "functions ended again and again when they averaged there");
        averaging_give_up(a, ERR_NOT_FOUND, -1, "functions have ended");
    } else if (lost > 0) {
        averaging_give_up(a, ERR_NOT_FOUND, lost == 1 ? whose : -1,
                          "a function has ended that was to be averaged with");
    } else {
        merge_again(a);
    }
}
