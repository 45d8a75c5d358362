/* modelstore_server.c: the model store in a plain Redis; the owner (kubeml-ps) merges and commits.
 *
 * A publication is set under WATCH of the state and of what the function published before, so that
 * it falls either before a commit or is refused as stale. A commit sets state and ledger in one
 * MULTI under WATCH of the state; bytes lie under names of their own before, and are removed after.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "merge.h"
#include "modelstore_keys.h"
#include "modelstore_table.h"

static remote *remote_of(modelstore *m)
{
    return (remote *)(void *)m;
}

/* ---- opening and attaching ----------------------------------------------------------------- */

static int server_open(const modelstore_access *a, modelstore_role role, int64_t deadline_ms,
                       modelstore **out, err *e)
{
    return remote_open(&modelstore_server, a, role, deadline_ms, out, e);
}

/* With the retries of remote_call: not under WATCH. */
static int get_state(remote *r, stored_state *out, int64_t deadline_ms, err *e)
{
    cleanup_reply redisReply *reply = NULL;
    return remote_ask(r, "GET", "state", &reply, deadline_ms, e) || keys_parse_state(reply, out, e)
               ? -1
               : 0;
}

static int server_attach(modelstore *m, layout *out, int64_t deadline_ms, err *e)
{
    remote *r = remote_of(m);
    stored_state s;
    cleanup_reply redisReply *text = NULL;
    if (get_state(r, &s, deadline_ms, e) || remote_ask(r, "GET", "layout", &text, deadline_ms, e))
        return -1;
    if (text->type != REDIS_REPLY_STRING)
        return err_set(e, ERR_NOT_FOUND, "the job has no layout");
    if (remote_attach(r, text->str, text->len, s.segment, e))
        return -1;
    return out ? layout_parse_text(text->str, text->len, out, e) : 0;
}

/* ---- publishing ----------------------------------------------------------------------------- */

typedef struct publishing {
    const modelstore_publication *p;
    modelstore_published now;
    block bytes;
} publishing;

static int set_publication(remote *r, const publishing *w, int64_t deadline_ms, err *e)
{
    char key[REMOTE_KEY_BYTES], text[KEYS_TEXT_BYTES];
    keys_publication(r, w->p->function, key);
    keys_publication_text(&(stored_publication){.epoch = w->p->epoch,
                                                .round = w->p->round,
                                                .p = w->now,
                                                .slot = r->shared ? w->p->slot : -1},
                          text);
    if (keys_call(r, "MULTI", NULL, NULL, NULL, deadline_ms, e) ||
        keys_call(r, "SET", key, text, NULL, deadline_ms, e))
        return -1;
    return keys_execute(r, deadline_ms, e);
}

static int check_publish(remote *r, const publishing *w, int64_t deadline_ms, err *e)
{
    stored_state s;
    stored_publication old;
    if (keys_get_state(r, &s, deadline_ms, e) ||
        modelstore_check_round(&s.state, w->p->epoch, w->p->round, e) ||
        modelstore_check_version(&s.state, w->p->version, e))
        return -1;
    if (s.layout_digest != r->layout.digest)
        return err_set(e, ERR_INVALID, "function %d: its model has another layout than the job's",
                       w->p->function);
    int found = keys_get_publication(r, w->p->function, &s.state, &old, deadline_ms, e);
    return found < 0 ? -1 : modelstore_check_publication(found ? &old.p : NULL, &w->now, e);
}

static int publish_once(remote *r, void *user, int64_t deadline_ms, err *e)
{
    publishing *w = user;
    const int patience_ms = clock_left_ms(deadline_ms);
    char state[REMOTE_KEY_BYTES], key[REMOTE_KEY_BYTES];
    const stored_publication mine = {.epoch = w->p->epoch, .round = w->p->round, .p = w->now};
    keys_publication(r, w->p->function, key);
    if (keys_call(r, "WATCH", modelstore_key(r, "state", state), key, NULL, deadline_ms, e))
        return -1;
    int rc = check_publish(r, w, deadline_ms, e);
    if (rc != 0) {
        remote_disconnect(r); /* and with it the watch */
        return rc;
    }
    if (!r->shared && keys_set_chunks(r, keys_name_publication, &mine, w->bytes, patience_ms, e))
        return -1;
    return set_publication(r, w, clock_deadline_ms(patience_ms), e);
}

