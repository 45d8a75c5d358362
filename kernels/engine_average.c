/* engine_average.c: averages several models, of this process or of several; see engine.h. */
#include <string.h>

#include "engine_internal.h"

bool engine_averages(engine *const *models, int n)
{
    for (int i = 0; i < n; i++)
        if (!models[i]->backend->average || models[i]->backend != models[0]->backend ||
            strcmp(models[i]->layout_text, models[0]->layout_text) != 0)
            return false;
    return n <= ENGINE_AVERAGE_MAX;
}

/* Notes that the backend now holds a mean, of that step, as the model's state. */
static void take_mean(engine *m, int64_t step)
{
    m->blank = false;
    if (!m->c.inference)
        *engine_steps(m) = step;
}

int engine_average(engine *const *models, const double *weight, int n, bool across, err *e)
{
    backend_program *programs[ENGINE_AVERAGE_MAX] = {NULL};
    int64_t steps = 0;
    if (!engine_averages(models, n))
        return err_set(e, ERR_UNSUPPORTED, "these %d models cannot be averaged where they are", n);
    for (int i = 0; i < n; i++) {
        int64_t own = models[i]->c.inference ? 0 : *engine_steps(models[i]);
        programs[i] = models[i]->program;
        steps = own > steps && weight[i] > 0 ? own : steps;
    }
    if (models[0]->backend->average(programs, weight, n, across, e))
        return -1;
    for (int i = 0; i < n; i++)
        take_mean(models[i], steps);
    return 0;
}

static const backend_peers *peers_of(const engine *m, err *e)
{
    if (!m->backend->peers)
        err_set(e, ERR_UNSUPPORTED, "the %s backend shares no memory between processes",
                m->backend->name);
    return m->backend->peers;
}

int engine_lend(engine *m, backend_ipc_handle *out, err *e)
{
    const backend_peers *peers = peers_of(m, e);
    return peers ? peers->lend(m->program, out, e) : -1;
}

int engine_reduce_root(engine *m, const backend_ipc_handle *of, int n, backend_ipc_handle *mean,
                       err *e)
{
    const backend_peers *peers = peers_of(m, e);
    return peers ? peers->reduce_root(m->program, of, n, mean, e) : -1;
}

int engine_fingerprint_now(engine *m, engine_fingerprint *out, err *e)
{
    const backend_peers *peers = peers_of(m, e);
    out->step = m->c.inference ? 0 : *engine_steps(m);
    return peers ? peers->sum(m->program, &out->sum, e) : -1;
}

int engine_average_ipc(engine *m, const engine_peer *of, int n, engine_fingerprint *mean, int *bad,
                       err *e)
{
    const backend_peers *peers = peers_of(m, e);
    backend_ipc_model models[ENGINE_AVERAGE_MAX];
    *bad = -1;
    if (!peers)
        return -1;
    if (n > ENGINE_AVERAGE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%d models: at most %d are averaged where they are", n,
                       ENGINE_AVERAGE_MAX);
    mean->step = 0;
    for (int i = 0; i < n; i++) {
        models[i] = (backend_ipc_model){
            .where = of[i].where, .sum = of[i].fingerprint.sum, .weight = of[i].weight};
        if (of[i].weight > 0 && of[i].fingerprint.step > mean->step)
            mean->step = of[i].fingerprint.step;
    }
    return peers->average(m->program, models, n, &mean->sum, bad, e);
}

int engine_adopt(engine *m, const backend_ipc_handle *mean, const engine_fingerprint *fingerprint,
                 err *e)
{
    const backend_peers *peers = peers_of(m, e);
    if (!peers || peers->adopt(m->program, mean, fingerprint->sum, e))
        return -1;
    take_mean(m, fingerprint->step);
    return 0;
}

static const backend_comm *comm_of(const engine *m, err *e)
{
    if (!m->backend->comm)
        err_set(e, ERR_UNSUPPORTED, "the %s backend has no communicators", m->backend->name);
    return m->backend->comm;
}

int engine_comm_device(engine *m, unsigned char device[BACKEND_DEVICE_BYTES], err *e)
{
    const backend_comm *comm = comm_of(m, e);
    return comm ? comm->device(m->program, device, e) : -1;
}

int engine_comm_id(engine *m, unsigned char id[BACKEND_COMM_ID_BYTES], err *e)
{
    const backend_comm *comm = comm_of(m, e);
    return comm ? comm->id(m->program, id, e) : -1;
}

int engine_comm_join(engine *m, const unsigned char id[BACKEND_COMM_ID_BYTES], int rank, int ranks,
                     const backend_patience *patience, err *e)
{
    const backend_comm *comm = comm_of(m, e);
    return comm ? comm->join(m->program, id, rank, ranks, patience, e) : -1;
}

int engine_comm_mean(engine *m, double weight, const backend_patience *patience, uint64_t *sum,
                     bool *own, err *e)
{
    const backend_comm *comm = comm_of(m, e);
    return comm ? comm->mean(m->program, weight, patience, sum, own, e) : -1;
}

int engine_comm_take(engine *m, const engine_fingerprint *fingerprint, err *e)
{
    const backend_comm *comm = comm_of(m, e);
    if (!comm || comm->take(m->program, fingerprint->sum, e))
        return -1;
    take_mean(m, fingerprint->step);
    return 0;
}

void engine_comm_leave(engine *m)
{
    if (m->backend->comm)
        m->backend->comm->leave(m->program);
}
