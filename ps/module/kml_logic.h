/* kml_logic.h: what the Redis module knows and decides, without Redis.
 *
 * One logic_job is the value of one key: reference model, open round, publications, ledger. The
 * module's glue (kml_redis.c) turns commands into these calls; the unit tests and the fuzzer make
 * the same calls without a Redis. Nothing here aborts on what comes from outside, and memory that
 * is gone is an error: blocks come from the host's alloc, the rest from malloc.
 *
 * Threads: all calls on a job come from one thread at a time (Redis's main thread, or the thread
 * that holds its lock), but for logic_merge_run, which may run beside them. While a merge runs:
 *   - publications of the round are refused (ERR_CONFLICT);
 *   - another merge is refused, to be tried again (ERR_UNAVAILABLE): it may be a repetition of this
 *     one, whose answer was lost;
 *   - the merge does not write the reference that is read.
 *
 * Arguments are those of the command after the key's name; integers are decimal text. */
#ifndef KUBEML_KML_LOGIC_H
#define KUBEML_KML_LOGIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/modelstore/block.h"

enum {
    LOGIC_CHUNK_BYTES = 1 << 20, /* a multiple of the block's piece */
    LOGIC_FUNCTIONS_MAX = 256,
    LOGIC_LEDGER_BYTES_MAX = 32 << 20,
    LOGIC_LAYOUT_BYTES_MAX = 16 << 20,
    LOGIC_ENCODING = 1, /* of logic_save */
};

/* An argument; `owner` is what keeps its bytes (a RedisModuleString), for host->retain. */
typedef struct logic_arg {
    const char *bytes;
    size_t len;
    void *owner;
} logic_arg;

typedef struct logic_host {
    void *(*alloc)(size_t bytes); /* NULL when memory is gone */
    void (*free)(void *p);
    void (*retain)(void *owner); /* the argument stays until release */
    void (*release)(void *owner);
    /* Where a retained argument's bytes are. They may move until the argument's command is over,
     * and stay in place from then on. */
    const char *(*text)(void *owner);
    const char *segment_dir; /* where segments may be opened; NULL: /dev/shm */
    int threads;             /* of a merge, at most; 0: as many as pay */
} logic_host;

/* Takes an answer. An array of n is followed by n values. */
typedef struct logic_reply {
    void (*array)(void *user, size_t n);
    void (*integer)(void *user, int64_t n);
    void (*bytes)(void *user, const void *bytes, size_t len);
    void *user;
} logic_reply;

/* A stream for logic_save and logic_load. get_* fail on a stream that ended or is of another form;
 * get_bytes gives memory that `drop` frees. */
typedef struct logic_sink {
    void (*put_u64)(void *user, uint64_t n);
    void (*put_bytes)(void *user, const void *bytes, size_t len);
    void *user;
} logic_sink;
typedef struct logic_source {
    int (*get_u64)(void *user, uint64_t *out);
    int (*get_bytes)(void *user, char **out, size_t *len);
    void (*drop)(char *bytes);
    void *user;
} logic_source;

typedef struct logic_job logic_job;
typedef struct logic_merge logic_merge;

/* CREATE layout floats counters layout_digest version epoch round checksum present segment ledger
 * `present` 1: the segment holds the reference of `version` with that checksum; 0: there is none
 * yet and the first merge makes version + 1. `segment`: a name, or empty (blocks come by WRITE). */
int logic_create(const logic_host *host, int argc, const logic_arg *argv, logic_job **out, err *e);
void logic_free(logic_job *j); /* a merge in progress keeps it until its commit, which then fails */

/* WRITE bytes epoch round function incarnation chunk: stages one chunk (floats' first). */
int logic_write(logic_job *j, int argc, const logic_arg *argv, err *e);
/* PUBLISH epoch round version function incarnation samples checksum layout_digest slot
 * slot -1: what was staged. */
int logic_publish(logic_job *j, int argc, const logic_arg *argv, err *e);
/* STATUS -> [version present epoch round checksum layout_digest floats counters segment count
 *            (function incarnation samples checksum)*count] */
int logic_status(logic_job *j, int argc, const logic_arg *argv, const logic_reply *r, err *e);
/* LAYOUT -> text; LEDGER -> text; READ version chunk -> bytes (ERR_STALE: not that version now) */
int logic_layout(logic_job *j, int argc, const logic_arg *argv, const logic_reply *r, err *e);
int logic_ledger(logic_job *j, int argc, const logic_arg *argv, const logic_reply *r, err *e);
int logic_read(logic_job *j, int argc, const logic_arg *argv, const logic_reply *r, err *e);

/* MERGE epoch round version next_epoch next_round rule ledger count (function incarnation samples)*
 * begin checks and takes the inputs; run does the work, on any thread; end commits and answers
 * [version epoch round checksum], or fails with the reason, which names the function as "@3 ..."
 * when its publication was refused. end frees the merge and must follow begin whatever happens. */
int logic_merge_begin(logic_job *j, int argc, const logic_arg *argv, logic_merge **out, err *e);
bool logic_merge_is_long(const logic_merge *m); /* should not hold up other commands */
void logic_merge_run(logic_merge *m);
int logic_merge_end(logic_merge *m, const logic_reply *r, err *e);

/* The job as it was committed last, without publications and without its segment. */
void logic_save(logic_job *j, const logic_sink *to);
/* Refuses what is not whole: ERR_CORRUPT, ERR_LIMIT, ERR_NOMEM. */
int logic_load(const logic_host *host, const logic_source *from, logic_job **out, err *e);

size_t logic_memory(const logic_job *j);        /* bytes held outside the segment */
uint64_t logic_fingerprint(const logic_job *j); /* of all that logic_save would save */

#endif
