/* modelstore.c: the table of implementations, the access record, the rules that they share. */
#include "modelstore.h"

#include <stdlib.h>
#include <string.h>

#include "merge.h"
#include "modelstore_redis.h"
#include "modelstore_table.h"

static const modelstore_ops *const table[] = {&modelstore_database, &modelstore_server};
static const modelstore_ops *added; /* what the program brings itself */

void modelstore_add(const modelstore_ops *ops)
{
    added = ops;
}

/* ---- access --------------------------------------------------------------------------------- */

/* Fields, and their names in the record. */
#define ACCESS_FIELDS(X)                                                                           \
    X(kind, "kind")                                                                                \
    X(address, "address")                                                                          \
    X(user, "user")                                                                                \
    X(password, "password")                                                                        \
    X(job, "job")                                                                                  \
    X(tensor_path, "carrier")                                                                      \
    X(segment_dir, "segment_dir")

json_t *modelstore_access_json(const modelstore_access *a)
{
    json_t *j = json_object();
    if (!j)
        return NULL;
#define X(field, key)                                                                              \
    if (json_object_set_new(j, key, json_string(a->field)) != 0) {                                 \
        json_decref(j);                                                                            \
        return NULL;                                                                               \
    }
    ACCESS_FIELDS(X)
#undef X
    return j;
}

static int parse_field(const json_t *json, const char *name, char *out, size_t out_bytes, err *e)
{
    const char *text = json_string_value(json_object_get(json, name));
    if (!text)
        return err_set(e, ERR_INVALID, "model access: \"%s\" is missing or no string", name);
    if (strlen(text) >= out_bytes)
        return err_set(e, ERR_INVALID, "model access: \"%s\" is too long", name);
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

int modelstore_access_parse(const json_t *json, modelstore_access *out, err *e)
{
    const char *name;
    json_t *value;
    memset(out, 0, sizeof *out);
    json_object_foreach((json_t *)(uintptr_t)json, name, value)
    {
#define X(field, key)                                                                              \
    if (strcmp(name, key) == 0)                                                                    \
        continue;
        ACCESS_FIELDS(X)
#undef X
        return err_set(e, ERR_INVALID, "model access: unknown field \"%.40s\"", name);
    }
#define X(field, key)                                                                              \
    if (parse_field(json, key, out->field, sizeof out->field, e))                                  \
        return -1;
    ACCESS_FIELDS(X)
#undef X
    return 0;
}

/* ---- rules ---------------------------------------------------------------------------------- */

int modelstore_check_round(const modelstore_state *s, int64_t epoch, int64_t round, err *e)
{
    if (epoch == s->epoch && round == s->round)
        return 0;
    bool old = epoch < s->epoch || (epoch == s->epoch && round < s->round);
    return err_set(e, old ? ERR_STALE : ERR_CONFLICT,
                   "epoch %lld, round %lld is %s: open is epoch %lld, round %lld", (long long)epoch,
                   (long long)round, old ? "over" : "not open yet", (long long)s->epoch,
                   (long long)s->round);
}

int modelstore_check_version(const modelstore_state *s, int64_t version, err *e)
{
    if (version == s->version)
        return 0;
    return err_set(e, version < s->version ? ERR_STALE : ERR_CONFLICT,
                   "version %lld is not the present one, %lld", (long long)version,
                   (long long)s->version);
}

int modelstore_check_publication(const modelstore_published *old, const modelstore_published *now,
                                 err *e)
{
    if (!old || now->incarnation > old->incarnation)
        return 0;
    if (now->incarnation < old->incarnation)
        return err_set(e, ERR_STALE, "function %d: incarnation %d is over, there is %d",
                       now->function, now->incarnation, old->incarnation);
    if (now->checksum == old->checksum && now->samples == old->samples)
        return 1;
    return err_set(e, ERR_CONFLICT, "function %d: it has published other bytes before",
                   now->function);
}

int modelstore_check_part(const modelstore_published *p, const modelstore_part *part, err *e)
{
    if (!p || p->incarnation != part->incarnation)
        return err_set(e, ERR_CONFLICT, "function %d (incarnation %d) has not published",
                       part->function, part->incarnation);
    if (p->samples != part->samples)
        return err_set(e, ERR_CONFLICT, "function %d published %llu samples, not %llu",
                       part->function, (unsigned long long)p->samples,
                       (unsigned long long)part->samples);
    return 0;
}

int modelstore_check_merge(const modelstore_state *s, const modelstore_round *r, err *e)
{
    const merge_rule *rule;
    if (modelstore_check_round(s, r->epoch, r->round, e) ||
        modelstore_check_version(s, r->version, e) || merge_rule_find(r->rule, &rule, e))
        return -1;
    if (r->next_epoch < r->epoch || (r->next_epoch == r->epoch && r->next_round <= r->round))
        return err_set(e, ERR_INVALID, "the next round is not after the one that is merged");
    for (size_t i = 1; i < r->count; i++)
        if (r->parts[i].function <= r->parts[i - 1].function)
            return err_set(e, ERR_INVALID, "the round's functions are not in ascending order");
    return 0;
}

/* ---- calls ---------------------------------------------------------------------------------- */

int modelstore_open(const modelstore_access *a, modelstore_role role, int64_t deadline_ms,
                    modelstore **out, err *e)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i]->name, a->kind) == 0)
            return table[i]->open(a, role, deadline_ms, out, e);
    if (added && strcmp(added->name, a->kind) == 0)
        return added->open(a, role, deadline_ms, out, e);
    return err_set(e, ERR_UNSUPPORTED, "no model store \"%.32s\"; there are: database, server",
                   a->kind);
}

