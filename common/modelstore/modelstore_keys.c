/* modelstore_keys.c: see modelstore_keys.h. */
#include "modelstore_keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"

enum { SCAN_COUNT = 1000, UNLINK_MAX = 799 };

/* ---- texts ---------------------------------------------------------------------------------- */

void keys_state_text(const stored_state *s, char out[KEYS_TEXT_BYTES])
{
    snprintf(out, KEYS_TEXT_BYTES,
             "%" PRId64 " %" PRId64 " %" PRId64 " %016" PRIx64 " %016" PRIx64 " %s",
             s->state.version, s->state.epoch, s->state.round, s->state.checksum, s->layout_digest,
             s->segment);
}

int keys_parse_state(const redisReply *reply, stored_state *out, err *e)
{
    if (reply->type == REDIS_REPLY_NIL)
        return err_set(e, ERR_NOT_FOUND, "there is no such job");
    *out = (stored_state){.layout_digest = 0};
    if (reply->type != REDIS_REPLY_STRING ||
        sscanf(reply->str, "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNx64 " %" SCNx64 " %127s",
               &out->state.version, &out->state.epoch, &out->state.round, &out->state.checksum,
               &out->layout_digest, out->segment) < 5)
        return err_set(e, ERR_CORRUPT, "the job's state in Redis is of another form");
    return 0;
}

void keys_publication_text(const stored_publication *p, char out[KEYS_TEXT_BYTES])
{
    snprintf(out, KEYS_TEXT_BYTES, "%" PRId64 " %" PRId64 " %d %" PRIu64 " %016" PRIx64 " %d",
             p->epoch, p->round, p->p.incarnation, p->p.samples, p->p.checksum, p->slot);
}

bool keys_parse_publication(const redisReply *reply, int function, stored_publication *out)
{
    *out = (stored_publication){.slot = -1};
    out->p.function = function;
    return reply->type == REDIS_REPLY_STRING &&
           sscanf(reply->str, "%" SCNd64 " %" SCNd64 " %d %" SCNu64 " %" SCNx64 " %d", &out->epoch,
                  &out->round, &out->p.incarnation, &out->p.samples, &out->p.checksum,
                  &out->slot) == 6;
}

void keys_publication(const remote *r, int function, char out[REMOTE_KEY_BYTES])
{
    char suffix[32];
    snprintf(suffix, sizeof suffix, "pub:%d", function);
    modelstore_key(r, suffix, out);
}

static void chunk_key(const remote *r, const modelstore_published *p, int64_t epoch, int64_t round,
                      size_t chunk, char out[REMOTE_KEY_BYTES])
{
    char suffix[96];
    snprintf(suffix, sizeof suffix, "pub:%d:%d:%" PRId64 ":%" PRId64 ":%zu", p->function,
             p->incarnation, epoch, round, chunk);
    modelstore_key(r, suffix, out);
}

static void reference_key(const remote *r, int64_t version, size_t chunk,
                          char out[REMOTE_KEY_BYTES])
{
    char suffix[64];
    snprintf(suffix, sizeof suffix, "ref:%" PRId64 ":%zu", version, chunk);
    modelstore_key(r, suffix, out);
}

/* ---- small commands ------------------------------------------------------------------------ */

int keys_call(remote *r, const char *command, const char *a, const char *b, redisReply **out,
              int64_t deadline_ms, err *e)
{
    const char *const words[] = {command, a, b};
    return redis_command_words(&r->cmd, 1 + !!a + !!b, words, NULL, e) ||
                   redis_link_call(r->c, &r->cmd, out, deadline_ms, e)
               ? -1
               : 0;
}

int keys_get_state(remote *r, stored_state *out, int64_t deadline_ms, err *e)
{
    char key[REMOTE_KEY_BYTES];
    cleanup_reply redisReply *reply = NULL;
    return keys_call(r, "GET", modelstore_key(r, "state", key), NULL, &reply, deadline_ms, e) ||
                   keys_parse_state(reply, out, e)
               ? -1
               : 0;
}

int keys_get_publication(remote *r, int function, const modelstore_state *s,
                         stored_publication *out, int64_t deadline_ms, err *e)
{
    char key[REMOTE_KEY_BYTES];
    cleanup_reply redisReply *reply = NULL;
    keys_publication(r, function, key);
    if (keys_call(r, "GET", key, NULL, &reply, deadline_ms, e))
        return -1;
    return keys_parse_publication(reply, function, out) && out->epoch == s->epoch &&
           out->round == s->round;
}

int keys_execute(remote *r, int64_t deadline_ms, err *e)
{
    cleanup_reply redisReply *reply = NULL;
    if (keys_call(r, "EXEC", NULL, NULL, &reply, deadline_ms, e))
        return -1;
    if (reply->type == REDIS_REPLY_NIL)
        return 0;
    for (size_t i = 0; i < reply->elements; i++)
        if (reply->element[i]->type == REDIS_REPLY_ERROR)
            return redis_link_error(reply->element[i], e);
    return 1;
}

int keys_attempt(remote *r, int (*attempt)(remote *, void *, int64_t, err *), void *user,
                 bool *again, int64_t deadline_ms, err *e)
{
    for (int pause_ms = 1;;) {
        err last = ERR_INIT;
        if (remote_connect(r, deadline_ms, e))
            return -1;
        int rc = attempt(r, user, deadline_ms, &last);
        if (rc > 0)
            return 0;
        if (rc < 0)
            remote_disconnect(r);
        if (rc == 0)
            err_set(&last, ERR_TIMEOUT, "redis: the job's state kept changing");
        if ((rc < 0 && last.code != ERR_UNAVAILABLE) ||
            remote_pause(&pause_ms, deadline_ms, NULL)) {
            if (e)
                *e = last;
            return -1;
        }
        if (rc < 0 && again)
            *again = true;
    }
}

