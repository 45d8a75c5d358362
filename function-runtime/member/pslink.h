/* pslink.h: a function's connection to its kubeml-ps, on a thread of its own.
 *
 * The thread owns the socket. It sends `hello` and `ready`, then a heartbeat every 500 ms whatever
 * the computing thread does. It gives tasks to the computing thread one by one, and sends its
 * messages. When kubeml-ps goes away, it dials again for PSLINK_REDIAL_MS, sends `hello` and
 * `ready` again, then the messages that were not sent yet. `leave` is no task: the task in progress
 * may wait for other functions, and must see it at once. A task equal to the one in progress, which
 * a kubeml-ps that came back sends again, is not done twice: the work in progress answers it. */
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
    usage *usage;    /* likewise: sent with each heartbeat; NULL: not */
} pslink_config;

/* Dials, and returns after kubeml-ps has sent `welcome`; starts the thread. ERR_UNAVAILABLE,
 * ERR_TIMEOUT, ERR_STALE, or another code with which kubeml-ps refuses. */
int pslink_open(const pslink_config *c, pslink **out, err *e);
/* Sends the queued messages, until the deadline, if kubeml-ps is connected; then ends the thread,
 * which may take half a second while it connects. NULL is fine. */
void pslink_close(pslink *l, int64_t deadline_ms);

/* Waits for the next task. Returns a new reference; the task is in progress until the next call.
 * NULL: the connection is over, after `stop` (e->code stays ERR_NONE), or because kubeml-ps did not
 * come back (e is set). */
json_t *pslink_task(pslink *l, err *e);
/* Queues a message; steals the reference. NULL means that memory is gone, and ends the link. */
void pslink_send(pslink *l, json_t *message);
/* How often the connection was lost so far. From any thread. */
unsigned pslink_dials(pslink *l);
/* Whether kubeml-ps has sent `leave` for that communicator (`set`) or a later one, or the
 * connection was lost since pslink_dials gave `dials`. From any thread. */
bool pslink_left(pslink *l, int set, unsigned dials);
/* Sets the fields of the heartbeats. `phase` is a literal. */
void pslink_phase(pslink *l, const char *phase, int64_t epoch, int64_t round);
/* The first batch is trained: sends a heartbeat with `begun` now, and later ones have it too. From
 * any thread. */
void pslink_begun(pslink *l);
typedef struct pslink_state {
    uint32_t batches; /* batches so far, and other progress */
    char waits[300];  /* the store that does not answer, and the trouble; "": none is waited for */
} pslink_state;

/* Sets a function that is called at each heartbeat, from any thread, and fills in a zeroed state.
 * NULL: none. */
void pslink_progress(pslink *l, void (*look)(const void *of, pslink_state *out), const void *of);

#endif
