/* cuda_peer.c: models that processes of their own hold on one device, read where they lie; see
 * backend_peers.
 *
 * A process lends the one block that its program has (cuda_plan.c); who leads also lends a block
 * for the mean. Nobody is asked before his memory is read, and he may end at that instant: what is
 * read then is anything. So what is lent comes with a sum over it, and what was read counts only if
 * it has that sum afterwards. (Its owner writes it while he trains alone, and memory that was given
 * up does not become again what it was.) */
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_memory.h"
#include "cuda/cuda_program.h"

enum { OPEN_MAX = 2 * CUDA_MERGE_MAX };

typedef struct opened {
    unsigned char handle[BACKEND_HANDLE_BYTES];
    char *at;
    long used; /* when last */
} opened;

typedef struct peers {
    unsigned char device[BACKEND_DEVICE_BYTES];
    backend_loan own, mean;
    bool lent;
    char *memory; /* the mean's; NULL: it does not lead */
    size_t bytes;
    opened open[OPEN_MAX];
    int count;
    long clock;
} peers;

/* A model's blocks on the device, this program's or another's. */
typedef struct model {
    float *params, *buffers, *state;
    int64_t *counters;
} model;

enum { FLOAT_BLOCKS = 3 };

static size_t count_of(const program *p, int which)
{
    size_t params = p->g->floats[VAR_PARAM];
    if (which == 0)
        return params;
    if (which == 1)
        return p->g->floats[VAR_BUFFER];
    return params * (size_t)(p->c.inference ? 0 : optim_slots(&p->c.optim));
}

static float *block_of(const model *m, int which)
{
    return which == 0 ? m->params : which == 1 ? m->buffers : m->state;
}

static model own_model(const program *p)
{
    return (model){p->params, p->buffers, p->state, p->counters};
}

static model model_at(char *base, const backend_loan *l)
{
    return (model){(float *)(void *)(base + l->params), (float *)(void *)(base + l->buffers),
                   (float *)(void *)(base + l->state), (int64_t *)(void *)(base + l->counters)};
}

/* ---- lending -----------------------------------------------------------------------------------
 */

static int make_peers(program *p, err *e)
{
    device_facts facts;
    if (p->peers)
        return 0;
    if (p->d->facts(p->dev, &facts, e))
        return -1;
    if (!(p->peers = calloc(1, sizeof *p->peers)))
        return err_set(e, ERR_NOMEM, "no memory for the models of other processes");
    memcpy(p->peers->device, facts.uuid, sizeof p->peers->device);
    return 0;
}

static int name_loan(program *p, void *memory, backend_loan *l, err *e)
{
    memcpy(l->device, p->peers->device, sizeof l->device);
    return p->d->share(p->dev, memory, l->handle, e);
}

static uint64_t offset_of(const program *p, const void *block)
{
    return (uint64_t)((const char *)block - p->memory);
}

