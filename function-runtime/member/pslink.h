/* pslink.h: a function's connection to its kubeml-ps, on a thread of its own.
 *
 * The thread owns the socket: it says hello and ready, sends a heartbeat every 500 ms whatever the
 * computing thread does, hands tasks over one by one and sends what comes back. When kubeml-ps goes
 * away it dials again for PSLINK_REDIAL_MS, says hello and ready anew, and sends what was not sent
 * yet. `leave` is no task: what is being done may be waiting for others, and has to hear of it. A
 * task that is the same as the one being worked on (asked again by a kubeml-ps that came back) is
 * answered by that work, not done twice. */
#ifndef KUBEML_PSLINK_H
#define KUBEML_PSLINK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "function-runtime/base/usage.h"

enum {
    PSLINK_HEARTBEAT_MS = 500,
    PSLINK_DIAL_MS = 10000,
    PSLINK_REDIAL_MS = 30000,
    PSLINK_TASKS_MAX = 64,
};

typedef struct pslink pslink;

typedef struct pslink_config {
    const char *address;
    json_t *hello;   /* borrowed until pslink_close: the first frame */
    json_t *opening; /* likewise: the second, `ready` or `failed` */
    usage *usage;    /* likewise: told with each heartbeat; NULL: not */
} pslink_config;

/* Dials, and returns when kubeml-ps has said welcome; starts the thread. ERR_UNAVAILABLE,
 * ERR_TIMEOUT, ERR_STALE or whatever code kubeml-ps refused with. */
int pslink_open(const pslink_config *c, pslink **out, err *e);
/* Sends what is queued (until the deadline) where kubeml-ps is connected; ends the thread, which
 * may be half a second into connecting. NULL is fine. */
void pslink_close(pslink *l, int64_t deadline_ms);

/* Waits for the next task: a new reference, which is the current one until the next call. NULL when
 * it is over: `stop`, or kubeml-ps did not come back (e is set then, else e->code stays
 * ERR_NONE). */
json_t *pslink_task(pslink *l, err *e);
/* Queues a message; steals the reference (NULL: memory is gone). */
void pslink_send(pslink *l, json_t *message);
/* How often the connection was lost so far; and whether kubeml-ps has said `leave` of that set or a
 * later one, or the connection was lost since there were that many. From any thread. */
unsigned pslink_dials(pslink *l);
bool pslink_left(pslink *l, int set, unsigned dials);
/* What the heartbeats tell. `phase` is a literal. */
void pslink_phase(pslink *l, const char *phase, int64_t epoch, int64_t round);
/* The first batch is trained: a heartbeat says so now, and each one after it. From any thread. */
void pslink_begun(pslink *l);
typedef struct pslink_state {
    uint32_t batches; /* so far, and whatever else is progress */
    char waits[300];  /* for which store that does not answer, and how; empty: for none */
} pslink_state;

/* Asked at each heartbeat, from any thread; fills in a zeroed state. NULL: nothing to tell. */
void pslink_progress(pslink *l, void (*look)(const void *of, pslink_state *out), const void *of);

#endif
