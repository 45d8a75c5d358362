/* modelstore_memory.c: a model store within one process, for tests. Stores are
 * found by address and job; a store lives until it is dropped, so that handles come and go as
 * processes do. Each handle has slot memory of its own (publishing copies), so that what a killed
 * writer left half-written is never seen by others. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/modelstore/merge.h"
#include "common/modelstore/modelstore_redis.h"
#include "common/modelstore/modelstore_table.h"
#include "modelstore_memory.h"

static const modelstore_ops modelstore_memory; /* below */

enum { LEDGER_STEP = 4096 };

typedef struct contribution {
    modelstore_published p;
    bool there;
    void *bytes;
} contribution;

typedef struct shared {
    struct shared *next;
    char address[MODELSTORE_ADDRESS_BYTES], job[MODELSTORE_NAME_BYTES];
    bool created;
    layout layout;
    modelstore_state state;
    void *reference[2]; /* by parity */
    contribution got[MODELSTORE_FUNCTIONS_MAX];
    char *ledger; /* JSON array */
} shared;

typedef struct memory {
    modelstore base;
    modelstore_role role;
    shared *s;
    void *slot;
    size_t slot_bytes;
} memory;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* all stores; held for whole calls */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static shared *stores;

static memory *memory_of(modelstore *m)
{
    return (memory *)(void *)m;
}

static void empty(shared *s)
{
    layout_free(&s->layout);
    for (int f = 0; f < MODELSTORE_FUNCTIONS_MAX; f++) {
        free(s->got[f].bytes);
        s->got[f] = (contribution){.there = false};
    }
    for (int i = 0; i < 2; i++) {
        free(s->reference[i]);
        s->reference[i] = NULL;
    }
    free(s->ledger);
    s->ledger = NULL;
    s->created = false;
}

static shared *find_or_add(const modelstore_access *a)
{
    for (shared *s = stores; s; s = s->next)
        if (strcmp(s->address, a->address) == 0 && strcmp(s->job, a->job) == 0)
            return s;
    shared *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    memcpy(s->address, a->address, sizeof s->address);
    memcpy(s->job, a->job, sizeof s->job);
    s->next = stores;
    stores = s;
    return s;
}

static int memory_open(const modelstore_access *a, modelstore_role role, int64_t deadline_ms,
                       modelstore **out, err *e)
{
    (void)deadline_ms;
    memory *m = calloc(1, sizeof *m);
    pthread_mutex_lock(&lock);
    shared *s = m ? find_or_add(a) : NULL;
    pthread_mutex_unlock(&lock);
    if (!s) {
        free(m);
        return err_set(e, ERR_NOMEM, "no memory for a model store");
    }
    *m = (memory){.base = {&modelstore_memory}, .role = role, .s = s};
    *out = &m->base;
    return 0;
}

static int need(const memory *m, bool owner, err *e)
{
    if (owner && m->role != MODELSTORE_OWNER)
        return err_set(e, ERR_FORBIDDEN, "only the job's owner may");
    return 0;
}

static int need_job(const memory *m, err *e)
{
    return m->s->created ? 0 : err_set(e, ERR_NOT_FOUND, "there is no such job");
}

static void *new_block(block_shape s)
{
    void *at = NULL;
    return posix_memalign(&at, BLOCK_ALIGN, block_bytes(s)) == 0 ? at : NULL;
}

/* ---- calls under the lock ------------------------------------------------------------------ */

static int fill(shared *s, const layout *l, const modelstore_state *start, const block *b,
                const char *ledger, err *e)
{
    if (layout_parse_text(l->text, strlen(l->text), &s->layout, e))
        return -1;
    s->reference[0] = new_block(l->shape);
    s->reference[1] = new_block(l->shape);
    s->ledger = strdup(ledger);
    if (!s->reference[0] || !s->reference[1] || !s->ledger)
        return err_set(e, ERR_NOMEM, "no memory for a reference");
    s->state = *start;
    s->created = true;
    if (!b)
        return 0;
    return block_copy(l->shape, block_at(s->reference[start->version & 1], l->shape), *b, 1,
                      &s->state.checksum, e);
}

