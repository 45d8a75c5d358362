/* member_ranks.c: functions of one job that are processes of their own, each on a GPU of its own:
 * ranks of one of NCCL's communicators (`merge: nccl`). ps/job/averaging.h says who asks for what.
 *
 * A function leaves what it trained where it is, as in member_device.c; asked for the mean, all of
 * them sum, each into memory of its own, and rank 0 publishes it. A model is what it was sealed as
 * until then, so that a sum of which a rank was lost can be tried again by those that are left and
 * its replacement. Nobody waits for ever: for longer than MEMBER_RANKS_MS, or once kubeml-ps says
 * that the communicator is over or cannot be heard. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "member_internal.h"

enum { MEMBER_RANKS_MS = 30000, PAUSE_NS = 100000 };

/* ---- waiting --------------------------------------------------------------------------------- */

typedef struct patience {
    member *m;
    const char *failpoint;
    int64_t deadline_ms;
    bool waited;
} patience;

static int wait(void *user, err *e)
{
    patience *p = user;
    if (!p->waited)
        failpoint(p->failpoint); /* in the middle of it */
    p->waited = true;
    if (pslink_left(p->m->link, p->m->comm.set, p->m->comm.dials))
        return err_set(e, ERR_CANCELLED, "kubeml-ps gave the communicator up");
    if (clock_left_ms(p->deadline_ms) == 0)
        return err_set(e, ERR_TIMEOUT, "the other functions' GPUs did not answer for %d s",
                       MEMBER_RANKS_MS / 1000);
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    return 0;
}

/* ---- calls on the thread outside ------------------------------------------------------------- */

typedef struct call {
    member *m;
    unsigned char bytes[BACKEND_COMM_ID_BYTES];
    int rank, ranks;
    double weight;
    uint64_t sum;
    bool own;
    backend_patience patience;
} call;

static int call_device(void *of, err *e)
{
    call *c = of;
    return engine_comm_device(trainer_engine(c->m->trainer), c->bytes, e);
}

static int call_id(void *of, err *e)
{
    call *c = of;
    return engine_comm_id(trainer_engine(c->m->trainer), c->bytes, e);
}

static int call_join(void *of, err *e)
{
    call *c = of;
    return engine_comm_join(trainer_engine(c->m->trainer), c->bytes, c->rank, c->ranks,
                            &c->patience, e);
}

static int call_mean(void *of, err *e)
{
    call *c = of;
    return engine_comm_mean(trainer_engine(c->m->trainer), c->weight, &c->patience, &c->sum,
                            &c->own, e);
}

static int call_leave(void *of, err *e)
{
    call *c = of;
    (void)e;
    engine_comm_leave(trainer_engine(c->m->trainer));
    return 0;
}

void member_ranks_leave(member *m)
{
    call c = {.m = m};
    if (m->comm.set)
        unsandboxed_thread_run(m->unsandboxed_thread, call_leave, &c, NULL);
    m->comm.set = m->comm.ask = 0;
}

/* ---- joining --------------------------------------------------------------------------------- */

void member_offer_rank(member *m)
{
    call c = {.m = m};
    err e = ERR_INIT;
    m->rank[0] = m->no_rank[0] = '\0';
    if (m->request.merge != MERGE_NCCL)
        return;
    if (strcmp(engine_backend(trainer_engine(m->trainer)), "cuda") != 0)
        snprintf(m->no_rank, sizeof m->no_rank, "function %d computes on a CPU", m->function);
    else if (unsandboxed_thread_run(m->unsandboxed_thread, call_device, &c, &e) == 0)
        member_hex(c.bytes, BACKEND_DEVICE_BYTES, m->rank);
    else
        snprintf(m->no_rank, sizeof m->no_rank, "%s", e.message);
}

/* What it was asked for, or why not. Steals `answer`. */
static int tell(member *m, json_t *answer, const char *type, int set, int rc, const err *why)
{
    json_t *told = answer ? answer : json_object();
    json_object_set_new(told, "type", json_string(type));
    json_object_set_new(told, "set", json_integer(set));
    if (rc != 0) {
        log_warn("%s: %s", type, why->message);
        json_object_set_new(told, "code", json_string(err_name(why->code)));
        json_object_set_new(told, "message", json_string(why->message));
    }
    pslink_send(m->link, told);
    return 0;
}

int member_identify(member *m, const json_t *task, err *e)
{
    call c = {.m = m};
    char text[2 * BACKEND_COMM_ID_BYTES + 1];
    int set;
    err why = ERR_INIT;
    if (member_unpack(task, e, "{s:i}", "set", &set) != 0)
        return -1;
    int rc = unsandboxed_thread_run(m->unsandboxed_thread, call_id, &c, &why);
    if (rc == 0)
        member_hex(c.bytes, sizeof c.bytes, text);
    return tell(m, rc == 0 ? json_pack("{s:s}", "id", text) : NULL, "identified", set, rc, &why);
}

