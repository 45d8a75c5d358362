/* fake_function.c: see fake_function.h. */
#include "fake_function.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/contract/shard_plan.h"
#include "common/modelstore/merge.h"
#include "common/modelstore/modelstore.h"
#include "common/net/wire.h"

enum { HEARTBEAT_MS = 500, CALL_MS = 30000, TRY_MS = 2000 };

typedef struct peer {
    const fake_function *f;
    wire *wire;
    modelstore *models;
    modelstore_access access;
    layout layout;
    bool begun;
    int64_t told_ms; /* when its last heartbeat was */
    bool attached, misbehaved; /* the faults that are no end come once */
    char phase[16];
    struct { /* of `nccl` */
        int set, rank, ranks, ask; /* 0: none */
        char id[80], sum[20];
    } comm;
    json_t *next; /* came while others were waited for */
} peer;

static void fail(const char *what, const err *e)
{
    fprintf(stderr, "fake function: %s: %s\n", what, e->message);
    _exit(3);
}

static bool fault(const peer *p, const char *name, int epoch, int round)
{
    return p->f->fault && strcmp(p->f->fault, name) == 0 && epoch == p->f->fault_epoch &&
           round == p->f->fault_round;
}

enum { IPC_HANDLE_BYTES = 400 };

static void ipc_handle_of(const peer *p, const char *what, char out[IPC_HANDLE_BYTES])
{
    snprintf(out, IPC_HANDLE_BYTES, "%s/%s-%d-%d", p->f->device, what, p->f->function,
             p->f->incarnation);
}

/* What it has on the device goes with it. */
static void end(const peer *p)
{
    static const char *const mine[] = {"model", "mean"};
    char ipc_handle[IPC_HANDLE_BYTES];
    for (int i = 0; i < 2 && p->f->device; i++) {
        ipc_handle_of(p, mine[i], ipc_handle);
        unlink(ipc_handle);
    }
    raise(SIGKILL);
}

static void die(const peer *p, const char *name, int epoch, int round)
{
    if (fault(p, name, epoch, round))
        end(p);
}

static void say(peer *p, json_t *message)
{
    err e = ERR_INIT;
    if (wire_send_wait(p->wire, message, clock_deadline_ms(CALL_MS), &e))
        _exit(0); /* kubeml-ps went */
    json_decref(message);
}

static void heartbeat(peer *p)
{
    p->told_ms = clock_monotonic_ms();
    say(p, json_pack("{s:s,s:s,s:i,s:i,s:i,s:o*}", "type", "heartbeat", "phase", p->phase, "epoch",
                     0, "round", 0, "batches", 0, "begun", p->begun ? json_true() : NULL));
}

/* Nobody else says for it that it lives: what takes long calls this on its way, or a slow machine
 * makes of it a function that was lost. */
static void beat(peer *p)
{
    if (clock_monotonic_ms() - p->told_ms >= HEARTBEAT_MS)
        heartbeat(p);
}

static void say_failed(peer *p)
{
    say(p, json_pack("{s:s,s:s,s:s,s:s}", "type", "failed", "code", "invalid", "reason", "NaNLoss",
                     "message", "the loss is not a number"));
}

/* Returns once it stands still. */
static void stop_ps(const peer *p)
{
    char path[64], stat[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)p->f->ps);
    kill(p->f->ps, SIGSTOP);
    for (int64_t deadline = clock_deadline_ms(CALL_MS);;) {
        FILE *f = fopen(path, "r");
        bool read = f && fgets(stat, sizeof stat, f);
        if (f)
            fclose(f);
        const char *name_end = read ? strrchr(stat, ')') : NULL;
        if (name_end && name_end[1] == ' ' && name_end[2] == 'T')
            return;
        if (clock_monotonic_ms() > deadline)
            _exit(4);
        usleep(200);
    }
}

/* ---- the model ------------------------------------------------------------------------------- */

