/* kube_client.h: calls to the API server of Kubernetes, on libcurl and jansson.
 *
 * A client is one connection and belongs to one thread; only kube_client_cancel may come from
 * another. Each call has an absolute deadline (clock_deadline_ms). A call repeats what may be
 * repeated: a refused or cut connection; 429 and 5xx after Retry-After or a doubling wait with
 * jitter; 401 a few times, since each try reads the token's file anew, which may just have been
 * rotated.
 *
 *   401             ERR_UNAUTHORIZED
 *   403             ERR_FORBIDDEN; a spent quota: ERR_LIMIT
 *   404             ERR_NOT_FOUND
 *   409             ERR_CONFLICT; AlreadyExists: ERR_EXISTS
 *   410             ERR_STALE
 *   400, 413, 422   ERR_INVALID
 *   429, 5xx        ERR_UNAVAILABLE; a 500 for an apply with a field that the CRD lacks:
 *                   ERR_UNSUPPORTED
 *   no response     ERR_UNAVAILABLE, also where the config lets nothing be written; ERR_TIMEOUT;
 *                   ERR_CANCELLED after kube_client_cancel
 * The message is the Status object's. */
#ifndef KUBEML_KUBE_CLIENT_H
#define KUBEML_KUBE_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/rng.h"
#include "common/kube/kube_config.h"

enum {
    KUBE_CONNECT_MS = 5000,
    KUBE_DEAD_MS = 5000, /* a server that is silent for so long is gone: ERR_UNAVAILABLE */
    KUBE_REPLY_BYTES_MAX = 64 << 20,
    KUBE_UNAUTHORIZED_TRIES = 4,
    KUBE_BACKOFF_MS = 100, /* the first wait, doubled each time */
    KUBE_BACKOFF_MS_MAX = 10000,
    KUBE_RETRY_AFTER_S_MAX = 60, /* the longest Retry-After that is obeyed */
};
#define KUBE_FIELD_MANAGER "kubeml"
#define KUBE_RESOURCES     "kubeml.dev/v1alpha1" /* of our custom resources */

typedef struct kube_client kube_client;

/* Doubling waits with jitter, so that many clients do not return at once: the n-th wait is in [d/2,
 * d], d = min(KUBE_BACKOFF_MS 2^n, KUBE_BACKOFF_MS_MAX). */
typedef struct kube_backoff {
    rng random;
    int tries;
} kube_backoff;
void kube_backoff_init(kube_backoff *b, uint64_t seed);
int kube_backoff_next(kube_backoff *b);
void kube_backoff_reset(kube_backoff *b);

/* Keeps a pointer to `config`, which must outlive it. */
int kube_client_open(const kube_config *config, kube_client **out, err *e);
void kube_client_close(kube_client *c); /* NULL is fine */
/* From any thread: the present call and all later ones end with ERR_CANCELLED. */
void kube_client_cancel(kube_client *c);
/* Waits; false where it was cancelled. */
bool kube_client_sleep(kube_client *c, int ms);
/* Whether a call that failed with `code` may succeed later without a change: the server comes back,
 * a quota gets room, a token is rotated. */
bool kube_may_pass(err_code code);

typedef struct kube_request {
    const char *method; /* GET, POST, PUT, PATCH, DELETE */
    const char *path;   /* "/api/v1/namespaces/x/pods" */
    const char *query;  /* percent-encoded, without the '?'; NULL */
    const json_t *body; /* NULL: none */
    const char *type;   /* of the body; NULL: application/json */
} kube_request;

typedef struct kube_outcome {
    long status;            /* 0: no response */
    int64_t retry_after_ms; /* -1: the server sent none */
} kube_outcome;

/* One try. `text` receives the response's bytes, whatever the status (NULL: not wanted). */
int kube_try(kube_client *c, const kube_request *r, int64_t deadline_ms, buf *text, kube_outcome *o,
             err *e);
/* Tries until a try succeeds, cannot succeed, or the deadline is over. *out: new reference, or NULL
 * where the response is no JSON; `out` may be NULL. *repeated (may be NULL): an earlier try may
 * have been carried out, though its response is unknown. */
int kube_call(kube_client *c, const kube_request *r, int64_t deadline_ms, json_t **out,
              bool *repeated, err *e);

int kube_get(kube_client *c, const char *path, const char *query, int64_t deadline_ms, json_t **out,
             err *e);
/* Creates an object. Where it exists after a repeated try, an earlier try has created it: no
 * error. */
int kube_create(kube_client *c, const char *path, const json_t *object, int64_t deadline_ms,
                json_t **out, err *e);
int kube_merge_patch(kube_client *c, const char *path, const json_t *patch, int64_t deadline_ms,
                     json_t **out, err *e);
/* Server-side apply; takes over fields of other managers. */
int kube_apply(kube_client *c, const char *path, const json_t *object, int64_t deadline_ms,
               json_t **out, err *e);
/* Applies the status of one of our custom resources to its subresource, and removes all fields that
 * are not in it, whoever set them. */
int kube_apply_status(kube_client *c, const char *collection, const char *kind, const char *name,
                      const json_t *status, int64_t deadline_ms, err *e);
/* The same where the CRD lacks fields, which the API server then drops: patches `there`, the status
 * last seen (NULL: none). *out: the object after that, a new reference; `out` may be NULL. */
int kube_patch_status(kube_client *c, const char *collection, const char *name, const json_t *there,
                      const json_t *status, int64_t deadline_ms, json_t **out, err *e);
/* Deletes an object. grace_s -1: the object's own. A missing object is no error; an object of that
 * name with another uid is ERR_CONFLICT (`uid` NULL: any). */
int kube_delete(kube_client *c, const char *path, const char *uid, int grace_s, int64_t deadline_ms,
                err *e);

/* One GET whose response goes to `take` line by line as it comes; `take` may change the
 * NUL-terminated line. A line that is cut off at the end is dropped. A non-zero result of `take`
 * ends the call without an error. */
typedef int (*kube_line)(void *context, char *line, size_t len);
int kube_stream(kube_client *c, const char *path, const char *query, int64_t deadline_ms,
                kube_line take, void *context, kube_outcome *o, err *e);

#endif
