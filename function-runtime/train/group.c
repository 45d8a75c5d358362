/* group.c: see group.h. */
#include "group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/parallel.h"
#include "common/modelstore/merge.h"

typedef struct function {
    trainer *trainer;
    block block;            /* where the host averages */
    uint32_t batches, done; /* of the epoch */
    int status;
    err why;
} function;

struct group {
    group_config config;
    function *functions;
    reduce_placement choice;
    block merged;
    bool alike; /* all hold what a device averaged last */
    char reason[TRAINER_REASON_BYTES];
};

/* ---- open ------------------------------------------------------------------------------------ */

static int block_make(const state *s, block *out, err *e)
{
    size_t counters = state_counters(s);
    *out = (block){.floats = malloc(state_floats(s) * sizeof(float)),
                   .counters = calloc(counters ? counters : 1, sizeof(int64_t))};
    return out->floats && out->counters
               ? 0
               : err_set(e, ERR_NOMEM, "no memory for a model of %zu numbers", state_floats(s));
}

static int decide(group *g, err *e)
{
    int device[GROUP_FUNCTIONS_MAX], n = g->config.functions;
    engine *models[GROUP_FUNCTIONS_MAX] = {NULL};
    for (int i = 0; i < n; i++)
        models[i] = trainer_engine(g->functions[i].trainer);
    bool there = engine_averages(models, n);
    for (int i = 0; i < n; i++)
        device[i] = there ? engine_device(models[i]) : -1;
    reduce_facts facts = {.functions = n,
                          .one_process = true,
                          .device = device,
                          .wish = g->config.wish,
                          .weights_alone = g->config.trainer.reset_optimizer};
    if (reduce_placement_choose(&facts, &g->choice, e) != 0)
        return -1;
    const state *s = trainer_state(g->functions[0].trainer);
    for (int i = 0; i < n && g->choice.path == REDUCE_HOST; i++)
        if (block_make(s, &g->functions[i].block, e) != 0)
            return -1;
    return g->choice.path == REDUCE_HOST ? block_make(s, &g->merged, e) : 0;
}

int group_open(const group_config *c, group **out, char reason[TRAINER_REASON_BYTES], err *e)
{
    snprintf(reason, TRAINER_REASON_BYTES, "LoadFailed");
    if (c->functions < 1 || c->functions > GROUP_FUNCTIONS_MAX || c->gpus < 1 ||
        (c->k < 1 && c->k != -1))
        return err_set(e, ERR_INVALID, "%d functions on %d GPUs, %d batches a round", c->functions,
                       c->gpus, c->k);
    group *g = calloc(1, sizeof *g);
    if (g)
        g->functions = calloc((size_t)c->functions, sizeof *g->functions);
    int rc =
        g && g->functions ? 0 : err_set(e, ERR_NOMEM, "no memory for %d functions", c->functions);
    if (rc == 0)
        g->config = *c;
    for (int i = 0; rc == 0 && i < c->functions; i++) {
        trainer_config t = c->trainer;
        t.device += i % c->gpus;
        t.together = c->functions;
        if ((rc = trainer_open(&t, &g->functions[i].trainer, reason, e)) != 0)
            err_wrap(e, "function %d", i);
    }
    if (rc != 0 || decide(g, e) != 0) {
        group_close(g);
        return -1;
    }
    *out = g;
    return 0;
}

void group_close(group *g)
{
    if (!g)
        return;
    for (int i = 0; g->functions && i < g->config.functions; i++) {
        trainer_close(g->functions[i].trainer);
        free(g->functions[i].block.floats);
        free(g->functions[i].block.counters);
    }
    free(g->functions);
    free(g->merged.floats);
    free(g->merged.counters);
    free(g);
}

const reduce_placement *group_choice(const group *g)
{
    return &g->choice;
}

trainer *group_trainer(group *g)
{
    return g->functions[0].trainer;
}

const char *group_reason(const group *g)
{
    return g->reason;
}

/* ---- averaging ------------------------------------------------------------------------------- */

