/* ps_job_internal.h: what the files of a job share. An epoch goes round through them:
 *
 *   job_receive.c  a frame has come; frame_in.h says what it means    ──┐
 *   ps_job.c       a task or a time is over; effects.h says what of it ─┤
 *                                                                       ▼
 *   job_step.c     the step: the round machine (round.h, for GPUs averaging.h) decides, and each
 *                  action is carried out: as a frame (frame_out.h) or as a task (effects.h)
 *
 * ps_job.c has a job's life besides: its stages, its begin and its end. What a job has done is kept
 * by job_record.h, what its functions use by job_usage.h, its database by database_watch.h. */
#ifndef KUBEML_PS_JOB_INTERNAL_H
#define KUBEML_PS_JOB_INTERNAL_H

#include "averaging.h"
#include "common/round/round.h"
#include "database_watch.h"
#include "effects.h"
#include "job_record.h"
#include "job_spec.h"
#include "job_usage.h"
#include "ps_job.h"

enum {
    JOB_RETRY_MS = 1000, /* of OPEN and FINISH: between two tries, and all of them */
    JOB_GIVE_UP_MS = 60000,
};

typedef enum job_stage {
    JOB_PREPARING,
    JOB_OPENING,
    JOB_RUNNING,
    JOB_FINISHING,
    JOB_OVER,
    JOB_REFUSED
} job_stage;

struct job {
    job_host host;
    job_spec spec;
    job_stage stage; /* ps_job.c's */
    /* the parts, each of which keeps its own */
    round_machine *machine;
    averaging *averaging;
    job_record record;
    job_usage usage;
    effects effects;
    database_watch database;
    modelstore_access owner, member; /* of the model store, once it is prepared */
    /* job_receive.c: who has said what */
    conn *asker;                        /* waits for `accepted`; NULL when it went */
    conn *current;                      /* whose hello is being answered */
    json_t *about[ROUND_FUNCTIONS_MAX]; /* {"cpu","threads"} of each function's hello */
    bool begun;                         /* a batch is trained, and the controllers were told */
    bool needs_losses;                  /* the functions' schedule goes by validation losses */
    char *stop;                         /* why, while it does not run yet; NULL: go on */
    bool stop_suspends;
    /* job_step.c: what is under way */
    int epoch, round;    /* for the log */
    json_t *shared_task; /* of a shared process, made of the step's tasks of its functions */
    int shared_incarnation;
    /* ps_job.c: OPENING and FINISHING */
    int64_t retry_due_ms, give_up_ms;
    bool store_away; /* told, while OPENING */
    checkpoint_info final;
    bool keep_model;
    json_t *finished; /* what was told at the end, and is to whoever attaches */
};

static inline bool job_is_shared(const job *j) /* one process runs all of its functions */
{
    return j->spec.request.process == PROCESS_SHARED;
}

/* ---- job_step.c ---- */

/* The round machine takes `event` (its time is filled in); what follows is carried out, and so is
 * what the averaging machine has to say when the step is over. */
void job_step(job *j, round_event event);
/* The averaging machine takes `event`, outside of a step, */
void job_average(job *j, averaging_event event);
/* or before or within one: what has failed is not told before that is over. */
void job_average_in_step(job *j, averaging_event event);
void job_send_init(job *j); /* to the function 0 that is to make version 0 */
/* Closes a connection, of a function or of whoever wanted to be one; with a reason: */
void job_drop(job *j, conn *c);
void job_refuse(job *j, conn *c, err_code code, const char *message);
/* To a controller that attaches: what is so now, and each epoch after `after_epoch`. */
void job_tell_state(job *j, conn *c, int after_epoch);
/* To `only`, or to all (NULL); then it is noted in the history, too. */
void job_tell_condition(job *j, conn *only, const char *name, bool status, const char *reason,
                        const char *message);

/* ---- ps_job.c ---- */

/* ROUND_FINISHED: the final model and the history are written. */
void job_finish(job *j, const round_action *a);

#endif
