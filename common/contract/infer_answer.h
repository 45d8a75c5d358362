/* infer_answer.h: how long an answer to /infer may be.
 *
 * The runtime refuses a question whose answer could be longer than a frame; the controller gives an
 * answer no more room than the question and the model need. */
#ifndef KUBEML_INFER_ANSWER_H
#define KUBEML_INFER_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#include "limits.h"

enum {
    INFER_NUMBER_BYTES = 24, /* -1.4012984643248171e-45, the longest float, and a comma */
    INFER_CLASS_BYTES = 12,
    INFER_HEAD_BYTES = 4096, /* of an answer; or a whole one that says what is wrong */
};

/* How long a sample's part of an answer may be. */
static inline size_t infer_sample_bytes(size_t outputs, bool classes)
{
    size_t row = outputs * INFER_NUMBER_BYTES + 2;
    return row + (classes ? INFER_CLASS_BYTES : row);
}

/* How long an answer to so many samples is at most, where none is over `frame_bytes_max`, and what
 * its values may take when they are read: of as many numbers as fit, and four lists a sample. */
static inline void infer_answer_limits(size_t samples, size_t outputs, size_t frame_bytes_max,
                                       size_t *frame_bytes, size_t *values_bytes)
{
    size_t n = samples < LIMITS_INFER_SAMPLES_MAX ? samples : LIMITS_INFER_SAMPLES_MAX;
    size_t bytes = INFER_HEAD_BYTES + n * infer_sample_bytes(outputs, false);
    *frame_bytes = bytes < frame_bytes_max ? bytes : frame_bytes_max;
    *values_bytes = 4 * *frame_bytes + n * 640;
}

#endif
