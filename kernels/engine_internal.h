/* engine_internal.h: a model, for the files that are the engine: engine.c (the model and its
 * state), engine_work.c (batches) and engine_average.c (means of several models). Nobody else
 * includes this. */
#ifndef KUBEML_ENGINE_INTERNAL_H
#define KUBEML_ENGINE_INTERNAL_H

#include "engine.h"

struct engine {
    graph *g;
    const backend *backend;
    backend_program *program;
    backend_config c;
    shape input;
    int outputs;

    size_t params, buffers; /* floats of a block of parameters, and of the buffers */
    size_t slots;           /* of the optimizer */
    size_t counter_count;
    float *floats, *own_floats; /* where the state lies now; the engine's own memory for it */
    int64_t *counters, *own_counters;
    float *grads;
    bool grads_lent; /* engine_grads gave them away: the backend must read them again */
    bool blank;      /* nobody has given it weights yet */

    engine_var *layout;
    size_t layout_count;
    char *names; /* of the optimizer's state; GRAPH_NAME_BYTES + 32 each */
    char *layout_text;

    const void **rows; /* one batch's pointers, labels and sample numbers */
    int32_t *labels;
    uint64_t *samples;
    /* of the share that the backend keeps; 0 rows: none */
    uint32_t share_rows, share_rows_each;
    backend_reader share_reader; /* the caller's */
};

/* Tells the backend where the state lies and that it counts now; `given` as in backend_state. */
int engine_load(engine *m, const float *given, err *e);
/* Brings the host's blocks up to date, but for the gradients. */
int engine_store(engine *m, err *e);

/* Updates since the optimizer's state was zeroed: the last of the counters, of a model that
 * trains. */
static inline int64_t *engine_steps(const engine *m)
{
    return &m->counters[m->counter_count - 1];
}

#endif
