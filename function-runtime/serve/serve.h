/* serve.h: a runtime that serves /infer for one trained model. */
#ifndef KUBEML_SERVE_H
#define KUBEML_SERVE_H

#include <jansson.h>

#include "common/base/err.h"
#include "common/net/wire.h"

enum {
    SERVE_BATCH = 64,               /* samples computed at once */
    SERVE_LOG_BYTES_MAX = 64 << 20, /* of its log, to which the model's code may write */
};

/* `order` is the message `serve`. Loads the model, sends `serving` or `failed`, and answers
 * requests until the connection ends (0). -1: the model could not be loaded, which `failed` has
 * reported, or the connection broke. */
int serve(const json_t *order, wire *w, err *e);

#endif