static void make_layout(peer *p)
{
    uint64_t n = (uint64_t)p->f->floats + (p->f->fault && strcmp(p->f->fault, "shape") == 0);
    layout_entry entries[] = {
        {.name = "fc.weight", .kind = LAYOUT_PARAM, .rank = 2, .dims = {n, 2}},
        {.name = "bn.running_mean", .kind = LAYOUT_BUFFER, .rank = 1, .dims = {3}},
        {.name = "optimizer.momentum.fc.weight", .kind = LAYOUT_STATE, .rank = 2, .dims = {n, 2}},
        {.name = "optimizer.step", .kind = LAYOUT_COUNTER, .rank = 0}};
    err e = ERR_INIT;
    if (layout_make(entries, sizeof entries / sizeof entries[0], &p->layout, &e))
        fail("layout", &e);
}

static void train_sample(const peer *p, block b, uint32_t sample, float lr)
{
    for (uint64_t i = 0; i < p->layout.shape.floats; i++)
        b.floats[i] = b.floats[i] * 0.97f +
                      lr * (float)((sample * 2654435761u + (uint32_t)i * 40503u) >> 16) / 65536.0f;
}

static double sample_loss(uint32_t sample)
{
    return 1.0 + (double)(sample % 17) / 17.0;
}

/* The model store's Redis may be dead, or alive and still empty: worth another try for a while. A
 * try may take its whole deadline, and only a heartbeat shows that kubeml-ps went too. */
static bool again(peer *p, err *e, int *tries)
{
    bool late = e->code == ERR_TIMEOUT;
    if ((!late && e->code != ERR_UNAVAILABLE && e->code != ERR_NOT_FOUND) ||
        ++*tries > (late ? 10 : 1000))
        return false;
    err_clear(e);
    usleep(20000);
    beat(p);
    return true;
}

static void open_models(peer *p)
{
    err e = ERR_INIT;
    int tries = 0;
    if (modelstore_access_parse(json_object_get(p->f->access, "model"), &p->access, &e))
        fail("model store", &e);
    while (
        modelstore_open(&p->access, MODELSTORE_MEMBER, clock_deadline_ms(TRY_MS), &p->models, &e))
        if (!again(p, &e, &tries))
            fail("model store", &e);
}

static void ensure_attached(peer *p)
{
    err e = ERR_INIT;
    int tries = 0;
    while (!p->attached) {
        p->attached = modelstore_attach(p->models, NULL, clock_deadline_ms(TRY_MS), &e) == 0;
        if (!p->attached && !again(p, &e, &tries))
            fail("attach", &e);
    }
}

static bool fetch(peer *p, int64_t version, block to)
{
    err e = ERR_INIT;
    int tries = 0;
    modelstore_state state;
    do {
        if (modelstore_fetch(p->models, version, to, clock_deadline_ms(TRY_MS), &state, &e) == 0)
            return true;
    } while (again(p, &e, &tries));
    if (e.code != ERR_STALE)
        fail("fetch", &e);
    return false;
}

/* ERR_STALE and ERR_CONFLICT are what a late function must expect; the rest is our fault. */
static bool publish(peer *p, const modelstore_publication *to, block b)
{
    err e = ERR_INIT;
    int tries = 0;
    do {
        if (modelstore_publish(p->models, to, &b, clock_deadline_ms(TRY_MS), NULL, &e) == 0)
            return true;
    } while (again(p, &e, &tries));
    if (e.code != ERR_STALE && e.code != ERR_CONFLICT)
        fail("publish", &e);
    return false;
}

static block new_block(const peer *p, void **memory)
{
    if (posix_memalign(memory, BLOCK_ALIGN, block_bytes(p->layout.shape)))
        _exit(4);
    memset(*memory, 0, block_bytes(p->layout.shape));
    return block_at(*memory, p->layout.shape);
}

/* ---- the device ------------------------------------------------------------------------------ */

