/* kube_lease.c: see kube_lease.h. */
#include "kube_lease.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "kube_pods.h"

/* A look may see a write that is as late as its response, and counts from the look's begin. */
_Static_assert(KUBE_LEASE_LOST_MS + KUBE_LEASE_CALL_MS <= KUBE_LEASE_S * 1000,
               "a holder has lost the lease before another may take it");

enum { LEASE_BYTES_MAX = 1 << 20, LEASE_DEPTH_MAX = 32 };

static const char address_key[] = "kubeml.dev/api";

struct kube_lease {
    kube_client *client;
    char path[300], collection[200], name[100], me[100];
    char address[KUBE_LEASE_ADDRESS_BYTES]; /* ours */
    char leader[KUBE_LEASE_ADDRESS_BYTES];  /* another leader's; "" */
    char seen[64];        /* the version last seen */
    int64_t seen_ms;      /* since when that version has not changed */
    int64_t looked_ms;    /* the last look that succeeded */
    int64_t lasts_ms;     /* another's duration; 0: no other holds it */
    int64_t renewed_ms;   /* begin of our last write that succeeded; INT64_MIN: not held */
    json_int_t term;      /* its leaseTransitions, which each new holder increments */
    json_t *mine;         /* as the server has it; NULL: unknown */
};

int kube_lease_open(const kube_config *access, const char *name, const char *me,
                    const char *address, kube_lease **out, err *e)
{
    kube_lease *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "no memory for the lease");
    l->renewed_ms = INT64_MIN;
    snprintf(l->name, sizeof l->name, "%s", name);
    snprintf(l->me, sizeof l->me, "%s", me);
    snprintf(l->address, sizeof l->address, "%s", address);
    snprintf(l->collection, sizeof l->collection,
             "/apis/coordination.k8s.io/v1/namespaces/%s/leases", access->namespace_name);
    snprintf(l->path, sizeof l->path, "%.190s/%s", l->collection, l->name);
    if (kube_client_open(access, &l->client, e)) {
        free(l);
        return -1;
    }
    *out = l;
    return 0;
}

static const json_t *spec_of(const json_t *lease)
{
    return json_object_get(lease, "spec");
}

static json_int_t term_of(const json_t *lease)
{
    return json_integer_value(json_object_get(spec_of(lease), "leaseTransitions"));
}

static bool is_ours(const kube_lease *l, const json_t *lease)
{
    const char *holder = json_string_value(json_object_get(spec_of(lease), "holderIdentity"));
    return holder && strcmp(holder, l->me) == 0;
}

/* The Lease with `holder`, us or "", as its holder; other fields stay. */
static json_t *lease_new(const kube_lease *l, const json_t *before, const char *holder)
{
    char now[32];
    clock_rfc3339(clock_wall_ms(), now);
    snprintf(now + 23, sizeof now - 23, "000Z"); /* microseconds */
    bool ours = is_ours(l, before);
    json_int_t term = term_of(before) + (ours ? 0 : 1);
    const char *since =
        ours ? json_string_value(json_object_get(spec_of(before), "acquireTime")) : now;
    json_t *lease = before
                        ? json_deep_copy(before)
                        : json_pack("{s:s, s:s, s:{s:s}}", "apiVersion", "coordination.k8s.io/v1",
                                    "kind", "Lease", "metadata", "name", l->name);
    json_t *metadata = json_object_get(lease, "metadata");
    json_object_del(metadata, "managedFields");
    if (!json_object_get(metadata, "annotations"))
        json_object_set_new(metadata, "annotations", json_object());
    json_object_set_new(json_object_get(metadata, "annotations"), address_key,
                        json_string(*holder ? l->address : ""));
    json_object_set_new(lease, "spec",
                        json_pack("{s:s, s:i, s:s, s:s, s:I}", "holderIdentity", holder,
                                  "leaseDurationSeconds", KUBE_LEASE_S, "acquireTime",
                                  since ? since : now, "renewTime", now, "leaseTransitions", term));
    return lease;
}

/* Replaces the version that was seen: 1; 0: another writer was quicker (409); -1. */
static int take(kube_lease *l, const json_t *before, const char *holder, int64_t now_ms, err *e)
{
    cleanup_json json_t *lease = lease_new(l, before, holder);
    cleanup_buf buf text;
    kube_outcome o;
    err why = ERR_INIT;
    buf_init(&text, LEASE_BYTES_MAX);
    kube_request r = {.method = before ? "PUT" : "POST", .path = before ? l->path : l->collection,
                      .body = lease};
    if (!lease)
        return err_set(e, ERR_NOMEM, "no memory for the lease");
    if (kube_try(l->client, &r, clock_deadline_ms(KUBE_LEASE_CALL_MS), &text, &o, &why) == 0) {
        l->renewed_ms = now_ms;
        l->term = term_of(lease);
        l->lasts_ms = 0;
        l->leader[0] = '\0';
        json_decref(l->mine);
        l->mine = NULL;
        json_read(text.bytes ? text.bytes : "", text.len, LEASE_DEPTH_MAX, &l->mine, NULL);
        return 1;
    }
    if (why.code == ERR_CONFLICT || why.code == ERR_EXISTS)
        return 0;
    if (!before && why.code == ERR_FORBIDDEN) /* the chart's Role does not allow creating one */
        return err_set(e, why.code,
                       "the Lease %s is not there: somebody deleted it; `helm upgrade`, or kubectl "
                       "apply of manifests/kubeml.yaml, makes it anew (%s)",
                       l->name, why.message);
    return err_set(e, why.code, "%s", why.message);
}

