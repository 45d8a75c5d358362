/* engine_internal.h: the model, for the files of the engine: engine.c (the model and its state),
 * engine_work.c (batches) and engine_average.c (means of several models). No other file includes
 * this. */
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

    size_t params, buffers; /* floats of the parameter block and of the buffers */
    size_t slots;           /* of the optimizer */
    size_t counter_count;
    float *floats, *own_floats; /* where the state lies now; the engine's own memory for it */
    int64_t *counters, *own_counters;
    float *grads;
    bool grads_lent; /* the caller has the block: the backend must read it again */
    bool blank;      /* no weights yet */

    engine_var *layout;
    size_t layout_count;
    char *names; /* names of the optimizer's state; GRAPH_NAME_BYTES + 32 each */
    char *layout_text;

    const void **rows; /* one batch's pointers, labels and sample numbers */
    int32_t *labels;
    uint64_t *samples;
    /* The share that the backend keeps; 0 rows: none. */
    uint32_t share_rows, share_rows_each;
    backend_reader share_reader; /* the caller's */
};

/* Tells the backend where the state lies and that it is new; `given` as in backend_state. */
int engine_load(engine *m, const float *given, err *e);
/* Brings the host's blocks up to date, except the gradients. */
int engine_store(engine *m, err *e);

/* The number of updates since the optimizer's state was zeroed: the last counter of a model that
 * trains. */
static inline int64_t *engine_steps(const engine *m)
{
    return &m->counters[m->counter_count - 1];
}

#endif
