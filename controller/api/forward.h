/* forward.h: requests that only the leader can answer, handed on to it by the other controllers.
 *
 * Jobs, their logs and events, and runtimes for /infer are in the leader's hands; a standby passes
 * what asks for them on to the address in the Lease, with the API's own token, and the answer back
 * as it comes, streams included. While nobody leads, or the leader does not answer, the caller gets
 * 503 with Retry-After: nothing was done. 504 means that nobody knows. A request that was handed on
 * once is not handed on again (HTTP_HOP_HEADER), so that two which each take the other for the
 * leader do not loop. */
#ifndef KUBEML_FORWARD_H
#define KUBEML_FORWARD_H

#include "controller/controller.h"

enum {
    FORWARD_CONNECT_MS = 2000,
    FORWARD_ANSWER_MS = 260000, /* until an answer that is no stream is whole: /infer takes 240 s */
    FORWARD_WATCH_MS = 250,     /* how soon a lost leader or a client that left is noticed */
    FORWARD_LOOK_MS = 1000,
    FORWARD_WAITING_MAX = 8, /* requests that wait for the leader; more get 503 */
    FORWARD_STREAMS_MAX = 512,
    FORWARD_BYTES_MAX = 160 << 20,
    FORWARD_HELD_MAX = 256 << 20,  /* of answers that clients have not taken yet, but for */
    FORWARD_SMALL_BYTES = 1 << 20, /* those up to this */
};

/* http_config.divert; the context is the controller. False: it leads, the handler is to answer. */
bool forward_divert(void *context, http_request *r);
/* What the leader's GET `path` gives, for who stands by: JSON (new reference), NULL when there is
 * none within FORWARD_LOOK_MS. */
json_t *forward_look(controller *c, const char *path);
/* After the server's end: waits for the streams' threads, which end with their streams. */
void forward_drain(void);

#endif