static int create(memory *m, const layout *l, const modelstore_state *start, const block *b,
                  const char *ledger, err *e)
{
    if (!b && start->version >= 0)
        return err_set(e, ERR_NOT_FOUND, "without a shared segment the reference must be given");
    empty(m->s);
    if (fill(m->s, l, start, b, ledger, e)) {
        empty(m->s);
        return -1;
    }
    return 0;
}

static int slot_memory(memory *m, block *out, err *e)
{
    if (need_job(m, e))
        return -1;
    block_shape shape = m->s->layout.shape;
    if (m->slot && m->slot_bytes != block_bytes(shape)) {
        free(m->slot);
        m->slot = NULL;
    }
    if (!m->slot)
        m->slot = new_block(shape);
    if (!m->slot)
        return err_set(e, ERR_NOMEM, "no memory for a slot");
    m->slot_bytes = block_bytes(shape);
    *out = block_at(m->slot, shape);
    return 0;
}

static int keep_bytes(shared *s, contribution *c, block from, uint64_t *checksum, err *e)
{
    block_shape shape = s->layout.shape;
    void *bytes = new_block(shape);
    if (!bytes)
        return err_set(e, ERR_NOMEM, "no memory for a publication");
    if (block_copy(shape, block_at(bytes, shape), from, 1, checksum, e)) {
        free(bytes);
        return -1;
    }
    free(c->bytes);
    c->bytes = bytes;
    return 0;
}

static int publish(memory *m, const modelstore_publication *p, const block *b, uint64_t *checksum,
                   err *e)
{
    shared *s = m->s;
    block from;
    if (slot_memory(m, &from, e))
        return -1;
    if (b)
        from = *b;
    contribution *c = &s->got[p->function];
    modelstore_published now = {p->function, p->incarnation, p->samples, 0};
    if (modelstore_check_round(&s->state, p->epoch, p->round, e) ||
        modelstore_check_version(&s->state, p->version, e) ||
        block_checksum(s->layout.shape, from, 1, &now.checksum, e))
        return -1;
    *checksum = now.checksum;
    int rc = modelstore_check_publication(c->there ? &c->p : NULL, &now, e);
    if (rc != 0)
        return rc < 0 ? -1 : 0;
    if (keep_bytes(s, c, from, &now.checksum, e))
        return -1;
    c->p = now;
    c->there = true;
    return 0;
}

/* "[a]" and "b" become "[a,b]", or "[b]" where they are too long. */
static char *longer_ledger(const char *ledger, const char *more)
{
    size_t len = strlen(ledger), add = more ? strlen(more) : 0;
    if (modelstore_ledger_full(len - 2, add)) {
        ledger = "[]";
        len = 2;
    }
    char *out = malloc(len + add + 2);
    if (!out)
        return NULL;
    memcpy(out, ledger, len + 1);
    if (add == 0)
        return out;
    char *at = out + len - 1;
    if (len > 2)
        *at++ = ',';
    memcpy(at, more, add);
    memcpy(at + add, "]", 2);
    return out;
}

static void close_round(shared *s)
{
    for (int f = 0; f < MODELSTORE_FUNCTIONS_MAX; f++) {
        free(s->got[f].bytes);
        s->got[f] = (contribution){.there = false};
    }
}