static void write_model(const peer *p, const char *ipc_handle, block b)
{
    unlink(ipc_handle); /* others may be reading what was there */
    FILE *f = fopen(ipc_handle, "w");
    const block_shape s = p->layout.shape;
    if (!f || fwrite(b.floats, sizeof *b.floats, s.floats, f) != s.floats ||
        fwrite(b.counters, sizeof *b.counters, s.counters, f) != s.counters || fclose(f))
        _exit(6);
}

static uint64_t sum_of(const peer *p, block b)
{
    err e = ERR_INIT;
    uint64_t sum;
    if (block_checksum(p->layout.shape, b, 1, &sum, &e))
        fail("checksum", &e);
    return sum;
}

/* Whether it is what was lent. */
static bool read_model(const peer *p, const char *ipc_handle, const char *sum, block to)
{
    FILE *f = fopen(ipc_handle, "r");
    const block_shape s = p->layout.shape;
    bool whole = f && fread(to.floats, sizeof *to.floats, s.floats, f) == s.floats &&
                 fread(to.counters, sizeof *to.counters, s.counters, f) == s.counters;
    if (f)
        fclose(f);
    return whole && sum_of(p, to) == strtoull(sum, NULL, 16);
}

static void note(const peer *p, const char *what)
{
    char path[IPC_HANDLE_BYTES];
    snprintf(path, sizeof path, "%s/%s", p->f->device, what);
    FILE *f = fopen(path, "a");
    if (!f || fputc('.', f) == EOF || fclose(f))
        _exit(6);
}

static bool once(peer *p, const char *name, int epoch, int round)
{
    if (p->misbehaved || !fault(p, name, epoch, round))
        return false;
    return p->misbehaved = true;
}

/* New reference. */
static json_t *keep_model(const peer *p, block b)
{
    char ipc_handle[IPC_HANDLE_BYTES], sum[20];
    ipc_handle_of(p, "model", ipc_handle);
    write_model(p, ipc_handle, b);
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)sum_of(p, b));
    return json_pack("{s:s,s:I}", "sum", sum, "step", (json_int_t)b.counters[0]);
}

static bool adopt(const peer *p, const json_t *mean, block to)
{
    const char *ipc_handle = NULL, *sum, *checksum;
    char own[IPC_HANDLE_BYTES];
    int ask = 0;
    json_int_t step;
    ipc_handle_of(p, "mean", own);
    if (json_unpack((json_t *)(uintptr_t)mean, "{s?s,s?i,s:s,s:I,s:s}", "loan", &ipc_handle, "ask",
                    &ask, "sum", &sum, "step", &step, "checksum", &checksum) ||
        (ipc_handle ? p->f->nccl : ask != p->comm.ask || ask == 0) ||
        !read_model(p, ipc_handle ? ipc_handle : own, sum, to))
        return false;
    note(p, "adopted");
    return true;
}

static void take_lead(peer *p)
{
    char ipc_handle[IPC_HANDLE_BYTES];
    bool refuses = p->f->fault && strcmp(p->f->fault, "refuse") == 0;
    die(p, "lead", 0, 0);
    ipc_handle_of(p, "mean", ipc_handle);
    say(p, json_pack("{s:s,s:s}", "type", "leads", refuses ? "message" : "mean",
                     refuses ? "walls between processes" : ipc_handle));
}

static void say_not_averaged(peer *p, int ask, const char *code, int function)
{
    say(p, json_pack("{s:s,s:i,s:s,s:s,s:i}", "type", "averaged", "ask", ask, "code", code,
                     "message", "it cannot be read", "function", function));
}

typedef struct average_task {
    int ask, set;
    json_int_t epoch, round;
    modelstore_publication to;
    json_t *models;
} average_task;

enum { MODELS_MAX = 16 };

/* What function `f` has for the mean: lent, or brought to the sum. */
static void source_of(const peer *p, const average_task *t, const char *ipc_handle, int f,
                      char out[IPC_HANDLE_BYTES])
{
    if (t->set)
        snprintf(out, IPC_HANDLE_BYTES, "%s/%s-%d-%d", p->f->device, p->comm.id, t->ask, f);
    else
        snprintf(out, IPC_HANDLE_BYTES, "%s", ipc_handle);
}