static int server_publish(modelstore *m, const modelstore_publication *p, const block *b,
                          int64_t deadline_ms, uint64_t *checksum, err *e)
{
    remote *r = remote_of(m);
    publishing w = {.p = p, .now = {p->function, p->incarnation, p->samples, 0}};
    if (remote_need_layout(r, e))
        return -1;
    if (r->shared || !b) {
        if (remote_fill_slot(r, p->slot, b, &w.now.checksum, e))
            return -1;
        w.bytes = r->slot_block;
    } else {
        w.bytes = *b;
        if (block_checksum(r->layout.shape, *b, 1, &w.now.checksum, e))
            return -1;
    }
    *checksum = w.now.checksum;
    return keys_attempt(r, publish_once, &w, NULL, deadline_ms, e);
}

/* ---- merging -------------------------------------------------------------------------------- */

typedef struct merging {
    const modelstore_round *round;
    modelstore_merged *out;
    const char *create_ledger;
    stored_publication pub[MODELSTORE_FUNCTIONS_MAX];
    merge_input in[MODELSTORE_FUNCTIONS_MAX];
    const void *flat[MODELSTORE_FUNCTIONS_MAX][2];
    char *fetched; /* over sockets: the contributions, one after the other, and the merge */
    size_t fetched_bytes;
} merging;

/* The function's publication names chunks that are not there (whole): as if its bytes were wrong.
 */
static int missing(remote *r, merging *w, const stored_publication *p, int64_t deadline_ms, err *e)
{
    char key[REMOTE_KEY_BYTES];
    bool lost = e->code == ERR_NOT_FOUND || e->code == ERR_CORRUPT;
    if (!lost)
        return err_wrap(e, "function %d", p->p.function);
    w->out->bad_function = p->p.function;
    keys_publication(r, p->p.function, key);
    remote_disconnect(r); /* more replies are outstanding */
    if (remote_connect(r, deadline_ms, e) == 0)
        keys_call(r, "UNLINK", key, NULL, NULL, deadline_ms, NULL);
    return err_set(e, ERR_CORRUPT,
                   "function %d (incarnation %d) published bytes that are not all "
                   "there",
                   p->p.function, p->p.incarnation);
}

static int input_from(remote *r, merging *w, size_t i, int patience_ms, err *e)
{
    stored_publication *p = &w->pub[i];
    merge_input *in = &w->in[i];
    block b;
    *in = (merge_input){.function = p->p.function,
                        .incarnation = p->p.incarnation,
                        .samples = p->p.samples,
                        .checksum = p->p.checksum};
    if (r->shared) {
        if (shm_slot(r->segment, p->slot, false, &b, e))
            return -1;
    } else {
        b = block_at(w->fetched + i * block_bytes(r->layout.shape), r->layout.shape);
        if (keys_get_chunks(r, keys_name_publication, p, b, patience_ms, e))
            return missing(r, w, p, clock_deadline_ms(patience_ms), e);
    }
    merge_input_contiguous(in, &b, w->flat[i]);
    return 0;
}

static int reserve_fetched(remote *r, merging *w, err *e)
{
    if (r->shared || w->fetched)
        return 0;
    w->fetched_bytes = (w->round->count + 1) * block_bytes(r->layout.shape);
    void *at = mmap(NULL, w->fetched_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "no memory for %zu contributions", w->round->count);
    w->fetched = at;
    return 0;
}

