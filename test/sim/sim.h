/* sim.h: the simulator: the production state machines in a made-up world.
 *
 * One seed is one schedule: one to four jobs, a controller that runs job.h, kubeml-ps processes
 * that run round.h, functions, a model store each, one store; a clock that jumps from event to
 * event, a network that delays, doubles and breaks, and faults at any moment, also half-way through
 * a publish or a commit. Nothing here runs in parallel and nothing looks at the real clock, so the
 * same seed is the same trace.
 *
 * The model is a number: a contribution is a hash of the reference it was trained from and of the
 * samples it saw, a merge a hash chain over the contributions in their order. So "the same weights
 * as without faults" is one comparison.
 *
 * sim.c            the clock, the network, processes, faults, the run
 * sim_store.c      model store, ledger, checkpoints: every safety check of a merge and a commit
 * sim_ps.c         kubeml-ps around a round_machine
 * sim_function.c   a function
 * sim_user.c       who asks for jobs
 * sim_controller.c the controller around a jobs machine
 * sim_pool.c       its cluster: pods and the GPUs that they come with
 * sim_check.c      what must be true of the jobs machine after each step
 * sim_bounds.c     what jobs may fail of */
#ifndef KUBEML_SIM_H
#define KUBEML_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rng.h"
#include "common/contract/shard_plan.h"
#include "common/round/round.h"
#include "controller/job/job.h"

enum {
    SIM_JOBS_MAX = 4,
    SIM_FUNCTIONS_MAX = 6,
    SIM_EPOCHS_MAX = 4,
    SIM_ROWS_MAX = 400, /* of one epoch */
    SIM_PROCESSES_MAX = 600,
    SIM_CONNS_MAX = 1500,
    SIM_SLOTS_MAX = 4 * (2 * SIM_FUNCTIONS_MAX + 8),
    SIM_CONTROLLER = -1,
    SIM_SAMPLES_MAX = 200,
    SIM_GPUS_MAX = 3,
    SIM_GPU_BYTES = 1000,
};

typedef struct sim sim;
typedef struct message message;

/* What one function of a process is to train, and what it made of it. */
typedef struct sim_share {
    int function;
    uint32_t batch_begin, batch_count;
    uint64_t value;
} sim_share;

/* A task's functions: one, or those of a shared process. */
typedef struct sim_shares {
    int count;
    sim_share of[SIM_FUNCTIONS_MAX];
} sim_shares;

/* One thing that happens at a time: a frame that arrives, a wait that ends, a fault. */
struct message {
    int64_t at;
    uint64_t seq;
    void (*deliver)(sim *s, message *m);
    /* process, or SIM_CONTROLLER: not delivered to the dead, kept while it is stopped */
    int to;
    int life;   /* of the controller it was meant for; -1: any */
    int conn;   /* -1: none; otherwise dropped when that is broken */
    int from;   /* process */
    int number; /* whatever the receiver wants to know */
    bool warm;  /* of a pod: it waits, and needs but its label */
    round_event round;
    round_action task;
    sim_shares shares; /* of the task, or of the report on it */
    job_event job;
    char text[JOB_POD_BYTES];
    message *next_free;
};

typedef struct sim_conn {
    int end[2]; /* processes; end[0] dialled */
    bool open;
    int64_t last_at[2]; /* what goes to end[i] arrives in order */
} sim_conn;

/* What one place of the model store holds. */
typedef struct sim_place {
    bool writing, published;
    int writer; /* process */
    int function, incarnation, epoch, round;
    uint64_t samples;
    sim_shares shares; /* whose contributions are in it */
} sim_place;

/* A state of the model with the ledger of its epoch. */
typedef struct sim_model {
    int64_t version;
    uint64_t value;
    int epoch, round; /* open */
    int rows_epoch, parallelism, rows;
    round_row row[SIM_ROWS_MAX];
} sim_model;

typedef struct redis {
    bool up;
    int64_t down_ms; /* since then it is not */
    bool created; /* the job's model has its place in it */
    bool inited;  /* function 0 has published the first model */
    sim_model model;
    sim_place place[SIM_SLOTS_MAX];
} redis;

