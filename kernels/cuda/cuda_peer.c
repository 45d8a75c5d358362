/* cuda_peer.c: averages models that several processes hold on one device, read where they lie; see
 * backend_peers.
 *
 * A process exports the one block that its program has (cuda_plan.c) by an IPC handle. The reduce
 * root also exports a block for the mean. No process is asked before its memory is read, and the
 * process may end at that moment: what is read then is undefined. Each handle therefore comes with
 * a fingerprint, a sum over the block. What was read counts only if it has that sum afterwards.
 * (Only its owner writes the block, while it trains alone. Memory that was given up does not get
 * its old contents back.) */
#include <stdlib.h>
#include <string.h>

#include "cuda_models.h"

typedef struct peers {
    unsigned char device[BACKEND_DEVICE_BYTES];
    backend_ipc_handle own, mean;
    bool lent, leads;
    void *open[CUDA_MERGE_MAX]; /* during a call */
    int count;
} peers;

/* ---- exporting handles ----------------------------------------------------------------------- */

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

static int name_ipc_handle(program *p, void *memory, backend_ipc_handle *l, err *e)
{
    memcpy(l->device, p->peers->device, sizeof l->device);
    return p->d->share(p->dev, memory, l->handle, e);
}

static uint64_t offset_of(const program *p, const void *block)
{
    return (uint64_t)((const char *)block - p->memory);
}

static int lend(backend_program *base, backend_ipc_handle *out, err *e)
{
    program *p = (program *)base;
    if (make_peers(p, e))
        return -1;
    if (!p->peers->lent) {
        backend_ipc_handle *own = &p->peers->own;
        own->params = offset_of(p, p->params);
        own->buffers = offset_of(p, p->buffers);
        own->state = offset_of(p, p->state);
        own->counters = offset_of(p, p->counters);
        if (name_ipc_handle(p, p->memory, own, e))
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
    if (name_ipc_handle(p, p->mean.memory, &all->mean, e)) {
        if (!had)
            cuda_mean_drop(p);
        return -1;
    }
    all->leads = true;
    return 0;
}

void cuda_peers_drop(program *p)
{
    free(p->peers);
    p->peers = NULL;
}

/* ---- opening handles ------------------------------------------------------------------------- */

static bool lies_here(const program *p, const backend_ipc_handle *l)
{
    return memcmp(l->device, p->peers->device, sizeof l->device) == 0;
}

static int borrow(program *p, const backend_ipc_handle *l, cuda_model *out, err *e)
{
    peers *all = p->peers;
    void *at;
    if (all->lent && memcmp(l->handle, all->own.handle, sizeof l->handle) == 0)
        return *out = cuda_model_own(p), 0;
    if (all->leads && memcmp(l->handle, all->mean.handle, sizeof l->handle) == 0)
        return *out = cuda_model_mean(p), 0;
    if (!lies_here(p, l))
        return err_set(e, ERR_UNSUPPORTED, "the model lies on another GPU");
    if (all->count == CUDA_MERGE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "more than %d models of other processes",
                       CUDA_MERGE_MAX);
    if (p->d->open_shared(p->dev, l->handle, &at, e))
        return -1;
    all->open[all->count++] = at;
    *out = cuda_model_at(at, l);
    return 0;
}

/* Called at the end of every call: an open block stays on the GPU when its owner has ended, and the
 * owner's replacement may find no room. The work of a failed call may still read, so this waits. */
static void close_all(program *p)
{
    peers *all = p->peers;
    if (!all || !all->count)
        return;
    p->d->wait(p->dev, NULL);
    while (all->count)
        p->d->close_shared(p->dev, all->open[--all->count]);
}

/* Checks that the blocks can be opened at all. */
static int try_to_borrow(program *p, const backend_ipc_handle *of, int n, err *e)
{
    cuda_model unused;
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++)
        rc = borrow(p, &of[i], &unused, e);
    close_all(p);
    return rc;
}

static int reduce_root(backend_program *base, const backend_ipc_handle *of, int n,
                       backend_ipc_handle *mean, err *e)
{
    program *p = (program *)base;
    if (make_peers(p, e) || try_to_borrow(p, of, n, e))
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

/* The models with a weight, in their order. */
typedef struct inputs {
    cuda_model of[CUDA_MERGE_MAX];
    double weight[CUDA_MERGE_MAX];
    uint64_t sum[CUDA_MERGE_MAX];
    int place[CUDA_MERGE_MAX]; /* in the caller's list */
    int count;
} inputs;

/* A process that has ended is replaced. The error is then ERR_CORRUPT: a model that cannot be
 * opened any more is no reason to average elsewhere from now on. */
static int not_there(const program *p, const backend_ipc_handle *l, err *e)
{
    if (e && e->code == ERR_UNSUPPORTED && lies_here(p, l))
        e->code = ERR_CORRUPT;
    return -1;
}

static int borrow_all(program *p, const backend_ipc_model *of, int n, inputs *in, int *bad, err *e)
{
    in->count = 0;
    for (int i = 0; i < n; i++) {
        if (of[i].weight <= 0)
            continue;
        if (borrow(p, &of[i].where, &in->of[in->count], e))
            return *bad = i, not_there(p, &of[i].where, e);
        in->weight[in->count] = of[i].weight;
        in->sum[in->count] = of[i].sum;
        in->place[in->count++] = i;
    }
    return in->count ? 0 : err_set(e, ERR_INVALID, "no model has a weight");
}

static int check_sums(program *p, const inputs *in, int *bad, err *e)
{
    for (int i = 0; i < in->count; i++) {
        uint64_t sum;
        if (cuda_model_sum(p, &in->of[i], &sum, e))
            return -1;
        if (sum == in->sum[i])
            continue;
        *bad = in->place[i];
        return err_set(e, ERR_CORRUPT,
                       "model %d is not what its process lent: it has trained on, or ended", *bad);
    }
    return 0;
}

/* Merges each model alone: the one that is not finite stays so. */
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

static int average_all(program *p, const backend_ipc_model *of, int n, uint64_t *sum, int *bad,
                       err *e)
{
    inputs in;
    int32_t finite;
    if (!p->peers || !p->peers->leads)
        return err_set(e, ERR_UNSUPPORTED, "this program does not lead");
    if (n > CUDA_MERGE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%d models: a device averages at most %d", n,
                       CUDA_MERGE_MAX);
    const cuda_model mean = cuda_model_mean(p);
    if (borrow_all(p, of, n, &in, bad, e) ||
        cuda_model_merge(p, in.of, in.weight, in.count, &mean, &finite, e) ||
        check_sums(p, &in, bad, e))
        return -1;
    return finite ? cuda_model_sum(p, &mean, sum, e) : find_infinite(p, &in, &mean, bad, e);
}

static int average_ipc(backend_program *base, const backend_ipc_model *of, int n, uint64_t *sum,
                       int *bad, err *e)
{
    program *p = (program *)base;
    *bad = -1;
    int rc = average_all(p, of, n, sum, bad, e);
    close_all(p);
    return rc;
}

static int adopt(backend_program *base, const backend_ipc_handle *from, uint64_t sum, err *e)
{
    program *p = (program *)base;
    cuda_model there;
    if (make_peers(p, e) || borrow(p, from, &there, e))
        return -1;
    int rc = cuda_model_adopt(p, &there, sum, e);
    close_all(p);
    return rc ? -1 : 0;
}

const backend_peers cuda_peers = {
    .lend = lend,
    .reduce_root = reduce_root,
    .sum = sum_own,
    .average = average_ipc,
    .adopt = adopt,
};
