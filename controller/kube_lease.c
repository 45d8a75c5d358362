/* kube_lease.c: see kube_lease.h. */
#include "kube_lease.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "json_read.h"
#include "kube_pods.h"

enum { CALL_MS = 1500 };

static const char address_key[] = "kubeml.dev/api";

struct kube_lease {
    kube_client *client;
    char path[300], collection[200], name[100], me[100];
    char address[KUBE_LEASE_ADDRESS_BYTES]; /* ours */
    char leader[KUBE_LEASE_ADDRESS_BYTES];  /* the other's; "" */
    char seen[64];        /* the version last seen */
    int64_t seen_ms;      /* since when it has not changed */
    int64_t renewed_ms;   /* our last write that was taken began then; INT64_MIN: not held */
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

/* The object with us, or nobody, as its holder; what else stands in it stays. */
static json_t *lease_new(const kube_lease *l, const json_t *before, const char *holder)
{
    char now[32];
    clock_rfc3339(clock_wall_ms(), now);
    snprintf(now + 23, sizeof now - 23, "000Z"); /* microseconds */
    const json_t *old = json_object_get(before, "spec");
    const char *held = json_string_value(json_object_get(old, "holderIdentity"));
    bool ours = held && strcmp(held, l->me) == 0;
    json_int_t changes =
        json_integer_value(json_object_get(old, "leaseTransitions")) + (ours ? 0 : 1);
    const char *since = ours ? json_string_value(json_object_get(old, "acquireTime")) : now;
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
                                  since ? since : now, "renewTime", now, "leaseTransitions",
                                  changes));
    return lease;
}

/* Writes over what was seen; 409 means that somebody was quicker. */
static int take(kube_lease *l, const json_t *before, const char *holder, int64_t now_ms, err *e)
{
    cleanup_json json_t *lease = lease_new(l, before, holder);
    kube_outcome o;
    err why = ERR_INIT;
    kube_request r = {.method = before ? "PUT" : "POST", .path = before ? l->path : l->collection,
                      .body = lease};
    if (!lease)
        return err_set(e, ERR_NOMEM, "no memory for the lease");
    if (kube_try(l->client, &r, clock_deadline_ms(CALL_MS), NULL, &o, &why) == 0) {
        l->renewed_ms = now_ms;
        l->leader[0] = '\0';
        return 1;
    }
    if (why.code == ERR_CONFLICT || why.code == ERR_EXISTS)
        return 0;
    return err_set(e, why.code, "%s", why.message);
}

int kube_lease_try(kube_lease *l, int64_t now_ms, err *e)
{
    cleanup_json json_t *lease = NULL;
    cleanup_buf buf text;
    kube_outcome o;
    err why = ERR_INIT;
    buf_init(&text, 1 << 20);
    kube_request r = {.method = "GET", .path = l->path};
    if (kube_try(l->client, &r, clock_deadline_ms(CALL_MS), &text, &o, &why)) {
        if (why.code == ERR_NOT_FOUND)
            return take(l, NULL, l->me, now_ms, e);
        return err_set(e, why.code, "%s", why.message);
    }
    if (json_read(text.bytes ? text.bytes : "", text.len, 32, &lease, e))
        return -1;
    const json_t *spec = json_object_get(lease, "spec");
    const char *holder = json_string_value(json_object_get(spec, "holderIdentity"));
    const char *version = kube_object_text(lease, "resourceVersion");
    int64_t lasts_ms = json_integer_value(json_object_get(spec, "leaseDurationSeconds")) * 1000;
    if (strcmp(l->seen, version) != 0) {
        snprintf(l->seen, sizeof l->seen, "%s", version);
        l->seen_ms = now_ms;
    }
    bool ours = holder && strcmp(holder, l->me) == 0;
    if (!ours && holder && *holder && now_ms - l->seen_ms < lasts_ms) {
        const json_t *notes = json_object_get(json_object_get(lease, "metadata"), "annotations");
        const char *address = json_string_value(json_object_get(notes, address_key));
        snprintf(l->leader, sizeof l->leader, "%s", address ? address : "");
        l->renewed_ms = INT64_MIN;
        return 0;
    }
    l->leader[0] = '\0';
    return take(l, lease, l->me, now_ms, e);
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
        kube_get(l->client, l->path, NULL, clock_deadline_ms(CALL_MS), &lease, NULL) == 0) {
        const char *holder =
            json_string_value(json_object_get(json_object_get(lease, "spec"), "holderIdentity"));
        if (holder && strcmp(holder, l->me) == 0)
            take(l, lease, "", 0, NULL);
    }
    kube_client_close(l->client);
    free(l);
}
