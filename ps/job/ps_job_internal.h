/* ps_job_internal.h: what the files of a job share. An event passes through them:
 *
 *   job_receive.c  a frame has come (frame_in.h)                     ──┐
 *   ps_job.c       a task has come back (effects.h), or a time is due ─┤
 *                                                                      ▼
 *   job_step.c     the step: the round machine (round.h, for GPUs averaging.h) decides, and each
 *                  action is carried out: as a frame (frame_out.h) or as a task (effects.h)
 *
 * ps_job.c also has a job's stages, its begin and its end. job_record.h records what the job has
 * done, job_usage.h what its functions use; database_watch.h watches its database. */
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
    JOB_RETRY_MS = 1000,    /* between two tries of OPEN or FINISH */
    JOB_GIVE_UP_MS = 60000, /* for all tries of one */
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
    /* the parts; each owns its state */
    round_machine *machine;
    averaging *averaging;
    job_record record;
    job_usage usage;
    effects effects;
    database_watch database;
    modelstore_access owner, member; /* of the model store, once it is prepared */
    /* job_receive.c: what was received */
    conn *asker;                        /* the controller that waits for `accepted`; NULL: gone */
    conn *current;                      /* the function whose hello is being handled */
    json_t *about[ROUND_FUNCTIONS_MAX]; /* {"cpu","threads"} of each function's hello */
    bool begun;                         /* a batch is trained, and `begun` was sent */
    bool needs_losses;                  /* the learning rate follows validation losses */
    char *stop;                         /* reason of a stop before RUNNING; NULL: none */
    bool stop_suspends;
    /* job_step.c: the present step */
    int epoch, round;    /* for the log */
    json_t *shared_task; /* of a shared process: the step's tasks of its functions */
    int shared_incarnation;
    /* ps_job.c: OPENING and FINISHING */
    int64_t retry_due_ms, give_up_ms;
    bool store_away; /* reported, while OPENING */
    checkpoint_info final;
    bool keep_model;
    json_t *finished; /* the frame sent at the end, and to each controller that attaches later */
};

static inline bool job_is_shared(const job *j) /* one process runs all of its functions */
{
    return j->spec.request.process == PROCESS_SHARED;
}

/* ---- job_step.c ---- */

/* Gives `event` to the round machine (fills in its time) and carries out the actions. Then settles
 * the averaging machine, whose event makes another step. */
void job_step(job *j, round_event event);
/* Gives `event` to the averaging machine, outside of a step. */
void job_average(job *j, averaging_event event);
/* The same before or within a step: a failure is reported when that step is over. */
void job_average_in_step(job *j, averaging_event event);
void job_send_init(job *j); /* to the function 0 that is to make version 0 */
/* Closes a connection; the averaging machine gets a function's GONE. */
void job_drop(job *j, conn *c);
/* The same, after sending `refused`. */
void job_refuse(job *j, conn *c, err_code code, const char *message);
/* Sends the present state to a controller that attaches, and each epoch after `after_epoch`. */
void job_tell_state(job *j, conn *c, int after_epoch);
/* Sends a condition to `only`, or to all (NULL) and then records it in the history, too. */
void job_tell_condition(job *j, conn *only, const char *name, bool status, const char *reason,
                        const char *message);

/* ---- ps_job.c ---- */

/* ROUND_FINISHED: the final model and the history are written. */
void job_finish(job *j, const round_action *a);

#endif
