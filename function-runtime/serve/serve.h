/* serve.h: answers /infer: a runtime that holds one trained model. */
#ifndef KUBEML_SERVE_H
#define KUBEML_SERVE_H

#include <jansson.h>

#include "common/base/err.h"
#include "common/net/wire.h"

enum {
    SERVE_BATCH = 64,               /* samples computed at once */
    SERVE_LOG_BYTES_MAX = 64 << 20, /* of its log, to which its code may write */
};

/* `order` is the message `serve`. Loads, says `serving` or `failed`, and answers until the
 * connection ends (0). -1 when it could not be loaded (and was told so), or the connection
 * broke. */
int serve(const json_t *order, wire *w, err *e);

#endif
