/* forward.h: hands requests that only the leader can answer on to the leader.
 *
 * The leader has the jobs, their logs and events, and the runtimes for /infer. A standby controller
 * passes requests for these to the address in the Lease, with the API's own token, and passes the
 * response back as it comes, streams included. While no controller leads, or the leader does not
 * answer, the caller gets 503 with Retry-After: nothing was done. With 504 the request may have
 * been done or not. A request is handed on only once (HTTP_HOP_HEADER), so that two controllers
 * which take each other for the leader do not loop. */
#ifndef KUBEML_FORWARD_H
#define KUBEML_FORWARD_H

#include "controller/controller.h"

enum {
    FORWARD_CONNECT_MS = 2000,
    FORWARD_ANSWER_MS = 260000, /* until a response is whole, but for streams: /infer takes 240 s */
    FORWARD_WATCH_MS = 250,     /* how soon a lost leader or a client that left is noticed */
    FORWARD_LOOK_MS = 1000,
    FORWARD_WAITING_MAX = 8, /* requests that wait for the leader; more get 503 */
    FORWARD_STREAMS_MAX = 512,
    FORWARD_BYTES_MAX = 160 << 20,
    FORWARD_HELD_MAX = 256 << 20,  /* of responses not yet read by clients, but for */
    FORWARD_SMALL_BYTES = 1 << 20, /* responses up to this size */
};

/* http_config.divert; the context is the controller. False: this controller leads, and its handler
 * answers. */
bool forward_divert(void *context, http_request *r);
/* The leader's response to GET `path`, for a standby controller: JSON (new reference), or NULL
 * where there is none within FORWARD_LOOK_MS. */
json_t *forward_look(controller *c, const char *path);
/* After the server's end: waits for the streams' threads, which end with their streams. */
void forward_drain(void);

#endif