static int gather(remote *r, merging *w, const modelstore_state *s, int patience_ms, err *e)
{
    const modelstore_round *round = w->round;
    if (reserve_fetched(r, w, e))
        return -1;
    if (r->shared && !shm_whole(r->segment))
        return err_set(e, ERR_CORRUPT, "the segment was cut short");
    for (size_t i = 0; i < round->count; i++) {
        int found = keys_get_publication(r, round->parts[i].function, s, &w->pub[i],
                                         clock_deadline_ms(patience_ms), e);
        if (found < 0 || modelstore_check_part(found ? &w->pub[i].p : NULL, &round->parts[i], e) ||
            input_from(r, w, i, patience_ms, e))
            return -1;
    }
    return 0;
}

static block merge_target(const remote *r, const merging *w)
{
    if (r->shared)
        return shm_reference(r->segment, w->round->version + 1);
    return block_at(w->fetched + w->round->count * block_bytes(r->layout.shape), r->layout.shape);
}

/* The refused publication is forgotten, so that it can be published again. */
static int refuse(remote *r, merging *w, const merge_result *result, int64_t deadline_ms)
{
    char key[REMOTE_KEY_BYTES];
    if (result->bad < 0)
        return -1;
    w->out->bad_function = w->in[result->bad].function;
    keys_publication(r, w->out->bad_function, key);
    keys_call(r, "UNLINK", key, NULL, NULL, deadline_ms, NULL);
    return -1;
}

/* `before`: bytes of the ledger, which begins anew when it is full. */
static int commit(remote *r, const stored_state *next, const char *ledger, size_t before,
                  int64_t deadline_ms, err *e)
{
    bool anew = before == 0 || modelstore_ledger_full(before, strlen(ledger));
    char state[REMOTE_KEY_BYTES], key[REMOTE_KEY_BYTES], text[KEYS_TEXT_BYTES];
    keys_state_text(next, text);
    if (keys_call(r, "MULTI", NULL, NULL, NULL, deadline_ms, e) ||
        keys_call(r, "SET", modelstore_key(r, "state", state), text, NULL, deadline_ms, e))
        return -1;
    modelstore_key(r, "ledger", key);
    if (ledger[0] && ((!anew && keys_call(r, "APPEND", key, ",", NULL, deadline_ms, e)) ||
                      keys_call(r, anew ? "SET" : "APPEND", key, ledger, NULL, deadline_ms, e)))
        return -1;
    return keys_execute(r, deadline_ms, e);
}

static void show_state(remote *r, const stored_state *s)
{
    if (r->segment)
        shm_state_set(r->segment, (shm_state){s->state.version, s->state.epoch, s->state.round,
                                              s->state.checksum});
}

static int ledger_bytes(remote *r, size_t *out, int64_t deadline_ms, err *e)
{
    char key[REMOTE_KEY_BYTES];
    cleanup_reply redisReply *reply = NULL;
    if (keys_call(r, "STRLEN", modelstore_key(r, "ledger", key), NULL, &reply, deadline_ms, e))
        return -1;
    *out = (size_t)reply->integer;
    return 0;
}

static int merge_and_commit(remote *r, merging *w, stored_state *s, int patience_ms, err *e)
{
    const modelstore_round *round = w->round;
    const merge_rule *rule;
    merge_result result;
    size_t before;
    int64_t version = round->version + 1;
    block to = merge_target(r, w);
    if (merge_rule_find(round->rule, &rule, e))
        return -1;
    if (merge_run(rule, r->layout.shape, w->in, (int)round->count, to,
                  merge_threads(r->layout.shape, (int)round->count), &result, e))
        return refuse(r, w, &result, clock_deadline_ms(patience_ms));
    if (!r->shared && keys_set_chunks(r, keys_name_reference, &version, to, patience_ms, e))
        return -1;
    const int64_t deadline_ms = clock_deadline_ms(patience_ms);
    if (ledger_bytes(r, &before, deadline_ms, e))
        return -1;
    s->state = (modelstore_state){version, round->next_epoch, round->next_round, result.checksum};
    int rc = commit(r, s, round->ledger ? round->ledger : "", before, deadline_ms, e);
    if (rc == 1) {
        w->out->state = s->state;
        show_state(r, s);
    }
    return rc;
}