static int look(kube_lease *l, json_t **out, err *e)
{
    cleanup_buf buf text;
    kube_outcome o;
    err why = ERR_INIT;
    buf_init(&text, LEASE_BYTES_MAX);
    kube_request r = {.method = "GET", .path = l->path};
    if (kube_try(l->client, &r, clock_deadline_ms(KUBE_LEASE_CALL_MS), &text, &o, &why))
        return err_set(e, why.code, "%s", why.message);
    return json_read(text.bytes ? text.bytes : "", text.len, LEASE_DEPTH_MAX, out, e);
}

static void note_leader(kube_lease *l, const json_t *lease)
{
    const json_t *notes = json_object_get(json_object_get(lease, "metadata"), "annotations");
    const char *address = json_string_value(json_object_get(notes, address_key));
    snprintf(l->leader, sizeof l->leader, "%s", address ? address : "");
    l->renewed_ms = INT64_MIN;
}

/* Whether another's lease has been seen unchanged for as long as it lasts. */
static bool is_over(kube_lease *l, const json_t *lease, int64_t now_ms)
{
    const char *version = kube_object_text(lease, "resourceVersion");
    if (strcmp(l->seen, version) != 0)
        l->seen_ms = now_ms;
    else if (now_ms - l->looked_ms > KUBE_LEASE_GAP_MS)
        l->seen_ms += now_ms - l->looked_ms - KUBE_LEASE_GAP_MS;
    snprintf(l->seen, sizeof l->seen, "%s", version);
    l->looked_ms = now_ms;
    l->lasts_ms =
        json_integer_value(json_object_get(spec_of(lease), "leaseDurationSeconds")) * 1000;
    return now_ms - l->seen_ms >= l->lasts_ms;
}

int kube_lease_try(kube_lease *l, int64_t now_ms, err *e)
{
    cleanup_json json_t *lease = NULL;
    err why = ERR_INIT;
    if (look(l, &lease, &why)) {
        if (why.code == ERR_NOT_FOUND)
            return take(l, NULL, l->me, now_ms, e);
        return err_set(e, why.code, "%s", why.message);
    }
    const char *holder = json_string_value(json_object_get(spec_of(lease), "holderIdentity"));
    bool over = is_over(l, lease, now_ms);
    if (!over && holder && *holder && !is_ours(l, lease)) {
        note_leader(l, lease);
        return 0;
    }
    l->leader[0] = '\0';
    return take(l, lease, l->me, now_ms, e);
}

int kube_lease_renew(kube_lease *l, int64_t now_ms, err *e)
{
    cleanup_json json_t *lease = NULL;
    err why = ERR_INIT;
    int taken = l->mine ? take(l, l->mine, l->me, now_ms, &why) : 0;
    if (taken > 0)
        return 1;
    if (taken < 0 && why.code != ERR_NOT_FOUND)
        return err_set(e, why.code, "%s", why.message);
    /* The Lease is not as we wrote it: another holds it, or the response to a write of ours was
     * lost. */
    err_clear(&why);
    if (look(l, &lease, &why)) {
        if (why.code == ERR_NOT_FOUND)
            return take(l, NULL, l->me, now_ms, e);
        return err_set(e, why.code, "%s", why.message);
    }
    if (!is_ours(l, lease) || term_of(lease) != l->term) {
        note_leader(l, lease);
        return 0;
    }
    taken = take(l, lease, l->me, now_ms, e);
    return taken ? taken : err_set(e, ERR_CONFLICT, "the lease was written at the same time");
}

int64_t kube_lease_next_ms(const kube_lease *l, int64_t now_ms)
{
    int64_t next_ms = now_ms + KUBE_LEASE_RENEW_MS, over_ms = l->seen_ms + l->lasts_ms;
    return over_ms > now_ms && over_ms < next_ms ? over_ms : next_ms;
}

const char *kube_lease_leader(const kube_lease *l)
{
    return l->leader;
}

bool kube_lease_held(const kube_lease *l, int64_t now_ms)
{
    return l->renewed_ms != INT64_MIN && now_ms - l->renewed_ms < KUBE_LEASE_LOST_MS;
}

void kube_lease_close(kube_lease *l, bool release)
{
    if (!l)
        return;
    cleanup_json json_t *lease = NULL;
    if (release && l->renewed_ms != INT64_MIN &&
        kube_get(l->client, l->path, NULL, clock_deadline_ms(KUBE_LEASE_CALL_MS), &lease, NULL) ==
            0 &&
        is_ours(l, lease))
        take(l, lease, "", 0, NULL);
    kube_client_close(l->client);
    json_decref(l->mine);
    free(l);
}
