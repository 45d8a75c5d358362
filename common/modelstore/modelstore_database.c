/* modelstore_database.c: the model store in Redis with the module kubeml-redis (ps/module), which
 * merges. The job is one key of the module's type; its commands decide what is stale, twice or
 * missing, so this file only carries. Under shm the bytes lie in the segment and a command names
 * the slot; over sockets they travel in chunks, written and read without a copy on this side. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "merge.h"
#include "modelstore_redis.h"
#include "modelstore_table.h"

enum { MODULE_VERSION = 2, STATUS_HEAD = 10 };

static remote *remote_of(modelstore *m)
{
    return (remote *)(void *)m;
}

static const char *model_key(const remote *r, char out[REMOTE_KEY_BYTES])
{
    return modelstore_key(r, "model", out);
}

static int database_open(const modelstore_access *a, modelstore_role role, int64_t deadline_ms,
                         modelstore **out, err *e)
{
    modelstore *m;
    if (remote_open(&modelstore_database, a, role, deadline_ms, &m, e))
        return -1;
    remote *r = remote_of(m);
    cleanup_reply redisReply *reply = NULL;
    int rc = redis_command_format(&r->cmd, e, "KUBEML.VERSION") ||
                     remote_call(r, &reply, NULL, deadline_ms, e)
                 ? -1
                 : 0;
    if (rc != 0 && e && e->code == ERR_UNSUPPORTED)
        err_set(e, ERR_UNSUPPORTED,
                "this Redis has not loaded kubeml-redis.so, which merging in "
                "the database needs");
    else if (rc == 0 && reply->integer != MODULE_VERSION)
        rc = err_set(e, ERR_UNSUPPORTED, "kubeml-redis.so is of version %lld, not %d",
                     reply->integer, MODULE_VERSION);
    if (rc != 0)
        remote_close(r);
    else
        *out = m;
    return rc;
}

/* ---- status --------------------------------------------------------------------------------- */

typedef struct raw_status {
    modelstore_status status;
    int64_t raw_version; /* what the next merge starts from, also while there is no reference */
    char segment[SHM_NAME_BYTES];
} raw_status;

static int parse_status(const redisReply *reply, raw_status *out, err *e)
{
    redisReply *const *v = reply->element;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < STATUS_HEAD ||
        v[8]->type != REDIS_REPLY_STRING || v[8]->len >= sizeof out->segment)
        return err_set(e, ERR_CORRUPT, "redis: an answer of another form to KUBEML.STATUS");
    modelstore_status *s = &out->status;
    out->raw_version = v[0]->integer;
    s->state = (modelstore_state){v[1]->integer ? v[0]->integer : -1, v[2]->integer, v[3]->integer,
                                  (uint64_t)v[4]->integer};
    s->layout_digest = (uint64_t)v[5]->integer;
    memcpy(out->segment, v[8]->str, v[8]->len + 1);
    s->count = (size_t)v[9]->integer;
    if (s->count > MODELSTORE_FUNCTIONS_MAX || reply->elements != STATUS_HEAD + 4 * s->count)
        return err_set(e, ERR_CORRUPT, "redis: an answer of another form to KUBEML.STATUS");
    for (size_t i = 0; i < s->count; i++) {
        redisReply *const *p = v + STATUS_HEAD + 4 * i;
        s->published[i] = (modelstore_published){(int)p[0]->integer, (int)p[1]->integer,
                                                 (uint64_t)p[2]->integer, (uint64_t)p[3]->integer};
    }
    return 0;
}

static int get_status(remote *r, int64_t deadline_ms, raw_status *out, err *e)
{
    cleanup_reply redisReply *reply = NULL;
    return remote_ask(r, "KUBEML.STATUS", "model", &reply, deadline_ms, e) ||
                   parse_status(reply, out, e)
               ? -1
               : 0;
}

static int database_status(modelstore *m, int64_t deadline_ms, modelstore_status *out, err *e)
{
    raw_status *raw = malloc(sizeof *raw);
    if (!raw)
        return err_set(e, ERR_NOMEM, "no memory for a status");
    int rc = get_status(remote_of(m), deadline_ms, raw, e);
    if (rc == 0)
        *out = raw->status;
    free(raw);
    return rc;
}

