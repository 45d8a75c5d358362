/* fake_kube.h: an API server of Kubernetes that does as it is told, faults included.
 *
 * It keeps the pods of one namespace, "test": list in pages, watch with resourceVersion and
 * bookmarks, create, get, merge and JSON patch of labels, delete at once; and any other object by
 * its path, for create, get, merge patch, apply, replace and delete. Faults wait in a queue: the
 * next request of their kind meets them. Requests are counted by kind. */
#ifndef KUBEML_TEST_FAKE_KUBE_H
#define KUBEML_TEST_FAKE_KUBE_H

#include <jansson.h>
#include <stdbool.h>

#define FAKE_KUBE_PODS "/api/v1/namespaces/test/pods"

typedef enum fake_kind {
    FAKE_LIST,
    FAKE_WATCH,
    FAKE_GET,
    FAKE_CREATE,
    FAKE_PATCH,
    FAKE_DELETE,
    FAKE_KINDS
} fake_kind;

typedef enum fake_fault {
    FAULT_STATUS,     /* answers `status`, with Retry-After `value` unless that is negative */
    FAULT_QUOTA,      /* 403 as an admission that is over its quota */
    FAULT_SILENT,     /* does not answer until it is stopped */
    FAULT_DROP,       /* closes without an answer and without doing it */
    FAULT_DONE_DROP,  /* does it and closes without an answer */
    /* watch: sends half of the next event and closes; others: half of the answer */
    FAULT_HALF,
    FAULT_NOISE,      /* watch: a line that is no event */
    FAULT_GONE_EVENT, /* watch: an ERROR event with code 410 */
} fake_fault;

typedef struct fake_kube fake_kube;

fake_kube *fake_kube_start(void);
void fake_kube_stop(fake_kube *f);
const char *fake_kube_url(const fake_kube *f);
/* Objects at this path are kept, listed and watched instead of pods; before the first request. */
void fake_kube_collection(fake_kube *f, const char *path);

void fake_kube_fault(fake_kube *f, fake_kind kind, fake_fault fault, int status, int value,
                     int times);
/* what it takes from now on; NULL: anything */
void fake_kube_token(fake_kube *f, const char *token);
/* Whoever is refused for his token finds the right one in this file from then on: the kubelet
 * rotates it after the server has, once. */
void fake_kube_rotate(fake_kube *f, const char *file);
void fake_kube_cut(fake_kube *f);                      /* closes all watches */
/* The machine of all connections there are is gone without a word: once all that was sent has come
 * it acknowledges nothing any more. Who connects anew finds another one. Nothing is put or removed
 * until he has. */
void fake_kube_vanish(fake_kube *f);
void fake_kube_compact(fake_kube *f); /* what is older than now is gone, for new watches */
void fake_kube_bookmark(fake_kube *f);
/* changes are made and not told to watches */
void fake_kube_leave_out_events(fake_kube *f, bool yes);

/* No kubelet is there any more: deleted with a grace, a pod only says so. */
void fake_kube_stop_kubelet(fake_kube *f);
/* Makes or replaces a pod's object; steals `fields`, which are merged into it. */
void fake_kube_put(fake_kube *f, const char *name, json_t *fields);
void fake_kube_remove(fake_kube *f, const char *name);
json_t *fake_kube_copy(fake_kube *f); /* all pods by name */
/* steals; given back as it is, a string without its quotes; NULL: it is there no more */
void fake_kube_set(fake_kube *f, const char *path, json_t *object);
json_t *fake_kube_object(fake_kube *f, const char *path); /* new reference; NULL: not there */
/* A field of statuses that the CRDs, of an older version, do not have: an apply with it is refused,
 * and a patch is taken without it. NULL: they have all. */
void fake_kube_undeclare(fake_kube *f, const char *field);
int fake_kube_requests(fake_kube *f, fake_kind kind); /* FAKE_KINDS: all */
int fake_kube_pending_faults(fake_kube *f);

#endif
