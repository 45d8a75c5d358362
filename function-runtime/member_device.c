/* member_device.c: functions of one job that are processes of their own on one GPU: averaged there.
 *
 * A function lends its model (engine_lend) and, when it is told to, leaves what it trained where it
 * is and tells its seal. Function 0 leads: it averages what the others lent, publishes that as its
 * own contribution, and lends it, so that the next reference need not come from the model store.
 * Whatever cannot be done here is told, or done through the model store: kubeml-ps
 * (ps/job_device.h) has the round trained again where that is needed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "failpoint.h"
#include "log.h"
#include "member_internal.h"
#include "merge.h"

/* ---- loans and sums as texts
 * --------------------------------------------------------------------- */

_Static_assert(MEMBER_LOAN_BYTES > 2 * sizeof(backend_loan), "a loan's text is two digits a byte");

static void write_loan(const backend_loan *l, char out[MEMBER_LOAN_BYTES])
{
    const unsigned char *bytes = (const unsigned char *)l;
    for (size_t i = 0; i < sizeof *l; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int read_loan(const char *text, backend_loan *out, err *e)
{
    unsigned char bytes[sizeof *out];
    if (!text || strlen(text) != 2 * sizeof bytes)
        return err_set(e, ERR_INVALID, "a loan of another length");
    for (size_t i = 0; i < sizeof bytes; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return err_set(e, ERR_INVALID, "a loan that is no text of hexadecimal digits");
        bytes[i] = (unsigned char)(high << 4 | low);
    }
    memcpy(out, bytes, sizeof *out);
    return 0;
}

static int read_sum(const char *text, uint64_t *out, err *e)
{
    int used = 0;
    return sscanf(text, "%16" SCNx64 "%n", out, &used) == 1 && text[used] == '\0'
               ? 0
               : err_set(e, ERR_INVALID, "a sum of another form: %.40s", text);
}

static void write_sum(uint64_t sum, char out[20])
{
    snprintf(out, 20, "%016" PRIx64, sum);
}

/* ---- lending
 * ------------------------------------------------------------------------------------- */

void member_lend(member *m)
{
    backend_loan loan;
    err e = ERR_INIT;
    m->loan[0] = m->no_loan[0] = '\0';
    if (m->group || m->request.optimizer_state == STATE_RESET ||
        strcmp(engine_backend(trainer_engine(m->trainer)), "cuda") != 0)
        return;
    const char *where = getenv("KUBEML_GPU_AVERAGE");
    if (where && strcmp(where, "host") == 0)
        snprintf(m->no_loan, sizeof m->no_loan, "KUBEML_GPU_AVERAGE says so");
    else if (engine_lend(trainer_engine(m->trainer), &loan, &e) == 0)
        write_loan(&loan, m->loan);
    else
        snprintf(m->no_loan, sizeof m->no_loan, "%s", e.message);
}

json_t *member_seal(member *m)
{
    engine_seal seal;
    err e = ERR_INIT;
    char sum[20];
    if (engine_sealed(trainer_engine(m->trainer), &seal, &e) != 0) {
        log_warn("what was trained does not stay on the GPU: %s", e.message);
        return NULL;
    }
    write_sum(seal.sum, sum);
    return json_pack("{s:s,s:I}", "sum", sum, "step", (json_int_t)seal.step);
}

/* ---- the mean
 * ------------------------------------------------------------------------------------ */

/* Only if it is the reference that the model store has: its checksum is asked for, not its bytes.
 */
static int adopt(member *m, int64_t version, const json_t *mean, int64_t deadline_ms, err *e)
{
    const char *text, *sum, *checksum;
    json_int_t step;
    uint64_t published;
    backend_loan loan;
    engine_seal seal;
    modelstore_state at;
    if (json_unpack((json_t *)(uintptr_t)mean, "{s:s,s:s,s:I,s:s}", "loan", &text, "sum", &sum,
                    "step", &step, "checksum", &checksum) != 0)
        return err_set(e, ERR_INVALID, "the mean is of another form");
    if (read_loan(text, &loan, e) != 0 || read_sum(sum, &seal.sum, e) != 0 ||
        read_sum(checksum, &published, e) != 0 ||
        modelstore_state_get(m->store, deadline_ms, &at, e) != 0)
        return -1;
    if (at.version != version || at.checksum != published)
        return err_set(e, ERR_STALE, "the model store has another reference");
    seal.step = step;
    return engine_adopt(trainer_engine(m->trainer), &loan, &seal, e);
}

bool member_adopt(member *m, int64_t version, const json_t *mean, int64_t deadline_ms)
{
    err e = ERR_INIT;
    if (!mean || !m->attached)
        return false;
    if (adopt(m, version, mean, deadline_ms, &e) == 0)
        return true;
    log_info("version %lld is fetched: %s", (long long)version, e.message);
    return false;
}

/* ---- leading
 * ------------------------------------------------------------------------------------- */

int member_lead(member *m, const json_t *task, err *e)
{
    const json_t *models = json_object_get(task, "models"), *one;
    backend_loan loans[ENGINE_AVERAGE_MAX], mean;
    char text[MEMBER_LOAN_BYTES];
    size_t i, n = json_array_size(models);
    err why = ERR_INIT;
    int rc = n <= ENGINE_AVERAGE_MAX ? 0
                                     : err_set(&why, ERR_UNSUPPORTED,
                                               "there are more than %d models", ENGINE_AVERAGE_MAX);
    (void)e;
    json_array_foreach(models, i, one) if (rc == 0) rc =
        read_loan(json_string_value(one), &loans[i], &why);
    if (rc == 0)
        rc = engine_lead(trainer_engine(m->trainer), loans, (int)n, &mean, &why);
    if (rc == 0)
        write_loan(&mean, text);
    pslink_send(m->link, json_pack("{s:s,s:s}", "type", "leads", rc == 0 ? "mean" : "message",
                                   rc == 0 ? text : why.message));
    return 0;
}

typedef struct average_order {
    json_int_t ask, epoch, round, version, slot;
    engine_peer of[ENGINE_AVERAGE_MAX];
    int function[ENGINE_AVERAGE_MAX];
    uint64_t samples;
    int n;
} average_order;

/* The weights of those that trained, as common/merge.h computes them. */
static int read_models(const json_t *models, average_order *o, err *e)
{
    uint64_t samples[ENGINE_AVERAGE_MAX];
    double weight[ENGINE_AVERAGE_MAX];
    const merge_rule *mean;
    const json_t *one;
    size_t i;
    if (json_array_size(models) > ENGINE_AVERAGE_MAX || merge_rule_find("mean", &mean, e) != 0)
        return err_set(e, ERR_UNSUPPORTED, "%zu models to average", json_array_size(models));
    json_array_foreach(models, i, one)
    {
        engine_peer *p = &o->of[o->n];
        const char *loan, *sum;
        json_int_t count, step;
        if (json_unpack((json_t *)(uintptr_t)one, "{s:i,s:I,s:s,s:s,s:I}", "function",
                        &o->function[o->n], "samples", &count, "loan", &loan, "sum", &sum, "step",
                        &step) != 0)
            return err_set(e, ERR_INVALID, "task average: a model of another form");
        if (count <= 0)
            continue; /* it has no weight, and is not read */
        if (read_loan(loan, &p->where, e) != 0 || read_sum(sum, &p->seal.sum, e) != 0)
            return -1;
        p->seal.step = step;
        samples[o->n++] = (uint64_t)count;
        o->samples += (uint64_t)count;
    }
    if (o->n == 0)
        return err_set(e, ERR_INVALID, "nobody has trained");
    mean->weights(samples, o->n, weight);
    for (int k = 0; k < o->n; k++)
        o->of[k].weight = weight[k];
    return 0;
}

static int tell_not_averaged(member *m, const average_order *o, int bad, const err *why)
{
    log_warn("not averaged: %s", why->message);
    json_t *told = json_pack("{s:s,s:I,s:s,s:s}", "type", "averaged", "ask", o->ask, "code",
                             err_name(why->code), "message", why->message);
    if (bad >= 0)
        json_object_set_new(told, "function", json_integer(o->function[bad]));
    pslink_send(m->link, told);
    return 0;
}

/* The mean, published as what this function trained would be. */
static int average(member *m, average_order *o, engine_seal *seal, uint64_t *checksum, int *bad,
                   err *e)
{
    engine *g = trainer_engine(m->trainer);
    modelstore_publication p = {.epoch = o->epoch,
                                .round = o->round,
                                .version = o->version,
                                .function = m->function,
                                .incarnation = m->incarnation,
                                .samples = o->samples,
                                .slot = (int)o->slot};
    backend_loan mean;
    block to;
    if (engine_average_lent(g, o->of, o->n, seal, bad, e) != 0 ||
        engine_lead(g, NULL, 0, &mean, e) != 0 || engine_adopt(g, &mean, seal, e) != 0)
        return -1;
    failpoint("function.average");
    if (member_slot(m, p.slot, &to, e) != 0 ||
        state_export(trainer_state(m->trainer), to, member_half_published, e) != 0)
        return -1;
    int rc = member_publish(m, &p, checksum, e);
    return rc > 0 ? err_set(e, ERR_STALE, "the round was over already") : rc;
}

int member_average(member *m, const json_t *task, err *e)
{
    average_order o = {.n = 0};
    engine_seal seal;
    uint64_t checksum;
    int bad = -1;
    char sums[2][20];
    err why = ERR_INIT;
    if (member_unpack(task, e, "{s:I,s:I,s:I,s:I,s:I}", "ask", &o.ask, "epoch", &o.epoch, "round",
                      &o.round, "version", &o.version, "slot", &o.slot) != 0)
        return -1;
    if (o.slot < 0 || o.slot >= MODELSTORE_SLOTS_MAX)
        return err_set(e, ERR_INVALID, "task average: a number is out of range");
    member_enter(m, "average", o.epoch, o.round);
    m->touched = true;
    if (read_models(json_object_get(task, "models"), &o, &why) != 0 ||
        average(m, &o, &seal, &checksum, &bad, &why) != 0)
        return tell_not_averaged(m, &o, bad, &why);
    write_sum(seal.sum, sums[0]);
    write_sum(checksum, sums[1]);
    pslink_send(m->link, json_pack("{s:s,s:I,s:s,s:I,s:s}", "type", "averaged", "ask", o.ask, "sum",
                                   sums[0], "step", (json_int_t)seal.step, "checksum", sums[1]));
    return 0;
}
