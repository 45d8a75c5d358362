/* ps_world.h: a kubeml-ps under test with everything around it: a controller (this process),
 * functions (fake_function.h, child processes), a store and a segment folder in the test's own
 * folder.
 *
 * The world does what a controller does, starts a function for each `need` and reports its end, and
 * keeps what it was told. Every wait has a deadline; whatever is wrong fails the test. */
#ifndef KUBEML_PS_WORLD_H
#define KUBEML_PS_WORLD_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/net/wire.h"
#include "common/store/store.h"

enum { WORLD_FUNCTIONS_MAX = 64, WORLD_WAIT_MS = 60000 };

typedef struct world_options {
    const char *job;                                       /* "job" */
    int functions, epochs, k, batch_size, samples, floats; /* 0: 3, 2, 2, 4, 100, 50 */
    const char *merge;                                     /* "database" */
    const char *init, *init_without;
    const char *on_loss; /* "recompute" */
    bool elastic;
    const json_t *plan; /* the functions of each epoch, as a record told them; NULL: none */
    const char *tensor_path; /* "shm" */
    double goal;
    const char *fault; /* fake_function.h, of the first incarnation of `fault_function` */
    int fault_function, fault_epoch, fault_round;
    const char *failpoint; /* of kubeml-ps */
    bool resume;
    int generation;
    bool device;       /* functions are on one GPU: fake_function.h */
    bool nccl;         /* or each on one of its own */
    bool needs_losses; /* functions have a schedule that goes by validation losses */
    bool deaf;         /* functions are not started */
    const char *redis; /* NULL: the one in PATH */
    bool tcp;          /* everything over TCP, as between pods */
    bool container;    /* Redis is a container of its own, which is started again when it ends */
    bool no_job;       /* world_start gives it no job */
} world_options;

typedef struct world_child {
    pid_t pid;
    int function, incarnation;
} world_child;

typedef struct world {
    world_options o;
    char folder[256], address[256], redis_address[64], locator[300], shm_dir[256];
    pid_t ps, kubelet; /* 0: none; of `container` */
    wire *wire;
    world_child children[WORLD_FUNCTIONS_MAX];
    int count;
    json_t *access;
    json_t *told;  /* every message since the start, in order */
    size_t waited; /* messages that world_wait has looked at */
    int deaths;    /* of functions, by a signal */
} world;

void world_start(world *w, const world_options *o); /* kubeml-ps runs and has the job */
void world_start_ps(world *w);                      /* kubeml-ps alone */
void world_dial(world *w);                          /* a controller's connection, welcomed */
void world_send_job(world *w, json_t **answer);     /* new reference */
/* The next message of that type that has not been waited for; borrowed. */
json_t *world_wait(world *w, const char *type);
/* Waits for `finished` in that state, says bye, waits for the end of all processes; its sha256 in
 * `sha256` (65 bytes, may be NULL). Fails when anything is left behind. */
void world_finish(world *w, const char *state, char *sha256);
/* Waits for the end of kubeml-ps and its functions after a SIGTERM; fails as world_finish does. */
void world_ended(world *w, pid_t redis);
/* Waits until a failpoint ("...:stop") stopped kubeml-ps: what is done to the job before
 * world_go_on comes at that place, and not after its end. */
void world_hold(world *w);
void world_go_on(const world *w);
/* Waits until kubeml-ps ended by SIGKILL, and functions with it. */
void world_await_death(world *w);
/* The same job again, to be resumed. */
void world_restart(world *w);
void world_restart_at(world *w, const char *failpoint); /* with that one armed in its kubeml-ps */
void world_end(world *w);          /* kills what still runs */
pid_t world_redis(const world *w); /* a child of kubeml-ps or of the kubelet; -1: none */
int world_ping_redis(const world *w); /* of `container`, as a kubelet asks: the exit status */
bool world_told_condition(const world *w, const char *name);
json_t *world_history(const world *w); /* new reference */
/* Each sample once an epoch: the shares of the history tile the deal. */
void world_check_shares(const json_t *record, int epochs, int samples);
/* The SHA-256 of such a job, "calm", that nothing happens to; a world of its own. */
void world_calm(const world_options *like, char sha256[65]);

#endif