static int database_state(modelstore *m, int64_t deadline_ms, modelstore_state *out, err *e)
{
    modelstore_status *status;
    if (remote_need_layout(remote_of(m), e))
        return -1;
    if (remote_of(m)->shared)
        return remote_state_shared(remote_of(m), out);
    if (!(status = malloc(sizeof *status)))
        return err_set(e, ERR_NOMEM, "no memory for a status");
    int rc = database_status(m, deadline_ms, status, e);
    if (rc == 0)
        *out = status->state;
    free(status);
    return rc;
}

static int database_attach(modelstore *m, layout *out, int64_t deadline_ms, err *e)
{
    remote *r = remote_of(m);
    cleanup_reply redisReply *text = NULL;
    cleanup_free raw_status *raw = malloc(sizeof *raw);
    if (!raw)
        return err_set(e, ERR_NOMEM, "no memory for a status");
    if (remote_ask(r, "KUBEML.LAYOUT", "model", &text, deadline_ms, e) ||
        get_status(r, deadline_ms, raw, e))
        return -1;
    if (text->type != REDIS_REPLY_STRING)
        return err_set(e, ERR_CORRUPT, "redis: an answer of another form to KUBEML.LAYOUT");
    if (remote_attach(r, text->str, text->len, raw->segment, e))
        return -1;
    return out ? layout_parse_text(text->str, text->len, out, e) : 0;
}

/* ---- publishing -----------------------------------------------------------------------------
 *
 * Chunks travel on a connection of their own, whose next command is announced as soon as the last
 * one was carried out (redis_link_announce): a model of one chunk, which is a small one's whole
 * round, is read by Redis to where it stays until the merge. */

enum { ARGUMENTS_BEHIND = 5 };

static int announce_chunk(remote *r, size_t len, int64_t deadline_ms, err *e)
{
    char key[REMOTE_KEY_BYTES];
    return redis_command_format(&r->cmd, e, "KUBEML.WRITE %s", model_key(r, key)) ||
                   redis_link_announce(r->writer, &r->cmd, len, ARGUMENTS_BEHIND, deadline_ms, e)
               ? -1
               : 0;
}

static int write_chunk(remote *r, const modelstore_publication *p, block b, size_t chunk,
                       int64_t deadline_ms, err *e)
{
    size_t len;
    const char *at = remote_chunk(r->layout.shape, b, chunk, &len);
    if (!r->announced && announce_chunk(r, len, deadline_ms, e))
        return -1;
    r->announced = false;
    return redis_command_format(&r->cmd, e, "%" PRId64 " %" PRId64 " %d %d %lu", p->epoch, p->round,
                                p->function, p->incarnation, chunk) ||
                   redis_link_send_long(r->writer, at, len, &r->cmd, deadline_ms, e)
               ? -1
               : 0;
}

/* Takes `count` replies to WRITE; the first refusal goes to `refusal`. */
static int take_writes(remote *r, size_t count, int patience_ms, err *refusal, err *e)
{
    for (size_t i = 0; i < count; i++) {
        cleanup_reply redisReply *reply = NULL;
        if (redis_link_receive(r->writer, &reply, clock_deadline_ms(patience_ms), e))
            return -1;
        if (reply->type == REDIS_REPLY_ERROR && refusal->code == ERR_NONE)
            redis_link_error(reply, refusal);
    }
    return 0;
}

/* Sends all chunks, at most a window ahead of the replies, hashing each on its way. Stops at a
 * refusal. `*ahead`: how many replies are still to come. */
static int write_chunks(remote *r, const modelstore_publication *p, block b, uint64_t *hash,
                        int patience_ms, size_t *ahead, err *refusal, err *e)
{
    size_t chunks = remote_chunks(r->layout.shape);
    *ahead = 0;
    for (size_t i = 0; i < chunks && refusal->code == ERR_NONE; i++) {
        if (write_chunk(r, p, b, i, clock_deadline_ms(patience_ms), e))
            return -1;
        remote_carried(r);
        failpoint("chunk-sent");
        remote_hash_chunk(r->layout.shape, b, i, hash);
        if (*ahead == REMOTE_WINDOW) {
            if (take_writes(r, 1, patience_ms, refusal, e))
                return -1;
        } else {
            ++*ahead;
        }
    }
    return 0;
}

