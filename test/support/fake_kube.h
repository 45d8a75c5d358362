/* fake_kube.h: a scripted API server of Kubernetes, with faults.
 *
 * It keeps the pods of one namespace, "test": list in pages, watch with resourceVersion and
 * bookmarks, create, get, merge and JSON patch of labels, delete at once. It keeps any other object
 * by its path: create, get, merge patch, apply, replace and delete. Faults wait in a queue: the
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
    FAULT_QUOTA,      /* 403, as an admission over its quota */
    FAULT_SILENT,     /* does not answer until it is stopped */
    FAULT_DROP,       /* closes without an answer and without carrying the request out */
    FAULT_DONE_DROP,  /* carries the request out and closes without an answer */
    /* watch: sends half of the next event and closes; others: half of the answer */
    FAULT_HALF,
    FAULT_NOISE,      /* watch: a line that is no event */
    FAULT_GONE_EVENT, /* watch: an ERROR event with code 410 */
} fake_fault;

typedef struct fake_kube fake_kube;

fake_kube *fake_kube_start(void);
void fake_kube_stop(fake_kube *f);
const char *fake_kube_url(const fake_kube *f);
/* Keeps, lists and watches the objects at this path instead of pods. Before the first request. */
void fake_kube_collection(fake_kube *f, const char *path);

void fake_kube_fault(fake_kube *f, fake_kind kind, fake_fault fault, int status, int value,
                     int times);
/* The token that it takes from now on; NULL: any. */
void fake_kube_token(fake_kube *f, const char *token);
/* Once, after it has refused a token, writes the right one to this file: the kubelet rotates a
 * token after the server. */
void fake_kube_rotate(fake_kube *f, const char *file);
void fake_kube_cut(fake_kube *f);                      /* closes all watches */
/* The server's machine vanishes from all present connections: once all that was sent has come, they
 * acknowledge nothing any more. A new connection reaches another machine. The test puts and removes
 * nothing before there is one. */
void fake_kube_vanish(fake_kube *f);
void fake_kube_compact(fake_kube *f); /* new watches cannot begin before now */
void fake_kube_bookmark(fake_kube *f);
/* Changes are made, but not sent to watches. */
void fake_kube_leave_out_events(fake_kube *f, bool yes);

/* There is no kubelet any more: a pod deleted with a grace is only marked as deleted. */
void fake_kube_stop_kubelet(fake_kube *f);
/* Makes or replaces a pod's object; steals `fields`, which are merged into it. */
void fake_kube_put(fake_kube *f, const char *name, json_t *fields);
void fake_kube_remove(fake_kube *f, const char *name);
json_t *fake_kube_copy(fake_kube *f); /* all pods by name */
/* Sets the object at `path`; steals. A get returns it unchanged, a string without its quotes. NULL:
 * removes it. */
void fake_kube_set(fake_kube *f, const char *path, json_t *object);
json_t *fake_kube_object(fake_kube *f, const char *path); /* new reference; NULL: not there */
/* The CRDs are of an older version without this field of statuses: an apply with the field is
 * refused, a patch is taken without it. NULL: they have all fields. */
void fake_kube_undeclare(fake_kube *f, const char *field);
int fake_kube_requests(fake_kube *f, fake_kind kind); /* FAKE_KINDS: all */
int fake_kube_pending_faults(fake_kube *f);

#endif
