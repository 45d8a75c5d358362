/* infer_answer.h: limits the length of a response to /infer.
 *
 * The runtime refuses a request whose response could be longer than a frame. The controller limits
 * a response to the size that the request and the model need. */
#ifndef KUBEML_INFER_ANSWER_H
#define KUBEML_INFER_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#include "limits.h"

enum {
    INFER_NUMBER_BYTES = 24, /* -1.4012984643248171e-45, the longest float, and a comma */
    INFER_CLASS_BYTES = 12,
    INFER_HEAD_BYTES = 4096, /* a response's head, or a whole error response */
};

/* The most bytes for one sample in a response: its logits, and its prediction, which is a class
 * (`classes`) or as long as the logits. */
static inline size_t infer_sample_bytes(size_t outputs, bool classes)
{
    size_t row = outputs * INFER_NUMBER_BYTES + 2;
    return row + (classes ? INFER_CLASS_BYTES : row);
}

/* Computes the most bytes of a response to `samples` samples, at most `frame_bytes_max`, and the
 * most memory for its parsed values: for as many numbers as fit, and four lists a sample. */
static inline void infer_answer_limits(size_t samples, size_t outputs, size_t frame_bytes_max,
                                       size_t *frame_bytes, size_t *values_bytes)
{
    size_t n = samples < LIMITS_INFER_SAMPLES_MAX ? samples : LIMITS_INFER_SAMPLES_MAX;
    size_t bytes = INFER_HEAD_BYTES + n * infer_sample_bytes(outputs, false);
    *frame_bytes = bytes < frame_bytes_max ? bytes : frame_bytes_max;
    *values_bytes = 4 * *frame_bytes + n * 640;
}

#endif