static int format_publish(remote *r, const modelstore_publication *p, uint64_t checksum, int slot,
                          err *e)
{
    char key[REMOTE_KEY_BYTES];
    return redis_command_format(&r->cmd, e,
                                "KUBEML.PUBLISH %s %" PRId64 " %" PRId64 " %" PRId64
                                " %d %d %" PRId64 " %016" PRIx64 " %016" PRIx64 " %d",
                                model_key(r, key), p->epoch, p->round, p->version, p->function,
                                p->incarnation, (int64_t)p->samples, checksum, r->layout.digest,
                                slot);
}

static int send_publish(remote *r, const modelstore_publication *p, uint64_t checksum, int slot,
                        int64_t deadline_ms, err *e)
{
    return format_publish(r, p, checksum, slot, e) || remote_call(r, NULL, NULL, deadline_ms, e)
               ? -1
               : 0;
}

/* One attempt: the chunks, and PUBLISH right behind them, before their replies. A refused chunk is
 * final only if PUBLISH fails too: a repeated publication's chunks are refused because it is there
 * already. */
static int publish_by_chunks(remote *r, const modelstore_publication *p, block b,
                             int64_t deadline_ms, uint64_t *checksum, err *e)
{
    const int patience_ms = clock_left_ms(deadline_ms);
    size_t pieces = block_pieces(r->layout.shape), ahead, first;
    cleanup_free uint64_t *hash = calloc(pieces, sizeof *hash);
    cleanup_reply redisReply *reply = NULL;
    err refusal = ERR_INIT, last = ERR_INIT;
    if (!hash)
        return err_set(e, ERR_NOMEM, "no memory for the hashes of %zu pieces", pieces);
    if (remote_connect_writer(r, deadline_ms, e))
        return -1;
    if (write_chunks(r, p, b, hash, patience_ms, &ahead, &refusal, e))
        return remote_disconnect_writer(r), -1; /* half a command may be there */
    deadline_ms = clock_deadline_ms(patience_ms);
    if (refusal.code == ERR_NONE)
        *checksum = block_root_hash(hash, pieces);
    else if (block_checksum(r->layout.shape, b, 1, checksum, e))
        return remote_disconnect_writer(r), -1; /* replies are still to come */
    remote_chunk(r->layout.shape, b, 0, &first);
    if (format_publish(r, p, *checksum, -1, e) ||
        redis_link_append(r->writer, &r->cmd, deadline_ms, e) ||
        announce_chunk(r, first, deadline_ms, e))
        return remote_disconnect_writer(r), -1;
    r->announced = true;
    if (take_writes(r, ahead, patience_ms, &refusal, e) ||
        redis_link_receive(r->writer, &reply, clock_deadline_ms(patience_ms), e))
        return -1;
    if (reply->type != REDIS_REPLY_ERROR)
        return 0;
    redis_link_error(reply, &last);
    if (e)
        *e = refusal.code != ERR_NONE && refusal.code != ERR_CONFLICT ? refusal : last;
    return -1;
}

static int database_publish(modelstore *m, const modelstore_publication *p, const block *b,
                            int64_t deadline_ms, uint64_t *checksum, err *e)
{
    remote *r = remote_of(m);
    block from;
    if (remote_need_layout(r, e))
        return -1;
    if (r->shared)
        return remote_fill_slot(r, p->slot, b, checksum, e) ||
                       send_publish(r, p, *checksum, p->slot, deadline_ms, e)
                   ? -1
                   : 0;
    if (b)
        from = *b;
    else if (remote_slot(r, p->slot, &from, e))
        return -1;
    for (int pause_ms = 1;;) {
        err last = ERR_INIT;
        if (publish_by_chunks(r, p, from, deadline_ms, checksum, &last) == 0)
            return 0;
        if (last.code != ERR_UNAVAILABLE || remote_pause(&pause_ms, deadline_ms, NULL)) {
            if (e)
                *e = last;
            return -1;
        }
    }
}

/* ---- fetching ------------------------------------------------------------------------------- */

static int ask_chunk(remote *r, int64_t version, size_t i, int64_t deadline_ms, err *e)
{
    char key[REMOTE_KEY_BYTES];
    return redis_command_format(&r->cmd, e, "KUBEML.READ %s %" PRId64 " %lu", model_key(r, key),
                                version, i) ||
                   redis_link_append(r->c, &r->cmd, deadline_ms, e)
               ? -1
               : 0;
}

