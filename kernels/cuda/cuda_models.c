/* cuda_models.c: see cuda_models.h. */
#include "cuda_models.h"

#include "cuda_memory.h"

size_t cuda_model_count(const program *p, int which)
{
    size_t params = p->g->floats[VAR_PARAM];
    if (which == 0)
        return params;
    if (which == 1)
        return p->g->floats[VAR_BUFFER];
    return params * (size_t)(p->c.inference ? 0 : optim_slots(&p->c.optim));
}

float *cuda_model_block(const cuda_model *m, int which)
{
    return which == 0 ? m->params : which == 1 ? m->buffers : m->state;
}

cuda_model cuda_model_own(const program *p)
{
    return (cuda_model){p->params, p->buffers, p->state, p->counters};
}

cuda_model cuda_model_at(char *base, const backend_ipc_handle *l)
{
    return (cuda_model){(float *)(void *)(base + l->params), (float *)(void *)(base + l->buffers),
                        (float *)(void *)(base + l->state),
                        (int64_t *)(void *)(base + l->counters)};
}

cuda_model cuda_model_mean(const program *p)
{
    return cuda_model_at(p->mean.memory, &p->mean.place);
}

/* ---- the mean's memory ----------------------------------------------------------------------- */

/* Lays out the blocks, one behind the other; returns the bytes of all. */
static size_t lay(const program *p, backend_ipc_handle *l)
{
    l->params = 0;
    l->buffers = cuda_aligned(cuda_model_count(p, 0) * sizeof(float));
    l->state = l->buffers + cuda_aligned(cuda_model_count(p, 1) * sizeof(float));
    l->counters = l->state + cuda_aligned(cuda_model_count(p, 2) * sizeof(float));
    return l->counters + cuda_aligned(p->g->floats[VAR_COUNTER] * sizeof(int64_t));
}

int cuda_mean_take(program *p, err *e)
{
    void *memory;
    if (p->mean.memory)
        return 0;
    p->mean.bytes = lay(p, &p->mean.place);
    if (cuda_memory_take(p->d, p->dev, p->mean.bytes, "the mean of models of other processes",
                         &memory, e))
        return -1;
    p->mean.memory = memory;
    return 0;
}

size_t cuda_mean_untaken(const program *p)
{
    backend_ipc_handle unused;
    return p->mean.memory ? 0 : lay(p, &unused);
}

void cuda_mean_drop(program *p)
{
    cuda_memory_give(p->d, p->dev, p->mean.memory, p->mean.bytes);
    p->mean.memory = NULL;
}

/* ---- on the stream --------------------------------------------------------------------------- */

/* The sum lies in the place of a step's result, which is read before the next call begins. */
int cuda_model_sum(program *p, const cuda_model *m, uint64_t *out, err *e)
{
    uint64_t *sum = (uint64_t *)(void *)p->result;
    void *stream = p->d->stream(p->dev);
    if (p->d->zero(p->dev, sum, sizeof *sum, e))
        return -1;
    for (int which = 0; which < CUDA_MODEL_BLOCKS; which++)
        cuda_sum_words(stream, (uint32_t)which, cuda_model_count(p, which),
                       cuda_model_block(m, which), sum);
    cuda_sum_words(stream, CUDA_MODEL_BLOCKS, 2 * p->g->floats[VAR_COUNTER], m->counters, sum);
    return p->d->copy(p->dev, out, sum, sizeof *out, COPY_OUT, e) || p->d->wait(p->dev, e) ? -1 : 0;
}

int cuda_model_merge(program *p, const cuda_model *of, const double *weight, int n,
                     const cuda_model *to, int32_t *finite, err *e)
{
    const float *floats[CUDA_MERGE_MAX];
    const int64_t *counters[CUDA_MERGE_MAX];
    int32_t *flag = (int32_t *)(void *)p->result;
    void *stream = p->d->stream(p->dev);
    *finite = 1;
    if (p->d->copy(p->dev, flag, finite, sizeof *finite, COPY_IN, e))
        return -1;
    for (int which = 0; which < CUDA_MODEL_BLOCKS; which++) {
        size_t count = cuda_model_count(p, which);
        for (int i = 0; i < n; i++)
            floats[i] = cuda_model_block(&of[i], which);
        if (count)
            cuda_merge(stream, n, floats, weight, count, cuda_model_block(to, which), flag);
    }
    for (int i = 0; i < n; i++)
        counters[i] = of[i].counters;
    if (p->g->floats[VAR_COUNTER])
        cuda_merge_counters(stream, n, counters, p->g->floats[VAR_COUNTER], to->counters);
    return p->d->copy(p->dev, finite, flag, sizeof *finite, COPY_OUT, e) || p->d->wait(p->dev, e)
               ? -1
               : 0;
}

int cuda_model_clear(program *p, const cuda_model *m, err *e)
{
    for (int which = 0; which < CUDA_MODEL_BLOCKS; which++)
        if (p->d->zero(p->dev, cuda_model_block(m, which),
                       cuda_model_count(p, which) * sizeof(float), e))
            return -1;
    return p->d->zero(p->dev, m->counters, p->g->floats[VAR_COUNTER] * sizeof(int64_t), e) ||
                   p->d->wait(p->dev, e)
               ? -1
               : 0;
}

/* Sums the copy, and not what it was copied from. Where the sum differs, the whole model is
 * cleared: the gaps between parameters are merged too, and nothing else would write them. */
int cuda_model_adopt(program *p, const cuda_model *from, uint64_t sum, err *e)
{
    const cuda_model to = cuda_model_own(p);
    uint64_t got;
    p->fresh = false;
    for (int which = 0; which < CUDA_MODEL_BLOCKS; which++)
        if (p->d->copy(p->dev, cuda_model_block(&to, which), cuda_model_block(from, which),
                       cuda_model_count(p, which) * sizeof(float), COPY_WITHIN, e))
            return -1;
    if (p->d->copy(p->dev, to.counters, from->counters, p->g->floats[VAR_COUNTER] * sizeof(int64_t),
                   COPY_WITHIN, e))
        return -1;
    if (p->t == ELEMENT_BF16)
        cuda_to_bf16(p->d->stream(p->dev), p->g->floats[VAR_PARAM], p->params, p->weights16);
    if (cuda_model_sum(p, &to, &got, e))
        return -1;
    if (got == sum)
        return 0;
    if (cuda_model_clear(p, &to, e))
        return -1;
    err_set(e, ERR_CORRUPT, "the mean is not what was lent: its process has gone on, or ended");
    return 1;
}
