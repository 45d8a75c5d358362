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
    bool shared;        /* carrier shm */
    bool known;         /* its name and password were good once */
    redis_link *c;      /* NULL: not connected */
    redis_link *writer; /* a second connection, for chunks alone; NULL: not connected */
    bool announced;     /* the first chunk of the next publication, to `writer` */
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

/* Connected, or the reason; tries again with back-off until the deadline. */
int remote_connect(remote *r, int64_t deadline_ms, err *e);
/* Sends r->cmd and takes the reply (may be NULL), anew on a new connection when the old one broke.
 * *again (may be NULL) tells that it may have been carried out before. */
int remote_call(remote *r, redisReply **out, bool *again, int64_t deadline_ms, err *e);
/* The same with "<command> <the job's key of that suffix>". */
int remote_ask(remote *r, const char *command, const char *suffix, redisReply **out,
               int64_t deadline_ms, err *e);
/* The same for the writer; on a new one nothing is announced. */
int remote_connect_writer(remote *r, int64_t deadline_ms, err *e);
/* The connection is given up; the next call dials. */
void remote_disconnect(remote *r);
void remote_disconnect_writer(remote *r);
/* A pause that grows, for waits without an event; ERR_TIMEOUT when the deadline passed. */
int remote_pause(int *pause_ms, int64_t deadline_ms, err *e);

int remote_need_owner(const remote *r, err *e);
int remote_need_layout(const remote *r, err *e);
/* Takes over the layout; a segment of another name (or "") is let go. */
int remote_attach(remote *r, const char *layout_text, size_t len, const char *segment, err *e);
/* A new segment for the layout, or the present one where it fits (`keep`). */
int remote_make_segment(remote *r, const layout *l, int slots, bool keep, err *e);

int remote_slot(remote *r, int slot, block *out, err *e);
/* The bytes of a publication: puts `b` (NULL: what is there) into the slot, giving its checksum. */
int remote_fill_slot(remote *r, int slot, const block *b, uint64_t *checksum, err *e);
/* modelstore_room, where over sockets so many blocks, each in chunks, are to fit. */
int remote_room(remote *r, int slot, int blocks, int64_t deadline_ms, err *e);
/* From the segment: copies and verifies; waits for the version. */
int remote_fetch_shared(remote *r, int64_t version_min, block to, int64_t deadline_ms,
                        modelstore_state *out, err *e);

/* The segment's header; 0. */
int remote_state_shared(const remote *r, modelstore_state *out);

/* Chunks of a block: floats', then counters'. */
size_t remote_chunks(block_shape s);
char *remote_chunk(block_shape s, block b, size_t i, size_t *len);
void remote_carried(remote *r); /* one more */
/* Hashes the pieces of chunk i into their places of `hash` (block_pieces). */
void remote_hash_chunk(block_shape s, block b, size_t i, uint64_t *hash);

const char *modelstore_key(const remote *r, const char *suffix, char out[REMOTE_KEY_BYTES]);

/* The rules of publishing, for who decides outside the module (kml_logic.c has them for Redis). */
int modelstore_check_round(const modelstore_state *s, int64_t epoch, int64_t round, err *e);
int modelstore_check_version(const modelstore_state *s, int64_t version, err *e);
/* `old`: the open round's publication of that function, NULL: none. 1: the same is there already.
 */
int modelstore_check_publication(const modelstore_published *old, const modelstore_published *now,
                                 err *e);
int modelstore_check_part(const modelstore_published *p, const modelstore_part *part, err *e);
int modelstore_check_merge(const modelstore_state *s, const modelstore_round *r, err *e);

#endif
