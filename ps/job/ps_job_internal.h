/* ps_job_internal.h: what ps_job.c (a job's life), job_actions.c (what the machine wants done) and
 * job_receive.c (what others say) share. */
#ifndef KUBEML_PS_JOB_INTERNAL_H
#define KUBEML_PS_JOB_INTERNAL_H

#include "averaging.h"
#include "common/round/round.h"
#include "ps_job.h"
#include "job_record.h"
#include "job_spec.h"
#include "job_usage.h"

enum {
    JOB_RETRY_MS = 1000, /* of OPEN and FINISH: between two tries, and all of them */
    JOB_GIVE_UP_MS = 60000,
    JOB_REVIVE_RETRY_MS = 250,
    JOB_PING_MS = 5000, /* between two looks whether Redis answers */
    /* Without an answer that many times in a row, 45 s, it stands still for good. Each counts once
     * however long it took: no pause of our own is held against it. What it does for long it does
     * on threads of its own. */
    JOB_PINGS_LOST_MAX = 9,
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
    job_stage stage;
    round_machine *machine;
    job_record record;
    storage_worker *storage_worker;
    modelstore_access owner, member;
    conn *asker;   /* waits for `accepted`; NULL when it went */
    conn *current; /* whose hello is being answered */
    /* the model */
    char *layout;                       /* canonical text, from the first `ready` */
    bool initial_done;                  /* version 0 is merged */
    int init_incarnation, init_slot;    /* whom ROUND_INIT asked */
    json_t *gathered; /* the task of a shared process, made of the step's tasks of its functions */
    int gathered_incarnation;
    averaging *averaging;
    bool begun; /* a batch is trained, and the controllers were told */
    json_t *about[ROUND_FUNCTIONS_MAX]; /* {"cpu","threads"} of each function's hello */
    /* Redis */
    bool database_busy, redis_down, redis_back; /* back, but a task is still out */
    int64_t revive_due_ms;                      /* when to try again to restart it */
    int64_t ping_due_ms; /* INT64_MAX: it is being asked, is gone, or is another container's */
    bool pings;          /* the task that is out asks it */
    int pings_lost;      /* in a row */
    int tasks_out;
    int64_t retry_due_ms, give_up_ms; /* of OPENING and FINISHING */
    bool store_away;                  /* said, while OPENING */
    /* the epoch */
    int epoch, round; /* for the log */
    bool needs_losses; /* the functions' schedule goes by validation losses */
    job_usage usage;
    /* the end */
    char *stop; /* why, while OPENING */
    bool stop_suspends;
    json_t *finished;
    checkpoint_info final;
    bool keep_model;
};

static inline bool job_is_shared(const job *j) /* one process runs all of its functions */
{
    return j->spec.request.process == PROCESS_SHARED;
}

/* Takes `event` (its time is filled in) and carries out what follows. */
void job_step(job *j, round_event event);
/* The same of the averaging machine, and what the round machine has to hear of that. */
void job_average(job *j, averaging_event event);
/* Before, or within, a step of the round machine, at whose end the averaging machine settles. */
void job_average_before(job *j, averaging_event event);
/* Closes a connection. */
void job_drop(job *j, conn *c);
/* For a controller that attaches. */
void job_tell_averaging(job *j, conn *only);
/* The machine wants this done; what is told goes to `only`, or to all (NULL). */
void job_perform(job *j, const round_action *a, conn *only);
/* `finished` is what is told now, and to whoever asks later. */
void job_end(job *j, const char *state, const char *reason, const char *message, int epochs,
             const char *sha256);
void job_post(job *j, task *t); /* to the keeper; NULL: memory was gone */
/* `one` >= 0: the rows were averaged already, and function 0's incarnation `one` published the
 * mean. */
void job_post_merge(job *j, const round_merge *merge, int one);
void job_post_initial(job *j, int incarnation);
void job_post_finish(job *j);
void job_send_init(job *j);
void job_tell_condition(job *j, conn *only, const char *name, bool status, const char *reason,
                        const char *message);
void job_tell_epoch(job *j, conn *c, int epoch); /* to `c`, or NULL: to all */
json_t *job_access_message(const job *j);
void job_reply_refused(job *j, conn *c, err_code code, const char *message);

#endif
