/* group.c: see group.h. */
#include "group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "merge.h"
#include "parallel.h"

typedef struct function {
    trainer *trainer;
    block block;            /* where the host averages */
    uint32_t batches, done; /* of the epoch */
    trainer_result result;  /* of the round */
    int status;
    err why;
} function;

struct group {
    group_config config;
    function *functions;
    average_choice choice;
    block merged;
    trainer_task task;
    char reason[TRAINER_REASON_BYTES];
};

/* ---- open ---------------------------------------------------------------------------------------- */

static int block_make(const state *s, block *out, err *e)
{
    size_t counters = state_counters(s);
    *out = (block){.floats = malloc(state_floats(s) * sizeof(float)),
                   .counters = calloc(counters ? counters : 1, sizeof(int64_t))};
    return out->floats && out->counters ? 0 : err_set(e, ERR_NOMEM, "no memory for a model of %zu numbers", state_floats(s));
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
    average_facts facts = {.functions = n, .one_process = true, .device = device, .wish = g->config.wish};
    if (average_choose(&facts, &g->choice, e) != 0)
        return -1;
    /* Without optimizer state the models' blocks differ from what is averaged. */
    if (g->config.trainer.reset_optimizer && g->choice.path != AVERAGE_HOST)
        return err_set(e, ERR_UNSUPPORTED, "on a GPU the optimizer's state is averaged with the weights");
    const state *s = trainer_state(g->functions[0].trainer);
    for (int i = 0; i < n && g->choice.path == AVERAGE_HOST; i++)
        if (block_make(s, &g->functions[i].block, e) != 0)
            return -1;
    return g->choice.path == AVERAGE_HOST ? block_make(s, &g->merged, e) : 0;
}

int group_open(const group_config *c, group **out, char reason[TRAINER_REASON_BYTES], err *e)
{
    snprintf(reason, TRAINER_REASON_BYTES, "LoadFailed");
    if (c->functions < 1 || c->functions > GROUP_FUNCTIONS_MAX || c->gpus < 1 || (c->k < 1 && c->k != -1))
        return err_set(e, ERR_INVALID, "%d functions on %d GPUs, %d batches a round", c->functions, c->gpus, c->k);
    group *g = calloc(1, sizeof *g);
    if (g)
        g->functions = calloc((size_t)c->functions, sizeof *g->functions);
    int rc = g && g->functions ? 0 : err_set(e, ERR_NOMEM, "no memory for %d functions", c->functions);
    if (rc == 0)
        g->config = *c;
    for (int i = 0; rc == 0 && i < c->functions; i++) {
        trainer_config t = c->trainer;
        t.device += i % c->gpus;
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

const average_choice *group_choice(const group *g)
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

/* ---- averaging ----------------------------------------------------------------------------------- */

static int average_on_host(group *g, err *e)
{
    merge_input in[GROUP_FUNCTIONS_MAX];
    const void *chunks[GROUP_FUNCTIONS_MAX][2];
    const merge_rule *mean;
    merge_result result;
    int n = g->config.functions;
    const layout *l = state_layout(trainer_state(g->functions[0].trainer));
    if (merge_rule_find("mean", &mean, e) != 0)
        return -1;
    for (int i = 0; i < n; i++) {
        function *f = &g->functions[i];
        in[i] = (merge_input){.function = i, .samples = f->result.samples};
        if (state_export(trainer_state(f->trainer), f->block, NULL, e) != 0 ||
            block_checksum(l->shape, f->block, merge_threads(l->shape, 1), &in[i].checksum, e) != 0)
            return -1;
        merge_input_contiguous(&in[i], &f->block, chunks[i]);
    }
    if (merge_run(mean, l->shape, in, n, g->merged, merge_threads(l->shape, n), &result, e) != 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (state_import(trainer_state(g->functions[i].trainer), g->merged, e) != 0)
            return -1;
    return 0;
}

/* The weights of those that trained, as common/merge.h computes them. */
static int average_on_device(group *g, err *e)
{
    engine *models[GROUP_FUNCTIONS_MAX] = {NULL};
    uint64_t samples[GROUP_FUNCTIONS_MAX];
    double some[GROUP_FUNCTIONS_MAX], weight[GROUP_FUNCTIONS_MAX] = {0};
    int trained[GROUP_FUNCTIONS_MAX], count = 0, n = g->config.functions;
    const merge_rule *mean;
    if (merge_rule_find("mean", &mean, e) != 0)
        return -1;
    for (int i = 0; i < n; i++) {
        models[i] = trainer_engine(g->functions[i].trainer);
        if (g->functions[i].result.samples == 0)
            continue;
        samples[count] = g->functions[i].result.samples;
        trained[count++] = i;
    }
    mean->weights(samples, count, some);
    for (int i = 0; i < count; i++)
        weight[trained[i]] = some[i];
    return engine_average(models, weight, n, g->choice.path == AVERAGE_NCCL, e);
}

int group_copy_first(group *g, err *e)
{
    engine *first = trainer_engine(g->functions[0].trainer);
    for (int i = 1; i < g->config.functions; i++) {
        const float *floats = engine_floats(first, e);
        const int64_t *counters = engine_counters(first, e);
        if (!floats || !counters || engine_import(trainer_engine(g->functions[i].trainer), floats, counters, e) != 0)
            return -1;
    }
    return 0;
}

/* ---- an epoch ------------------------------------------------------------------------------------ */

static void train_function(size_t i, void *user)
{
    group *g = user;
    function *f = &g->functions[i];
    trainer_task task = g->task;
    uint32_t left = f->batches - f->done, k = g->config.k < 0 ? left : (uint32_t)g->config.k;
    f->result = (trainer_result){0};
    f->status = 0;
    if (left == 0)
        return;
    task.parallelism = g->config.functions;
    task.function = (int)i;
    task.batch_begin = f->done;
    task.batch_count = left < k ? left : k;
    f->why = (err)ERR_INIT;
    f->status = trainer_train(f->trainer, &task, &f->result, &f->why);
}

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
static int train_round(group *g, trainer_result *out, err *e)
{
    parallel_for((size_t)g->config.functions, g->config.together, train_function, g);
    for (int i = 0; i < g->config.functions; i++) {
        function *f = &g->functions[i];
        if (f->status != 0) {
            snprintf(g->reason, sizeof g->reason, "%s", trainer_reason(f->trainer));
            *e = f->why;
            return -1;
        }
        f->done += f->result.batches;
        add(out, &f->result);
    }
    snprintf(g->reason, sizeof g->reason, "MergeFailed");
    if (g->config.functions == 1)
        return 0;
    return g->choice.path == AVERAGE_HOST ? average_on_host(g, e) : average_on_device(g, e);
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
    *out = (trainer_result){0};
    g->task = *task;
    for (int i = 0; i < g->config.functions; i++) {
        function *f = &g->functions[i];
        f->done = 0;
        snprintf(g->reason, sizeof g->reason, "DataError");
        if (trainer_batches(f->trainer, task->epoch, g->config.functions, i, &f->batches, e) != 0)
            return -1;
    }
    while (!over(g))
        if (train_round(g, out, e) != 0)
            return -1;
    return 0;
}

int group_validate(group *g, uint32_t epoch, trainer_result *out, err *e)
{
    int rc = trainer_validate(g->functions[0].trainer, epoch, 1, 0, out, e);
    snprintf(g->reason, sizeof g->reason, "%s", trainer_reason(g->functions[0].trainer));
    return rc;
}
