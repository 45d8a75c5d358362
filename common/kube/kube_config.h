/* kube_config.h: where the API server of Kubernetes is and how to prove who we are.
 *
 * In a pod: the service account's files, whose token is rotated, so that it is read anew for each
 * request. Outside: a kubeconfig (KUBECONFIG, a list as kubectl takes it, or ~/.kube/config) with
 * tokens, client certificates and CA data. A user who signs in by a program (`exec`) is one for the
 * command line alone, which runs it; elsewhere that, and `auth-provider` anywhere, is refused with
 * a message that says so. */
#ifndef KUBEML_KUBE_CONFIG_H
#define KUBEML_KUBE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    KUBE_NAME_BYTES = 254, /* DNS subdomain */
    KUBE_FILE_BYTES_MAX = 4 << 20,
    KUBE_TOKEN_BYTES_MAX = 64 << 10,
};

/* Owns its texts; NULL: not given. Files are read when they are needed. */
typedef struct kube_config {
    char *server; /* "https://10.96.0.1:443", without a slash at the end */
    char namespace_name[64];
    char *ca_file, *ca_pem;
    char *token_file, *token;
    char *cert_file, *cert_pem, *key_file, *key_pem;
    bool insecure;
    int64_t expires_ms; /* wall clock: when a program's credentials do; 0: they do not */
    /* Asked before each request that changes something, which is ERR_UNAVAILABLE where it says no.
     * NULL: always. */
    bool (*may_write)(const void *writer);
    const void *writer;
} kube_config;

/* Whether a request may change something now. */
static inline bool kube_config_may_write(const kube_config *c)
{
    return !c->may_write || c->may_write(c->writer);
}

/* As a pod: KUBERNETES_SERVICE_HOST and the service account's folder (`dir` NULL: the usual one).
 * ERR_NOT_FOUND outside a pod. */
int kube_config_in_cluster(const char *dir, kube_config *out, err *e);
/* `paths` NULL: KUBECONFIG or ~/.kube/config; `context` NULL: the current one. ERR_NOT_FOUND,
 * ERR_INVALID naming file and field, ERR_UNSUPPORTED. */
int kube_config_read(const char *paths, const char *context, kube_config *out, err *e);
/* The same, and runs the program by which its user signs in, until the deadline: kube_exec.h has
 * the errors. For a program that a person started. */
int kube_config_sign_in(const char *paths, const char *context, int64_t deadline_ms,
                        kube_config *out, err *e);
/* In a pod its service account, otherwise the kubeconfig. */
int kube_config_find(const char *context, kube_config *out, err *e);
/* What stands in `field` in base64, as a text that the caller frees. */
int kube_config_decode(const char *text, const char *field, char **out, err *e);
void kube_config_free(kube_config *c);

#endif
