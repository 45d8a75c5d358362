/* sdk.h: checks the kml_function of a user's object (kubeml.h), and turns it into the engine's
 * terms. Nothing here blocks, except user code itself. */
#ifndef KUBEML_SDK_H
#define KUBEML_SDK_H

#include "kernels/engine.h"
#include "kernels/schedule.h"
#include <kubeml.h>

/* The symbol in the object. */
#define SDK_SYMBOL "kubeml_function"

/* ERR_UNSUPPORTED: another ABI (both are named). ERR_INVALID: no model, or a wrong number, which is
 * named. */
int sdk_check(const kml_function *f, err *e);
/* Call after sdk_check. ERR_INVALID names an option that its kind does not have, which other
 * functions ignore. */
int sdk_check_options(const kml_function *f, err *e);

/* The engine_builder: `user` is the const kml_function *. Calls user code. */
int sdk_build(graph *g, int x, int outputs, void *user);

/* Call after sdk_check. Sets build, user, loss and optim of `c`, and nothing else. `f` must outlive
 * engine_compile. */
void sdk_config(const kml_function *f, engine_config *c);

/* The schedule. A cosine without a length has the length of the job's `epochs` less the warm-up. */
schedule sdk_schedule(const kml_function *f, int epochs);

/* Makes one training step; the user's own if there is one. Errors as engine_train, and ERR_INVALID
 * with the user's message when the step gives up, or when it computes no loss. */
int sdk_step(const kml_function *f, engine *m, const engine_batch *b, double lr, engine_result *r,
             err *e);

#endif
