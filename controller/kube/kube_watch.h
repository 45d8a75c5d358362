/* kube_watch.h: a copy of one kind of object that equals the cluster's, kept by list and watch.
 *
 * A thread lists (in pages), then watches from the list's resourceVersion, with bookmarks. After a
 * watch has ended, the next goes on from the last version seen. After 410 Gone, a refused token or
 * a line that is no event the thread lists anew, and reports the difference to its copy as if it
 * had watched it, so that nothing is lost and nothing reported twice. Between two requests that
 * brought nothing the thread waits, doubling with jitter, and obeys Retry-After: it never runs hot.
 *
 * Where there are more objects than the limit, the watch keeps its copy and reports ERR_LIMIT until
 * a list shows fewer: an object that a cut list lacks is not gone. */
#ifndef KUBEML_KUBE_WATCH_H
#define KUBEML_KUBE_WATCH_H

#include "kube_client.h"

enum {
    KUBE_WATCH_PAGE = 500,        /* objects per request of a list */
    KUBE_WATCH_OBJECTS_MAX = 20000,
    KUBE_WATCH_S = 240,           /* a watch ends by itself after once to twice this time */
    KUBE_WATCH_LIST_MS = 30000,
};

typedef enum kube_change { KUBE_ADDED, KUBE_MODIFIED, KUBE_DELETED } kube_change;

typedef struct kube_watch_config {
    const kube_config *access; /* outlives the watch */
    const char *path;          /* "/api/v1/namespaces/x/pods" */
    const char *selector;      /* labels, percent-encoded; NULL: all */
    int watch_s;               /* 0: KUBE_WATCH_S */
    size_t objects_max;        /* 0: KUBE_WATCH_OBJECTS_MAX */
    /* Called from the watch's thread, one call at a time; `object` is borrowed. For KUBE_DELETED it
     * is the last known state. */
    void (*changed)(void *context, kube_change change, const json_t *object);
    void (*failed)(void *context, const err *why); /* each failure, for logs and readiness; NULL */
    void (*listed)(void *context);                 /* after each list: the copy is whole; NULL */
    void *context;
} kube_watch_config;

typedef struct kube_watch kube_watch;

/* Counted since the start, to show that the watch does not run hot. */
typedef struct kube_watch_counts {
    uint64_t lists, watches, events, bookmarks, failures;
} kube_watch_counts;

int kube_watch_start(const kube_watch_config *config, kube_watch **out, err *e);
/* Blocks until the copy is complete for the first time: ERR_TIMEOUT, or the last failure;
 * ERR_FORBIDDEN and ERR_NOT_FOUND at once, since no retry changes them. */
int kube_watch_wait(kube_watch *w, int64_t deadline_ms, err *e);
void kube_watch_counted(kube_watch *w, kube_watch_counts *out);
size_t kube_watch_size(kube_watch *w);
/* Whether a failure is worth reporting even with a complete copy: it does not pass by itself, and a
 * list follows it. */
bool kube_watch_stands(const err *why);
void kube_watch_stop(kube_watch *w); /* ends the thread; NULL is fine */

#endif
