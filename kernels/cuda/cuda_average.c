/* cuda_average.c: the mean of several programs of this process, on their devices; see backend.h.
 *
 * On one device the blocks are merged in the order of the programs, with the bits of
 * common/modelstore/merge.h. Over several devices, the programs of each device are summed in order.
 * The driver's library then adds these sums, in an order of its own. */
#include <string.h>

#include "cuda_models.h"

/* The programs of one device, in order; the first one's blocks take the sum. */
typedef struct team {
    program *member[CUDA_MERGE_MAX], *with_samples[CUDA_MERGE_MAX];
    double weight[CUDA_MERGE_MAX];
    int members, inputs;
} team;

static float *block_of(const program *p, int which)
{
    const cuda_model own = cuda_model_own(p);
    return cuda_model_block(&own, which);
}

static int find_team(team *teams, int *count, program *p)
{
    for (int i = 0; i < *count; i++)
        if (teams[i].member[0]->c.device == p->c.device)
            return i;
    teams[*count] = (team){.members = 0};
    return (*count)++;
}

/* Sums a block of the team into its first program. Where no program of the device has samples, the
 * sum is zero: it adds nothing, and the device still gets the sum of all. */
static int sum_team(team *t, int which, int32_t *finite, err *e)
{
    program *first = t->member[0];
    size_t count = cuda_model_count(first, which);
    const float *in[CUDA_MERGE_MAX];
    float *out = block_of(first, which);
    for (int i = 0; i < t->inputs; i++)
        in[i] = block_of(t->with_samples[i], which);
    if (t->inputs == 0)
        return first->d->zero(first->dev, out, count * sizeof *out, e);
    if (count)
        cuda_merge(first->d->stream(first->dev), t->inputs, in, t->weight, count, out, finite);
    return 0;
}

static int sum_teams(team *teams, int count, int which, err *e)
{
    device *devs[CUDA_MERGE_MAX];
    float *blocks[CUDA_MERGE_MAX];
    size_t floats = cuda_model_count(teams[0].member[0], which);
    const driver *d = teams[0].member[0]->d;
    for (int i = 0; i < count; i++) {
        devs[i] = teams[i].member[0]->dev;
        blocks[i] = block_of(teams[i].member[0], which);
    }
    return floats ? d->sum(devs, blocks, count, floats, e) : 0;
}

/* Fails where a program holds NaN or infinity. The flag lies in the place of a step's result, which
 * is free: a result is read before the next step. */
static int check_finite(const team *t, err *e)
{
    program *first = t->member[0];
    int32_t finite = 1;
    if (first->d->copy(first->dev, &finite, first->result, sizeof finite, COPY_OUT, e) ||
        first->d->wait(first->dev, e))
        return -1;
    return finite ? 0 : err_set(e, ERR_INVALID, "a model to be averaged holds NaN or infinity");
}

static int spread(team *t, err *e)
{
    program *first = t->member[0];
    const driver *d = first->d;
    for (int i = 0; i < t->members; i++) {
        program *p = t->member[i];
        for (int which = 0; which < CUDA_MODEL_BLOCKS && i > 0; which++)
            if (d->copy(first->dev, block_of(p, which), block_of(first, which),
                        cuda_model_count(p, which) * sizeof(float), COPY_WITHIN, e))
                return -1;
        if (p->t == ELEMENT_BF16)
            cuda_to_bf16(d->stream(first->dev), p->g->floats[VAR_PARAM], p->params, p->weights16);
        p->fresh = false;
    }
    return d->wait(first->dev, e);
}

/* Takes the largest of each counter. The counters go through the host, because they are few. */
static int merge_counts(program *const *all, const double *weight, int n, err *e)
{
    size_t count = all[0]->g->floats[VAR_COUNTER], bytes = count * sizeof(int64_t);
    const int64_t *most = NULL;
    for (int i = 0; i < n && count; i++) {
        program *p = all[i];
        if (weight[i] <= 0)
            continue;
        if (p->d->copy(p->dev, p->s.counters, p->counters, bytes, COPY_OUT, e) ||
            p->d->wait(p->dev, e))
            return -1;
        for (size_t k = 0; most && k < count; k++)
            p->s.counters[k] = most[k] > p->s.counters[k] ? most[k] : p->s.counters[k];
        most = p->s.counters;
    }
    for (int i = 0; i < n && most; i++)
        if (all[i]->d->copy(all[i]->dev, all[i]->counters, most, bytes, COPY_IN, e) ||
            all[i]->d->wait(all[i]->dev, e))
            return -1;
    return 0;
}

static int sum_all(team *teams, int count, err *e)
{
    static const int32_t yes = 1;
    for (int i = 0; i < count; i++) {
        program *first = teams[i].member[0];
        if (first->d->copy(first->dev, first->result, &yes, sizeof yes, COPY_IN, e))
            return -1;
        for (int which = 0; which < CUDA_MODEL_BLOCKS; which++)
            if (sum_team(&teams[i], which, (int32_t *)(void *)first->result, e))
                return -1;
        if (check_finite(&teams[i], e))
            return -1;
    }
    for (int which = 0; which < CUDA_MODEL_BLOCKS && count > 1; which++)
        if (sum_teams(teams, count, which, e))
            return -1;
    for (int i = 0; i < count; i++)
        if (spread(&teams[i], e))
            return -1;
    return 0;
}

int cuda_average(backend_program *const *programs, const double *weight, int n, bool across, err *e)
{
    program *all[CUDA_MERGE_MAX] = {NULL};
    team teams[CUDA_MERGE_MAX];
    int count = 0;
    if (n > CUDA_MERGE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%d models: a device averages at most %d", n,
                       CUDA_MERGE_MAX);
    for (int i = 0; i < n; i++) {
        all[i] = (program *)programs[i];
        team *t = &teams[find_team(teams, &count, all[i])];
        t->member[t->members++] = all[i];
        if (weight[i] > 0) {
            t->with_samples[t->inputs] = all[i];
            t->weight[t->inputs++] = weight[i];
        }
        if (all[i]->d->wait(all[i]->dev, e)) /* each has a stream of its own */
            return -1;
    }
    if (count > 1 && !across)
        return err_set(e, ERR_UNSUPPORTED, "the models are on %d devices", count);
    return sum_all(teams, count, e) || merge_counts(all, weight, n, e) ? -1 : 0;
}