/* Asks for chunks, at most a window ahead of what was taken. */
static int ask_ahead(remote *r, int64_t version, size_t taken, size_t *asked, int64_t deadline_ms,
                     err *e)
{
    size_t chunks = remote_chunks(r->layout.shape);
    while (*asked < chunks && *asked - taken < REMOTE_WINDOW)
        if (ask_chunk(r, version, (*asked)++, deadline_ms, e))
            return -1;
    return 0;
}

/* `asked` chunks were asked for already. */
static int take_chunks(remote *r, const modelstore_state *s, size_t asked, block to,
                       int patience_ms, err *e)
{
    size_t chunks = remote_chunks(r->layout.shape), pieces = block_pieces(r->layout.shape);
    cleanup_free uint64_t *hash = calloc(pieces, sizeof *hash);
    if (!hash)
        return err_set(e, ERR_NOMEM, "no memory for the hashes of %zu pieces", pieces);
    for (size_t i = 0; i < chunks; i++) {
        size_t len;
        if (ask_ahead(r, s->version, i, &asked, clock_deadline_ms(patience_ms), e))
            return -1;
        char *at = remote_chunk(r->layout.shape, to, i, &len);
        if (redis_link_receive_long(r->c, at, len, clock_deadline_ms(patience_ms), e))
            return -1;
        remote_carried(r);
        remote_hash_chunk(r->layout.shape, to, i, hash);
    }
    return block_root_hash(hash, pieces) == s->checksum
               ? 0
               : err_set(e, ERR_CORRUPT,
                         "the reference of version %lld does not match its checksum",
                         (long long)s->version);
}

/* The answers to what was asked for in vain: refusals, or a version that came just now. */
static int skip_chunks(remote *r, size_t asked, int64_t deadline_ms, err *e)
{
    for (size_t i = 0; i < asked; i++) {
        cleanup_reply redisReply *reply = NULL;
        if (redis_link_receive(r->c, &reply, deadline_ms, e))
            return -1;
    }
    return 0;
}

/* Asks for the state and, right behind, for the first chunks of the version that is expected: one
 * round trip where it is there. 1: `to` has it; 0: the state, which tells another version. */
static int fetch_once(remote *r, int64_t version, block to, int64_t deadline_ms, raw_status *raw,
                      err *e)
{
    char key[REMOTE_KEY_BYTES];
    size_t asked = 0;
    cleanup_reply redisReply *reply = NULL;
    if (redis_command_format(&r->cmd, e, "KUBEML.STATUS %s", model_key(r, key)) ||
        redis_link_append(r->c, &r->cmd, deadline_ms, e) ||
        ask_ahead(r, version, 0, &asked, deadline_ms, e) ||
        redis_link_receive(r->c, &reply, deadline_ms, e))
        return -1;
    if (reply->type == REDIS_REPLY_ERROR)
        return redis_link_error(reply, e);
    if (parse_status(reply, raw, e))
        return -1;
    if (raw->status.state.version != version)
        return skip_chunks(r, asked, deadline_ms, e);
    return take_chunks(r, &raw->status.state, asked, to, clock_left_ms(deadline_ms), e) ? -1 : 1;
}

static int database_fetch(modelstore *m, int64_t version_min, block to, int64_t deadline_ms,
                          modelstore_state *out, err *e)
{
    remote *r = remote_of(m);
    int64_t version = version_min;
    if (remote_need_layout(r, e))
        return -1;
    if (r->shared)
        return remote_fetch_shared(r, version_min, to, deadline_ms, out, e);
    cleanup_free raw_status *raw = malloc(sizeof *raw);
    if (!raw)
        return err_set(e, ERR_NOMEM, "no memory for a status");
    for (int pause_ms = 1;;) {
        err last = ERR_INIT;
        if (remote_connect(r, deadline_ms, e))
            return err_wrap(e, "waiting for version %lld", (long long)version_min);
        int got = fetch_once(r, version, to, deadline_ms, raw, &last);
        if (got == 1) {
            *out = raw->status.state;
            return 0;
        }
        if (got == 0 && raw->status.state.version > version) {
            version = raw->status.state.version;
            continue;
        }
        if (got < 0)
            remote_disconnect(r); /* replies that were asked for are still to come */
        /* Overtaken by a merge, or the connection broke: once more. */
        bool over = got < 0 && last.code != ERR_STALE && last.code != ERR_UNAVAILABLE;
        if (over || remote_pause(&pause_ms, deadline_ms, got < 0 ? NULL : &last)) {
            if (e)
                *e = last;
            return err_wrap(e, "waiting for version %lld", (long long)version_min);
        }
    }
}

