/* kube_jobs.h: jobs as TrainJobs (charts/kubeml/crds), and TrainJobs as jobs.
 *
 * A user's TrainJob is submitted under an id made from its uid, so that a lost response or a
 * restart submits nothing twice. A job made through the API gets a TrainJob, which then owns its
 * pods. The status subresource shows the job's state. spec.suspend follows the API's suspend and
 * resume, and the job follows spec.suspend. This file also enforces the time to live. Deleting a
 * TrainJob cancels its job, also where no controller was there to see it (Kubernetes deletes its
 * pods by their owner references); deleting a job through the API deletes its TrainJob. TrainJobs
 * of another installation in the namespace are left alone (kube_claim.h).
 *
 * The database remembers which jobs have a TrainJob, with {"install", "namespace", "uid"} of the
 * platform that made or took it (uid: the namespace's; older versions wrote none of these). So
 * these do not count as deleted: a TrainJob whose job another database has, and a job whose
 * TrainJob is another namespace's (while the job is active, it gets a TrainJob here). */
#ifndef KUBEML_KUBE_JOBS_H
#define KUBEML_KUBE_JOBS_H

#include <stdatomic.h>

#include "controller/kube/kube_pods.h"
#include "controller/kube/kube_trainjob.h"
#include "controller/kube/kube_watch.h"

enum {
    KUBE_JOBS_TURN_MS = 1000,
    KUBE_JOBS_RETRY_MS = 5000,
    /* An ended TrainJob that nothing changes is looked at so often: its job may have been deleted
     * through the API. */
    KUBE_JOBS_REST_MS = 20000,
};

/* The controller's functions that kube_jobs needs. Its thread calls them; each may block on the job
 * manager. */
typedef struct kube_jobs_host {
    int (*submit)(void *context, const json_t *request, const char *id, err *e); /* ERR_EXISTS */
    int (*cancel)(void *context, const char *id, err *e);
    int (*suspend)(void *context, const char *id, err *e);
    int (*resume)(void *context, const char *id, err *e);
    int (*task)(void *context, const char *id, json_t **out, err *e); /* as GET /tasks/{id} */
    /* An array of tasks: the active ones, and once each job that the API has made since the last
     * call, if it has ended already. */
    int (*current)(void *context, json_t **out, err *e);
    /* Remembers in the database that a job has a TrainJob, and whose; NULL: it has none. */
    void (*link)(void *context, const char *id, json_t *mark);
    int (*links)(void *context, json_t **out, err *e); /* an object: the marks by jobs' ids */
    /* 0: the job has a TrainJob. ERR_NOT_FOUND: it has none. */
    int (*linked)(void *context, const char *id, err *e);
    /* Called from the watch's thread: why TrainJobs are not looked at, for each new reason, and
     * NULL once they are. May be NULL. */
    void (*looks)(void *context, const err *why);
    atomic_int *lacking;   /* kube_status_open's; may be NULL */
    int probe_ms;          /* kube_status_open's */
    kube_trainjob_gpu gpu; /* of each function */
    int turn_ms;           /* 0: KUBE_JOBS_TURN_MS */
    int rest_ms;           /* 0: KUBE_JOBS_REST_MS */
    size_t objects_max;    /* 0: KUBE_WATCH_OBJECTS_MAX */
    char install[KUBE_INSTALL_BYTES]; /* of our label (kube_claim.h) */
    void *context;
} kube_jobs_host;

typedef struct kube_jobs kube_jobs;

/* `access` outlives it. Waits for nothing: while the API server is away, or the CRDs are not
 * installed or cannot be read, it goes on trying. */
int kube_jobs_start(const kube_config *access, const kube_jobs_host *host, kube_jobs **out, err *e);
void kube_jobs_stop(kube_jobs *j); /* NULL is fine */

#endif