static int merge_inputs(shared *s, const modelstore_round *r, merge_input *in,
                        const void *(*flat)[2], err *e)
{
    for (size_t i = 0; i < r->count; i++) {
        int f = r->parts[i].function;
        if (f < 0 || f >= MODELSTORE_FUNCTIONS_MAX)
            return err_set(e, ERR_INVALID, "function %d is out of range", f);
        contribution *c = &s->got[f];
        if (modelstore_check_part(c->there ? &c->p : NULL, &r->parts[i], e))
            return -1;
        block b = block_at(c->bytes, s->layout.shape);
        in[i] = (merge_input){.function = f,
                              .incarnation = c->p.incarnation,
                              .samples = c->p.samples,
                              .checksum = c->p.checksum};
        merge_input_contiguous(&in[i], &b, flat[i]);
    }
    return 0;
}

static int merge_into(shared *s, const modelstore_round *r, merge_result *result, err *e)
{
    merge_input in[MODELSTORE_FUNCTIONS_MAX];
    const void *flat[MODELSTORE_FUNCTIONS_MAX][2];
    const merge_rule *rule;
    block to = block_at(s->reference[(r->version + 1) & 1], s->layout.shape);
    return merge_rule_find(r->rule, &rule, e) || merge_inputs(s, r, in, flat, e) ||
                   merge_run(rule, s->layout.shape, in, (int)r->count, to, 1, result, e)
               ? -1
               : 0;
}

static int merge(memory *m, const modelstore_round *r, modelstore_merged *out, err *e)
{
    shared *s = m->s;
    merge_result result = {.bad = -1};
    if (need_job(m, e))
        return -1;
    out->state = s->state;
    if (modelstore_check_merge(&s->state, r, e))
        return -1;
    char *ledger = longer_ledger(s->ledger, r->ledger);
    if (!ledger)
        return err_set(e, ERR_NOMEM, "no memory for the ledger");
    if (merge_into(s, r, &result, e)) {
        free(ledger);
        if (result.bad >= 0) {
            out->bad_function = r->parts[result.bad].function;
            s->got[out->bad_function].there = false;
        }
        return -1;
    }
    free(s->ledger);
    s->ledger = ledger;
    s->state = (modelstore_state){r->version + 1, r->next_epoch, r->next_round, result.checksum};
    out->state = s->state;
    close_round(s);
    pthread_cond_broadcast(&changed);
    return 0;
}

static int wait_version(memory *m, int64_t version_min, int64_t deadline_ms, err *e)
{
    while (!m->s->created || m->s->state.version < version_min) {
        int left = clock_left_ms(deadline_ms);
        if (left == 0)
            return err_set(e, ERR_TIMEOUT, "waiting for version %lld: the deadline passed",
                           (long long)version_min);
        int64_t until = clock_monotonic_ns() + (int64_t)left * 1000000;
        struct timespec t = {until / 1000000000, until % 1000000000};
        pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &t);
    }
    return 0;
}

static int fetch(memory *m, int64_t version_min, block to, int64_t deadline_ms,
                 modelstore_state *out, err *e)
{
    shared *s = m->s;
    uint64_t checksum;
    if (wait_version(m, version_min, deadline_ms, e))
        return -1;
    *out = s->state;
    block from = block_at(s->reference[s->state.version & 1], s->layout.shape);
    if (block_copy(s->layout.shape, to, from, 1, &checksum, e))
        return -1;
    return checksum == s->state.checksum ? 0 : err_set(e, ERR_CORRUPT, "the reference is corrupt");
}

static int state(memory *m, modelstore_state *out, err *e)
{
    if (need_job(m, e))
        return -1;
    *out = m->s->state;
    return 0;
}

static int status(memory *m, modelstore_status *out, err *e)
{
    if (need_job(m, e))
        return -1;
    *out = (modelstore_status){.state = m->s->state, .layout_digest = m->s->layout.digest};
    for (int f = 0; f < MODELSTORE_FUNCTIONS_MAX; f++)
        if (m->s->got[f].there)
            out->published[out->count++] = m->s->got[f].p;
    return 0;
}

/* ---- the table's functions: the same under the lock ---------------------------------------- */