/* As kubeml-ps says it, and as the history keeps it. */
typedef struct sim_end {
    job_state state;
    char reason[ROUND_REASON_BYTES];
    char message[ERR_MESSAGE_BYTES];
    int epochs;
} sim_end;

/* What happened to a function since it last contributed, as sim_bounds.c counts it. */
typedef struct bound {
    int ready; /* the incarnation that was ready last; -1 */
    int starts, losses, crashes;
    int lost;  /* the last incarnation that was replaced; -1; */
    bool over; /* a later one has contributed */
    bool started; /* so far as is known it was no failure to start */
    int64_t cut_ms; /* the end of its connection */
} bound;

typedef struct ps {
    round_machine *machine;
    redis *redis;
    sim_model merged, pending; /* the last state it knows of, to put back; what its merge gave */
    round_merge out;       /* the merge that is out */
    round_row out_row[SIM_FUNCTIONS_MAX];
    round_resume resume;
    bool started;
    int init_incarnation;       /* whom INIT asked; -1: nobody */
    bool created, initial_done; /* in a model store that answered so; version 0 is merged */
    int parallelism;            /* granted */
    int64_t io_free; /* slow calls are made one after the other */
    uint64_t tick;
    struct {
        int incarnation, conn;
    } joined[SIM_FUNCTIONS_MAX];
    struct { /* what each was told to train last, and whether it has; `gone`: with Redis */
        int incarnation, epoch, round;
        bool published, gone;
    } trains[SIM_FUNCTIONS_MAX];
    int controller; /* conn, -1 */
    round_event stop;   /* asked for before it began; TICK: it was not */
    int64_t give_up_ms; /* until then the store is tried for the beginning, or for the end */
    bool finished;
    sim_end end;
    bound bound[SIM_FUNCTIONS_MAX];
    int redis_ends; /* since the last merge */
} ps;

typedef struct process {
    bool is_ps, alive, halted;
    const char *ended; /* why it is not alive; static */
    int job, function, incarnation;
    int gpu; /* that its pod has; -1: none, or its pod is not who has it */
    int64_t stopped_until;
    int slow; /* times the usual time */
    int ps_process, conn; /* of a function */
    bool specialised, busy, waiting;
    round_action task, next;
    sim_shares shares, next_shares; /* of these */
    int tries;
    ps *ps;
    char name[JOB_POD_BYTES];
} process;

/* What the store keeps of a job, and what the checks know of it. */
typedef struct sim_job {
    char id[JOB_ID_BYTES];
    request request;
    round_limits limits;
    uint64_t samples, test_samples;
    uint32_t chunk_samples;
    json_t *record;
    json_t *unsaved; /* the newest record, while the store is away: it goes with the controller */
    int noted;       /* the generation of the newest record, written or not */
    bool done;
    bool placed; /* its first places on GPUs were looked at */
    /* checkpoints */
    int committed;
    int writer; /* the generation of the kubeml-ps that wrote the history last; -1: there is none */
    /* of the last that found no history to put its number in: one before it may commit still; -1 */
    int unfenced;
    struct {
        round_epoch record;
        uint64_t value;
    } epoch[SIM_EPOCHS_MAX];
    bool final; /* the final record is written: */
    sim_end end;
    /* the merges of an epoch that it was suspended in, in the history and in a blob */
    bool open;
    sim_model open_model;
    int generation_process; /* that was sent the job last */
    bool cancelled, suspended, nan;
    bool queued;                  /* by the newest record */
    int64_t decided_ms, ended_ms; /* its end; INT64_MAX */
    bool lost_record;  /* what was decided may be known to kubeml-ps alone, as a cancellation */
    bool waits_resume; /* somebody has it go on */
    int resumes;
    /* sim_bounds.c: of the record that was written last, and what has happened */
    int generation, epochs_heard, ps_lost, retries;
    int64_t again_ms; /* no sooner is it tried again */
    struct {
        int incarnation, times;
    } pod_failed[1 + SIM_FUNCTIONS_MAX]; /* kubeml-ps's first */
    char fair[JOB_REASON_BYTES];         /* what it may fail of */
    bool hopeless; /* no GPU could hold it: cancelled when the others are done */
    /* the end */
    job_state state;
    char reason[JOB_REASON_BYTES];
} sim_job;

