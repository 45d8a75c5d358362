/* group.h: several functions of one job in one process.
 *
 * Each function has an engine, on a GPU also a stream, and its share of every epoch, by the shard
 * plan of jobs. After each round the models are averaged, weighted by samples, at the place that
 * reduce_placement.h chooses. On the CPU, and on one GPU, the weights are those of a job with as
 * many processes, bit for bit. A member (member.h) does the rounds that kubeml-ps opens; `kubeml
 * run` does all rounds of an epoch, without a server. One thread owns a group; group_progress may
 * be called from another. */
#ifndef KUBEML_FUNCTION_GROUP_H
#define KUBEML_FUNCTION_GROUP_H

#include "common/contract/reduce_placement.h"
#include "trainer.h"

enum { GROUP_FUNCTIONS_MAX = ENGINE_AVERAGE_MAX };

typedef struct group group;

typedef struct group_config {
    trainer_config trainer; /* of each function; `device` is that of the first function */
    int functions;          /* 1 .. GROUP_FUNCTIONS_MAX */
    int gpus;               /* function i is on GPU device + i % gpus; at least 1 */
    int k; /* for group_train alone: batches between two merges; -1: one merge an epoch */
    int together;           /* functions that train at the same time, each in its own thread */
    reduce_wish wish;
} group_config;

/* As trainer_open; ERR_UNSUPPORTED as reduce_placement_choose. */
int group_open(const group_config *c, group **out, char reason[TRAINER_REASON_BYTES], err *e);
void group_close(group *g); /* NULL is fine */
const reduce_placement *group_choice(const group *g);
/* The trainer of the first function; after group_open and group_train all models are equal. */
trainer *group_trainer(group *g);
/* Copies the weights of the first function to all others. */
int group_copy_first(group *g, err *e);

/* One function's part of a round or a validation, and its result. */
typedef struct group_part {
    int function;
    uint32_t batch_begin, batch_count; /* of its share; not used in a validation */
    trainer_result result;
} group_part;

/* Imports these weights into all functions (and no optimizer state if the job resets it). */
int group_import(group *g, block from, err *e);
/* Trains each part's batches with its function. `task` has the other fields. -1 with
 * group_reason. */
int group_train_parts(group *g, const trainer_task *task, group_part *parts, int n, err *e);
/* Writes to `to` the mean of the models that trained, in function order, weighted by samples. The
 * functions' own models are undefined until group_take_mean. `half` (may be NULL) is called before
 * `to` is complete: tests kill the process there. ERR_INVALID: a model is not finite. */
int group_mean(group *g, const group_part *parts, int n, block to, void (*half)(void), err *e);
/* Gives all functions the last group_mean, which must still be in `mean`. Copies nothing if the
 * mean was made on a device, where all functions have it already. */
int group_take_mean(group *g, block mean, err *e);
int group_validate_parts(group *g, uint32_t epoch, int parallelism, group_part *parts, int n,
                         err *e);
uint32_t group_progress(const group *g); /* the sum of trainer_progress */

/* Trains, or validates, one epoch without a server. `task` has epoch, lr and history. -1 with
 * group_reason. */
int group_train(group *g, const trainer_task *task, trainer_result *out, err *e);
int group_validate(group *g, uint32_t epoch, trainer_result *out, err *e);
const char *group_reason(const group *g);

#endif
