/* group.h: several functions of one job in one process: the rounds of Local SGD without a server.
 *
 * Each has an engine, a stream where it computes on a GPU, and its share of every epoch, dealt as a job's are; after `k`
 * batches of each the models are averaged, weighted by samples, where average.h decides. On the CPU, and on one GPU, the
 * weights are those of a job with as many functions, bit for bit. One thread owns a group. */
#ifndef KUBEML_FUNCTION_GROUP_H
#define KUBEML_FUNCTION_GROUP_H

#include "average.h"
#include "trainer.h"

enum { GROUP_FUNCTIONS_MAX = ENGINE_AVERAGE_MAX };

typedef struct group group;

typedef struct group_config {
    trainer_config trainer; /* of each; `device` is the first one's */
    int functions;          /* 1 .. GROUP_FUNCTIONS_MAX */
    int gpus;               /* function i is on GPU device + i % gpus; at least 1 */
    int k;                  /* batches between two merges; -1: once an epoch */
    int together;           /* functions that train at the same time, each in a thread of its own */
    average_wish wish;
} group_config;

/* As trainer_open; ERR_UNSUPPORTED: average_choose's. */
int group_open(const group_config *c, group **out, char reason[TRAINER_REASON_BYTES], err *e);
void group_close(group *g); /* NULL is fine */
const average_choice *group_choice(const group *g);
trainer *group_trainer(group *g); /* the first one's: after group_open and group_train they are all alike */
/* After one of them was given other weights: all get them. */
int group_copy_first(group *g, err *e);

/* One epoch. `task` says epoch, lr and history. -1 with group_reason. */
int group_train(group *g, const trainer_task *task, trainer_result *out, err *e);
int group_validate(group *g, uint32_t epoch, trainer_result *out, err *e);
const char *group_reason(const group *g);

#endif
