/* companion_objects.h: objects that a job's kubeml-ps has in the cluster: a Service, a
 * NetworkPolicy and a Secret, and a second NetworkPolicy where the job's functions have to reach
 * each other.
 *
 * The pod owns them, so Kubernetes deletes them with it. Each kubeml-ps of a job has its own, so
 * that none waits for the end of an earlier one. The Secret is for people: pods receive the job's
 * secret and the password of its Redis in the frames `job` and `specialise`, since nothing can be
 * mounted into a warm pod later. */
#ifndef KUBEML_COMPANION_OBJECTS_H
#define KUBEML_COMPANION_OBJECTS_H

#include "controller/kube/kube_client.h"
#include "controller/kube/kube_pods.h"

enum { KUBE_REDIS_PORT = 6379 };

/* A policy that lets the job's functions reach kubeml-ps and Redis, and the controller reach
 * kubeml-ps, and nothing else. */
json_t *kube_policy_build(const kube_templates *t, const char *job, const char *ps_pod,
                          const char *ps_uid);
/* A policy that lets the job's functions reach each other on the ports of ranks, and nothing else.
 * NULL also where there are no such ports. */
json_t *kube_ranks_policy_build(const kube_templates *t, const char *job, const char *ps_pod,
                                const char *ps_uid);
/* A name for kubeml-ps in the cluster's DNS, for people and metrics; functions dial the pod. */
json_t *kube_service_build(const kube_templates *t, const char *job, const char *ps_pod,
                           const char *ps_uid);
/* The functions' login to the job's Redis: `access` as in modelstore_access_json. */
json_t *kube_secret_build(const kube_templates *t, const char *job, const char *ps_pod,
                          const char *ps_uid, const json_t *access);

/* The kubeml-ps for which objects are made, and how. All of it is borrowed. */
typedef struct companion_objects {
    kube_client *client;
    const kube_templates *templates;
    const char *namespace_name, *job, *ps_pod, *ps_uid;
    int64_t deadline_ms; /* of each call */
    json_t *owed;        /* an array that receives objects which could not be made in time */
} companion_objects;

/* Makes Service and policy, where they are not there. A failure is logged: a cluster may forbid
 * either, and the job goes on. */
void companion_objects_make(const companion_objects *b);
/* Makes the policy for a job whose functions are NCCL's ranks, likewise; does nothing where the
 * templates have no ports for ranks. */
void companion_objects_let_meet(const companion_objects *b);
/* Makes the Secret, likewise. */
void companion_objects_publish(const companion_objects *b, const json_t *access);

/* The kubeml-ps of an owed object: without that pod the object is owed no more. */
const char *companion_objects_pod(const json_t *owed);
/* Tries once more. false: it is still owed; do not try again within *wait_ms. */
bool companion_objects_make_owed(kube_client *c, const json_t *owed, int64_t deadline_ms,
                                 int64_t *wait_ms);

#endif
