/* limits.h: limits that more than one program applies.
 *
 * A function and its engine must not refuse a request that the controller has accepted. A module
 * whose own limit has another name takes its value from here. This header includes no other header:
 * kernels/ uses no other header of this folder. */
#ifndef KUBEML_LIMITS_H
#define KUBEML_LIMITS_H

enum {
    LIMITS_BATCH_MAX = 65536,         /* samples of a batch */
    LIMITS_THREADS_MAX = 256,         /* of a function */
    LIMITS_OUTPUTS_MAX = 1 << 20,     /* of a model */
    LIMITS_SHARED_MAX = 64,           /* functions of one process, whose models are averaged */
    LIMITS_MODEL_TEXT_BYTES = 64,     /* of a zoo model with its options, with the NUL */
    LIMITS_CROP_MAX = 64,             /* pixels by which training images are shifted */
    LIMITS_INFER_BYTES_MAX = 8 << 20, /* of the body of POST /infer */
    LIMITS_INFER_SAMPLES_MAX = 65536, /* of one request */
};

#endif
