/* round_internal.h: the round machine's parts, for round*.c alone.
 *
 * round.c         the step, reports, retries, the end; open and close
 * round_train.c   a round: the tasks of the functions, and their results
 * round_merge.c   the merge of a round
 * round_epoch.c   an epoch: its shard plan, its validation, its commit, and what follows
 * round_gather.c  the number of functions, and the wait for functions that come
 * round_resume.c  the model that training begins with, or goes on with: made, loaded, restored
 * round_member.c  functions: needed, joined, ready, lost; their slots, silence and lateness */
#ifndef KUBEML_ROUND_INTERNAL_H
#define KUBEML_ROUND_INTERNAL_H

#include "common/contract/shard_plan.h"
#include "round.h"

typedef enum stage {
    STAGE_NEW,      /* before START */
    STAGE_MODEL,    /* version 0 is being made */
    STAGE_TRAIN,    /* a round is open */
    STAGE_MERGE,    /* MERGE is out, or waits for its next try */
    STAGE_VALIDATE, /* the functions validate */
    STAGE_COMMIT,   /* COMMIT is out, or waits for its next try */
    STAGE_ASK,      /* waiting for the controller's parallelism */
    STAGE_GROW,     /* waiting for additional functions, or for an elastic job's first ones */
    STAGE_END,
} stage;

typedef enum member_state {
    MEMBER_NONE,   /* no function at this index */
    MEMBER_NEEDED, /* asked for, or to be asked for at tell_ms; no hello yet */
    MEMBER_JOINED, /* has sent `hello`; loads the code */
    MEMBER_READY,  /* takes tasks */
} member_state;

/* A function's work in the open round, or in the open validation. */
typedef enum task {
    TASK_NONE,
    TASK_TODO, /* to be sent as soon as the function is ready */
    TASK_SENT,
    TASK_DONE,
    TASK_SKIPPED, /* on_loss continue: the function is lost, the round goes on without it */
} task;

typedef struct member {
    member_state state;
    int incarnation; /* of the present or the last process; -1: none yet */
    int slot;        /* -1: none */
    int start_failures, losses, crashes;
    int lost; /* the incarnation that was lost last; -1: none. lost_...: about this incarnation */
    char lost_reason[ROUND_REASON_BYTES], lost_message[ERR_MESSAGE_BYTES];
    bool lost_ready;  /* it was ready */
    bool lost_over;   /* the function has contributed since: that exit cause no longer counts */
    int64_t tell_ms;  /* NEEDED: when the controller is asked for it; 0: was asked */
    bool replacement; /* follows a lost incarnation in this epoch */
    int64_t needed_ms, heard_ms, progress_ms;
    int64_t excused_ms; /* the heard_ms that member_forgive has set */
    char phase[16]; /* of the last heartbeat; a change is progress */
    uint32_t beat_batches;
    bool waits; /* for the store, by its last heartbeat */
    /* this epoch's share */
    uint64_t share;
    uint32_t batches, cursor; /* batches [0, cursor) are merged */
    /* this round's task */
    task task;
    uint32_t batch_begin, batch_count;
    int64_t sent_ms, done_ms;
    bool late;
    round_row row;
    /* this epoch's validation */
    task check;
    uint64_t check_samples; /* its share of the test set */
    uint64_t check_correct;
    double check_loss;
} member;

/* A place in the model store that one process writes to. */
typedef struct slot {
    bool taken, left, ended; /* left: its process gets no more tasks; ended: its process is dead */
    bool dismissed;          /* left because the function was released, not because it was lost */
    int function, incarnation;
    int64_t left_order; /* smaller: left earlier */
} slot;

/* The tries of one operation outside the machine. */
typedef struct retry {
    int tries;
    int64_t due_ms;     /* INT64_MAX: an answer is awaited */
    int64_t give_up_ms; /* since the first failure */
    bool last;          /* the present try was begun after give_up_ms */
} retry;

enum { CONDITION_LOST, CONDITION_STRAGGLER, CONDITION_EXACT, CONDITION_REDIS, CONDITION_STORE,
       CONDITION_COUNT };

typedef struct condition {
    bool raised;
    char reason[ROUND_REASON_BYTES];
    char message[ERR_MESSAGE_BYTES];
} condition;

struct round_machine {
    round_config config;
    int *plan;
    int64_t now_ms, promised_ms;
    stage stage;
    int64_t version;
    int epoch, round, parallelism;
    int committed; /* epochs checkpointed and in the history */
    int64_t stage_due_ms;
    retry op, back;
    bool asked; /* INIT or LOAD is out */
    int losses; /* of functions, since the job began */
    char last_loss[ERR_MESSAGE_BYTES]; /* which function was lost last, and why */
    bool redis_gone, restoring;
    int redis_ends; /* since the last merge */
    bool suspending;
    char suspend_message[ERR_MESSAGE_BYTES];
    bool rolled_back; /* an older state was restored: round numbers repeat */
    int64_t redis_give_up_ms;
    int grow_from, next_epoch; /* GROW: waits for functions from grow_from on, for next_epoch */
    int retrains; /* of this round */
    char layout[ROUND_DIGEST_BYTES], algorithms[ROUND_DIGEST_BYTES];
    /* this epoch */
    shard_plan shard_plan;
    double loss_sum;
    uint64_t samples;
    int64_t began_ms;
    double seconds_before;
    round_epoch record;
    round_merge merge;
    round_row *row;
    int64_t phase_ms;
    const char *phase;
    condition condition[CONDITION_COUNT];
    member *member;
    slot *slot; /* (slots): the machine's bank; on the wire slot s is slot_first + s */
    int slots, slot_first;
    int64_t left_count;
    round_action *action;
    size_t actions, actions_max;
};

