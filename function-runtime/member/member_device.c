/* member_device.c: averages functions of one job that are processes of their own on one GPU.
 *
 * A function offers its model by an IPC handle (engine_lend). With `keep` in a task it leaves the
 * trained model on the GPU and reports its fingerprint. Function 0 is the reduce root: it averages
 * the models of all functions, publishes the mean as its own contribution, and offers the mean by
 * an IPC handle, so that the next reference need not come from the model store. A step that fails
 * here is reported, or done through the model store: kubeml-ps (ps/job/averaging.h) has the round
 * trained again where that is needed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/modelstore/merge.h"
#include "member_internal.h"

/* ---- IPC handles and sums as text ------------------------------------------------------------ */

_Static_assert(MEMBER_IPC_HANDLE_BYTES > 2 * sizeof(backend_ipc_handle),
               "a handle's text is two digits a byte");

void member_hex(const unsigned char *bytes, size_t count, char *out)
{
    for (size_t i = 0; i < count; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int member_unhex(const char *text, unsigned char *out, size_t count, err *e)
{
    if (!text || strlen(text) != 2 * count)
        return err_set(e, ERR_INVALID, "a text of other than %zu hexadecimal digits", 2 * count);
    for (size_t i = 0; i < count; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return err_set(e, ERR_INVALID, "a text that is no hexadecimal digits");
        out[i] = (unsigned char)(high << 4 | low);
    }
    return 0;
}

static void write_ipc_handle(const backend_ipc_handle *l, char out[MEMBER_IPC_HANDLE_BYTES])
{
    member_hex((const unsigned char *)l, sizeof *l, out);
}

static int read_ipc_handle(const char *text, backend_ipc_handle *out, err *e)
{
    unsigned char bytes[sizeof *out];
    if (member_unhex(text, bytes, sizeof bytes, e) != 0)
        return err_wrap(e, "a loan");
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

/* ---- offering the model ---------------------------------------------------------------------- */

void member_lend(member *m)
{
    backend_ipc_handle ipc_handle;
    err e = ERR_INIT;
    m->ipc_handle[0] = m->no_ipc_handle[0] = '\0';
    if (m->group || m->request.optimizer_state == STATE_RESET ||
        strcmp(engine_backend(trainer_engine(m->trainer)), "cuda") != 0)
        return;
    const char *where = getenv("KUBEML_GPU_AVERAGE");
    if (where && strcmp(where, "host") == 0)
        snprintf(m->no_ipc_handle, sizeof m->no_ipc_handle, "KUBEML_GPU_AVERAGE says so");
    else if (engine_lend(trainer_engine(m->trainer), &ipc_handle, &e) == 0)
        write_ipc_handle(&ipc_handle, m->ipc_handle);
    else
        snprintf(m->no_ipc_handle, sizeof m->no_ipc_handle, "%s", e.message);
}

json_t *member_fingerprint(member *m)
{
    engine_fingerprint fingerprint;
    err e = ERR_INIT;
    char sum[20];
    if (engine_fingerprint_now(trainer_engine(m->trainer), &fingerprint, &e) != 0) {
        log_warn("what was trained does not stay on the GPU: %s", e.message);
        return NULL;
    }
    write_sum(fingerprint.sum, sum);
    return json_pack("{s:s,s:I}", "sum", sum, "step", (json_int_t)fingerprint.step);
}

/* ---- the mean -------------------------------------------------------------------------------- */

/* Takes the mean only if it is the model store's present reference, which the checksum shows: the
 * bytes are not fetched. */
static int adopt(member *m, int64_t version, const json_t *mean, int64_t deadline_ms, err *e)
{
    const char *text = NULL, *sum, *checksum;
    json_int_t step;
    int ask = 0; /* other than 0: summed between GPUs, and every function has the mean */
    uint64_t published;
    backend_ipc_handle ipc_handle;
    engine_fingerprint fingerprint;
    modelstore_state at;
    if (json_unpack((json_t *)(uintptr_t)mean, "{s?s,s?i,s:s,s:I,s:s}", "loan", &text, "ask", &ask,
                    "sum", &sum, "step", &step, "checksum", &checksum) != 0)
        return err_set(e, ERR_INVALID, "the mean is of another form");
    if ((!ask && read_ipc_handle(text, &ipc_handle, e) != 0) ||
        read_sum(sum, &fingerprint.sum, e) != 0 || read_sum(checksum, &published, e) != 0 ||
        modelstore_state_get(m->store, deadline_ms, &at, e) != 0)
        return -1;
    if (at.version != version || at.checksum != published)
        return err_set(e, ERR_STALE, "the model store has another reference");
    fingerprint.step = step;
    return ask ? member_take_sum(m, ask, &fingerprint, e)
               : engine_adopt(trainer_engine(m->trainer), &ipc_handle, &fingerprint, e);
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

/* ---- the reduce root ------------------------------------------------------------------------- */

int member_reduce_root(member *m, const json_t *task, err *e)
{
    const json_t *models = json_object_get(task, "models"), *one;
    backend_ipc_handle ipc_handles[ENGINE_AVERAGE_MAX], mean;
    char text[MEMBER_IPC_HANDLE_BYTES];
    size_t i, n = json_array_size(models);
    err why = ERR_INIT;
    int rc = n <= ENGINE_AVERAGE_MAX ? 0
                                     : err_set(&why, ERR_UNSUPPORTED,
                                               "there are more than %d models", ENGINE_AVERAGE_MAX);
    (void)e;
    json_array_foreach(models, i, one) if (rc == 0)
            rc = read_ipc_handle(json_string_value(one), &ipc_handles[i], &why);
    if (rc == 0)
        rc = engine_reduce_root(trainer_engine(m->trainer), ipc_handles, (int)n, &mean, &why);
    if (rc == 0)
        write_ipc_handle(&mean, text);
    pslink_send(m->link, json_pack("{s:s,s:s}", "type", "leads", rc == 0 ? "mean" : "message",
                                   rc == 0 ? text : why.message));
    return 0;
}

/* Reads the models that trained, with the weights that common/modelstore/merge.h computes. */
static int read_models(const json_t *models, bool ipc, average_order *o, err *e)
{
    uint64_t samples[ENGINE_AVERAGE_MAX];
    double weight[ENGINE_AVERAGE_MAX];
    const json_t *one;
    size_t i;
    if (json_array_size(models) > ENGINE_AVERAGE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%zu models to average", json_array_size(models));
    json_array_foreach(models, i, one)
    {
        engine_peer *p = &o->of[o->n];
        const char *ipc_handle = NULL, *sum;
        json_int_t count, step;
        if (json_unpack((json_t *)(uintptr_t)one, "{s:i,s:I,s?s,s:s,s:I}", "function",
                        &o->function[o->n], "samples", &count, "loan", &ipc_handle, "sum", &sum,
                        "step", &step) != 0)
            return err_set(e, ERR_INVALID, "task average: a model of another form");
        if (count <= 0)
            continue; /* the model has no weight, and is not read */
        if ((ipc && read_ipc_handle(ipc_handle, &p->where, e) != 0) ||
            read_sum(sum, &p->fingerprint.sum, e) != 0)
            return -1;
        p->fingerprint.step = step;
        samples[o->n++] = (uint64_t)count;
        o->samples += (uint64_t)count;
    }
    if (o->n == 0)
        return err_set(e, ERR_INVALID, "nobody has trained");
    merge_rule_default()->weights(samples, o->n, weight);
    for (int k = 0; k < o->n; k++)
        o->of[k].weight = weight[k];
    return 0;
}

int member_not_averaged(member *m, const average_order *o, int bad, bool averaged, const err *why)
{
    log_warn("not averaged: %s", why->message);
    json_t *told = json_pack("{s:s,s:I,s:s,s:s}", "type", "averaged", "ask", o->ask, "code",
                             err_name(why->code), "message", why->message);
    if (bad >= 0)
        json_object_set_new(told, "function", json_integer(o->function[bad]));
    if (averaged)
        json_object_set_new(told, "unpublished", json_true());
    pslink_send(m->link, told);
    return 0;
}

int member_averaged(member *m, const average_order *o, const engine_fingerprint *mean,
                    uint64_t checksum)
{
    char sums[2][20];
    write_sum(mean->sum, sums[0]);
    write_sum(checksum, sums[1]);
    pslink_send(m->link,
                json_pack("{s:s,s:I,s:s,s:I,s:s}", "type", "averaged", "ask", o->ask, "sum",
                          sums[0], "step", (json_int_t)mean->step, "checksum", sums[1]));
    return 0;
}

int member_publish_mean(member *m, const average_order *o, uint64_t *checksum, err *e)
{
    modelstore_publication p = {.epoch = o->epoch,
                                .round = o->round,
                                .version = o->version,
                                .function = m->function,
                                .incarnation = m->incarnation,
                                .samples = o->samples,
                                .slot = (int)o->slot};
    block to;
    failpoint("function.average");
    int rc = member_slot(m, p.slot, &to, e);
    if (rc == 0)
        rc = state_export(trainer_state(m->trainer), to, member_half_published, e);
    if (rc == 0)
        rc = member_publish(m, &p, checksum, e);
    return rc > 0 ? err_set(e, ERR_STALE, "the round was over already") : rc;
}

/* Averages the functions' models, and publishes the mean like a contribution of this function. */
static int average_ipc(member *m, average_order *o)
{
    engine *g = trainer_engine(m->trainer);
    engine_fingerprint fingerprint;
    backend_ipc_handle mean;
    uint64_t checksum;
    int bad = -1;
    err why = ERR_INIT;
    if (engine_average_ipc(g, o->of, o->n, &fingerprint, &bad, &why) != 0 ||
        engine_reduce_root(g, NULL, 0, &mean, &why) != 0 ||
        engine_adopt(g, &mean, &fingerprint, &why) != 0 ||
        member_publish_mean(m, o, &checksum, &why) != 0)
        return member_not_averaged(m, o, bad, false, &why);
    return member_averaged(m, o, &fingerprint, checksum);
}

int member_average(member *m, const json_t *task, err *e)
{
    average_order o = {.n = 0};
    int set = 0; /* of `merge: nccl` */
    err why = ERR_INIT;
    if (member_unpack(task, e, "{s:I,s:I,s:I,s:I,s:I,s?i}", "ask", &o.ask, "epoch", &o.epoch,
                      "round", &o.round, "version", &o.version, "slot", &o.slot, "set", &set) != 0)
        return -1;
    if (o.slot < 0 || o.slot >= MODELSTORE_SLOTS_MAX || o.ask < 1 || o.ask > INT32_MAX)
        return err_set(e, ERR_INVALID, "task average: a number is out of range");
    member_enter(m, "average", o.epoch, o.round);
    if (read_models(json_object_get(task, "models"), set == 0, &o, &why) != 0)
        return member_not_averaged(m, &o, -1, false, &why);
    return set ? member_sum(m, &o, set, e) : average_ipc(m, &o);
}
