/* kube_status.c: see kube_status.h. */
#include "kube_status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "kube_pods.h"

struct kube_status {
    char collection[300], kind[32];
    int probe_ms;
    atomic_int *lacking;
    json_t *cut; /* name: {"said": a refused status, "kept": what the server has of it} */
    int64_t due_ms; /* when to apply one of `cut` again */
    bool lacks, told;
};

kube_status *kube_status_open(const char *collection, const char *kind, int probe_ms,
                              atomic_int *lacking)
{
    kube_status *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    snprintf(s->collection, sizeof s->collection, "%s", collection);
    snprintf(s->kind, sizeof s->kind, "%s", kind);
    s->probe_ms = probe_ms ? probe_ms : KUBE_STATUS_PROBE_MS;
    s->lacking = lacking;
    s->cut = json_object();
    if (!s->cut) {
        free(s);
        return NULL;
    }
    return s;
}

static void note_lacks(kube_status *s, bool lacks)
{
    if (lacks != s->lacks && s->lacking)
        atomic_fetch_add(s->lacking, lacks ? 1 : -1);
    s->lacks = lacks;
}

void kube_status_close(kube_status *s)
{
    if (!s)
        return;
    note_lacks(s, false);
    json_decref(s->cut);
    free(s);
}

static void tell(kube_status *s, const err *why)
{
    if (!s->told)
        log_warn("the CRDs are older than this controller: the status of %ss is written without "
                 "what theirs lacks; kubectl apply --server-side --force-conflicts -f "
                 "charts/kubeml/crds (%s)",
                 s->kind, why->message);
    s->told = true;
}

/* Writes the status without the fields that the CRD lacks, and remembers both. */
static int write_cut(kube_status *s, kube_client *c, const json_t *object, const json_t *status,
                     int64_t deadline_ms, err *e)
{
    const char *name = kube_object_text(object, "name");
    cleanup_json json_t *now = NULL;
    s->due_ms = clock_deadline_ms(s->probe_ms);
    note_lacks(s, true);
    if (kube_patch_status(c, s->collection, name, json_object_get(object, "status"), status,
                          deadline_ms, &now, e))
        return -1;
    json_object_set_new(
        s->cut, name,
        json_pack("{s:O, s:O?}", "said", status, "kept", json_object_get(now, "status")));
    return 0;
}

int kube_status_write(kube_status *s, kube_client *c, const json_t *object, const json_t *status,
                      int64_t deadline_ms, err *e)
{
    const char *name = kube_object_text(object, "name");
    const json_t *there = json_object_get(object, "status"), *cut = json_object_get(s->cut, name);
    bool refused = cut && json_equal(status, json_object_get(cut, "said"));
    bool stands = refused && json_equal(there, json_object_get(cut, "kept"));
    err why = ERR_INIT;
    if (json_equal(status, there) || (stands && clock_left_ms(s->due_ms) > 0))
        return 1;
    if (kube_apply_status(c, s->collection, s->kind, name, status, deadline_ms, &why) == 0) {
        if (refused) /* the CRD has changed */
            json_object_clear(s->cut);
        json_object_del(s->cut, name);
        note_lacks(s, json_object_size(s->cut) > 0);
        return 0;
    }
    if (why.code != ERR_UNSUPPORTED)
        return err_set(e, why.code, "%s", why.message);
    tell(s, &why);
    return write_cut(s, c, object, status, deadline_ms, e) ? -1 : stands ? 1 : 0;
}

void kube_status_keep(kube_status *s, const json_t *objects)
{
    const char *name;
    json_t *one;
    void *next;
    json_object_foreach_safe (s->cut, next, name, one)
        if (!json_object_get(objects, name))
            json_object_del(s->cut, name);
    note_lacks(s, s->lacks && json_object_size(s->cut) > 0);
}
