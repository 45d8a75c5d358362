/* kube_trainjob.h: converts between TrainJobs (charts/kubeml/crds) and jobs of the API. Pure.
 *
 * All functions return new references. */
#ifndef KUBEML_KUBE_TRAINJOB_H
#define KUBEML_KUBE_TRAINJOB_H

#include <jansson.h>

#include "common/base/err.h"

enum { KUBE_TRAINJOB_ID_BYTES = 40 };
#define KUBE_TRAINJOB_SHOWS "job-" /* and the id: names a TrainJob that shows a job of the API */

/* The id of the job that a user's TrainJob gets, made from its uid. */
void kube_trainjob_id(const json_t *object, char out[KUBE_TRAINJOB_ID_BYTES]);
/* The id of the job for which it stands; "": none yet. Ignores a label that was copied from another
 * TrainJob. */
const char *kube_trainjob_job(const json_t *object);

/* The body of POST /train, and back. Fields that only steer (suspend) are not in it. */
json_t *kube_trainjob_request(const json_t *spec);
json_t *kube_trainjob_spec(const json_t *request);

/* What each function requests of its node: {resource, count}; "" and 0: no GPU. */
typedef struct kube_trainjob_gpu {
    char resource[80];
    int count;
} kube_trainjob_gpu;

/* The status subresource. The status in `object` gives the times of what has not changed. `task`
 * NULL: there is no job, and `why` is why it was not accepted (NULL: suspended before it began):
 * state "waiting" where the cause passes by itself, otherwise "refused". `gpu` may be NULL. */
json_t *kube_trainjob_status(const json_t *object, const json_t *task, const err *why,
                             const kube_trainjob_gpu *gpu, const char *now);

/* The same where the database does not have the job and never had: it is another database than the
 * job's. Keeps the fields of the status so far that count when the job's database is back: its id,
 * that it is suspended, and which spec was seen. */
json_t *kube_trainjob_unknown(const json_t *object, const char *now);

/* The Event (core/v1) for the step from the object's status to `status`: a new state, a new try, or
 * a new reason to be degraded. NULL: none of these. Its name is made from its contents, so that no
 * Event is created twice. */
json_t *kube_trainjob_event(const json_t *object, const json_t *status, const char *now);

/* What to do so that spec and job agree. The spec decides where it has changed since the status was
 * written, the job where the job has changed. */
typedef enum kube_trainjob_step {
    TRAINJOB_KEEP,
    TRAINJOB_SUSPEND,        /* suspend the job, as the spec says */
    TRAINJOB_RESUME,
    TRAINJOB_NOTE_SUSPENDED, /* in the spec: it was suspended through the API */
    TRAINJOB_NOTE_RESUMED,
    TRAINJOB_EXPIRE,         /* its time to live is over */
} kube_trainjob_step;
kube_trainjob_step kube_trainjob_next(const json_t *object, const json_t *task, int64_t wall_ms);
/* How long an ended TrainJob needs no look, while it and its job stay as they are: until its time
 * to live is over, INT64_MAX without one. 0: it needs one now. */
int64_t kube_trainjob_rests_ms(const json_t *object, int64_t wall_ms);

#endif
