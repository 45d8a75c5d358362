/* cuda_comm.c: averages the models of several processes, each on a device of its own; see
 * backend_comm.
 *
 * A rank multiplies its model by its weight into the mean's memory, where the ranks are summed. The
 * model stays as it is whatever happens to the other ranks, so that the same mean can be tried
 * again with another communicator. */
#include <string.h>

#include "cuda_models.h"

void cuda_comm_drop(program *p)
{
    if (p->comm)
        p->d->comm_abort(p->dev, p->comm);
    p->comm = NULL;
}

static void leave(backend_program *base)
{
    cuda_comm_drop((program *)base);
}

static int device_of(backend_program *base, unsigned char uuid[BACKEND_DEVICE_BYTES], err *e)
{
    program *p = (program *)base;
    const char *why = p->d->comm_missing();
    device_facts facts;
    if (why)
        return err_set(e, ERR_UNSUPPORTED, "%s", why);
    if (p->d->facts(p->dev, &facts, e))
        return -1;
    memcpy(uuid, facts.uuid, sizeof facts.uuid);
    return 0;
}

static int make_id(backend_program *base, unsigned char id[BACKEND_COMM_ID_BYTES], err *e)
{
    return ((program *)base)->d->comm_id(id, e);
}

/* Waits for what was begun. Fails where the communicator does, or when the caller gives up. */
static int await(program *p, const backend_patience *patience, err *e)
{
    bool done = false;
    for (;;) {
        if (p->d->comm_poll(p->dev, p->comm, &done, e))
            return -1;
        if (done)
            return 0;
        if (patience->wait(patience->user, e))
            return -1;
    }
}

static int join(backend_program *base, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank,
                int ranks, const backend_patience *patience, err *e)
{
    program *p = (program *)base;
    cuda_comm_drop(p);
    if (cuda_mean_take(p, e) || p->d->comm_begin(p->dev, id, rank, ranks, &p->comm, e))
        return -1;
    if (await(p, patience, e) == 0)
        return 0;
    cuda_comm_drop(p);
    return -1;
}

/* Puts this rank's weighted model into `to`. *own: this model is at fault, it is not finite. */
static int weigh(program *p, double weight, const cuda_model *to, bool *own, err *e)
{
    const cuda_model model = cuda_model_own(p);
    int32_t finite;
    if (weight <= 0)
        return cuda_model_clear(p, to, e);
    if (cuda_model_merge(p, &model, &weight, 1, to, &finite, e))
        return -1;
    *own = !finite;
    return finite ? 0 : err_set(e, ERR_INVALID, "the model holds NaN or infinity");
}

static int reduce(program *p, const cuda_model *mean, const backend_patience *patience, err *e)
{
    comm_part part[CUDA_MODEL_BLOCKS + 1];
    int parts = 0;
    for (int which = 0; which < CUDA_MODEL_BLOCKS; which++)
        if (cuda_model_count(p, which))
            part[parts++] =
                (comm_part){cuda_model_block(mean, which), cuda_model_count(p, which), false};
    if (p->g->floats[VAR_COUNTER])
        part[parts++] = (comm_part){mean->counters, p->g->floats[VAR_COUNTER], true};
    return p->d->comm_reduce(p->dev, p->comm, part, parts, e) || await(p, patience, e) ? -1 : 0;
}

static int check(program *p, const cuda_model *mean, uint64_t *sum, err *e)
{
    static const double one = 1;
    int32_t finite;
    if (cuda_model_merge(p, mean, &one, 1, mean, &finite, e))
        return -1;
    return finite ? cuda_model_sum(p, mean, sum, e)
                  : err_set(e, ERR_INVALID, "the mean holds NaN or infinity");
}

static int mean_of_all(backend_program *base, double weight, const backend_patience *patience,
                       uint64_t *sum, bool *own, err *e)
{
    program *p = (program *)base;
    *own = false;
    if (!p->comm)
        return err_set(e, ERR_UNAVAILABLE, "this program is no rank of a communicator");
    const cuda_model mean = cuda_model_mean(p);
    if (weigh(p, weight, &mean, own, e) == 0 && reduce(p, &mean, patience, e) == 0 &&
        check(p, &mean, sum, e) == 0)
        return 0;
    cuda_comm_drop(p);
    return -1;
}

static int take(backend_program *base, uint64_t sum, err *e)
{
    program *p = (program *)base;
    if (!p->mean.memory)
        return err_set(e, ERR_CORRUPT, "this program has no mean");
    const cuda_model mean = cuda_model_mean(p);
    return cuda_model_adopt(p, &mean, sum, e) ? -1 : 0;
}

const backend_comm cuda_comm = {
    .device = device_of,
    .id = make_id,
    .join = join,
    .mean = mean_of_all,
    .take = take,
    .leave = leave,
};
