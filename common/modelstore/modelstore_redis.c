/* modelstore_redis.c: see modelstore_redis.h. */
#include "modelstore_redis.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"

enum { PAUSE_MS_MAX = 50, FETCH_PAUSE_MS_MAX = 8 };

/* ---- life ----------------------------------------------------------------------------------- */

static int check_access(const modelstore_access *a, err *e)
{
    if (strcmp(a->tensor_path, "shm") != 0 && strcmp(a->tensor_path, "socket") != 0)
        return err_set(e, ERR_UNSUPPORTED, "no carrier \"%.32s\"; there are: shm, socket",
                       a->tensor_path);
    if (!a->job[0])
        return err_set(e, ERR_INVALID, "model access: no job is named");
    return 0;
}

int remote_open(const modelstore_ops *ops, const modelstore_access *a, modelstore_role role,
                int64_t deadline_ms, modelstore **out, err *e)
{
    if (check_access(a, e))
        return -1;
    remote *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory for a model store");
    r->base.ops = ops;
    r->access = *a;
    r->role = role;
    r->shared = strcmp(a->tensor_path, "shm") == 0;
    r->slot = -1;
    if (remote_connect(r, deadline_ms, e)) {
        remote_close(r);
        return -1;
    }
    *out = &r->base;
    return 0;
}

void remote_close(remote *r)
{
    redis_link_close(r->c);
    redis_link_close(r->writer);
    layout_free(&r->layout);
    shm_close(r->segment);
    if (r->own)
        munmap(r->own, r->own_bytes);
    redis_command_free(&r->cmd);
    explicit_bzero(r->access.password, sizeof r->access.password);
    free(r);
}

const char *modelstore_key(const remote *r, const char *suffix, char out[REMOTE_KEY_BYTES])
{
    snprintf(out, REMOTE_KEY_BYTES, "kubeml:{%s}:%s", r->access.job, suffix);
    return out;
}

/* ---- connection ----------------------------------------------------------------------------- */

void remote_disconnect(remote *r)
{
    redis_link_close(r->c);
    r->c = NULL;
}

void remote_disconnect_writer(remote *r)
{
    redis_link_close(r->writer);
    r->writer = NULL;
    r->announced = false;
}

int remote_pause(int *pause_ms, int64_t deadline_ms, err *e)
{
    int left = clock_left_ms(deadline_ms);
    if (left == 0)
        return err_set(e, ERR_TIMEOUT, "the deadline passed");
    poll(NULL, 0, *pause_ms < left ? *pause_ms : left);
    *pause_ms = *pause_ms * 2 < PAUSE_MS_MAX ? *pause_ms * 2 : PAUSE_MS_MAX;
    return 0;
}

static int dial(remote *r, int64_t deadline_ms, redis_link **out, err *e)
{
    int pause_ms = 1;
    for (;;) {
        err last = ERR_INIT;
        if (redis_link_dial(r->access.address, r->access.user, r->access.password, deadline_ms, out,
                            &last) == 0) {
            r->known = true;
            return 0;
        }
        /* A restarted Redis does not know the job's users until kubeml-ps has made them again. */
        bool passing = last.code == ERR_UNAVAILABLE || (r->known && last.code == ERR_UNAUTHORIZED);
        if (!passing || remote_pause(&pause_ms, deadline_ms, NULL)) {
            if (e)
                *e = last;
            return -1;
        }
    }
}

int remote_connect(remote *r, int64_t deadline_ms, err *e)
{
    if (r->c && !redis_link_broken(r->c))
        return 0;
    remote_disconnect(r);
    return dial(r, deadline_ms, &r->c, e);
}

int remote_connect_writer(remote *r, int64_t deadline_ms, err *e)
{
    if (r->writer && !redis_link_broken(r->writer))
        return 0;
    remote_disconnect_writer(r);
    return dial(r, deadline_ms, &r->writer, e);
}

int remote_call(remote *r, redisReply **out, bool *again, int64_t deadline_ms, err *e)
{
    int pause_ms = 1;
    for (;;) {
        err last = ERR_INIT;
        if (remote_connect(r, deadline_ms, e))
            return -1;
        if (redis_link_call(r->c, &r->cmd, out, deadline_ms, &last) == 0)
            return 0;
        /* Redis is loading, or the connection broke: both may pass. */
        if (last.code != ERR_UNAVAILABLE || remote_pause(&pause_ms, deadline_ms, NULL)) {
            if (e)
                *e = last;
            return -1;
        }
        if (again)
            *again = true;
    }
}

int remote_ask(remote *r, const char *command, const char *suffix, redisReply **out,
               int64_t deadline_ms, err *e)
{
    char key[REMOTE_KEY_BYTES];
    if (redis_command_format(&r->cmd, e, "%s %s", command, modelstore_key(r, suffix, key)))
        return -1;
    return remote_call(r, out, NULL, deadline_ms, e);
}

int remote_need_owner(const remote *r, err *e)
{
    return r->role == MODELSTORE_OWNER ? 0 : err_set(e, ERR_FORBIDDEN, "only the job's owner may");
}

