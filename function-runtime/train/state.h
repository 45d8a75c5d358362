/* state.h: the engine's state as the block that is published, fetched and kept in files.
 *
 * The engine's arrays have gaps that align each parameter; a block has none. A state knows the
 * layout (layout.h) of the block and copies between the two. Without optimizer state (a job that
 * resets it) the block ends after the weights, and what is imported begins with an optimizer that
 * never ran. */
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

/* `half` (may be NULL) is called when half of the floats are written: where a test kills. */
int state_export(state *s, block to, void (*half)(void), err *e);
int state_import(state *s, block from, err *e);

#endif
