/* schedule.h: the learning rate as a pure function of the position in training and of the
 * validation losses so far, so that a replaced function computes the same rate. Formulas:
 * torch.optim.lr_scheduler's closed forms. */
#ifndef KUBEML_SCHEDULE_H
#define KUBEML_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum { SCHEDULE_MILESTONES_MAX = 16 };

typedef enum schedule_kind {
    SCHEDULE_CONSTANT,
    SCHEDULE_STEP,       /* base * gamma^(epoch / every) (StepLR) */
    SCHEDULE_MILESTONES, /* base * gamma^(milestones reached) (MultiStepLR) */
    SCHEDULE_COSINE,     /* min + (base-min) * (1 + cos(pi * t / epochs)) / 2 (CosineAnnealingLR),
                            t with fractions of an epoch where per_step; t stops at epochs */
    SCHEDULE_PLATEAU,    /* ReduceLROnPlateau, mode min, threshold relative, over the history */
} schedule_kind;

typedef struct schedule {
    schedule_kind kind;
    int every;    /* STEP: epochs */
    double gamma; /* STEP, MILESTONES, PLATEAU (its `factor`): 0.1 where 0 */
    int milestones[SCHEDULE_MILESTONES_MAX], milestone_count; /* ascending, from 1 */
    int epochs;                                               /* COSINE: length */
    double min_lr;                                            /* COSINE, PLATEAU */
    bool per_step;          /* COSINE: every step, not every epoch */
    int patience, cooldown; /* PLATEAU: epochs; PyTorch's defaults are 10 and 0 */
    double threshold;       /* PLATEAU: 1e-4 where 0 */
    int warmup_epochs; /* any kind: the rate rises linearly, (step + 1) / steps, over these epochs;
                          then the schedule runs as if it began there (0: no warm-up) */
} schedule;

/* Where training stands. */
typedef struct schedule_point {
    int epoch; /* from 0 */
    int64_t step,
        steps; /* step of the epoch, from 0, and how many the epoch has; 0, 0: per epoch */
    const double *history; /* each epoch's validation loss before this one; NaN: not validated */
    size_t history_count;
} schedule_point;

/* ERR_INVALID, naming the field, for wrong lengths, rates and milestones. */
int schedule_check(const schedule *s, err *e);
/* The learning rate at that point, from the job's `base` rate. Pure; never fails on a checked
 * schedule. */
double schedule_lr(const schedule *s, double base, const schedule_point *at);

#endif
