/* state.h: the engine's state as a block, to publish, fetch and store in files.
 *
 * The engine's arrays have gaps that align each parameter; a block has none. A state has the layout
 * (layout.h) of the block, and copies between the two. In a job that resets the optimizer, the
 * block has the weights alone, and an import resets the engine's optimizer. */
#ifndef KUBEML_STATE_H
#define KUBEML_STATE_H

#include <stdbool.h>

#include "common/modelstore/block.h"
#include "common/modelstore/layout.h"
#include "kernels/engine.h"

typedef struct state state;

/* ERR_NOMEM, ERR_LIMIT. Borrows the engine. */
int state_open(engine *m, bool with_optimizer, state **out, err *e);
void state_close(state *s);              /* NULL is fine */
const layout *state_layout(const state *s); /* the state's own */
size_t state_floats(const state *s);
size_t state_counters(const state *s);

/* `half` (may be NULL) is called when half of the floats are written: tests kill the process
 * there. */
int state_export(state *s, block to, void (*half)(void), err *e);
int state_import(state *s, block from, err *e);

#endif