struct sim {
    uint64_t seed;
    rng rng;
    bool verbose;
    int64_t now;
    uint64_t next_seq;
    message **heap;
    int heap_count, heap_room;
    message *free_list;
    process *process;
    int processes;
    sim_conn *conn;
    int conns;
    sim_job job[SIM_JOBS_MAX];
    int jobs;
    bool store_up;
    int64_t store_down_ms; /* since then it is not */
    int64_t store_back_ms;
    int store_ends;        /* that is awaited: the last */
    redis *all_redis[SIM_PROCESSES_MAX];
    int redises;
    /* controller */
    jobs *machine;
    int life; /* of the present controller */
    int64_t began_ms; /* it was there from */
    bool adopting; /* which finds the jobs of the one before */
    int slots, slots_most, held;
    int gpus; /* of SIM_GPU_BYTES each */
    bool gpus_elsewhere;         /* others hand them out, one to each function's pod */
    int gpu_index[SIM_GPUS_MAX]; /* the machine's, of those that a pod has shown; -1 */
    bool gpu_known[SIM_GPUS_MAX]; /* a pod is there, as far as the controller knows */
    int idle[SIM_GPUS_MAX];      /* warm pods that nobody has */
    bool looks;                  /* another pod is on its way, since a job waits for room */
    job_limits limits;
    uint64_t controller_tick;
    int ps_conn[SIM_JOBS_MAX];
    /* faults */
    int faults_left, injected;
    int64_t calm_ms; /* from here on nothing breaks any more */
    double duplicate, lag;
    bool withheld; /* a pod came later than it was waited for; once, so that each job ends */
    /* functions end now and then while it is not calm, some before they are ready, and Redis does
     * more often; strict */
    bool frail;
    bool strict; /* small bounds, of which jobs may fail */
    bool narrow; /* no function starts that a job asks for beyond its request */
    /* no warm pod shows a GPU before there are jobs, each of which needs all GPUs */
    bool blind;
    int lost_replies, flips;
    uint64_t steps, hash;
    char wrong[512]; /* the first violation; "" */
};

/* Runs one seed. 0, or -1 with `wrong` saying what was violated. `hash` is of the whole trace. */
int sim_run(uint64_t seed, bool verbose, char wrong[512], uint64_t *hash);

