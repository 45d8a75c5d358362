/* modelstore_redis.h: what the two implementations on Redis share: the connection with its retries,
 * the slot's memory, the segment. For modelstore_*.c alone. */
#ifndef KUBEML_MODELSTORE_REDIS_H
#define KUBEML_MODELSTORE_REDIS_H

#include "modelstore.h"
#include "redis_link.h"
#include "shm.h"

enum { REMOTE_CHUNK_BYTES = 1 << 20, REMOTE_KEY_BYTES = 160, REMOTE_WINDOW = 8 };

typedef struct remote {
    modelstore base;
    modelstore_access access;
    modelstore_role role;
    bool shared;        /* tensors go through shared memory */
    bool known;         /* Redis accepted the user and password once */
    redis_link *c;      /* NULL: not connected */
    redis_link *writer; /* a second connection, for chunks alone; NULL: not connected */
    bool announced;     /* `writer` has announced the first chunk of the next publication */
    redis_command cmd;
    layout layout; /* count 0: not attached */
    shm *segment;
    int slot; /* -1: none */
    block slot_block;
    void *own; /* slot memory without a segment */
    size_t own_bytes;
} remote;

int remote_open(const modelstore_ops *ops, const modelstore_access *a, modelstore_role role,
                int64_t deadline_ms, modelstore **out, err *e);
void remote_close(remote *r);

/* Connects, unless there is a connection. Tries again with back-off until the deadline. */
int remote_connect(remote *r, int64_t deadline_ms, err *e);
/* Sends r->cmd and receives the reply (`out` may be NULL). Sends it again on a new connection if
 * the old one broke; *again (may be NULL) is then true: Redis may have run the command before. */
int remote_call(remote *r, redisReply **out, bool *again, int64_t deadline_ms, err *e);
/* The same with "<command> <the job's key of that suffix>". */
int remote_ask(remote *r, const char *command, const char *suffix, redisReply **out,
               int64_t deadline_ms, err *e);
/* Connects the writer; a new writer has announced nothing. */
int remote_connect_writer(remote *r, int64_t deadline_ms, err *e);
/* Closes the connection; the next call dials. */
void remote_disconnect(remote *r);
void remote_disconnect_writer(remote *r);
/* Pauses, longer each time, where no event can be waited for. ERR_TIMEOUT: the deadline passed. */
int remote_pause(int *pause_ms, int64_t deadline_ms, err *e);

int remote_need_owner(const remote *r, err *e);
int remote_need_layout(const remote *r, err *e);
/* Takes over the layout. Unmaps a segment of another name; "": there is none. */
int remote_attach(remote *r, const char *layout_text, size_t len, const char *segment, err *e);
/* Makes a segment for the layout. With `keep` a segment that is large enough stays. */
int remote_make_segment(remote *r, const layout *l, int slots, bool keep, err *e);

int remote_slot(remote *r, int slot, block *out, err *e);
/* Copies `b` into the slot (NULL: the slot holds the model already) and computes its checksum. */
int remote_fill_slot(remote *r, int slot, const block *b, uint64_t *checksum, err *e);
/* modelstore_room. Over sockets Redis must have room for `blocks` blocks, each in chunks. */
int remote_room(remote *r, int slot, int blocks, int64_t deadline_ms, err *e);
/* Waits for the version in the segment, copies and verifies it. */
int remote_fetch_shared(remote *r, int64_t version_min, block to, int64_t deadline_ms,
                        modelstore_state *out, err *e);

/* Reads the segment's header. Returns 0. */
int remote_state_shared(const remote *r, modelstore_state *out);

/* A block's chunks: those of its floats, then those of its counters. */
size_t remote_chunks(block_shape s);
char *remote_chunk(block_shape s, block b, size_t i, size_t *len);
void remote_carried(remote *r); /* counts one more chunk */
/* Hashes the pieces of chunk i into their places of `hash` (block_pieces). */
void remote_hash_chunk(block_shape s, block b, size_t i, uint64_t *hash);

const char *modelstore_key(const remote *r, const char *suffix, char out[REMOTE_KEY_BYTES]);

/* The rules of publishing for stores that decide outside Redis; kml_logic.c has them for the
 * module. */
int modelstore_check_round(const modelstore_state *s, int64_t epoch, int64_t round, err *e);
int modelstore_check_version(const modelstore_state *s, int64_t version, err *e);
/* `old`: the function's publication in the open round; NULL: none. Returns 1 if the same
 * publication is there already. */
int modelstore_check_publication(const modelstore_published *old, const modelstore_published *now,
                                 err *e);
int modelstore_check_part(const modelstore_published *p, const modelstore_part *part, err *e);
int modelstore_check_merge(const modelstore_state *s, const modelstore_round *r, err *e);

#endif
