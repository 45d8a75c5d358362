/* schedule.c: see schedule.h. */
#include "schedule.h"

#include <math.h>

#define PI 3.14159265358979323846

static double gamma_of(const schedule *s)
{
    return s->gamma > 0 ? s->gamma : 0.1;
}

static int check_lengths(const schedule *s, err *e)
{
    if (s->kind == SCHEDULE_STEP && s->every < 1)
        return err_set(e, ERR_INVALID, "schedule step: every %d epochs is not possible", s->every);
    if (s->kind == SCHEDULE_COSINE && s->epochs < 1)
        return err_set(e, ERR_INVALID, "schedule cosine: %d epochs are not possible", s->epochs);
    if (s->kind == SCHEDULE_PLATEAU && (s->patience < 0 || s->cooldown < 0))
        return err_set(e, ERR_INVALID,
                       "schedule plateau: patience %d and cooldown %d must be 0 or more",
                       s->patience, s->cooldown);
    if (s->milestone_count < 0 || s->milestone_count > SCHEDULE_MILESTONES_MAX)
        return err_set(e, ERR_INVALID, "schedule milestones: %d are not possible (at most %d)",
                       s->milestone_count, SCHEDULE_MILESTONES_MAX);
    if (s->kind == SCHEDULE_MILESTONES && s->milestone_count == 0)
        return err_set(e, ERR_INVALID, "schedule milestones: none is given");
    if (s->milestone_count > 0 && s->milestones[0] < 1)
        return err_set(e, ERR_INVALID, "schedule milestones: %d is not possible; epochs from 1 are",
                       s->milestones[0]);
    for (int i = 1; i < s->milestone_count; i++)
        if (s->milestones[i] <= s->milestones[i - 1])
            return err_set(e, ERR_INVALID, "schedule milestones: %d does not follow %d",
                           s->milestones[i], s->milestones[i - 1]);
    if (s->warmup_epochs < 0)
        return err_set(e, ERR_INVALID, "schedule: a warm-up of %d epochs is not possible",
                       s->warmup_epochs);
    return 0;
}

int schedule_check(const schedule *s, err *e)
{
    if ((unsigned)s->kind > SCHEDULE_PLATEAU)
        return err_set(e, ERR_INVALID, "schedule %d does not exist", (int)s->kind);
    if (!(s->gamma >= 0 && s->gamma <= 1))
        return err_set(e, ERR_INVALID, "schedule: gamma %g is not in (0, 1]", s->gamma);
    if (!(s->min_lr >= 0 && isfinite(s->min_lr)))
        return err_set(e, ERR_INVALID, "schedule: min_lr %g is negative or not finite", s->min_lr);
    if (!(s->threshold >= 0 && s->threshold < 1))
        return err_set(e, ERR_INVALID, "schedule: threshold %g is not in [0, 1)", s->threshold);
    return check_lengths(s, e);
}

static int milestones_reached(const schedule *s, int epoch)
{
    int reached = 0;
    while (reached < s->milestone_count && s->milestones[reached] <= epoch)
        reached++;
    return reached;
}

static double cosine(const schedule *s, double base, double t)
{
    if (t > s->epochs)
        t = s->epochs;
    return s->min_lr + (base - s->min_lr) * (1 + cos(PI * t / s->epochs)) / 2;
}

/* torch's ReduceLROnPlateau.step(), replayed over the history. Epochs without a validation count at
 * the next epoch that has one, so that no epoch is judged unseen. */
static double plateau(const schedule *s, double base, const double *history, size_t count)
{
    double best = INFINITY, lr = base, threshold = s->threshold > 0 ? s->threshold : 1e-4;
    int bad = 0, cooling = 0, passed = 0;
    for (size_t i = 0; i < count; i++) {
        passed++;
        if (isnan(history[i]))
            continue;
        if (history[i] < best * (1 - threshold)) {
            best = history[i];
            bad = 0;
        } else {
            bad += passed;
        }
        if (cooling > 0) {
            cooling -= passed < cooling ? passed : cooling;
            bad = 0;
        }
        passed = 0;
        if (bad > s->patience) {
            double lower = fmax(lr * gamma_of(s), s->min_lr);
            lr = lr - lower > 1e-8 ? lower : lr;
            cooling = s->cooldown;
            bad = 0;
        }
    }
    return lr;
}

static double fraction(const schedule_point *at)
{
    return at->steps > 0 ? (double)at->step / (double)at->steps : 0;
}

double schedule_lr(const schedule *s, double base, const schedule_point *at)
{
    if (at->epoch < s->warmup_epochs) {
        int64_t steps = at->steps > 0 ? at->steps : 1;
        double done = (double)at->epoch * (double)steps + (double)at->step + 1;
        return base * done / ((double)s->warmup_epochs * (double)steps);
    }
    int epoch = at->epoch - s->warmup_epochs;
    switch (s->kind) {
    case SCHEDULE_CONSTANT:
        return base;
    case SCHEDULE_STEP:
        return base * pow(gamma_of(s), epoch / s->every);
    case SCHEDULE_MILESTONES:
        return base * pow(gamma_of(s), milestones_reached(s, epoch));
    case SCHEDULE_COSINE:
        return cosine(s, base, epoch + (s->per_step ? fraction(at) : 0));
    case SCHEDULE_PLATEAU: {
        size_t skip = (size_t)s->warmup_epochs < at->history_count ? (size_t)s->warmup_epochs
                                                                   : at->history_count;
        return plateau(s, base, at->history + skip, at->history_count - skip);
    }
    }
    return base;
}