/* ---- bytes over sockets -------------------------------------------------------------------- */

static int take_ok(remote *r, int64_t deadline_ms, err *e)
{
    cleanup_reply redisReply *reply = NULL;
    if (redis_link_receive(r->c, &reply, deadline_ms, e))
        return -1;
    return reply->type == REDIS_REPLY_ERROR ? redis_link_error(reply, e) : 0;
}

int keys_set_chunks(remote *r, keys_name name, const void *of, block b, int patience_ms, err *e)
{
    size_t chunks = remote_chunks(r->layout.shape), taken = 0;
    for (size_t i = 0; i < chunks; i++) {
        char key[REMOTE_KEY_BYTES];
        size_t len;
        const char *at = remote_chunk(r->layout.shape, b, i, &len);
        name(r, of, i, key);
        const int64_t deadline_ms = clock_deadline_ms(patience_ms);
        if (redis_command_format(&r->cmd, e, "SET %s", key) ||
            redis_link_announce(r->c, &r->cmd, len, 0, deadline_ms, e) ||
            redis_link_send_long(r->c, at, len, NULL, deadline_ms, e))
            return -1;
        remote_carried(r);
        failpoint("chunk-sent");
        if (i - taken >= REMOTE_WINDOW && (taken++, take_ok(r, clock_deadline_ms(patience_ms), e)))
            return -1;
    }
    while (taken++ < chunks)
        if (take_ok(r, clock_deadline_ms(patience_ms), e))
            return -1;
    return 0;
}

int keys_get_chunks(remote *r, keys_name name, const void *of, block to, int patience_ms, err *e)
{
    size_t chunks = remote_chunks(r->layout.shape), asked = 0;
    for (size_t i = 0; i < chunks; i++) {
        size_t len;
        for (; asked < chunks && asked - i < REMOTE_WINDOW; asked++) {
            char key[REMOTE_KEY_BYTES];
            name(r, of, asked, key);
            if (redis_command_format(&r->cmd, e, "GET %s", key) ||
                redis_link_append(r->c, &r->cmd, clock_deadline_ms(patience_ms), e))
                return -1;
        }
        char *at = remote_chunk(r->layout.shape, to, i, &len);
        if (redis_link_receive_long(r->c, at, len, clock_deadline_ms(patience_ms), e))
            return -1;
        remote_carried(r);
    }
    return 0;
}

void keys_name_reference(const remote *r, const void *of, size_t chunk, char out[REMOTE_KEY_BYTES])
{
    reference_key(r, *(const int64_t *)of, chunk, out);
}

void keys_name_publication(const remote *r, const void *of, size_t chunk,
                           char out[REMOTE_KEY_BYTES])
{
    const stored_publication *p = of;
    chunk_key(r, &p->p, p->epoch, p->round, chunk, out);
}

void keys_remove_reference(remote *r, int64_t version, int64_t deadline_ms)
{
    size_t chunks = remote_chunks(r->layout.shape);
    for (size_t i = 0; i < chunks; i++) {
        char key[REMOTE_KEY_BYTES];
        reference_key(r, version, i, key);
        if (keys_call(r, "UNLINK", key, NULL, NULL, deadline_ms, NULL))
            return;
    }
}

/* ---- removing many --------------------------------------------------------------------------- */

/* Whether the key behind its prefix, "<function>:<incarnation>:<epoch>:<round>:<chunk>", is of the
 * open round. */
static bool is_open(const char *key, size_t prefix, const modelstore_state *open)
{
    int64_t epoch, round;
    return strlen(key) > prefix &&
           sscanf(key + prefix, "%*d:%*d:%" SCNd64 ":%" SCNd64 ":", &epoch, &round) == 2 &&
           epoch == open->epoch && round == open->round;
}

static int remove_found(remote *r, const redisReply *keys, size_t prefix,
                        const modelstore_state *open, int64_t deadline_ms, err *e)
{
    const char *words[1 + UNLINK_MAX] = {"UNLINK"};
    int n = 1;
    for (size_t i = 0; i < keys->elements; i++) {
        const redisReply *key = keys->element[i];
        if (key->type == REDIS_REPLY_STRING && !(open && is_open(key->str, prefix, open)))
            words[n++] = key->str;
        if (n == 1 || (n <= UNLINK_MAX && i + 1 < keys->elements))
            continue;
        if (redis_command_words(&r->cmd, n, words, NULL, e) ||
            remote_call(r, NULL, NULL, deadline_ms, e))
            return -1;
        n = 1;
    }
    return 0;
}

int keys_remove(remote *r, const char *prefix, const char *rest, const modelstore_state *open,
                int64_t deadline_ms, err *e)
{
    char pattern[REMOTE_KEY_BYTES], text[32], cursor[32] = "0";
    size_t len = strlen(modelstore_key(r, prefix, pattern));
    snprintf(text, sizeof text, "%.20s%.10s", prefix, rest);
    modelstore_key(r, text, pattern);
    do {
        cleanup_reply redisReply *reply = NULL;
        if (redis_command_format(&r->cmd, e, "SCAN %s MATCH %s COUNT %d", cursor, pattern,
                                 SCAN_COUNT) ||
            remote_call(r, &reply, NULL, deadline_ms, e))
            return -1;
        if (reply->elements != 2 || reply->element[0]->type != REDIS_REPLY_STRING ||
            reply->element[0]->len > 20)
            return err_set(e, ERR_CORRUPT, "redis: an answer of another form to SCAN");
        memcpy(cursor, reply->element[0]->str, reply->element[0]->len + 1);
        if (remove_found(r, reply->element[1], len, open, deadline_ms, e))
            return -1;
    } while (strcmp(cursor, "0") != 0);
    return 0;
}