/* ---- sim.c: the world ------------------------------------------------------------------------ */
void sim_note(sim *s, const void *bytes, size_t len); /* into the trace's hash */
void sim_wrong(sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_trace(sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint64_t sim_mix(uint64_t a, uint64_t b);
int64_t sim_between(sim *s, int64_t low, int64_t high); /* [low, high] */
bool sim_chance(sim *s, double p);
bool sim_fault(sim *s, double p); /* a fault happens here and now */
bool sim_frailty(sim *s, double p);
message *sim_after(sim *s, int64_t ms, int to, void (*deliver)(sim *, message *));
message *sim_send(sim *s, int conn, int to, void (*deliver)(sim *, message *));
int sim_connect(sim *s, int from, int to);
void sim_break(sim *s, int conn);
int sim_start_process(sim *s, bool is_ps, int who, int function, int incarnation);
void sim_kill(sim *s, int p, const char *reason);
process *sim_process(sim *s, const char *name);

/* ---- sim_store.c ----------------------------------------------------------------------------- */
redis *redis_new(sim *s);
int redis_merge(sim *s, int who, redis *r, const round_merge *m, int *bad);
/* The history, which kubeml-ps of that generation writes: what it has found or done, or that a
 * later one has the job (ERR_STALE), or that the store is away (ERR_UNAVAILABLE). */
err_code store_claim(sim *s, int who, int generation);
err_code store_commit(sim *s, int who, int generation, const ps *p, const round_epoch *record);
err_code store_end(sim *s, int who, int generation, const ps *p);
uint64_t store_reference(sim *s, int who); /* the model of the same plan without faults */
uint64_t model_contribution(uint64_t base, int epoch, int parallelism, int function, uint64_t begin,
                            uint64_t end);
uint64_t model_first(const sim_job *j);
uint64_t model_correct(uint64_t value, int function, uint64_t samples);

/* ---- sim_ps.c -------------------------------------------------------------------------------- */
void ps_begin(sim *s, int p, bool resume, int generation, int parallelism, int functions_max);
void ps_free(ps *p);
void ps_step(sim *s, int p, const round_event *event, int conn, int from);
void ps_from_function(sim *s, message *m); /* round, conn, from */
void ps_conn_closed(sim *s, int p, int conn, int other);
void ps_attach(sim *s, message *m);
void ps_told(sim *s, message *m); /* round */
void ps_bye(sim *s, message *m);
void ps_redis_down(sim *s, int p, bool empty, int64_t ms);

/* ---- sim_function.c: a frame of a process, as what each of its functions reports --- */
void report_share(sim *s, int which, const round_action *task, const sim_share *share,
                  round_event *out);

/* ---- sim_function.c -------------------------------------------------------------------------- */
void function_specialise(sim *s, message *m);
void function_welcome(sim *s, message *m);
void function_task(sim *s, message *m);
void function_halt(sim *s, message *m);
void function_conn_closed(sim *s, int p);

/* ---- sim_pool.c ------------------------------------------------------------------------------ */
void pool_take(sim *s, int who, const job_action *a);
void pool_untake(sim *s, int who, const job_action *a);
void pool_stop(sim *s, const char *pod);
int pool_show(sim *s, int gpu); /* a pod says which one it has: the machine's index */
int pool_land(sim *s);
void pool_add_idle(sim *s, int gpu);
void pool_look_for_gpus(sim *s);
void pool_forget_gpus(sim *s);
void pool_check_none_reserved(sim *s, int who);
/* Of the pods that were on their way to jobs when the controller died, some bear their label. */
void pool_controller_dies(sim *s);

/* ---- sim_bounds.c ---------------------------------------------------------------------------- */
void bounds_choose(sim *s, round_limits *l);
void bounds_ps_hears(sim *s, int p, const round_event *e);
void bounds_ps_does(sim *s, int p, const round_action *a);
void bounds_ps_merged(sim *s, int p);
/* kubeml-ps gives up a store that is away, at least so long: it may have stood still meanwhile. */
void bounds_store_away(sim *s, int p, int64_t waited_ms);
void bounds_restored(sim_job *j);
void bounds_saved(sim *s, int who, const job *from);
void bounds_pod_failed(sim *s, int who, int function, int incarnation);

/* ---- sim_check.c ----------------------------------------------------------------------------- */
void check_jobs(sim *s);
void check_turn(sim *s, const job *started); /* nobody is before it in the queue who could start */

/* ---- sim_user.c ------------------------------------------------------------------------------ */
void user_begin(sim *s);
bool user_resumes(sim *s, int who); /* the job, which has ended */
void user_cancels_hopeless(sim *s);

/* ---- sim_controller.c ------------------------------------------------------------------------ */
int sim_job_index(const sim *s, const char *id);
int sim_chunks(const sim_job *j); /* of what it trains on */
process *sim_living(sim *s, const char *name);
/* An event that comes to this controller by itself, after a while. */
message *controller_later(sim *s, int64_t ms, job_event_type type, int who);
void controller_begin(sim *s);
void controller_die(sim *s, int64_t away_ms);
void controller_store_back(sim *s);
void controller_slots(sim *s, int slots);
void controller_event(sim *s, const job_event *event);
void controller_hears(sim *s, message *m); /* job */
void controller_conn_closed(sim *s, int conn);
void controller_pod_ended(sim *s, int p, const char *reason);
void controller_new_job(sim *s, int who); /* that is in the machine, and was never stepped */

#endif
