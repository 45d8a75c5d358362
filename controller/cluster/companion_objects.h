/* companion_objects.h: what stands beside a job's kubeml-ps in the cluster: a Service, a
 * NetworkPolicy and a Secret, and a second NetworkPolicy where the job's functions are to reach
 * each other.
 *
 * All are owned by the pod and go with it; each kubeml-ps of a job has its own, so that none waits
 * for the end of those before. The Secret is for people: the job's secret and the password of its
 * Redis travel to its pods in the frames of `job` and `specialise`, since warm ones have nothing
 * that could be mounted later. */
#ifndef KUBEML_COMPANION_OBJECTS_H
#define KUBEML_COMPANION_OBJECTS_H

#include "controller/kube/kube_client.h"
#include "controller/kube/kube_pods.h"

enum { KUBE_REDIS_PORT = 6379 };

/* The job's functions reach kubeml-ps and Redis, the controller reaches kubeml-ps, nobody else
 * anything. */
json_t *kube_policy_build(const kube_templates *t, const char *job, const char *ps_pod,
                          const char *ps_uid);
/* The job's functions reach each other on the ports of ranks, nobody else anything. NULL where
 * there are no such ports too. */
json_t *kube_ranks_policy_build(const kube_templates *t, const char *job, const char *ps_pod,
                                const char *ps_uid);
/* A name in the cluster's DNS for kubeml-ps, for people and metrics; functions dial the pod. */
json_t *kube_service_build(const kube_templates *t, const char *job, const char *ps_pod,
                           const char *ps_uid);
/* How the functions' user gets into the job's Redis: `access` as in modelstore_access_json. */
json_t *kube_secret_build(const kube_templates *t, const char *job, const char *ps_pod,
                          const char *ps_uid, const json_t *access);

/* Whose things are made, and how. All of it is borrowed. */
typedef struct companion_objects {
    kube_client *client;
    const kube_templates *templates;
    const char *namespace_name, *job, *ps_pod, *ps_uid;
    int64_t deadline_ms; /* of each call */
    json_t *owed;        /* an array: what is not made by then, but may be, is put there */
} companion_objects;

/* Makes Service and policy, where they are not there; what cannot be made is logged: a cluster may
 * forbid either, and the job goes on. */
void companion_objects_make(const companion_objects *b);
/* Makes the policy of a job whose functions are NCCL's ranks, likewise; nothing where no ports are
 * kept for them. */
void companion_objects_let_meet(const companion_objects *b);
/* Makes the Secret, likewise. */
void companion_objects_publish(const companion_objects *b, const json_t *access);

/* The kubeml-ps that something owed stands beside: without that pod it is owed no more. */
const char *companion_objects_pod(const json_t *owed);
/* Tries once more. false: it is still owed, and is not to be tried within *wait_ms. */
bool companion_objects_make_owed(kube_client *c, const json_t *owed, int64_t deadline_ms,
                                 int64_t *wait_ms);

#endif
