/* frame_in.h: reads the frames that controllers and functions send to a job. Checks each frame, and
 * makes of it events of the two machines (round.h, averaging.h) and other facts. Pure: it uses
 * neither the job nor a connection.
 *
 * docs/internals/protocol.md has the messages. A new message is a row of a table in frame_in.c, a
 * reader beside the table and a handler in job_receive.c. */
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
    /* from controllers */
    FRAME_ATTACH,      /* job, after_epoch */
    FRAME_LOST,        /* events */
    FRAME_STOP,        /* events: STOP or SUSPEND */
    FRAME_PARALLELISM, /* events */
    /* from functions; all but INITIALISED and AVERAGING have events */
    FRAME_HELLO,       /* about */
    FRAME_READY,       /* averaging, layout, algorithms, needs_losses; not event.algorithms */
    FRAME_INITIALISED, /* the model of version 0 is published */
    FRAME_PUBLISHED,   /* averaging (not of a shared process), seconds */
    FRAME_VALIDATED,
    FRAME_HEARTBEAT, /* usage, begun */
    FRAME_FAILED,
    FRAME_AVERAGING, /* averaging: an answer to a question of that machine */
} frame_kind;

/* Texts and objects are borrowed from the frame, unless they are said to be owned. */
typedef struct frame_in {
    frame_kind kind;
    /* For the round machine, in order: `event`, or owned. A shared process's frame has one for each
     * of its functions, and is refused if one of them is wrong. */
    round_event *events;
    size_t count;
    round_event event;
    averaging_event averaging;
    const char *job; /* the job's id in the frame */
    int after_epoch;
    json_t *about;          /* owned: {"cpu", "threads"} */
    char *layout;           /* owned: its canonical text */
    char layout_digest[20]; /* of the layout */
    json_t *algorithms;
    bool needs_losses; /* its learning rate follows validation losses */
    job_seconds seconds;
    const json_t *usage; /* NULL: not reported */
    bool begun;          /* a batch is trained */
} frame_in;

/* The function that a frame comes from, as its connection knows it. */
typedef struct frame_from {
    int function, incarnation;
    bool shared; /* one process runs all functions of the job */
} frame_from;

/* ERR_INVALID; ERR_CORRUPT: the layout does not have its digest. After an error nothing is left to
 * free, and `kind` is still the frame's. */
int frame_in_controller(const json_t *frame, frame_in *out, err *e);
int frame_in_function(const json_t *frame, const frame_from *from, frame_in *out, err *e);
/* The first frame of a function's connection to job `id`. ERR_NOT_FOUND: the frame is for another
 * job; ERR_UNSUPPORTED: the function's program is of another version. */
int frame_in_hello(const json_t *frame, const char *id, frame_in *out, err *e);
void frame_in_free(frame_in *f);

#endif
