/* job_spec.h: the controller's `job` message, read and checked once.
 *
 * All later code reads the spec, never the message. A job_spec owns what it points to. */
#ifndef KUBEML_PS_JOB_SPEC_H
#define KUBEML_PS_JOB_SPEC_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/contract/request.h"
#include "common/modelstore/modelstore.h"
#include "common/store/store.h"

enum { JOB_ID_BYTES = 40, JOB_SECRET_BYTES = 129, JOB_SECRET_BYTES_MIN = 16 };

typedef struct job_spec {
    char id[JOB_ID_BYTES];
    char secret[JOB_SECRET_BYTES];
    request request;
    json_t *task;     /* the request as the controller gave it: the history's "task" */
    json_t *function; /* {"name","version","object"} */
    json_t *dataset;  /* {"name","digest",...} */
    uint64_t train_samples, test_samples;
    int train_chunks, test_chunks, chunk_samples;
    char store[STORE_LOCATOR_BYTES], shm_dir[MODELSTORE_PATH_BYTES];
    bool resume;
    int parallelism, slots_max;
    int generation;  /* how many kubeml-ps the job had before this one; -1: not given */
    int plan_epochs; /* 0: the parallelism is asked for after each epoch */
    int *plan;       /* parallelism of epoch 1 to plan_epochs */
} job_spec;

/* ERR_INVALID naming the field. On error nothing is left to free. */
int job_spec_parse(const json_t *message, job_spec *out, err *e);
void job_spec_free(job_spec *s);

#endif