static int merge_once(remote *r, void *user, int64_t deadline_ms, err *e)
{
    merging *w = user;
    const int patience_ms = clock_left_ms(deadline_ms);
    char key[REMOTE_KEY_BYTES];
    stored_state s;
    if (keys_call(r, "WATCH", modelstore_key(r, "state", key), NULL, NULL, deadline_ms, e) ||
        keys_get_state(r, &s, deadline_ms, e))
        return -1;
    show_state(r, &s); /* of a commit whose answer was lost */
    w->out->state = s.state;
    if (modelstore_check_merge(&s.state, w->round, e) || gather(r, w, &s.state, patience_ms, e))
        return -1;
    return merge_and_commit(r, w, &s, patience_ms, e);
}

/* What the merged round left: the reference before, and the bytes that were published for rounds
 * that are over, also by functions that ended half-way or were replaced, of which no other key
 * tells. */
static void tidy(remote *r, merging *w, int64_t deadline_ms)
{
    int64_t before = w->round->version;
    if (keys_remove(r, "pub:", "*:*", &w->out->state, deadline_ms, NULL) == 0 && before >= 0)
        keys_remove_reference(r, before, deadline_ms);
}

static int server_merge(modelstore *m, const modelstore_round *round, int64_t deadline_ms,
                        modelstore_merged *out, err *e)
{
    remote *r = remote_of(m);
    const int patience_ms = clock_left_ms(deadline_ms);
    bool again = false;
    err last = ERR_INIT;
    if (remote_need_owner(r, e) || remote_need_layout(r, e))
        return -1;
    merging *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for a merge");
    w->round = round;
    w->out = out;
    int rc = keys_attempt(r, merge_once, w, &again, deadline_ms, &last);
    if (rc != 0 && again && last.code == ERR_STALE && out->state.version == round->version + 1 &&
        out->state.epoch == round->next_epoch && out->state.round == round->next_round)
        rc = 0; /* it was carried out before the connection broke */
    if (rc == 0 && !r->shared)
        tidy(r, w, clock_deadline_ms(patience_ms));
    if (w->fetched)
        munmap(w->fetched, w->fetched_bytes);
    free(w);
    if (rc != 0 && e)
        *e = last;
    return rc;
}

/* ---- fetching ------------------------------------------------------------------------------- */

static int fetch_once(remote *r, const modelstore_state *s, block to, int64_t deadline_ms, err *e)
{
    uint64_t checksum;
    if (keys_get_chunks(r, keys_name_reference, &s->version, to, clock_left_ms(deadline_ms), e)) {
        remote_disconnect(r);
        return -1;
    }
    if (block_checksum(r->layout.shape, to, 1, &checksum, e))
        return -1;
    return checksum == s->checksum ? 0
                                   : err_set(e, ERR_CORRUPT,
                                             "the reference of version %lld does not match its "
                                             "checksum",
                                             (long long)s->version);
}

static int server_fetch(modelstore *m, int64_t version_min, block to, int64_t deadline_ms,
                        modelstore_state *out, err *e)
{
    remote *r = remote_of(m);
    if (remote_need_layout(r, e))
        return -1;
    if (r->shared)
        return remote_fetch_shared(r, version_min, to, deadline_ms, out, e);
    for (int pause_ms = 1;;) {
        stored_state s = {.layout_digest = 0};
        err last = ERR_INIT;
        if (remote_connect(r, deadline_ms, e))
            return -1;
        if (keys_get_state(r, &s, deadline_ms, &last) == 0 && s.state.version >= version_min &&
            fetch_once(r, &s.state, to, deadline_ms, &last) == 0) {
            *out = s.state;
            return 0;
        }
        /* Overtaken by a merge (its chunks are gone), or the connection broke: once more. */
        bool overtaken = last.code == ERR_NOT_FOUND && s.layout_digest != 0;
        if (last.code != ERR_NONE && last.code != ERR_UNAVAILABLE && !overtaken) {
            if (e)
                *e = last;
            return err_wrap(e, "waiting for version %lld", (long long)version_min);
        }
        if (remote_pause(&pause_ms, deadline_ms, e))
            return err_wrap(e, "waiting for version %lld", (long long)version_min);
    }
}