/* The mean of all models with the bits of the host's; false: it was told why there is none. */
static bool merge_models(peer *p, average_task *t, block mean)
{
    merge_input in[MODELS_MAX];
    const void *chunks[MODELS_MAX][2];
    void *memory[MODELS_MAX];
    block models[MODELS_MAX];
    const merge_rule *rule;
    merge_result result;
    json_t *one;
    err e = ERR_INIT;
    size_t i;
    int n = 0, bad = -1;
    if (json_array_size(t->models) > MODELS_MAX || merge_rule_find("mean", &rule, &e))
        _exit(5);
    json_array_foreach(t->models, i, one)
    {
        const char *ipc_handle = NULL, *sum;
        char from[IPC_HANDLE_BYTES];
        json_int_t samples, step;
        int function;
        if (json_unpack(one, "{s:i,s:I,s?s,s:s,s:I}", "function", &function, "samples", &samples,
                        "loan", &ipc_handle, "sum", &sum, "step", &step))
            _exit(5);
        source_of(p, t, ipc_handle, function, from);
        models[n] = new_block(p, &memory[n]);
        if (!read_model(p, from, sum, models[n]) && bad < 0)
            bad = function;
        in[n] = (merge_input){.function = function, .samples = (uint64_t)samples,
                              .checksum = sum_of(p, models[n])};
        merge_input_contiguous(&in[n], &models[n], chunks[n]);
        t->to.samples += (uint64_t)samples;
        n++;
    }
    if (bad >= 0)
        say_not_averaged(p, t->ask, "corrupt", bad);
    else if (merge_run(rule, p->layout.shape, in, n, mean, 1, &result, &e))
        say_not_averaged(p, t->ask, "invalid", bad = result.bad >= 0 ? in[result.bad].function : 0);
    while (n > 0)
        free(memory[--n]);
    return bad < 0;
}

static void publish_mean(peer *p, const average_task *t, block mean)
{
    char ipc_handle[IPC_HANDLE_BYTES], sums[2][20];
    uint64_t checksum;
    err e = ERR_INIT;
    ipc_handle_of(p, "mean", ipc_handle);
    write_model(p, ipc_handle, mean);
    snprintf(sums[0], sizeof sums[0], "%016llx", (unsigned long long)sum_of(p, mean));
    if (t->set) {
        p->comm.ask = t->ask;
        if (p->f->function != 0)
            return;
    }
    note(p, "averaged");
    if (modelstore_publish(p->models, &t->to, &mean, clock_deadline_ms(TRY_MS), &checksum, &e)) {
        say_not_averaged(p, t->ask, err_name(e.code), -1);
        return;
    }
    die(p, "averaged", (int)t->epoch, (int)t->round);
    snprintf(sums[1], sizeof sums[1], "%016llx", (unsigned long long)checksum);
    say(p, json_pack("{s:s,s:i,s:s,s:I,s:s}", "type", "averaged", "ask", t->ask, "sum", sums[0],
                     "step", (json_int_t)mean.counters[0], "checksum", sums[1]));
}

/* ---- what is NCCL to it ---------------------------------------------------------------------- */

/* Whether the files of all ranks came before kubeml-ps said `leave`, or anything else. */
static bool await_ranks(peer *p, const char *what, int number)
{
    char path[IPC_HANDLE_BYTES];
    for (int rank = 0; rank < p->comm.ranks;) {
        err e = ERR_INIT;
        json_t *m = NULL;
        snprintf(path, sizeof path, "%s/%s-%s%d-%d", p->f->device, p->comm.id, what, number, rank);
        if (access(path, F_OK) == 0) {
            rank++;
            continue;
        }
        if (wire_receive_wait(p->wire, &m, clock_deadline_ms(5), &e) == 0) {
            if (strcmp(wire_type(m), "leave") == 0) {
                json_decref(m);
                p->comm.set = 0;
                return false;
            }
            if (p->next)
                _exit(5);
            p->next = m; /* rank 0 has it already, and the next task came */
        } else if (e.code != ERR_TIMEOUT)
            _exit(0);
        beat(p);
    }
    return true;
}

