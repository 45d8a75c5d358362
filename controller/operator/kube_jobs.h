/* kube_jobs.h: jobs as TrainJobs (charts/kubeml/crds) and the other way round.
 *
 * A TrainJob that somebody makes is submitted under an id made from its uid, so that a lost answer
 * or a restart submits nothing twice; a job made through the API gets a TrainJob of its own, which
 * then owns its pods. What becomes of the job stands in the status subresource. spec.suspend and
 * the API's suspend and resume are kept alike; the time to live is kept here. Deleting a TrainJob
 * cancels its job, also when nobody looked (its pods go with it by their owner references); a job
 * that is deleted through the API takes its TrainJob along. TrainJobs of another installation in
 * the namespace are left alone (kube_claim.h).
 *
 * The database remembers which jobs have a TrainJob, with {"install", "namespace", "uid"} of who
 * made or took it (uid: the namespace's; older versions wrote none of them). So nothing is taken
 * for deleted that is only elsewhere: a TrainJob whose job another database has, and a job whose
 * TrainJob was another namespace's, which gets one here while it is active. */
#ifndef KUBEML_KUBE_JOBS_H
#define KUBEML_KUBE_JOBS_H

#include <stdatomic.h>

#include "controller/kube/kube_pods.h"
#include "controller/kube/kube_trainjob.h"
#include "controller/kube/kube_watch.h"

enum {
    KUBE_JOBS_TURN_MS = 1000,
    KUBE_JOBS_RETRY_MS = 5000,
    /* A TrainJob that has ended, and that nothing changes, is looked at so often: its job may have
     * been deleted through the API. */
    KUBE_JOBS_REST_MS = 20000,
};

/* The controller, as the mirror needs it; called from its thread, each may block on the owner. */
typedef struct kube_jobs_host {
    int (*submit)(void *context, const json_t *request, const char *id, err *e); /* ERR_EXISTS */
    int (*cancel)(void *context, const char *id, err *e);
    int (*suspend)(void *context, const char *id, err *e);
    int (*resume)(void *context, const char *id, err *e);
    int (*task)(void *context, const char *id, json_t **out, err *e); /* as GET /tasks/{id} */
    /* An array of them: the active ones, and once each that the API has made since the last call,
     * if it has ended already. */
    int (*current)(void *context, json_t **out, err *e);
    /* Remembers in the database that it has a TrainJob, and whose that is; NULL: it has none. */
    void (*link)(void *context, const char *id, json_t *mark);
    int (*links)(void *context, json_t **out, err *e); /* an object: the marks by the jobs' ids */
    /* ERR_NOT_FOUND: it has none. */
    int (*linked)(void *context, const char *id, err *e);
    /* Why TrainJobs are not looked at, each time that it is another reason, and NULL once they are.
     * From the watch's thread. May be NULL. */
    void (*looks)(void *context, const err *why);
    atomic_int *lacking;   /* kube_status_open's; may be NULL */
    int probe_ms;          /* kube_status_open's */
    kube_trainjob_gpu gpu; /* of each function */
    int turn_ms;           /* 0: KUBE_JOBS_TURN_MS */
    int rest_ms;           /* 0: KUBE_JOBS_REST_MS */
    size_t objects_max;    /* 0: KUBE_WATCH_OBJECTS_MAX */
    char install[KUBE_INSTALL_BYTES]; /* whose label other platforms leave alone (kube_claim.h) */
    void *context;
} kube_jobs_host;

typedef struct kube_jobs kube_jobs;

/* `access` outlives it. Waits for nothing: while the API server is away, or the CRDs are not
 * installed or may not be read, it goes on trying. */
int kube_jobs_start(const kube_config *access, const kube_jobs_host *host, kube_jobs **out, err *e);
void kube_jobs_stop(kube_jobs *j); /* NULL is fine */

#endif