static int lend(backend_program *base, backend_loan *out, err *e)
{
    program *p = (program *)base;
    if (make_peers(p, e))
        return -1;
    if (!p->peers->lent) {
        backend_loan *own = &p->peers->own;
        own->params = offset_of(p, p->params);
        own->buffers = offset_of(p, p->buffers);
        own->state = offset_of(p, p->state);
        own->counters = offset_of(p, p->counters);
        if (name_loan(p, p->memory, own, e))
            return -1;
        p->peers->lent = true;
    }
    *out = p->peers->own;
    return 0;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* The mean's blocks, one behind the other; gives the bytes of all. */
static size_t lay_mean(const program *p, backend_loan *l)
{
    l->params = 0;
    l->buffers = aligned(count_of(p, 0) * sizeof(float));
    l->state = l->buffers + aligned(count_of(p, 1) * sizeof(float));
    l->counters = l->state + aligned(count_of(p, 2) * sizeof(float));
    return l->counters + aligned(p->g->floats[VAR_COUNTER] * sizeof(int64_t));
}

static int take_mean(program *p, err *e)
{
    peers *all = p->peers;
    void *memory;
    size_t bytes = lay_mean(p, &all->mean);
    if (cuda_memory_take(p->d, p->dev, bytes, "the mean of models of other processes", &memory, e))
        return -1;
    if (name_loan(p, memory, &all->mean, e)) {
        cuda_memory_give(p->d, p->dev, memory, bytes);
        return -1;
    }
    all->memory = memory;
    all->bytes = bytes;
    return 0;
}

void cuda_peers_drop(program *p)
{
    if (!p->peers)
        return;
    for (int i = 0; i < p->peers->count; i++)
        p->d->close_shared(p->dev, p->peers->open[i].at);
    cuda_memory_give(p->d, p->dev, p->peers->memory, p->peers->bytes);
    free(p->peers);
    p->peers = NULL;
}

/* ---- borrowing ---------------------------------------------------------------------------------
 */

/* The place for one more: where many came and went, that of the one not looked at for the longest
 * time. */
static opened *make_room(program *p)
{
    peers *all = p->peers;
    if (all->count < OPEN_MAX)
        return &all->open[all->count++];
    opened *oldest = &all->open[0];
    for (int i = 1; i < OPEN_MAX; i++)
        if (all->open[i].used < oldest->used)
            oldest = &all->open[i];
    p->d->close_shared(p->dev, oldest->at);
    return oldest;
}

static int borrow(program *p, const backend_loan *l, model *out, err *e)
{
    peers *all = p->peers;
    void *at;
    if (all->lent && memcmp(l->handle, all->own.handle, sizeof l->handle) == 0)
        return *out = own_model(p), 0;
    if (all->memory && memcmp(l->handle, all->mean.handle, sizeof l->handle) == 0)
        return *out = model_at(all->memory, &all->mean), 0;
    for (int i = 0; i < all->count; i++)
        if (memcmp(l->handle, all->open[i].handle, sizeof l->handle) == 0) {
            all->open[i].used = ++all->clock;
            return *out = model_at(all->open[i].at, l), 0;
        }
    if (memcmp(l->device, all->device, sizeof l->device) != 0)
        return err_set(e, ERR_UNSUPPORTED, "the model lies on another GPU");
    if (p->d->open_shared(p->dev, l->handle, &at, e))
        return -1;
    opened *o = make_room(p);
    *o = (opened){.at = at, .used = ++all->clock};
    memcpy(o->handle, l->handle, sizeof o->handle);
    *out = model_at(at, l);
    return 0;
}

/* It was not what was lent: should there be something else behind that handle by now, it is opened
 * anew. */
static void forget(program *p, const backend_loan *l)
{
    peers *all = p->peers;
    for (int i = 0; i < all->count; i++)
        if (memcmp(l->handle, all->open[i].handle, sizeof l->handle) == 0) {
            p->d->close_shared(p->dev, all->open[i].at);
            all->open[i] = all->open[--all->count];
            return;
        }
}

static int lead(backend_program *base, const backend_loan *of, int n, backend_loan *mean, err *e)
{
    program *p = (program *)base;
    model unused;
    if (make_peers(p, e))
        return -1;
    for (int i = 0; i < n; i++)
        if (borrow(p, &of[i], &unused, e))
            return -1;
    if (!p->peers->memory && take_mean(p, e))
        return -1;
    *mean = p->peers->mean;
    return 0;
}

/* The place of a step's result holds the sum: a result is read before the next call begins. */
static int sum_model(program *p, const model *m, uint64_t *out, err *e)
{
    uint64_t *sum = (uint64_t *)(void *)p->result;
    void *stream = p->d->stream(p->dev);
    if (p->d->zero(p->dev, sum, sizeof *sum, e))
        return -1;
    for (int which = 0; which < FLOAT_BLOCKS; which++)
        cuda_sum_words(stream, (uint32_t)which, count_of(p, which), block_of(m, which), sum);
    cuda_sum_words(stream, FLOAT_BLOCKS, 2 * p->g->floats[VAR_COUNTER], m->counters, sum);
    return p->d->copy(p->dev, out, sum, sizeof *out, COPY_OUT, e) || p->d->wait(p->dev, e) ? -1 : 0;
}

static int sum_own(backend_program *base, uint64_t *out, err *e)
{
    program *p = (program *)base;
    const model own = own_model(p);
    return sum_model(p, &own, out, e);
}

/* ---- the mean ----------------------------------------------------------------------------------
 */

/* Those with a weight, in their order. */
typedef struct inputs {
    model of[CUDA_MERGE_MAX];
    double weight[CUDA_MERGE_MAX];
    uint64_t sum[CUDA_MERGE_MAX];
    int place[CUDA_MERGE_MAX]; /* in the caller's list */
    int count;
} inputs;

static int borrow_all(program *p, const backend_lent *of, int n, inputs *in, int *bad, err *e)
{
    in->count = 0;
    for (int i = 0; i < n; i++) {
        if (of[i].weight <= 0)
            continue;
        if (borrow(p, &of[i].where, &in->of[in->count], e))
            return *bad = i, -1;
        in->weight[in->count] = of[i].weight;
        in->sum[in->count] = of[i].sum;
        in->place[in->count++] = i;
    }
    return in->count ? 0 : err_set(e, ERR_INVALID, "no model has a weight");
}

static int merge_all(program *p, const model *of, const double *weight, int n, const model *to,
                     int32_t *finite, err *e)
{
    const float *floats[CUDA_MERGE_MAX];
    const int64_t *counters[CUDA_MERGE_MAX];
    int32_t *flag = (int32_t *)(void *)p->result;
    void *stream = p->d->stream(p->dev);
    *finite = 1;
    if (p->d->copy(p->dev, flag, finite, sizeof *finite, COPY_IN, e))
        return -1;
    for (int which = 0; which < FLOAT_BLOCKS; which++) {
        for (int i = 0; i < n; i++)
            floats[i] = block_of(&of[i], which);
        if (count_of(p, which))
            cuda_merge(stream, n, floats, weight, count_of(p, which), block_of(to, which), flag);
    }
    for (int i = 0; i < n; i++)
        counters[i] = of[i].counters;
    if (p->g->floats[VAR_COUNTER])
        cuda_merge_counters(stream, n, counters, p->g->floats[VAR_COUNTER], to->counters);
    return p->d->copy(p->dev, finite, flag, sizeof *finite, COPY_OUT, e) || p->d->wait(p->dev, e)
               ? -1
               : 0;
}

static int check_sums(program *p, const backend_lent *of, const inputs *in, int *bad, err *e)
{
    for (int i = 0; i < in->count; i++) {
        uint64_t sum;
        if (sum_model(p, &in->of[i], &sum, e))
            return -1;
        if (sum == in->sum[i])
            continue;
        *bad = in->place[i];
        forget(p, &of[*bad].where);
        return err_set(e, ERR_CORRUPT,
                       "model %d is not what its process lent: it has trained on, or ended", *bad);
    }
    return 0;
}

/* Alone, the one that is not finite stays so. */
static int find_infinite(program *p, const inputs *in, const model *scratch, int *bad, err *e)
{
    static const double one = 1;
    for (int i = 0; i < in->count; i++) {
        int32_t finite;
        if (merge_all(p, &in->of[i], &one, 1, scratch, &finite, e))
            return -1;
        if (finite)
            continue;
        *bad = in->place[i];
        return err_set(e, ERR_INVALID, "model %d holds NaN or infinity", *bad);
    }
    return err_set(e, ERR_INVALID, "the mean holds NaN or infinity");
}

static int average_lent(backend_program *base, const backend_lent *of, int n, uint64_t *sum,
                        int *bad, err *e)
{
    program *p = (program *)base;
    inputs in;
    int32_t finite;
    *bad = -1;
    if (!p->peers || !p->peers->memory)
        return err_set(e, ERR_UNSUPPORTED, "this program does not lead");
    if (n > CUDA_MERGE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%d models: a device averages at most %d", n,
                       CUDA_MERGE_MAX);
    const model mean = model_at(p->peers->memory, &p->peers->mean);
    if (borrow_all(p, of, n, &in, bad, e) ||
        merge_all(p, in.of, in.weight, in.count, &mean, &finite, e) ||
        check_sums(p, of, &in, bad, e))
        return -1;
    return finite ? sum_model(p, &mean, sum, e) : find_infinite(p, &in, &mean, bad, e);
}

/* What lies between the parameters is merged too, and nobody else would write it. */
static int clear(program *p, const model *m, err *e)
{
    for (int which = 0; which < FLOAT_BLOCKS; which++)
        if (p->d->zero(p->dev, block_of(m, which), count_of(p, which) * sizeof(float), e))
            return -1;
    return p->d->wait(p->dev, e);
}

/* What was copied is summed, not what it was copied from. */
static int adopt(backend_program *base, const backend_loan *from, uint64_t sum, err *e)
{
    program *p = (program *)base;
    model to = own_model(p), there;
    uint64_t got;
    if (make_peers(p, e) || borrow(p, from, &there, e))
        return -1;
    p->fresh = false;
    for (int which = 0; which < FLOAT_BLOCKS; which++)
        if (p->d->copy(p->dev, block_of(&to, which), block_of(&there, which),
                       count_of(p, which) * sizeof(float), COPY_WITHIN, e))
            return -1;
    if (p->d->copy(p->dev, to.counters, there.counters, p->g->floats[VAR_COUNTER] * sizeof(int64_t),
                   COPY_WITHIN, e))
        return -1;
    if (p->t == ELEMENT_BF16)
        cuda_to_bf16(p->d->stream(p->dev), p->g->floats[VAR_PARAM], p->params, p->weights16);
    if (sum_model(p, &to, &got, e))
        return -1;
    if (got == sum)
        return 0;
    forget(p, from);
    if (clear(p, &to, e))
        return -1;
    return err_set(e, ERR_CORRUPT,
                   "the mean is not what was lent: its process has gone on, or ended");
}

const backend_peers cuda_peers = {
    .lend = lend,
    .lead = lead,
    .sum = sum_own,
    .average = average_lent,
    .adopt = adopt,
};