static void show(const peer *p, const char *what, int number)
{
    char path[IPC_HANDLE_BYTES];
    snprintf(path, sizeof path, "%s/%s-%s%d-%d", p->f->device, p->comm.id, what, number,
             p->comm.rank);
    FILE *f = fopen(path, "w");
    if (!f || fclose(f))
        _exit(6);
}

static void take_identify(peer *p, const json_t *m)
{
    char id[80];
    int set = (int)json_integer_value(json_object_get(m, "set"));
    die(p, "identify", 0, 0);
    snprintf(id, sizeof id, "comm-%d-%d-%d", set, p->f->incarnation, (int)getpid());
    say(p, json_pack("{s:s,s:i,s:s}", "type", "identified", "set", set, "id", id));
}

static void say_error(peer *p, const char *type, const char *key, int number)
{
    p->comm.set = 0;
    say(p, json_pack("{s:s,s:i,s:s,s:s}", "type", type, key, number, "code", "unavailable",
                     "message", "the link is down"));
}

static void take_connect(peer *p, const json_t *m)
{
    const char *id;
    if (json_unpack((json_t *)(uintptr_t)m, "{s:i,s:s,s:i,s:i}", "set", &p->comm.set, "id", &id,
                    "rank", &p->comm.rank, "ranks", &p->comm.ranks))
        _exit(5);
    snprintf(p->comm.id, sizeof p->comm.id, "%s", id);
    die(p, "connect", 0, 0);
    if (fault(p, "freeze_connect", 0, 0))
        raise(SIGSTOP);
    if (once(p, "error_connect", 0, 0) || fault(p, "broken", 0, 0)) {
        say_error(p, "connected", "set", p->comm.set);
        return;
    }
    show(p, "joined", 0);
    if (await_ranks(p, "joined", 0))
        say(p, json_pack("{s:s,s:i}", "type", "connected", "set", p->comm.set));
}

/* Whether all have brought theirs. */
static bool bring(peer *p, const average_task *t)
{
    char own[IPC_HANDLE_BYTES], to[IPC_HANDLE_BYTES];
    ipc_handle_of(p, "model", own);
    if (t->set != p->comm.set) {
        say_error(p, "averaged", "ask", t->ask);
        return false;
    }
    source_of(p, t, "", p->f->function, to);
    /* the model is written anew, not over; who has not trained has none */
    if (link(own, to) && errno != ENOENT)
        _exit(6);
    die(p, "reduce", (int)t->epoch, (int)t->round);
    if (fault(p, "freeze_reduce", (int)t->epoch, (int)t->round))
        raise(SIGSTOP);
    if (once(p, "error_reduce", (int)t->epoch, (int)t->round)) {
        say_error(p, "averaged", "ask", t->ask);
        return false;
    }
    show(p, "brought", t->ask);
    return await_ranks(p, "brought", t->ask);
}

