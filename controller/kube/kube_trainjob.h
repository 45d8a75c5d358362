/* kube_trainjob.h: a TrainJob and a job of the API, each as the other (charts/kubeml/crds). Pure.
 *
 * All functions give new references. */
#ifndef KUBEML_KUBE_TRAINJOB_H
#define KUBEML_KUBE_TRAINJOB_H

#include <jansson.h>

#include "common/base/err.h"

enum { KUBE_TRAINJOB_ID_BYTES = 40 };
#define KUBE_TRAINJOB_SHOWS "job-" /* and the id: the name of one that shows a job of the API */

/* The id that the job of a TrainJob gets when somebody makes one: of its uid. */
void kube_trainjob_id(const json_t *object, char out[KUBE_TRAINJOB_ID_BYTES]);
/* The id of the job that it stands for; "": none yet. A label that came along with a copy of
 * another TrainJob says nothing. */
const char *kube_trainjob_job(const json_t *object);

/* The body of POST /train, and back. What only steers (suspend) is no part of it. */
json_t *kube_trainjob_request(const json_t *spec);
json_t *kube_trainjob_spec(const json_t *request);

/* What each function asks its node for: {resource, count}; "" and 0: no GPU. */
typedef struct kube_trainjob_gpu {
    char resource[80];
    int count;
} kube_trainjob_gpu;

/* The status subresource. Of `object`, the status so far gives the times of what has not changed.
 * `task` NULL: there is no job; then `why` says why it was not accepted (NULL: suspended before it
 * began): state "waiting" where that passes by itself, or else "refused". `gpu` may be NULL. */
json_t *kube_trainjob_status(const json_t *object, const json_t *task, const err *why,
                             const kube_trainjob_gpu *gpu, const char *now);

/* The same where the database has no job of its id and never had: it is another one than that of
 * the status so far, of which what the job is when that one is back is kept (its id, that it is
 * suspended, which spec was seen). */
json_t *kube_trainjob_unknown(const json_t *object, const char *now);

/* The Event (core/v1) about the step from the object's status to `status`: another state, another
 * try, or something that it is degraded by. NULL: nothing of that. Its name is made of what it
 * says, so that nothing is told twice. */
json_t *kube_trainjob_event(const json_t *object, const json_t *status, const char *now);

/* What is to be done so that spec and job agree. The spec counts where it has changed since the
 * status was written, the job where it has. */
typedef enum kube_trainjob_step {
    TRAINJOB_KEEP,
    TRAINJOB_SUSPEND,        /* the job, as the spec says */
    TRAINJOB_RESUME,
    TRAINJOB_NOTE_SUSPENDED, /* in the spec, what was done through the API */
    TRAINJOB_NOTE_RESUMED,
    TRAINJOB_EXPIRE,         /* its time to live is over */
} kube_trainjob_step;
kube_trainjob_step kube_trainjob_next(const json_t *object, const json_t *task, int64_t wall_ms);
/* How long nothing is to be done for one that has ended by its status, while it stays as it is and
 * its job too: until its time to live is over, INT64_MAX without one. 0: it is to be looked at. */
int64_t kube_trainjob_rests_ms(const json_t *object, int64_t wall_ms);

#endif
