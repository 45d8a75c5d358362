/* modelstore_keys.h: what stands in a plain Redis of a job: its keys, their texts, and the commands
 * on them. For modelstore_server.c and modelstore_keys.c alone.
 *
 * Keys of a job, "kubeml:{job}:<suffix>":
 *   state                 "version epoch round checksum layout_digest segment": committed last
 *   layout, ledger        texts (the ledger without its brackets, so that APPEND adds to it)
 *   pub:<function>        "epoch round incarnation samples checksum slot": its publication
 *   pub:<function>:<incarnation>:<epoch>:<round>:<chunk>   its bytes, over sockets
 *   ref:<version>:<chunk> the reference's bytes, over sockets */
#ifndef KUBEML_MODELSTORE_KEYS_H
#define KUBEML_MODELSTORE_KEYS_H

#include "modelstore_redis.h"

enum { KEYS_TEXT_BYTES = 320 };

typedef struct stored_state {
    modelstore_state state;
    uint64_t layout_digest;
    char segment[SHM_NAME_BYTES];
} stored_state;

typedef struct stored_publication {
    int64_t epoch, round;
    modelstore_published p;
    int slot;
} stored_publication;

/* ---- texts ----------------------------------------------------------------------------------- */

void keys_state_text(const stored_state *s, char out[KEYS_TEXT_BYTES]);
int keys_parse_state(const redisReply *reply, stored_state *out, err *e);
void keys_publication_text(const stored_publication *p, char out[KEYS_TEXT_BYTES]);
/* false: none. */
bool keys_parse_publication(const redisReply *reply, int function, stored_publication *out);
void keys_publication(const remote *r, int function, char out[REMOTE_KEY_BYTES]);

/* ---- commands -------------------------------------------------------------------------------- */

/* One command on the present connection, without retry: what stands under WATCH must not hop. `a`
 * and `b`, arguments, may be NULL. */
int keys_call(remote *r, const char *command, const char *a, const char *b, redisReply **out,
              int64_t deadline_ms, err *e);
int keys_get_state(remote *r, stored_state *out, int64_t deadline_ms, err *e);
/* 1: there is one of the open round, 0: none, -1. */
int keys_get_publication(remote *r, int function, const modelstore_state *s,
                         stored_publication *out, int64_t deadline_ms, err *e);
/* EXEC: 1 carried out, 0 what was watched has changed. */
int keys_execute(remote *r, int64_t deadline_ms, err *e);
/* Runs `attempt` until it gives something else than ERR_UNAVAILABLE or 0 (changed under its watch).
 * A connection is never left inside a transaction: after an error it is given up. *again (may be
 * NULL) tells that an attempt may have been carried out before. */
int keys_attempt(remote *r, int (*attempt)(remote *, void *, int64_t, err *), void *user,
                 bool *again, int64_t deadline_ms, err *e);

/* ---- bytes over sockets ---------------------------------------------------------------------- */

/* Names a chunk `of` a reference (its version) or a publication (a stored_publication). */
typedef void (*keys_name)(const remote *r, const void *of, size_t chunk,
                          char out[REMOTE_KEY_BYTES]);
void keys_name_reference(const remote *r, const void *of, size_t chunk, char out[REMOTE_KEY_BYTES]);
void keys_name_publication(const remote *r, const void *of, size_t chunk,
                           char out[REMOTE_KEY_BYTES]);

/* All chunks of a block, each within `patience_ms`; after an error replies may be outstanding. */
int keys_set_chunks(remote *r, keys_name name, const void *of, block b, int patience_ms, err *e);
int keys_get_chunks(remote *r, keys_name name, const void *of, block to, int patience_ms, err *e);

/* ---- removing -------------------------------------------------------------------------------- */

/* Nobody asks for it any more; what cannot be removed is removed with the job. */
void keys_remove_reference(remote *r, int64_t version, int64_t deadline_ms);
/* Removes the job's keys whose suffix begins with `prefix` and goes on like `rest`, a pattern; of
 * publications' bytes those of `open` (NULL: none) stay. */
int keys_remove(remote *r, const char *prefix, const char *rest, const modelstore_state *open,
                int64_t deadline_ms, err *e);

#endif