int remote_need_layout(const remote *r, err *e)
{
    return r->layout.count > 0 ? 0
                               : err_set(e, ERR_CONFLICT, "the model store is not attached yet");
}

/* ---- layout and segment ---------------------------------------------------------------------- */

static void forget_memory(remote *r)
{
    remote_disconnect_writer(r); /* its announced chunk has the old layout's length */
    shm_close(r->segment);
    r->segment = NULL;
    if (r->own)
        munmap(r->own, r->own_bytes);
    r->own = NULL;
    r->slot = -1;
}

static int open_segment(remote *r, const char *name, err *e)
{
    if (!name[0])
        return err_set(e, ERR_UNSUPPORTED, "the job has no shared segment: its carrier is socket");
    if (r->segment && strcmp(shm_name(r->segment), name) == 0)
        return 0;
    forget_memory(r);
    if (shm_open_segment(r->access.segment_dir, name, r->role == MODELSTORE_OWNER, &r->segment, e))
        return -1;
    return shm_layout_digest(r->segment) == r->layout.digest
               ? 0
               : err_set(e, ERR_CONFLICT, "the segment is of another layout");
}

int remote_attach(remote *r, const char *layout_text, size_t len, const char *segment, err *e)
{
    layout l;
    if (layout_parse_text(layout_text, len, &l, e))
        return -1;
    if (r->layout.count > 0 && l.digest != r->layout.digest)
        forget_memory(r);
    layout_free(&r->layout);
    r->layout = l;
    if (r->shared)
        return open_segment(r, segment, e);
    return segment[0] ? err_set(e, ERR_UNSUPPORTED, "the job's carrier is shm, not socket") : 0;
}

static int copy_layout(remote *r, const layout *l, err *e)
{
    layout copy;
    if (r->layout.count > 0 && r->layout.digest == l->digest)
        return 0;
    if (layout_parse_text(l->text, strlen(l->text), &copy, e))
        return -1;
    forget_memory(r);
    layout_free(&r->layout);
    r->layout = copy;
    return 0;
}

static int new_segment(remote *r, const layout *l, int slots, err *e)
{
    forget_memory(r);
    return shm_create(r->access.segment_dir, r->access.job, l->shape, slots, l->digest, &r->segment,
                      e) ||
                   shm_reserve_references(r->segment, e)
               ? -1
               : 0;
}

/* Keeps a segment that fits, so that functions that have mapped the segment need not attach again.
 */
int remote_make_segment(remote *r, const layout *l, int slots, bool keep, err *e)
{
    if (copy_layout(r, l, e))
        return -1;
    if (!r->shared)
        return 0;
    if (keep)
        return r->segment ? 0 : err_set(e, ERR_NOT_FOUND, "there is no segment with the reference");
    return r->segment && shm_slots(r->segment) >= slots ? 0 : new_segment(r, l, slots, e);
}

/* ---- slots ---------------------------------------------------------------------------------- */

static int own_memory(remote *r, err *e)
{
    if (r->own)
        return 0;
    r->own_bytes = block_bytes(r->layout.shape);
    void *at = mmap(NULL, r->own_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "no memory for a block of %zu bytes", r->own_bytes);
    r->own = at;
    return 0;
}

int remote_slot(remote *r, int slot, block *out, err *e)
{
    if (remote_need_layout(r, e))
        return -1;
    if (r->shared ? shm_slot(r->segment, slot, true, &r->slot_block, e) : own_memory(r, e))
        return -1;
    if (!r->shared)
        r->slot_block = block_at(r->own, r->layout.shape);
    r->slot = slot;
    *out = r->slot_block;
    return 0;
}

int remote_fill_slot(remote *r, int slot, const block *b, uint64_t *checksum, err *e)
{
    block to;
    if (remote_slot(r, slot, &to, e))
        return -1;
    return b ? block_copy(r->layout.shape, to, *b, 1, checksum, e)
             : block_checksum(r->layout.shape, to, 1, checksum, e);
}

/* ---- fetching ------------------------------------------------------------------------------- */

/* The merge after next overwrites a reference. A reader that is so slow finds another checksum and
 * a newer state. */
int remote_fetch_shared(remote *r, int64_t version_min, block to, int64_t deadline_ms,
                        modelstore_state *out, err *e)
{
    int pause_ms = 1;
    for (;;) {
        shm_state s = shm_state_get(r->segment);
        if (s.version >= version_min) {
            uint64_t checksum;
            if (block_copy(r->layout.shape, to, shm_reference(r->segment, s.version), 1, &checksum,
                           e))
                return -1;
            *out = (modelstore_state){s.version, s.epoch, s.round, s.checksum};
            if (checksum == s.checksum)
                return 0;
            if (shm_state_get(r->segment).version == s.version)
                return err_set(e, ERR_CORRUPT,
                               "the reference of version %lld does not match its "
                               "checksum",
                               (long long)s.version);
            continue;
        }
        if (remote_pause(&pause_ms, deadline_ms, e))
            return err_wrap(e, "waiting for version %lld", (long long)version_min);
        pause_ms = pause_ms < FETCH_PAUSE_MS_MAX ? pause_ms : FETCH_PAUSE_MS_MAX;
    }
}