static int check_start(const layout *l, const modelstore_state *start, int slots,
                       const char *ledger, err *e)
{
    size_t len = ledger ? strlen(ledger) : 2;
    if (start->version < -1 || start->version >= INT64_MAX - 1)
        return err_set(e, ERR_INVALID, "version %lld cannot be the first",
                       (long long)start->version);
    if (slots < 1 || slots > MODELSTORE_SLOTS_MAX)
        return err_set(e, ERR_INVALID, "%d slots, 1 to %d are allowed", slots,
                       MODELSTORE_SLOTS_MAX);
    if (ledger && (len < 2 || ledger[0] != '[' || ledger[len - 1] != ']'))
        return err_set(e, ERR_INVALID, "the ledger is not a JSON array");
    if (len > MODELSTORE_LEDGER_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "the ledger is over %d bytes", MODELSTORE_LEDGER_BYTES_MAX);
    return block_shape_check(l->shape, e);
}

int modelstore_create(modelstore *m, const layout *l, const modelstore_state *start, int slots,
                      const block *b, const char *ledger, int64_t deadline_ms, err *e)
{
    if (check_start(l, start, slots, ledger, e))
        return -1;
    if (b && start->version < 0)
        return err_set(e, ERR_INVALID, "a first model needs a version of 0 or more");
    return m->ops->create(m, l, start, slots, b, ledger ? ledger : "[]", deadline_ms, e);
}

int modelstore_attach(modelstore *m, layout *out, int64_t deadline_ms, err *e)
{
    return m->ops->attach(m, out, deadline_ms, e);
}

int modelstore_slot(modelstore *m, int slot, block *out, err *e)
{
    if (slot < 0 || slot >= MODELSTORE_SLOTS_MAX)
        return err_set(e, ERR_INVALID, "slot %d is out of range", slot);
    return m->ops->slot(m, slot, out, e);
}

int modelstore_publish(modelstore *m, const modelstore_publication *p, const block *b,
                       int64_t deadline_ms, uint64_t *checksum, err *e)
{
    uint64_t unused;
    if (p->function < 0 || p->function >= MODELSTORE_FUNCTIONS_MAX || p->incarnation < 0 ||
        p->samples > INT64_MAX)
        return err_set(e, ERR_INVALID, "function %d, incarnation %d is out of range", p->function,
                       p->incarnation);
    return m->ops->publish(m, p, b, deadline_ms, checksum ? checksum : &unused, e);
}

int modelstore_merge(modelstore *m, const modelstore_round *r, int64_t deadline_ms,
                     modelstore_merged *out, err *e)
{
    modelstore_merged unused;
    if (!out)
        out = &unused;
    *out = (modelstore_merged){.bad_function = -1};
    if (r->count < 1 || r->count > MODELSTORE_FUNCTIONS_MAX)
        return err_set(e, ERR_INVALID, "%zu functions in a round", r->count);
    return m->ops->merge(m, r, deadline_ms, out, e);
}

int modelstore_fetch(modelstore *m, int64_t version_min, block to, int64_t deadline_ms,
                     modelstore_state *out, err *e)
{
    modelstore_state unused;
    return m->ops->fetch(m, version_min < 0 ? 0 : version_min, to, deadline_ms, out ? out : &unused,
                         e);
}

int modelstore_room(modelstore *m, int slot, int functions, int64_t deadline_ms, err *e)
{
    return m->ops->room(m, slot, functions, deadline_ms, e);
}

int modelstore_state_get(modelstore *m, int64_t deadline_ms, modelstore_state *out, err *e)
{
    return m->ops->state(m, deadline_ms, out, e);
}

int modelstore_status_get(modelstore *m, int64_t deadline_ms, modelstore_status *out, err *e)
{
    return m->ops->status(m, deadline_ms, out, e);
}

int modelstore_ledger(modelstore *m, int64_t deadline_ms, char **out, size_t *len, err *e)
{
    return m->ops->ledger(m, deadline_ms, out, len, e);
}

int modelstore_drop(modelstore *m, int64_t deadline_ms, err *e)
{
    return m->ops->drop(m, deadline_ms, e);
}

void modelstore_close(modelstore *m)
{
    if (m)
        m->ops->close(m);
}
