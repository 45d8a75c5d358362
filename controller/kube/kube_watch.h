/* kube_watch.h: a copy of one kind of object that equals the cluster's, kept by list and watch.
 *
 * A thread of its own lists (in pages), then watches from the list's resourceVersion, with
 * bookmarks. A watch that ends goes on from the last version seen; 410 Gone, a refused token or a
 * line that is no event makes it list anew, and the difference to the copy is told as if it had
 * been watched, so that nothing is lost and nothing told twice. Between two requests that brought
 * nothing there is a wait that doubles, with chance in it, and Retry-After is obeyed: it never runs
 * hot.
 *
 * Of more objects than it may keep it keeps what it has and says ERR_LIMIT, until a list shows that
 * there are fewer: what a list that was cut lacks is not gone. */
#ifndef KUBEML_KUBE_WATCH_H
#define KUBEML_KUBE_WATCH_H

#include "kube_client.h"

enum {
    KUBE_WATCH_PAGE = 500,        /* objects a list asks for at a time */
    KUBE_WATCH_OBJECTS_MAX = 20000,
    KUBE_WATCH_S = 240,           /* a watch ends by itself after this to twice this */
    KUBE_WATCH_LIST_MS = 30000,
};

typedef enum kube_change { KUBE_ADDED, KUBE_MODIFIED, KUBE_DELETED } kube_change;

typedef struct kube_watch_config {
    const kube_config *access; /* outlives the watch */
    const char *path;          /* "/api/v1/namespaces/x/pods" */
    const char *selector;      /* labels, percent-encoded; NULL: all */
    int watch_s;               /* 0: KUBE_WATCH_S */
    size_t objects_max;        /* 0: KUBE_WATCH_OBJECTS_MAX */
    /* Called from the watch's thread, one at a time; `object` is borrowed. For KUBE_DELETED it is
     * the last state known. */
    void (*changed)(void *context, kube_change change, const json_t *object);
    void (*failed)(void *context, const err *why); /* each time, for logs and readiness; NULL */
    void (*listed)(void *context);                 /* after each list: the copy is whole; NULL */
    void *context;
} kube_watch_config;

typedef struct kube_watch kube_watch;

/* Counted since the start, to show that it does not run hot. */
typedef struct kube_watch_counts {
    uint64_t lists, watches, events, bookmarks, failures;
} kube_watch_counts;

int kube_watch_start(const kube_watch_config *config, kube_watch **out, err *e);
/* Blocks until the copy is whole for the first time: ERR_TIMEOUT with the last failure's words, or
 * at once what no retry will change (ERR_FORBIDDEN, ERR_NOT_FOUND). */
int kube_watch_wait(kube_watch *w, int64_t deadline_ms, err *e);
void kube_watch_counted(kube_watch *w, kube_watch_counts *out);
size_t kube_watch_size(kube_watch *w);
/* A failure that is worth telling also of a copy that was whole: it does not pass by itself, and a
 * list comes after it. */
bool kube_watch_stands(const err *why);
void kube_watch_stop(kube_watch *w); /* ends the thread; NULL is fine */

#endif
