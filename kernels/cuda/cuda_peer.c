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

#include "cuda/cuda_models.h"

enum { OPEN_MAX = 2 * CUDA_MERGE_MAX };

typedef struct opened {
    unsigned char handle[BACKEND_HANDLE_BYTES];
    char *at;
    long used; /* when last */
} opened;

typedef struct peers {
    unsigned char device[BACKEND_DEVICE_BYTES];
    backend_loan own, mean;
    bool lent, leads;
    opened open[OPEN_MAX];
    int count;
    long clock;
} peers;

/* ---- lending --------------------------------------------------------------------------------- */

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

static int lend_mean(program *p, err *e)
{
    peers *all = p->peers;
    bool had = p->mean.memory;
    if (cuda_mean_take(p, e))
        return -1;
    all->mean = p->mean.place;
    if (name_loan(p, p->mean.memory, &all->mean, e)) {
        if (!had)
            cuda_mean_drop(p);
        return -1;
    }
    all->leads = true;
    return 0;
}

void cuda_peers_drop(program *p)
{
    if (!p->peers)
        return;
    for (int i = 0; i < p->peers->count; i++)
        p->d->close_shared(p->dev, p->peers->open[i].at);
    free(p->peers);
    p->peers = NULL;
}

/* ---- borrowing ------------------------------------------------------------------------------- */

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

static int borrow(program *p, const backend_loan *l, cuda_model *out, err *e)
{
    peers *all = p->peers;
    void *at;
    if (all->lent && memcmp(l->handle, all->own.handle, sizeof l->handle) == 0)
        return *out = cuda_model_own(p), 0;
    if (all->leads && memcmp(l->handle, all->mean.handle, sizeof l->handle) == 0)
        return *out = cuda_model_mean(p), 0;
    for (int i = 0; i < all->count; i++)
        if (memcmp(l->handle, all->open[i].handle, sizeof l->handle) == 0) {
            all->open[i].used = ++all->clock;
            return *out = cuda_model_at(all->open[i].at, l), 0;
        }
    if (memcmp(l->device, all->device, sizeof l->device) != 0)
        return err_set(e, ERR_UNSUPPORTED, "the model lies on another GPU");
    if (p->d->open_shared(p->dev, l->handle, &at, e))
        return -1;
    opened *o = make_room(p);
    *o = (opened){.at = at, .used = ++all->clock};
    memcpy(o->handle, l->handle, sizeof o->handle);
    *out = cuda_model_at(at, l);
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
    cuda_model unused;
    if (make_peers(p, e))
        return -1;
    for (int i = 0; i < n; i++)
        if (borrow(p, &of[i], &unused, e))
            return -1;
    if (!p->peers->leads && lend_mean(p, e))
        return -1;
    *mean = p->peers->mean;
    return 0;
}

static int sum_own(backend_program *base, uint64_t *out, err *e)
{
    program *p = (program *)base;
    const cuda_model own = cuda_model_own(p);
    return cuda_model_sum(p, &own, out, e);
}

/* ---- the mean -------------------------------------------------------------------------------- */

/* Those with a weight, in their order. */
typedef struct inputs {
    cuda_model of[CUDA_MERGE_MAX];
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

static int check_sums(program *p, const backend_lent *of, const inputs *in, int *bad, err *e)
{
    for (int i = 0; i < in->count; i++) {
        uint64_t sum;
        if (cuda_model_sum(p, &in->of[i], &sum, e))
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
static int find_infinite(program *p, const inputs *in, const cuda_model *scratch, int *bad, err *e)
{
    static const double one = 1;
    for (int i = 0; i < in->count; i++) {
        int32_t finite;
        if (cuda_model_merge(p, &in->of[i], &one, 1, scratch, &finite, e))
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
    if (!p->peers || !p->peers->leads)
        return err_set(e, ERR_UNSUPPORTED, "this program does not lead");
    if (n > CUDA_MERGE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%d models: a device averages at most %d", n,
                       CUDA_MERGE_MAX);
    const cuda_model mean = cuda_model_mean(p);
    if (borrow_all(p, of, n, &in, bad, e) ||
        cuda_model_merge(p, in.of, in.weight, in.count, &mean, &finite, e) ||
        check_sums(p, of, &in, bad, e))
        return -1;
    return finite ? cuda_model_sum(p, &mean, sum, e) : find_infinite(p, &in, &mean, bad, e);
}

static int adopt(backend_program *base, const backend_loan *from, uint64_t sum, err *e)
{
    program *p = (program *)base;
    cuda_model there;
    if (make_peers(p, e) || borrow(p, from, &there, e))
        return -1;
    int rc = cuda_model_adopt(p, &there, sum, e);
    if (rc > 0)
        forget(p, from);
    return rc ? -1 : 0;
}

const backend_peers cuda_peers = {
    .lend = lend,
    .lead = lead,
    .sum = sum_own,
    .average = average_lent,
    .adopt = adopt,
};
