/* cuda_models.h: a program's model on the device as blocks. For means over several processes
 * (cuda_peer.c, cuda_comm.c), the model is read, merged, summed and replaced as a whole. */
#ifndef KUBEML_CUDA_MODELS_H
#define KUBEML_CUDA_MODELS_H

#include "cuda_program.h"

/* This program's model, or a model of the same graph elsewhere. */
typedef struct cuda_model {
    float *params, *buffers, *state;
    int64_t *counters;
} cuda_model;

enum { CUDA_MODEL_BLOCKS = 3 };

size_t cuda_model_count(const program *p, int which); /* floats of a block */
float *cuda_model_block(const cuda_model *m, int which);

cuda_model cuda_model_own(const program *p);
cuda_model cuda_model_at(char *base, const backend_ipc_handle *l);
/* Memory for a mean, the first time. ERR_NOMEM: it does not fit; ERR_LIMIT: it is over the cap. */
int cuda_mean_take(program *p, err *e);
size_t cuda_mean_untaken(const program *p); /* what cuda_mean_take would take now */
cuda_model cuda_model_mean(const program *p);

/* The sum over all words as they are now. */
int cuda_model_sum(program *p, const cuda_model *m, uint64_t *out, err *e);
/* The weighted mean, with the bits of common/modelstore/merge.h; of counters the largest. `to` may
 * be one of `of`. *finite: 0 when any number of the mean is not finite. */
int cuda_model_merge(program *p, const cuda_model *of, const double *weight, int n,
                     const cuda_model *to, int32_t *finite, err *e);
/* Replaces the program's own model by `from`. 1 with ERR_CORRUPT: the copy has another sum, and the
 * model is zeros. */
int cuda_model_adopt(program *p, const cuda_model *from, uint64_t sum, err *e);
/* Clears the model, counters too. */
int cuda_model_clear(program *p, const cuda_model *m, err *e);

#endif