static void take_average(peer *p, const json_t *m)
{
    average_task t = {.to = {.function = p->f->function, .incarnation = p->f->incarnation}};
    void *memory;
    block mean = new_block(p, &memory);
    if (json_unpack((json_t *)(uintptr_t)m, "{s:i,s:I,s:I,s:I,s:i,s?i,s:o}", "ask", &t.ask, "epoch",
                    &t.epoch, "round", &t.round, "version", &t.to.version, "slot", &t.to.slot,
                    "set", &t.set, "models", &t.models))
        _exit(5);
    t.to.epoch = (int)t.epoch, t.to.round = (int)t.round;
    die(p, "average", (int)t.epoch, (int)t.round);
    if (fault(p, "freeze_average", (int)t.epoch, (int)t.round))
        raise(SIGSTOP);
    if (once(p, "refuse_average", (int)t.epoch, (int)t.round))
        say_not_averaged(p, t.ask, "unsupported", 1);
    else if ((!t.set || bring(p, &t)) && merge_models(p, &t, mean))
        publish_mean(p, &t, mean);
    free(memory);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void take_init(peer *p, const json_t *m)
{
    int epoch, round, slot;
    json_int_t seed;
    void *memory;
    if (json_unpack((json_t *)m, "{s:i,s:i,s:i,s:I}", "epoch", &epoch, "round", &round, "slot",
                    &slot, "seed", &seed))
        _exit(5);
    die(p, "init", -1, 0);
    ensure_attached(p);
    block b = new_block(p, &memory);
    for (uint64_t i = 0; i < p->layout.shape.floats; i++)
        b.floats[i] = (float)(((uint64_t)seed + i) % 101) / 101.0f;
    if (p->layout.shape.counters)
        b.counters[0] = 0;
    const modelstore_publication to = {.epoch = epoch,
                                       .round = round,
                                       .version = -1,
                                       .function = p->f->function,
                                       .incarnation = p->f->incarnation,
                                       .samples = 1,
                                       .slot = slot};
    if (publish(p, &to, b))
        say(p, json_pack("{s:s}", "type", "initialised"));
    free(memory);
}

typedef struct train_task {
    int epoch, round, parallelism, slot;
    json_int_t version, begin, count;
    double lr;
    uint64_t sample_begin, sample_end;
    double loss;
} train_task;

static void train(peer *p, train_task *t, block b)
{
    shard_plan d = {0};
    err e = ERR_INIT;
    const shard_plan_spec spec = {.seed = p->f->seed,
                                  .samples = p->f->train_samples,
                                  .chunk_samples = FAKE_CHUNK_SAMPLES,
                                  .batch_size = (uint32_t)p->f->batch_size,
                                  .parallelism = t->parallelism,
                                  .epoch = (uint32_t)t->epoch};
    if (shard_plan_init(&d, &spec, &e))
        fail("deal", &e);
    uint32_t *order = calloc(d.share[p->f->function] + 1, sizeof *order);
    shard_plan_order(&d, p->f->function, order);
    shard_plan_samples(&d, p->f->function, (uint32_t)t->begin, (uint32_t)t->count, &t->sample_begin,
                       &t->sample_end);
    for (uint64_t i = t->sample_begin; i < t->sample_end; i++) {
        uint32_t chunk, offset;
        shard_plan_locate(&d, p->f->function, order[i], &chunk, &offset);
        train_sample(p, b, chunk * FAKE_CHUNK_SAMPLES + offset, (float)t->lr);
        beat(p);
        t->loss += sample_loss(chunk * FAKE_CHUNK_SAMPLES + offset);
        if (i == (t->sample_begin + t->sample_end) / 2) {
            die(p, "train", t->epoch, t->round);
            if (fault(p, "begun", t->epoch, t->round)) {
                stop_ps(p);
                p->begun = true;
                heartbeat(p);
                end(p);
            }
            if (fault(p, "lastwords", t->epoch, t->round)) {
                stop_ps(p);
                say_failed(p);
                end(p);
            }
            if (fault(p, "freeze", t->epoch, t->round))
                raise(SIGSTOP);
        }
    }
    b.counters[0] += t->count;
    free(order);
    shard_plan_free(&d);
}

/* Half of the weights are in the slot when it dies. */
static void half_publish(peer *p, const train_task *t, block b)
{
    err e = ERR_INIT;
    block slot;
    if (!fault(p, "publish", t->epoch, t->round))
        return;
    if (modelstore_slot(p->models, t->slot, &slot, &e))
        fail("slot", &e);
    memcpy(slot.floats, b.floats, (size_t)p->layout.shape.floats * 2);
    end(p);
}

/* The same where they go over a socket: some of its chunks are there, and the last is not. */
static void chunk_publish(const peer *p, const train_task *t)
{
    if (!fault(p, "chunk", t->epoch, t->round))
        return;
    setenv("KUBEML_FAILPOINT", "chunk-sent:2", 1);
    failpoint_open(NULL);
}

static void take_train(peer *p, const json_t *m)
{
    train_task t = {0};
    int function;
    void *memory;
    if (json_unpack((json_t *)m, "{s:i,s:i,s:I,s:i,s:i,s:I,s:I,s:F,s:i}", "epoch", &t.epoch,
                    "round", &t.round, "version", &t.version, "parallelism", &t.parallelism,
                    "function", &function, "batch_begin", &t.begin, "batch_count", &t.count, "lr",
                    &t.lr, "slot", &t.slot) ||
        function != p->f->function)
        _exit(5);
    const json_t *losses = json_object_get(m, "validation_losses");
    if (!p->f->needs_losses == !!losses || (losses && json_array_size(losses) != (size_t)t.epoch))
        _exit(6);
    die(p, "fetch", t.epoch, t.round);
    ensure_attached(p);
    block b = new_block(p, &memory);
    if (!adopt(p, json_object_get(m, "mean"), b) && !fetch(p, t.version, b)) {
        free(memory);
        return;
    }
    train(p, &t, b);
    if (fault(p, "nan", t.epoch, t.round))
        b.floats[1] = NAN;
    if (fault(p, "nanloss", t.epoch, t.round)) {
        say_failed(p);
        free(memory);
        return;
    }
    half_publish(p, &t, b);
    chunk_publish(p, &t);
    const modelstore_publication to = {.epoch = t.epoch,
                                       .round = t.round,
                                       .version = t.version,
                                       .function = function,
                                       .incarnation = p->f->incarnation,
                                       .samples = t.sample_end - t.sample_begin,
                                       .slot = t.slot};
    json_t *fingerprint = json_is_true(json_object_get(m, "keep")) ? keep_model(p, b) : NULL;
    bool kept = fingerprint, done = kept || publish(p, &to, b);
    die(p, "published", t.epoch, t.round);
    if (kept && once(p, "spoiled", t.epoch, t.round)) {
        char ipc_handle[IPC_HANDLE_BYTES];
        ipc_handle_of(p, "model", ipc_handle);
        b.floats[0] += 1;
        write_model(p, ipc_handle, b);
    }
    if (done)
        say(p, json_pack("{s:s,s:i,s:i,s:I,s:I,s:I,s:f,s:I,s:{s:f,s:f,s:f,s:f,s:f},s:o*}", "type",
                         "published", "epoch", t.epoch, "round", t.round, "samples",
                         (json_int_t)to.samples, "sample_begin", (json_int_t)t.sample_begin,
                         "sample_end", (json_int_t)t.sample_end, "loss_sum", t.loss, "batches",
                         t.count, "seconds", "fetch", 0.0, "load", 0.0, "convert", 0.0, "train",
                         0.0, "publish", 0.0, "seal", fingerprint));
    if (kept)
        die(p, "sealed", t.epoch, t.round);
    if (fault(p, "garbage", t.epoch, t.round))
        say(p, json_pack("{s:s}", "type", "nonsense"));
    die(p, "wait", t.epoch, t.round);
    free(memory);
}

static void take_validate(peer *p, const json_t *m)
{
    int epoch, parallelism;
    json_int_t version;
    uint32_t begin, end;
    uint64_t samples;
    void *memory;
    if (json_unpack((json_t *)m, "{s:i,s:I,s:i}", "epoch", &epoch, "version", &version,
                    "parallelism", &parallelism))
        _exit(5);
    die(p, "validate", epoch, 0);
    ensure_attached(p);
    block b = new_block(p, &memory);
    if (!adopt(p, json_object_get(m, "mean"), b) && !fetch(p, version, b))
        _exit(3);
    shard_plan_test_share(FAKE_TEST_SAMPLES, FAKE_CHUNK_SAMPLES, parallelism, p->f->function,
                          &begin, &end, &samples);
    say(p, json_pack("{s:s,s:i,s:I,s:f,s:I}", "type", "validated", "epoch", epoch, "samples",
                     (json_int_t)samples, "loss_sum", fabs((double)b.floats[0]) * (double)samples,
                     "correct", (json_int_t)(samples / 2)));
    free(memory);
}

/* ---- the conversation ---------------------------------------------------------------------- */

static json_t *receive(peer *p)
{
    json_t *next = p->next;
    p->next = NULL;
    if (next)
        return next;
    for (;;) {
        json_t *m = NULL;
        err e = ERR_INIT;
        if (wire_receive_wait(p->wire, &m, clock_deadline_ms(HEARTBEAT_MS), &e) == 0)
            return m;
        if (e.code != ERR_TIMEOUT)
            _exit(0);
        heartbeat(p);
    }
}

static void join(peer *p)
{
    char hex[20];
    const fake_function *f = p->f;
    say(p, json_pack("{s:s,s:s,s:s,s:i,s:i,s:i,s:s,s:i,s:i}", "type", "hello", "token", f->secret,
                     "job", f->job, "function", f->function, "incarnation", f->incarnation, "pid",
                     (int)getpid(), "cpu", "fake", "threads", 1, "abi", 1));
    json_t *answer = receive(p);
    if (strcmp(wire_type(answer), "welcome") != 0)
        _exit(0); /* refused: another incarnation is wanted by now */
    json_decref(answer);
    die(p, "load", 0, 0);
    make_layout(p);
    open_models(p);
    if (fault(p, "unable", 0, 0))
        say_failed(p);
    char ipc_handle[IPC_HANDLE_BYTES];
    bool walled = f->fault && strcmp(f->fault, "walled") == 0;
    if (f->device)
        ipc_handle_of(p, "model", ipc_handle);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)p->layout.digest);
    char gpu[16];
    bool missing = f->fault && strcmp(f->fault, "missing") == 0,
         pair = f->fault && strcmp(f->fault, "pair") == 0;
    snprintf(gpu, sizeof gpu, "GPU-%d", pair ? 0 : f->function);
    say(p, json_pack("{s:s,s:o,s:i,s:s,s:s,s:o*,s:s*,s:s*,s:s*,s:s*}", "type", "ready", "layout",
                     layout_json(&p->layout), "parameters", f->floats * 2, "layout_digest", hex,
                     "algorithms", "adding", "needs_losses", f->needs_losses ? json_true() : NULL,
                     "loan", f->device && !walled ? ipc_handle : NULL, "no_loan",
                     f->device && walled ? "walls around it" : NULL, "rank",
                     f->nccl && !missing ? gpu : NULL, "no_rank",
                     f->nccl && missing ? "NCCL is not installed" : NULL));
}

int fake_function_run(const fake_function *f)
{
    peer p = {.f = f, .phase = "wait"};
    err e = ERR_INIT;
    p.wire = wire_dial(json_string_value(json_object_get(f->access, "address")),
                       clock_deadline_ms(CALL_MS), &e);
    if (!p.wire)
        return 0; /* kubeml-ps is gone already */
    join(&p);
    for (;;) {
        json_t *m = receive(&p);
        const char *type = wire_type(m);
        if (strcmp(type, "init") == 0)
            take_init(&p, m);
        else if (strcmp(type, "train") == 0)
            take_train(&p, m);
        else if (strcmp(type, "validate") == 0)
            take_validate(&p, m);
        else if (strcmp(type, "lead") == 0)
            take_lead(&p);
        else if (strcmp(type, "average") == 0)
            take_average(&p, m);
        else if (strcmp(type, "identify") == 0)
            take_identify(&p, m);
        else if (strcmp(type, "connect") == 0)
            take_connect(&p, m);
        else if (strcmp(type, "stop") == 0)
            break;
        json_decref(m);
    }
    modelstore_close(p.models);
    layout_free(&p.layout);
    wire_close(p.wire);
    return 0;
}
