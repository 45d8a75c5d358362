/* serve.h: answers /infer: a runtime that holds one trained model. */
#ifndef KUBEML_SERVE_H
#define KUBEML_SERVE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"
#include "common/net/wire.h"

enum {
    SERVE_BATCH = 64,          /* samples computed at once */
    SERVE_SAMPLES_MAX = 65536, /* of one request */
    SERVE_QUESTION_BYTES_MAX = 8 << 20,
    /* of its log, to which its code may write */
    SERVE_LOG_BYTES_MAX = 64 << 20,
    SERVE_NUMBER_BYTES = 24, /* -1.4012984643248171e-45, the longest float, and a comma */
    SERVE_CLASS_BYTES = 12,
    SERVE_HEAD_BYTES = 4096, /* of an answer; or a whole one that says what is wrong */
};

/* How long a sample's part of an answer may be. */
static inline size_t serve_sample_bytes(size_t outputs, bool classes)
{
    size_t row = outputs * SERVE_NUMBER_BYTES + 2;
    return row + (classes ? SERVE_CLASS_BYTES : row);
}

/* How long an answer to so many samples is at most, and what its values may take when they are
 * read: of as many numbers as fit, and four lists a sample. */
static inline void serve_answer_limits(size_t samples, size_t outputs, size_t *frame_bytes,
                                       size_t *values_bytes)
{
    size_t n = samples < SERVE_SAMPLES_MAX ? samples : SERVE_SAMPLES_MAX;
    size_t bytes = SERVE_HEAD_BYTES + n * serve_sample_bytes(outputs, false);
    *frame_bytes = bytes < WIRE_FRAME_BYTES_MAX ? bytes : WIRE_FRAME_BYTES_MAX;
    *values_bytes = 4 * *frame_bytes + n * 640;
}

/* `order` is the message `serve`. Loads, says `serving` or `failed`, and answers until the
 * connection ends (0). -1 when it could not be loaded (and was told so), or the connection
 * broke. */
int serve(const json_t *order, wire *w, err *e);

#endif
