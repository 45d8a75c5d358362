/* job_ranks.c: see job_ranks.h. */
#include "job_ranks.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "ps_job_internal.h"

static conn *rank_conn(const job *j, int rank)
{
    const job_ranks *r = &j->device.ranks;
    conn *c = connections_function(j->host.connections, r->function[rank]);
    return c && c->incarnation == r->incarnation[rank] ? c : NULL;
}

bool job_ranks_has(const job *j, const conn *c)
{
    const job_ranks *r = &j->device.ranks;
    for (int i = 0; i < r->count; i++)
        if (r->function[i] == c->function && r->incarnation[i] == c->incarnation)
            return r->stage != RANKS_NONE;
    return false;
}

/* To all ranks that are there; steals the message. */
static void tell_ranks(job *j, json_t *m)
{
    for (int i = 0; i < j->device.ranks.count; i++)
        if (rank_conn(j, i))
            connections_send(j->host.connections, rank_conn(j, i), json_incref(m));
    json_decref(m);
}

void job_ranks_leave(job *j)
{
    job_ranks *r = &j->device.ranks;
    if (r->stage != RANKS_NONE)
        tell_ranks(j, json_pack("{s:s,s:i}", "type", "leave", "set", r->set));
    r->stage = RANKS_NONE;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* NCCL takes one rank of a GPU. */
static bool find_pair(const job *j, int *a, int *b)
{
    const job_ranks *r = &j->device.ranks;
    for (*b = 1; *b < j->device.functions; ++*b)
        for (*a = 0; *a < *b; ++*a)
            if (strcmp(r->gpu[*a], r->gpu[*b]) == 0)
                return true;
    return false;
}

static bool all_on_one(const job *j)
{
    const job_ranks *r = &j->device.ranks;
    for (int f = 1; f < j->device.functions; f++)
        if (strcmp(r->gpu[0], r->gpu[f]) != 0)
            return false;
    return true;
}

static bool all_said(const job *j)
{
    const job_device *d = &j->device;
    for (int f = 0; f < d->functions; f++) {
        const conn *c = connections_function(j->host.connections, f);
        if (!d->ranks.gpu[f][0] || !c || c->incarnation != d->of[f].incarnation)
            return false;
    }
    return true;
}

void job_ranks_ready(job *j, const conn *c, const device_offer *offer)
{
    job_device *d = &j->device;
    job_ranks *r = &d->ranks;
    char text[128];
    int a, b;
    snprintf(r->gpu[c->function], sizeof r->gpu[c->function], "%s", offer->rank ? offer->rank : "");
    if (d->stage == DEVICE_REFUSED || d->functions < 2)
        return;
    if (offer->no_rank) {
        job_device_settle_on(j, REDUCE_HOST, offer->no_rank);
    } else if (!all_said(j)) {
        return;
    } else if (all_on_one(j)) {
        if (offer->no_ipc_handle) /* NCCL has nothing to do there: by CUDA IPC the mean has the
                               host's bits */
            job_device_settle_on(j, REDUCE_HOST, offer->no_ipc_handle);
        else
            job_device_ask_reduce_root(j);
    } else if (find_pair(j, &a, &b)) {
        snprintf(text, sizeof text,
                 "functions %d and %d are on one GPU, of which NCCL takes one rank", a, b);
        job_device_settle_on(j, REDUCE_HOST, text);
    } else if (!r->chosen) {
        r->chosen = true;
        job_device_settle_on(j, REDUCE_NCCL, NULL);
    }
}

/* ---- a communicator -------------------------------------------------------------------------- */

static bool in_merge(const job *j, int function)
{
    const round_merge *merge = &j->device.merge;
    for (size_t i = 0; i < merge->count; i++)
        if (merge->rows[i].function == function)
            return true;
    return false;
}

/* Who has nothing to do in the round is a rank too, with no weight: the communicator stays the same
 * where shares are of different lengths, and all have the mean. */
static bool takes_part(const job *j, int function)
{
    const job_device *d = &j->device;
    const device_model *m = &d->of[function];
    const conn *c = connections_function(j->host.connections, function);
    bool busy = m->task_epoch == d->merge.epoch && m->task_round == d->merge.round;
    return c && c->incarnation == m->incarnation && d->ranks.gpu[function][0] &&
           (in_merge(j, function) || !busy);
}

bool job_ranks_reduce_root(const job *j)
{
    return takes_part(j, 0);
}

static bool is_of_merge(const job *j)
{
    const job_ranks *r = &j->device.ranks;
    int rank = 0;
    if (r->stage != RANKS_READY)
        return false;
    for (int f = 0; f < j->device.functions; f++) {
        if (!takes_part(j, f))
            continue;
        if (rank == r->count || r->function[rank] != f ||
            r->incarnation[rank] != j->device.of[f].incarnation)
            return false;
        rank++;
    }
    return rank == r->count;
}

static void make(job *j)
{
    job_ranks *r = &j->device.ranks;
    job_ranks_leave(j);
    r->set++;
    r->count = r->joined = 0;
    for (int f = 0; f < j->device.functions; f++) {
        if (!takes_part(j, f))
            continue;
        r->function[r->count] = f;
        r->incarnation[r->count++] = j->device.of[f].incarnation;
    }
    r->stage = RANKS_IDENTIFY;
    j->device.leader = r->incarnation[0];
    connections_send(j->host.connections, rank_conn(j, 0),
                     json_pack("{s:s,s:i}", "type", "identify", "set", r->set));
}

static void ask_for_mean(job *j)
{
    json_t *frame = job_device_average_frame(j);
    json_object_set_new(frame, "set", json_integer(j->device.ranks.set));
    tell_ranks(j, frame);
}

void job_ranks_merge(job *j)
{
    job_device *d = &j->device;
    d->out = true;
    d->due_ms = clock_deadline_ms(JOB_RANKS_CALL_MS);
    if (is_of_merge(j))
        ask_for_mean(j);
    else
        make(j);
}

/* The answer to `identify` or `connect`. 1: it is of another set, or nobody waits for it. */
static int read_answer(job *j, conn *c, const json_t *m, ranks_stage stage, const char **id, err *e)
{
    const char *type, *code = NULL, *message = "";
    int set;
    json_error_t problem;
    const job_ranks *r = &j->device.ranks;
    *id = NULL;
    if (json_unpack_ex((json_t *)(uintptr_t)m, &problem, JSON_STRICT, "{s:s,s:i,s?s,s?s,s?s}",
                       "type", &type, "set", &set, "id", id, "code", &code, "message", &message))
        return err_set(e, ERR_INVALID, "%s: %s", wire_type(m), problem.text);
    if (set != r->set || r->stage != stage || !job_ranks_has(j, c))
        return 1;
    if (!code)
        return 0;
    job_ranks_failed(j, err_from_name(code), -1, message);
    job_device_settle(j);
    return 1;
}

int job_ranks_identified(job *j, conn *c, const json_t *m, err *e)
{
    job_ranks *r = &j->device.ranks;
    const char *id;
    int rc = read_answer(j, c, m, RANKS_IDENTIFY, &id, e);
    if (rc != 0)
        return rc > 0 ? 0 : rc;
    if (!id)
        return err_set(e, ERR_INVALID, "identified: neither an id nor why not");
    r->stage = RANKS_CONNECT;
    for (int i = 0; i < r->count; i++)
        if (rank_conn(j, i))
            connections_send(j->host.connections, rank_conn(j, i),
                             json_pack("{s:s,s:i,s:s,s:i,s:i}", "type", "connect", "set", r->set,
                                       "id", id, "rank", i, "ranks", r->count));
    return 0;
}

int job_ranks_connected(job *j, conn *c, const json_t *m, err *e)
{
    job_ranks *r = &j->device.ranks;
    const char *id;
    int rc = read_answer(j, c, m, RANKS_CONNECT, &id, e);
    if (rc != 0)
        return rc > 0 ? 0 : rc;
    if (++r->joined < r->count)
        return 0;
    log_info("%d functions' GPUs are connected by NCCL", r->count);
    r->stage = RANKS_READY;
    if (j->device.out)
        job_ranks_merge(j);
    return 0;
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

void job_ranks_failed(job *j, err_code code, int whose, const char *message)
{
    job_device *d = &j->device;
    if (code == ERR_CANCELLED)
        return; /* it was told to */
    log_warn("not averaged by NCCL: %s: %s", err_name(code), message);
    job_ranks_leave(j);
    d->ask++; /* what the other ranks say of it is no news */
    bool never = code == ERR_UNSUPPORTED || code == ERR_NOMEM || code == ERR_LIMIT;
    if (whose >= 0 && d->out) {
        job_device_give_up(j, code == ERR_INVALID ? code : ERR_NOT_FOUND, whose, message);
    } else if (never || ++d->failures >= JOB_DEVICE_FAILURES_MAX) {
        job_device_settle_on(j, REDUCE_HOST, message);
        if (d->out)
            job_device_give_up(j, ERR_NOT_FOUND, -1, message);
    } else if (d->out && takes_part(j, 0)) {
        job_ranks_merge(j);
    } else if (d->out) {
        job_device_give_up(j, ERR_NOT_FOUND, -1, "nobody leads");
    }
}

/* Ends are counted too: a communicator that kills its ranks is not tried for ever. */
void job_ranks_settle(job *j)
{
    job_device *d = &j->device;
    const job_ranks *r = &d->ranks;
    int ended = 0, lost = 0, whose = -1; /* lost: with what it trained */
    for (int i = 0; i < r->count && r->stage != RANKS_NONE; i++) {
        if (rank_conn(j, i))
            continue;
        ended++;
        if (!in_merge(j, r->function[i]))
            continue;
        lost++;
        whose = r->function[i];
    }
    if (ended == 0)
        return;
    job_ranks_leave(j);
    if (!d->out)
        return;
    d->ask++;
    if (++d->failures >= JOB_DEVICE_FAILURES_MAX) {
        job_device_settle_on(j, REDUCE_HOST,
                             "functions ended again and again when they averaged there");
        job_device_give_up(j, ERR_NOT_FOUND, -1, "functions have ended");
    } else if (lost > 0) {
        job_device_give_up(j, ERR_NOT_FOUND, lost == 1 ? whose : -1,
                           "a function has ended that was to be averaged with");
    } else if (takes_part(j, 0)) {
        job_ranks_merge(j);
    } else {
        job_device_give_up(j, ERR_NOT_FOUND, -1, "nobody leads");
    }
}