static int server_state(modelstore *m, int64_t deadline_ms, modelstore_state *out, err *e)
{
    remote *r = remote_of(m);
    stored_state s;
    if (remote_need_layout(r, e))
        return -1;
    if (r->shared)
        return remote_state_shared(r, out);
    if (get_state(r, &s, deadline_ms, e))
        return -1;
    *out = s.state;
    return 0;
}

static int server_status(modelstore *m, int64_t deadline_ms, modelstore_status *out, err *e)
{
    remote *r = remote_of(m);
    stored_state s;
    if (get_state(r, &s, deadline_ms, e))
        return -1;
    *out = (modelstore_status){.state = s.state, .layout_digest = s.layout_digest};
    cleanup_free char(*keys)[REMOTE_KEY_BYTES] = malloc(MODELSTORE_FUNCTIONS_MAX * sizeof *keys);
    const char *words[1 + MODELSTORE_FUNCTIONS_MAX] = {"MGET"};
    cleanup_reply redisReply *all = NULL;
    if (!keys)
        return err_set(e, ERR_NOMEM, "no memory for a status");
    for (int f = 0; f < MODELSTORE_FUNCTIONS_MAX; f++) {
        keys_publication(r, f, keys[f]);
        words[1 + f] = keys[f];
    }
    if (redis_command_words(&r->cmd, 1 + MODELSTORE_FUNCTIONS_MAX, words, NULL, e) ||
        remote_call(r, &all, NULL, deadline_ms, e))
        return -1;
    for (int f = 0; f < MODELSTORE_FUNCTIONS_MAX && (size_t)f < all->elements; f++) {
        stored_publication p;
        if (keys_parse_publication(all->element[f], f, &p) && p.epoch == s.state.epoch &&
            p.round == s.state.round)
            out->published[out->count++] = p.p;
    }
    return 0;
}

/* ---- creating, dropping ---------------------------------------------------------------------- */

typedef struct creating {
    stored_state s;
    const char *ledger;
    size_t ledger_len;
} creating;

static int create_once(remote *r, void *user, int64_t deadline_ms, err *e)
{
    creating *w = user;
    char state[REMOTE_KEY_BYTES], layout_key[REMOTE_KEY_BYTES], ledger[REMOTE_KEY_BYTES];
    char text[KEYS_TEXT_BYTES];
    keys_state_text(&w->s, text);
    modelstore_key(r, "ledger", ledger);
    if (keys_call(r, "MULTI", NULL, NULL, NULL, deadline_ms, e) ||
        keys_call(r, "SET", modelstore_key(r, "state", state), text, NULL, deadline_ms, e) ||
        keys_call(r, "SET", modelstore_key(r, "layout", layout_key), r->layout.text, NULL,
                  deadline_ms, e))
        return -1;
    const char *const words[] = {"SET", ledger, w->ledger};
    const size_t len[] = {strlen("SET"), strlen(ledger), w->ledger_len};
    if (redis_command_words(&r->cmd, 3, words, len, e) ||
        redis_link_call(r->c, &r->cmd, NULL, deadline_ms, e))
        return -1;
    return keys_execute(r, deadline_ms, e);
}

