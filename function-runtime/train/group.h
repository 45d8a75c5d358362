/* group.h: several functions of one job in one process.
 *
 * Each has an engine, a stream where it computes on a GPU, and its share of every epoch, dealt as a
 * job's are; after each round the models are averaged, weighted by samples, where
 * reduce_placement.h decides. On the CPU, and on one GPU, the weights are those of a job with as
 * many processes, bit for bit. A member (member.h) does the rounds that kubeml-ps opens; `kubeml
 * run` all of an epoch's, without a server. One thread owns a group; group_progress may be asked
 * from another.
 */
#ifndef KUBEML_FUNCTION_GROUP_H
#define KUBEML_FUNCTION_GROUP_H

#include "common/contract/reduce_placement.h"
#include "trainer.h"

enum { GROUP_FUNCTIONS_MAX = ENGINE_AVERAGE_MAX };

typedef struct group group;

typedef struct group_config {
    trainer_config trainer; /* of each; `device` is the first one's */
    int functions;          /* 1 .. GROUP_FUNCTIONS_MAX */
    int gpus;               /* function i is on GPU device + i % gpus; at least 1 */
    int k; /* batches between two merges; -1: once an epoch; of group_train alone */
    int together;           /* functions that train at the same time, each in a thread of its own */
    reduce_wish wish;
} group_config;

/* As trainer_open; ERR_UNSUPPORTED: reduce_placement_choose's. */
int group_open(const group_config *c, group **out, char reason[TRAINER_REASON_BYTES], err *e);
void group_close(group *g); /* NULL is fine */
const reduce_placement *group_choice(const group *g);
/* the first one's: after group_open and group_train they are all alike */
trainer *group_trainer(group *g);
/* After one of them was given other weights: all get them. */
int group_copy_first(group *g, err *e);

/* What one function does in a round, or of a validation, and what came of it. */
typedef struct group_part {
    int function;
    uint32_t batch_begin, batch_count; /* of its share; not of a validation */
    trainer_result result;
} group_part;

/* All get these weights (and no optimizer state where it is reset). */
int group_import(group *g, block from, err *e);
/* The functions named train these batches, each its own. `task` says the rest. -1 with
 * group_reason. */
int group_train_parts(group *g, const trainer_task *task, group_part *parts, int n, err *e);
/* The mean of those that trained, in their order, weighted by samples: into `to`. What the
 * functions' own models are until group_take_mean is left open. `half` (may be NULL) is called
 * before `to` is complete: where a test kills. ERR_INVALID: one is not finite. */
int group_mean(group *g, const group_part *parts, int n, block to, void (*half)(void), err *e);
/* All get the last group_mean, which still lies in `mean`; what was averaged on a device is there
 * already, and nothing moves. */
int group_take_mean(group *g, block mean, err *e);
int group_validate_parts(group *g, uint32_t epoch, int parallelism, group_part *parts, int n,
                         err *e);
uint32_t group_progress(const group *g); /* trainer_progress, all functions' */

/* Without a server. One epoch. `task` says epoch, lr and history. -1 with group_reason. */
int group_train(group *g, const trainer_task *task, trainer_result *out, err *e);
int group_validate(group *g, uint32_t epoch, trainer_result *out, err *e);
const char *group_reason(const group *g);

#endif