#define LOCKED(call)                                                                               \
    pthread_mutex_lock(&lock);                                                                     \
    int rc = (call);                                                                               \
    pthread_mutex_unlock(&lock);                                                                   \
    return rc

static int memory_create(modelstore *m, const layout *l, const modelstore_state *start, int slots,
                         const block *b, const char *ledger, int64_t deadline_ms, err *e)
{
    (void)slots;
    (void)deadline_ms;
    LOCKED(need(memory_of(m), true, e) || create(memory_of(m), l, start, b, ledger, e) ? -1 : 0);
}

static int attach(memory *m, layout *out, err *e)
{
    if (need_job(m, e))
        return -1;
    const char *text = m->s->layout.text;
    return out ? layout_parse_text(text, strlen(text), out, e) : 0;
}

static int memory_attach(modelstore *m, layout *out, int64_t deadline_ms, err *e)
{
    (void)deadline_ms;
    LOCKED(attach(memory_of(m), out, e));
}

static int memory_slot(modelstore *m, int slot, block *out, err *e)
{
    (void)slot;
    LOCKED(slot_memory(memory_of(m), out, e));
}

static int memory_publish(modelstore *m, const modelstore_publication *p, const block *b,
                          int64_t deadline_ms, uint64_t *checksum, err *e)
{
    (void)deadline_ms;
    LOCKED(publish(memory_of(m), p, b, checksum, e));
}

static int memory_merge(modelstore *m, const modelstore_round *r, int64_t deadline_ms,
                        modelstore_merged *out, err *e)
{
    (void)deadline_ms;
    LOCKED(need(memory_of(m), true, e) || merge(memory_of(m), r, out, e) ? -1 : 0);
}

static int memory_fetch(modelstore *m, int64_t version_min, block to, int64_t deadline_ms,
                        modelstore_state *out, err *e)
{
    LOCKED(fetch(memory_of(m), version_min, to, deadline_ms, out, e));
}

static int memory_state(modelstore *m, int64_t deadline_ms, modelstore_state *out, err *e)
{
    (void)deadline_ms;
    LOCKED(state(memory_of(m), out, e));
}

static int memory_status(modelstore *m, int64_t deadline_ms, modelstore_status *out, err *e)
{
    (void)deadline_ms;
    LOCKED(status(memory_of(m), out, e));
}

static int copy_ledger(memory *m, char **out, size_t *len, err *e)
{
    if (need_job(m, e))
        return -1;
    *out = strdup(m->s->ledger);
    if (!*out)
        return err_set(e, ERR_NOMEM, "no memory for the ledger");
    if (len)
        *len = strlen(*out);
    return 0;
}

static int memory_ledger(modelstore *m, int64_t deadline_ms, char **out, size_t *len, err *e)
{
    (void)deadline_ms;
    LOCKED(copy_ledger(memory_of(m), out, len, e));
}

static int memory_drop(modelstore *m, int64_t deadline_ms, err *e)
{
    (void)deadline_ms;
    if (need(memory_of(m), true, e))
        return -1;
    pthread_mutex_lock(&lock);
    empty(memory_of(m)->s);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int memory_room(modelstore *m, int slot, int functions, int64_t deadline_ms, err *e)
{
    (void)slot;
    (void)functions;
    (void)deadline_ms;
    return need(memory_of(m), true, e);
}

static void memory_close(modelstore *m)
{
    free(memory_of(m)->slot);
    free(m);
}

static const modelstore_ops modelstore_memory = {
    .name = "memory",
    .open = memory_open,
    .create = memory_create,
    .attach = memory_attach,
    .slot = memory_slot,
    .publish = memory_publish,
    .merge = memory_merge,
    .fetch = memory_fetch,
    .room = memory_room,
    .state = memory_state,
    .status = memory_status,
    .ledger = memory_ledger,
    .drop = memory_drop,
    .close = memory_close,
};

void modelstore_memory_add(void)
{
    modelstore_add(&modelstore_memory);
}