/* ---- merging -------------------------------------------------------------------------------- */

static int parse_merged(const redisReply *reply, modelstore_merged *out, err *e)
{
    redisReply *const *v = reply->element;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 4)
        return err_set(e, ERR_CORRUPT, "redis: an answer of another form to KUBEML.MERGE");
    out->state =
        (modelstore_state){v[0]->integer, v[1]->integer, v[2]->integer, (uint64_t)v[3]->integer};
    return 0;
}

/* "@3 function 3 ...": which function's publication was refused. */
static void parse_bad_function(err *last, modelstore_merged *out)
{
    char *end = last->message;
    if (last->message[0] != '@')
        return;
    long function = strtol(last->message + 1, &end, 10);
    if (function < 0 || function >= MODELSTORE_FUNCTIONS_MAX || *end != ' ')
        return;
    out->bad_function = (int)function;
    memmove(last->message, end + 1, strlen(end + 1) + 1);
}

/* The numbers, of which there are three a function, stand in the format already. */
static int format_merge(remote *r, const modelstore_round *round, err *e)
{
    enum { HEAD_BYTES = 192, PART_BYTES = 48 };
    char key[REMOTE_KEY_BYTES], format[HEAD_BYTES + MODELSTORE_FUNCTIONS_MAX * PART_BYTES];
    int at = snprintf(format, HEAD_BYTES,
                      "KUBEML.MERGE %%s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                      " %%s %%s %zu",
                      round->epoch, round->round, round->version, round->next_epoch,
                      round->next_round, round->count);
    for (const modelstore_part *p = round->parts; p < round->parts + round->count; p++)
        at += snprintf(format + at, PART_BYTES, " %d %d %" PRIu64, p->function, p->incarnation,
                       p->samples);
    return redis_command_format(&r->cmd, e, format, model_key(r, key), round->rule,
                                round->ledger ? round->ledger : "");
}

/* After a refusal as stale: the present state; and whether it is this very merge's, carried out
 * before the connection broke. */
static bool was_merged(remote *r, const modelstore_round *round, int64_t deadline_ms,
                       modelstore_merged *out)
{
    cleanup_free raw_status *raw = malloc(sizeof *raw);
    if (!raw || get_status(r, deadline_ms, raw, NULL))
        return false;
    out->state = raw->status.state;
    return out->state.version == round->version + 1 && out->state.epoch == round->next_epoch &&
           out->state.round == round->next_round;
}

static int merge_call(remote *r, const modelstore_round *round, int64_t deadline_ms,
                      modelstore_merged *out, err *e)
{
    bool again = false;
    err last = ERR_INIT;
    cleanup_reply redisReply *reply = NULL;
    if (format_merge(r, round, e))
        return -1;
    if (remote_call(r, &reply, &again, deadline_ms, &last) == 0)
        return parse_merged(reply, out, e);
    if (last.code == ERR_STALE && was_merged(r, round, deadline_ms, out) && again)
        return 0;
    parse_bad_function(&last, out);
    if (e)
        *e = last;
    return -1;
}

static int database_merge(modelstore *m, const modelstore_round *round, int64_t deadline_ms,
                          modelstore_merged *out, err *e)
{
    remote *r = remote_of(m);
    if (remote_need_owner(r, e))
        return -1;
    return merge_call(r, round, deadline_ms, out, e);
}

/* ---- creating ------------------------------------------------------------------------------- */

static int send_create(remote *r, const modelstore_state *start, int64_t raw_version, int64_t round,
                       bool present, const char *ledger, int64_t deadline_ms, err *e)
{
    char key[REMOTE_KEY_BYTES];
    int rc = redis_command_format(&r->cmd, e,
                                  "KUBEML.CREATE %s %s %" PRIu64 " %" PRIu64 " %016" PRIx64
                                  " %" PRId64 " %" PRId64 " %" PRId64 " %016" PRIx64 " %d %s %s",
                                  model_key(r, key), r->layout.text, r->layout.shape.floats,
                                  r->layout.shape.counters, r->layout.digest, raw_version,
                                  start->epoch, round, start->checksum, present,
                                  r->segment ? shm_name(r->segment) : "", ledger);
    return rc || remote_call(r, NULL, NULL, deadline_ms, e) ? -1 : 0;
}

