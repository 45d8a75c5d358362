/* sdk.h: what kubeml-function does with the kml_function of a user's object (kubeml.h): check it,
 * and turn it into the engine's terms. Nothing here blocks but what user code does itself. */
#ifndef KUBEML_SDK_H
#define KUBEML_SDK_H

#include "kernels/engine.h"
#include "kernels/schedule.h"
#include <kubeml.h>

/* The symbol in the object. */
#define SDK_SYMBOL "kubeml_function"

/* ERR_UNSUPPORTED: another ABI (both are named). ERR_INVALID: no model, or a wrong number, named.
 */
int sdk_check(const kml_function *f, err *e);
/* After sdk_check. ERR_INVALID: an option that its kind does not have, named; it is passed over. */
int sdk_check_options(const kml_function *f, err *e);

/* The engine_builder: `user` is the const kml_function *. Calls user code. */
int sdk_build(graph *g, int x, int outputs, void *user);

/* After sdk_check: build, user, loss and optim of `c`; the rest is left alone. `f` must outlive the
 * engine's compile. */
void sdk_config(const kml_function *f, engine_config *c);

/* The schedule; `epochs` (the job's) is the length of a cosine that has none. */
schedule sdk_schedule(const kml_function *f, int epochs);

/* One training step: the user's own where there is one. As engine_train, and ERR_INVALID with the
 * user's message when it gives up. A step that computed no loss is ERR_INVALID. */
int sdk_step(const kml_function *f, engine *m, const engine_batch *b, double lr, engine_result *r,
             err *e);

#endif