static int average_on_host(group *g, const group_part *parts, int n, block to, err *e)
{
    merge_input in[GROUP_FUNCTIONS_MAX];
    const void *chunks[GROUP_FUNCTIONS_MAX][2];
    merge_result result;
    int count = 0;
    const layout *l = state_layout(trainer_state(g->functions[0].trainer));
    for (int i = 0; i < n; i++) {
        function *f = &g->functions[parts[i].function];
        merge_input *one = &in[count];
        if (parts[i].result.samples == 0)
            continue;
        *one = (merge_input){.function = parts[i].function, .samples = parts[i].result.samples};
        if (state_export(trainer_state(f->trainer), f->block, NULL, e) != 0 ||
            block_checksum(l->shape, f->block, merge_threads(l->shape, 1), &one->checksum, e) != 0)
            return -1;
        merge_input_contiguous(one, &f->block, chunks[count++]);
    }
    return merge_run(merge_rule_default(), l->shape, in, count, to, merge_threads(l->shape, count), &result, e);
}

/* The weights of those that trained, as common/modelstore/merge.h computes them. */
static int average_on_device(group *g, const group_part *parts, int n, err *e)
{
    engine *models[GROUP_FUNCTIONS_MAX] = {NULL};
    uint64_t samples[GROUP_FUNCTIONS_MAX];
    double some[GROUP_FUNCTIONS_MAX], weight[GROUP_FUNCTIONS_MAX] = {0};
    int trained[GROUP_FUNCTIONS_MAX], count = 0;
    for (int i = 0; i < g->config.functions; i++)
        models[i] = trainer_engine(g->functions[i].trainer);
    for (int i = 0; i < n; i++) {
        if (parts[i].result.samples == 0)
            continue;
        samples[count] = parts[i].result.samples;
        trained[count++] = parts[i].function;
    }
    if (count == 0)
        return err_set(e, ERR_INVALID, "nobody has trained");
    merge_rule_default()->weights(samples, count, some);
    for (int i = 0; i < count; i++)
        weight[trained[i]] = some[i];
    g->alike =
        engine_average(models, weight, g->config.functions, g->choice.path == REDUCE_NCCL, e) == 0;
    return g->alike ? 0 : -1;
}

int group_mean(group *g, const group_part *parts, int n, block to, void (*half)(void), err *e)
{
    if (g->choice.path != REDUCE_HOST)
        return average_on_device(g, parts, n, e) != 0
                   ? -1
                   : state_export(trainer_state(group_trainer(g)), to, half, e);
    if (half)
        half();
    return average_on_host(g, parts, n, to, e);
}

int group_import(group *g, block from, err *e)
{
    g->alike = false;
    for (int i = 0; i < g->config.functions; i++)
        if (state_import(trainer_state(g->functions[i].trainer), from, e) != 0)
            return -1;
    return 0;
}

int group_take_mean(group *g, block mean, err *e)
{
    return g->alike ? 0 : group_import(g, mean, e);
}

int group_copy_first(group *g, err *e)
{
    engine *first = trainer_engine(g->functions[0].trainer);
    g->alike = false;
    for (int i = 1; i < g->config.functions; i++) {
        const float *floats = engine_floats(first, e);
        const int64_t *counters = engine_counters(first, e);
        if (!floats || !counters ||
            engine_import(trainer_engine(g->functions[i].trainer), floats, counters, e) != 0)
            return -1;
    }
    return 0;
}

/* ---- one round, one validation ---- */

/* What the functions' threads work on. */
typedef struct work {
    group *group;
    trainer_task task;
    group_part *parts;
} work;

static void train_part(size_t i, void *user)
{
    work *w = user;
    group_part *part = &w->parts[i];
    function *f = &w->group->functions[part->function];
    trainer_task task = w->task;
    part->result = (trainer_result){0};
    f->why = (err)ERR_INIT;
    f->status = 0;
    if (part->batch_count == 0)
        return;
    task.function = part->function;
    task.batch_begin = part->batch_begin;
    task.batch_count = part->batch_count;
    f->status = trainer_train(f->trainer, &task, &part->result, &f->why);
}