static int place_reference(remote *r, modelstore_state *start, const block *b, int64_t deadline_ms,
                           err *e)
{
    uint64_t checksum;
    if (r->shared) {
        block at = shm_reference(r->segment, start->version);
        if (b)
            return block_copy(r->layout.shape, at, *b, 1, &start->checksum, e);
        if (block_checksum(r->layout.shape, at, 1, &checksum, e))
            return -1;
        return checksum == start->checksum
                   ? 0
                   : err_set(e, ERR_CORRUPT, "the segment does not hold version %lld",
                             (long long)start->version);
    }
    return block_checksum(r->layout.shape, *b, 1, &start->checksum, e) ||
                   remote_connect(r, deadline_ms, e) ||
                   keys_set_chunks(r, keys_name_reference, &start->version, *b,
                                   clock_left_ms(deadline_ms), e)
               ? -1
               : 0;
}

static int server_create(modelstore *m, const layout *l, const modelstore_state *start, int slots,
                         const block *b, const char *ledger, int64_t deadline_ms, err *e)
{
    remote *r = remote_of(m);
    bool empty = start->version < 0, keep = !b && !empty;
    const int patience_ms = clock_left_ms(deadline_ms);
    size_t len = strlen(ledger);
    creating w = {.s = {.state = *start, .layout_digest = l->digest},
                  .ledger = ledger + 1,
                  .ledger_len = len - 2};
    if (remote_need_owner(r, e) || remote_make_segment(r, l, slots, keep, e))
        return -1;
    if (keep && !r->shared)
        return err_set(e, ERR_NOT_FOUND, "without a shared segment the reference must be given");
    /* What an earlier life published counts no more, even under the same numbers. */
    if (keys_remove(r, "pub:", "*", NULL, deadline_ms, e) ||
        (!empty && place_reference(r, &w.s.state, b, deadline_ms, e))) {
        remote_disconnect(r); /* replies may be outstanding */
        return -1;
    }
    if (r->segment)
        snprintf(w.s.segment, sizeof w.s.segment, "%s", shm_name(r->segment));
    if (keys_attempt(r, create_once, &w, NULL, clock_deadline_ms(patience_ms), e))
        return -1;
    show_state(r, &w.s);
    return 0;
}

static int server_slot(modelstore *m, int slot, block *out, err *e)
{
    return remote_slot(remote_of(m), slot, out, e);
}

/* The merged model lies beside the one before until it is whole. */
static int server_room(modelstore *m, int slot, int functions, int64_t deadline_ms, err *e)
{
    return remote_room(remote_of(m), slot, functions + 1, deadline_ms, e);
}

static int server_ledger(modelstore *m, int64_t deadline_ms, char **out, size_t *len, err *e)
{
    remote *r = remote_of(m);
    cleanup_reply redisReply *reply = NULL;
    if (remote_ask(r, "GET", "ledger", &reply, deadline_ms, e))
        return -1;
    if (reply->type != REDIS_REPLY_STRING)
        return err_set(e, ERR_NOT_FOUND, "there is no such job");
    char *text = malloc(reply->len + 3);
    if (!text)
        return err_set(e, ERR_NOMEM, "no memory for the ledger");
    text[0] = '[';
    memcpy(text + 1, reply->str, reply->len);
    memcpy(text + 1 + reply->len, "]", 2);
    *out = text;
    if (len)
        *len = reply->len + 2;
    return 0;
}

static int server_drop(modelstore *m, int64_t deadline_ms, err *e)
{
    remote *r = remote_of(m);
    if (remote_need_owner(r, e))
        return -1;
    if (r->shared)
        shm_sweep(r->access.segment_dir, r->access.job);
    return keys_remove(r, "", "*", NULL, deadline_ms, e);
}

static void server_close(modelstore *m)
{
    remote_close(remote_of(m));
}

const modelstore_ops modelstore_server = {
    .name = "server",
    .open = server_open,
    .create = server_create,
    .attach = server_attach,
    .slot = server_slot,
    .publish = server_publish,
    .merge = server_merge,
    .fetch = server_fetch,
    .room = server_room,
    .state = server_state,
    .status = server_status,
    .ledger = server_ledger,
    .drop = server_drop,
    .close = server_close,
};