/* Over sockets the first reference arrives like every other: as the one contribution to a round of
 * its own. That is none which a function could have been given, however late it is. */
static int create_by_chunks(remote *r, const modelstore_state *start, const block *b,
                            const char *ledger, int64_t deadline_ms, err *e)
{
    const modelstore_publication p = {
        .epoch = start->epoch, .round = -1, .version = start->version - 1, .samples = 1};
    const modelstore_part part = {.samples = 1};
    const modelstore_round round = {.epoch = p.epoch,
                                    .round = p.round,
                                    .version = p.version,
                                    .next_epoch = start->epoch,
                                    .next_round = start->round,
                                    .rule = merge_rule_default()->name,
                                    .parts = &part,
                                    .count = 1};
    const int patience_ms = clock_left_ms(deadline_ms);
    modelstore_merged merged;
    uint64_t checksum;
    if (send_create(r, start, p.version, p.round, false, ledger, deadline_ms, e) ||
        database_publish(&r->base, &p, b, deadline_ms, &checksum, e) ||
        merge_call(r, &round, clock_deadline_ms(patience_ms), &merged, e))
        return err_wrap(e, "first reference");
    return 0;
}

/* The reference into its place in the segment, or what lies there verified. */
static int place_reference(remote *r, modelstore_state *start, const block *b, err *e)
{
    block at = shm_reference(r->segment, start->version);
    uint64_t checksum;
    if (b)
        return block_copy(r->layout.shape, at, *b, 1, &start->checksum, e);
    if (block_checksum(r->layout.shape, at, 1, &checksum, e))
        return -1;
    return checksum == start->checksum
               ? 0
               : err_set(e, ERR_CORRUPT, "the segment does not hold version %lld",
                         (long long)start->version);
}

static int database_create(modelstore *m, const layout *l, const modelstore_state *given, int slots,
                           const block *b, const char *ledger, int64_t deadline_ms, err *e)
{
    remote *r = remote_of(m);
    modelstore_state start = *given;
    bool empty = start.version < 0, keep = !b && !empty;
    if (remote_need_owner(r, e) || remote_make_segment(r, l, slots, keep, e))
        return -1;
    if (keep && !r->shared)
        return err_set(e, ERR_NOT_FOUND, "without a shared segment the reference must be given");
    if (empty)
        return send_create(r, &start, -1, start.round, false, ledger, deadline_ms, e);
    if (!r->shared)
        return create_by_chunks(r, &start, b, ledger, deadline_ms, e);
    if (place_reference(r, &start, b, e))
        return -1;
    return send_create(r, &start, start.version, start.round, true, ledger, deadline_ms, e);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static int database_slot(modelstore *m, int slot, block *out, err *e)
{
    return remote_slot(remote_of(m), slot, out, e);
}

static int database_room(modelstore *m, int slot, int functions, int64_t deadline_ms, err *e)
{
    return remote_room(remote_of(m), slot, functions, deadline_ms, e);
}

static int database_ledger(modelstore *m, int64_t deadline_ms, char **out, size_t *len, err *e)
{
    remote *r = remote_of(m);
    cleanup_reply redisReply *reply = NULL;
    if (remote_ask(r, "KUBEML.LEDGER", "model", &reply, deadline_ms, e))
        return -1;
    if (reply->type != REDIS_REPLY_STRING)
        return err_set(e, ERR_CORRUPT, "redis: an answer of another form to KUBEML.LEDGER");
    *out = steal_ptr(reply->str);
    if (len)
        *len = reply->len;
    return 0;
}

static int database_drop(modelstore *m, int64_t deadline_ms, err *e)
{
    remote *r = remote_of(m);
    if (remote_need_owner(r, e))
        return -1;
    if (r->shared)
        shm_sweep(r->access.segment_dir, r->access.job);
    return remote_ask(r, "UNLINK", "model", NULL, deadline_ms, e);
}

static void database_close(modelstore *m)
{
    remote_close(remote_of(m));
}

const modelstore_ops modelstore_database = {
    .name = "database",
    .open = database_open,
    .create = database_create,
    .attach = database_attach,
    .slot = database_slot,
    .publish = database_publish,
    .merge = database_merge,
    .fetch = database_fetch,
    .room = database_room,
    .state = database_state,
    .status = database_status,
    .ledger = database_ledger,
    .drop = database_drop,
    .close = database_close,
};