int member_connect(member *m, const json_t *task, err *e)
{
    call c = {.m = m};
    patience p = {
        .m = m, .failpoint = "function.connect", .deadline_ms = clock_deadline_ms(MEMBER_RANKS_MS)};
    const char *id;
    int set;
    err why = ERR_INIT;
    if (member_unpack(task, e, "{s:i,s:s,s:i,s:i}", "set", &set, "id", &id, "rank", &c.rank,
                      "ranks", &c.ranks) != 0)
        return -1;
    if (set < 1 || c.ranks < 1 || c.rank < 0 || c.rank >= c.ranks)
        return err_set(e, ERR_INVALID, "task connect: a number is out of range");
    if (member_unhex(id, c.bytes, sizeof c.bytes, e) != 0)
        return -1;
    member_enter(m, "connect", -1, -1);
    member_ranks_leave(m);
    m->comm.set = set;
    m->comm.dials = pslink_dials(m->link);
    c.patience = (backend_patience){wait, &p};
    int64_t began_ns = clock_monotonic_ns();
    int rc = unsandboxed_thread_run(m->unsandboxed_thread, call_join, &c, &why);
    if (rc == 0)
        log_info("rank %d of %d GPUs after %.0f ms", c.rank, c.ranks,
                 1e3 * member_seconds(&began_ns));
    return tell(m, NULL, "connected", set, rc, &why);
}

/* ---- the mean -------------------------------------------------------------------------------- */

/* Only what was sealed is part of a mean. */
static int check_fingerprint(member *m, const average_order *o, int own, err *e)
{
    engine_fingerprint now;
    if (engine_fingerprint_now(trainer_engine(m->trainer), &now, e) != 0)
        return -1;
    return now.sum == o->of[own].fingerprint.sum
               ? 0
               : err_set(e, ERR_CORRUPT, "the model is no longer what function %d trained",
                         m->function);
}

static int sum_models(member *m, const average_order *o, int own, engine_fingerprint *mean,
                      bool *infinite, err *e)
{
    patience p = {
        .m = m, .failpoint = "function.reduce", .deadline_ms = clock_deadline_ms(MEMBER_RANKS_MS)};
    call c = {.m = m, .weight = own < 0 ? 0 : o->of[own].weight, .patience = {wait, &p}};
    m->comm.ask = 0;
    if (own >= 0 && check_fingerprint(m, o, own, e) != 0)
        return -1;
    int rc = unsandboxed_thread_run(m->unsandboxed_thread, call_mean, &c, e);
    *infinite = c.own;
    if (rc != 0)
        return -1;
    mean->sum = c.sum;
    for (int i = 0; i < o->n; i++)
        mean->step =
            o->of[i].fingerprint.step > mean->step ? o->of[i].fingerprint.step : mean->step;
    m->comm.ask = (int)o->ask;
    m->comm.mean = *mean;
    return 0;
}

int member_sum(member *m, average_order *o, int set, err *e)
{
    engine_fingerprint mean = {.step = 0};
    uint64_t checksum = 0;
    bool infinite = false;
    int own = -1;
    err why = ERR_INIT;
    (void)e;
    for (int i = 0; i < o->n; i++)
        own = o->function[i] == m->function ? i : own;
    int rc = set == m->comm.set
                 ? 0
                 : err_set(&why, ERR_UNAVAILABLE, "this function has left the communicator");
    if (rc == 0)
        rc = sum_models(m, o, own, &mean, &infinite, &why);
    if (rc != 0)
        return member_not_averaged(m, o, infinite || why.code == ERR_CORRUPT ? own : -1, false,
                                   &why);
    if (m->function != 0)
        return 0;
    if (engine_comm_take(trainer_engine(m->trainer), &mean, &why) != 0 ||
        member_publish_mean(m, o, &checksum, &why) != 0)
        return member_not_averaged(m, o, -1, true, &why);
    return member_averaged(m, o, &mean, checksum);
}

int member_take_sum(member *m, int ask, const engine_fingerprint *mean, err *e)
{
    if (ask < 1 || ask != m->comm.ask)
        return err_set(e, ERR_NOT_FOUND, "this function has not summed it");
    if (mean->sum != m->comm.mean.sum)
        return err_set(e, ERR_CORRUPT, "its sum is another than that of function 0");
    return engine_comm_take(trainer_engine(m->trainer), mean, e);
}