int remote_state_shared(const remote *r, modelstore_state *out)
{
    shm_state s = shm_state_get(r->segment);
    *out = (modelstore_state){s.version, s.epoch, s.round, s.checksum};
    return 0;
}

/* ---- chunks --------------------------------------------------------------------------------- */

static size_t float_chunks(block_shape s)
{
    return (s.floats * sizeof(float) + REMOTE_CHUNK_BYTES - 1) / REMOTE_CHUNK_BYTES;
}

size_t remote_chunks(block_shape s)
{
    return float_chunks(s) +
           (s.counters * sizeof(int64_t) + REMOTE_CHUNK_BYTES - 1) / REMOTE_CHUNK_BYTES;
}

/* The place of the chunk's first number among the floats, or among the counters. */
static size_t chunk_place(block_shape s, size_t i, size_t *len)
{
    bool counters = i >= float_chunks(s);
    size_t at = (counters ? i - float_chunks(s) : i) * REMOTE_CHUNK_BYTES;
    size_t end = counters ? s.counters * sizeof(int64_t) : s.floats * sizeof(float);
    *len = end - at < REMOTE_CHUNK_BYTES ? end - at : REMOTE_CHUNK_BYTES;
    return at;
}

char *remote_chunk(block_shape s, block b, size_t i, size_t *len)
{
    bool counters = i >= float_chunks(s);
    return (counters ? (char *)b.counters : (char *)b.floats) + chunk_place(s, i, len);
}

void remote_carried(remote *r)
{
    if (r->access.carried)
        atomic_fetch_add_explicit(r->access.carried, 1, memory_order_relaxed);
}

void remote_hash_chunk(block_shape s, block b, size_t i, uint64_t *hash)
{
    enum { PIECES = REMOTE_CHUNK_BYTES / BLOCK_PIECE_BYTES };
    size_t len;
    const char *at = remote_chunk(s, b, i, &len);
    bool counters = i >= float_chunks(s);
    uint64_t *to = counters ? hash + block_float_pieces(s) + (i - float_chunks(s)) * PIECES
                            : hash + i * PIECES;
    for (size_t done = 0; done < len; done += BLOCK_PIECE_BYTES)
        *to++ = block_piece_hash(at + done,
                                 len - done < BLOCK_PIECE_BYTES ? len - done : BLOCK_PIECE_BYTES);
}

/* ---- room ----------------------------------------------------------------------------------- */

/* The size that jemalloc reserves: there are four sizes between two powers of two. */
static uint64_t allocated(uint64_t bytes)
{
    uint64_t step = 16;
    while (8 * step < bytes)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

/* The bytes that Redis needs for a block. Each chunk is a string of its own, with a head. */
static uint64_t block_in_redis(block_shape s)
{
    enum { STRING_HEAD = 32 };
    uint64_t bytes = 0;
    for (size_t i = 0; i < remote_chunks(s); i++) {
        size_t len;
        chunk_place(s, i, &len);
        bytes += allocated(len + STRING_HEAD);
    }
    return bytes;
}

/* The bytes that Redis needs besides, for chunks on their way: a client's buffer has room for one
 * more chunk than it has sent, and a reading merge requests a window of replies ahead. */
static uint64_t on_their_way(block_shape s, int blocks)
{
    size_t first;
    chunk_place(s, 0, &first);
    return (uint64_t)(blocks + REMOTE_WINDOW) * allocated(first);
}

/* 0: INFO has no such line, or there is no limit. */
static uint64_t info_number(const redisReply *info, const char *name)
{
    char *at = info->type == REDIS_REPLY_STRING ? strstr(info->str, name) : NULL;
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static int room_in_redis(remote *r, int blocks, int64_t deadline_ms, err *e)
{
    cleanup_reply redisReply *info = NULL;
    if (redis_command_format(&r->cmd, e, "INFO memory") ||
        remote_call(r, &info, NULL, deadline_ms, e))
        return -1;
    uint64_t most = info_number(info, "\nmaxmemory:"), used = info_number(info, "\nused_memory:");
    uint64_t need =
        (uint64_t)blocks * block_in_redis(r->layout.shape) + on_their_way(r->layout.shape, blocks);
    if (most == 0 || used + need <= most)
        return 0;
    return err_set(e, ERR_NOMEM, "redis: %llu bytes are wanted, %llu of maxmemory %llu are used",
                   (unsigned long long)need, (unsigned long long)used, (unsigned long long)most);
}

int remote_room(remote *r, int slot, int blocks, int64_t deadline_ms, err *e)
{
    block at;
    if (remote_need_owner(r, e) || remote_need_layout(r, e))
        return -1;
    if (!r->shared)
        return room_in_redis(r, blocks, deadline_ms, e);
    if (shm_slot(r->segment, slot, true, &at, e) == 0)
        return 0;
    if (e->os_errno == ENOSPC)
        e->code = ERR_NOMEM;
    return -1;
}
