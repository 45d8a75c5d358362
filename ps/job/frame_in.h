/* frame_in.h: what controllers and functions say to a job: each frame checked, and turned into the
 * events of the two machines (round.h, averaging.h) and what else it tells. Pure: it knows no job
 * but what it is told of one, and no connection.
 *
 * docs/internals/protocol.md has the messages. A new one is a row of a table in frame_in.c, a
 * reader beside it and what is done with it in job_receive.c. */
#ifndef KUBEML_PS_FRAME_IN_H
#define KUBEML_PS_FRAME_IN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "averaging.h"
#include "common/base/err.h"
#include "common/round/round.h"
#include "job_record.h"

typedef enum frame_kind {
    FRAME_UNKNOWN,
    /* a controller's */
    FRAME_ATTACH,      /* job, after_epoch */
    FRAME_LOST,        /* events */
    FRAME_STOP,        /* events: STOP or SUSPEND */
    FRAME_PARALLELISM, /* events */
    /* a function's; all but INITIALISED and AVERAGING have events */
    FRAME_HELLO,       /* about */
    FRAME_READY,       /* averaging, layout, algorithms, needs_losses; not the event's algorithms */
    FRAME_INITIALISED, /* the model of version 0 is published */
    FRAME_PUBLISHED,   /* averaging (but of a shared process), seconds */
    FRAME_VALIDATED,
    FRAME_HEARTBEAT, /* usage, begun */
    FRAME_FAILED,
    FRAME_AVERAGING, /* averaging: an answer to one of its questions */
} frame_kind;

/* Texts and objects are borrowed from the frame, unless they are said to be owned. */
typedef struct frame_in {
    frame_kind kind;
    /* For the round machine, one after the other: of a shared process one for each of its
     * functions, all or none. `event`, or owned. */
    round_event *events;
    size_t count;
    round_event event;
    averaging_event averaging;
    const char *job; /* whose id the frame names */
    int after_epoch;
    json_t *about;          /* owned: {"cpu", "threads"} */
    char *layout;           /* owned: its canonical text */
    char layout_digest[20]; /* of it */
    json_t *algorithms;
    bool needs_losses; /* its schedule goes by validation losses */
    job_seconds seconds;
    const json_t *usage; /* NULL: it tells of none */
    bool begun;          /* a batch is trained */
} frame_in;

/* The function that a frame comes from, as its connection knows it. */
typedef struct frame_from {
    int function, incarnation;
    bool shared; /* one process runs all functions of the job */
} frame_from;

/* ERR_INVALID: what is wrong, ERR_CORRUPT: a layout that is not that of its digest. Nothing is left
 * to free then; `kind` says of what type the frame is. */
int frame_in_controller(const json_t *frame, frame_in *out, err *e);
int frame_in_function(const json_t *frame, const frame_from *from, frame_in *out, err *e);
/* The first frame of a function's connection to job `id`. ERR_NOT_FOUND: it is of another job;
 * ERR_UNSUPPORTED: its program is not of this version. */
int frame_in_hello(const json_t *frame, const char *id, frame_in *out, err *e);
void frame_in_free(frame_in *f);

#endif