static void validate_part(size_t i, void *user)
{
    work *w = user;
    group_part *part = &w->parts[i];
    function *f = &w->group->functions[part->function];
    f->why = (err)ERR_INIT;
    f->status = trainer_validate(f->trainer, w->task.epoch, w->task.parallelism, part->function,
                                 &part->result, &f->why);
}

/* The first failure, in function order: which thread was first is chance. */
static int run_parts(work *w, int n, void (*one)(size_t, void *), err *e)
{
    group *g = w->group;
    parallel_for((size_t)n, g->config.together, one, w);
    for (int i = 0; i < n; i++) {
        function *f = &g->functions[w->parts[i].function];
        if (f->status != 0) {
            snprintf(g->reason, sizeof g->reason, "%s", trainer_reason(f->trainer));
            *e = f->why;
            return -1;
        }
    }
    return 0;
}

int group_train_parts(group *g, const trainer_task *task, group_part *parts, int n, err *e)
{
    g->alike = false;
    return run_parts(&(work){.group = g, .task = *task, .parts = parts}, n, train_part, e);
}

int group_validate_parts(group *g, uint32_t epoch, int parallelism, group_part *parts, int n,
                         err *e)
{
    work w = {.group = g, .task = {.epoch = epoch, .parallelism = parallelism}, .parts = parts};
    return run_parts(&w, n, validate_part, e);
}

uint32_t group_progress(const group *g)
{
    uint32_t done = 0;
    for (int i = 0; i < g->config.functions; i++)
        done += trainer_progress(g->functions[i].trainer);
    return done;
}

/* ---- an epoch without a server ---- */

static void add(trainer_result *sum, const trainer_result *r)
{
    sum->samples += r->samples;
    sum->batches += r->batches;
    sum->loss_sum += r->loss_sum;
    sum->correct += r->correct;
    sum->load_s += r->load_s;
    sum->convert_s += r->convert_s;
    sum->train_s += r->train_s;
}

/* Seconds are those of the functions, one after the other. */
static int train_round(group *g, const trainer_task *task, trainer_result *out, err *e)
{
    group_part parts[GROUP_FUNCTIONS_MAX];
    int n = g->config.functions;
    for (int i = 0; i < n; i++) {
        function *f = &g->functions[i];
        uint32_t left = f->batches - f->done, k = g->config.k < 0 ? left : (uint32_t)g->config.k;
        parts[i] =
            (group_part){.function = i, .batch_begin = f->done, .batch_count = left < k ? left : k};
    }
    if (group_train_parts(g, task, parts, n, e) != 0)
        return -1;
    for (int i = 0; i < n; i++) {
        g->functions[i].done += parts[i].result.batches;
        add(out, &parts[i].result);
    }
    snprintf(g->reason, sizeof g->reason, "MergeFailed");
    if (n == 1)
        return 0;
    if (g->choice.path != REDUCE_HOST)
        return average_on_device(g, parts, n, e);
    return average_on_host(g, parts, n, g->merged, e) != 0 ? -1 : group_import(g, g->merged, e);
}

static bool over(const group *g)
{
    for (int i = 0; i < g->config.functions; i++)
        if (g->functions[i].done < g->functions[i].batches)
            return false;
    return true;
}

int group_train(group *g, const trainer_task *task, trainer_result *out, err *e)
{
    trainer_task all = *task;
    *out = (trainer_result){0};
    all.parallelism = g->config.functions;
    for (int i = 0; i < g->config.functions; i++) {
        function *f = &g->functions[i];
        f->done = 0;
        snprintf(g->reason, sizeof g->reason, "DataError");
        if (trainer_batches(f->trainer, task->epoch, g->config.functions, i, &f->batches, e) != 0)
            return -1;
    }
    while (!over(g))
        if (train_round(g, &all, out, e) != 0)
            return -1;
    return 0;
}

int group_validate(group *g, uint32_t epoch, trainer_result *out, err *e)
{
    int rc = trainer_validate(g->functions[0].trainer, epoch, 1, 0, out, e);
    snprintf(g->reason, sizeof g->reason, "%s", trainer_reason(g->functions[0].trainer));
    return rc;
}