/* round.c */
round_action *round_emit(round_machine *m, round_action_type type);
/* Reports a phase. Short rounds would send too many: without `always`, at most one in 250 ms. */
void round_tell_phase(round_machine *m, const char *phase, bool always);
/* `superseded`: another kubeml-ps goes on. */
void round_finish(round_machine *m, round_state state, bool superseded, const char *reason,
                  const char *message);
void round_fail(round_machine *m, const char *reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void round_set_condition(round_machine *m, int which, bool status, const char *reason,
                         const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Changes the reason and message of a condition, and leaves its status. */
void round_word_condition(round_machine *m, int which, const char *reason, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Ends the job here if a suspension was asked for; else false. */
bool round_suspend_here(round_machine *m);
void retry_begin(retry *r);
bool retry_later(round_machine *m, retry *r);
bool retry_due(const round_machine *m, const retry *r);

/* round_train.c */
void round_train_on(round_machine *m);
void round_need_somebody(round_machine *m);
void round_dispatch(round_machine *m);
void round_published(round_machine *m, const round_event *event);

/* round_merge.c */
bool round_all_published(const round_machine *m);
void round_begin_merge(round_machine *m);
void round_emit_merge(round_machine *m);
void round_merged(round_machine *m, const round_event *event);
void round_merge_failed(round_machine *m, const round_event *event);

/* round_epoch.c */
bool round_plan_epoch(round_machine *m, int epoch, int parallelism);
void round_train_epoch(round_machine *m, int epoch, int parallelism);
void round_finish_epoch(round_machine *m); /* every share is trained */
void round_validated(round_machine *m, const round_event *event);
void round_sum_validation(round_machine *m); /* and commits, once all have validated */
void round_emit_commit(round_machine *m);
void round_committed(round_machine *m, const round_event *event);
void round_commit_failed(round_machine *m, const round_event *event);
void round_after_commit(round_machine *m);

/* round_gather.c */
bool round_is_elastic(const round_machine *m);
/* Whether function 0 draws version 0; another model may replace a part of it. */
bool round_draws(const round_machine *m);
/* Asks for functions below `parallelism`, and releases the others. */
void round_need_members(round_machine *m, int parallelism, const char *reason);
void round_gather(round_machine *m, int epoch, int from, int value, int64_t due_ms);
/* Trains if all functions are ready; if it is `late`, with those that are ready. */
void round_gathered(round_machine *m, bool late);
int64_t round_begin_due(const round_machine *m);
void round_grow(round_machine *m, int value);
void round_take_parallelism(round_machine *m, const round_event *event);
/* Goes on without function f and the functions after it, and reports why. False: the job needs
 * f. */
bool round_miss(round_machine *m, int f, const char *why);

/* round_resume.c */
void round_start(round_machine *m, const round_event *event);
/* Version 0 is there: function 0 made it (`by_function`), or kubeml-ps loaded it. */
void round_model_made(round_machine *m, bool by_function, const round_event *event);
void round_loaded(round_machine *m, const round_event *event);
void round_load_failed(round_machine *m, const round_event *event);
bool round_paused(const round_machine *m); /* the model store is away, or is being restored */
void round_redis_gone(round_machine *m, const round_event *event);
void round_redis_runs(round_machine *m, const round_event *event);
void round_redis_back(round_machine *m, const round_event *event);
void round_emit_restore(round_machine *m);

/* round_member.c */
/* The function as which the process of function f has joined: 0 if it is shared, else f. */
int member_process(const round_machine *m, int f);
void member_need(round_machine *m, int f, const char *reason);
/* `why`: round.h, ROUND_RELEASE. */
void member_release(round_machine *m, int f, bool halt, const char *why);
void member_all_there(round_machine *m, const char *reason);
/* The function is gone: its tasks wait for a replacement, which this asks for. */
void member_lose(round_machine *m, int f, const char *reason, const char *message);
void member_hello(round_machine *m, const round_event *event);
void member_ready(round_machine *m, const round_event *event);
void member_heartbeat(round_machine *m, const round_event *event);
void member_lost(round_machine *m, const round_event *event);
void member_failed(round_machine *m, const round_event *event);
/* The function that an event is about, NULL unless its incarnation is the present one. */
member *member_present(round_machine *m, const round_event *event);
void member_time(round_machine *m);
int64_t member_deadline(const round_machine *m);
/* Extends the functions' waits by the time in which this process itself did not run. */
void member_forgive(round_machine *m, int64_t now_ms);
void member_lateness(round_machine *m); /* raises and clears Straggler */

#endif
