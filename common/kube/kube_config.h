/* kube_config.h: the address of Kubernetes' API server, and the credentials for it.
 *
 * In a pod: the service account's files. Its token is rotated, so that the file is read anew for
 * each request. Outside: a kubeconfig (KUBECONFIG, a list as for kubectl, or ~/.kube/config) with
 * tokens, client certificates and CA data. Only the command line runs the program of a user that
 * has `exec`; other programs refuse such a user. Every program refuses `auth-provider`. */
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

/* Owns its texts; NULL: absent. Files are read when they are needed. */
typedef struct kube_config {
    char *server; /* "https://10.96.0.1:443", without a slash at the end */
    char namespace_name[64];
    char *ca_file, *ca_pem;
    char *token_file, *token;
    char *cert_file, *cert_pem, *key_file, *key_pem;
    bool insecure;
    int64_t expires_ms; /* wall clock: when the credentials of `exec` expire; 0: never */
    /* Called before each request that changes an object; if it returns false, the request fails
     * with ERR_UNAVAILABLE. NULL: such requests are always allowed. */
    bool (*may_write)(const void *writer);
    const void *writer;
} kube_config;

/* Whether a request may change objects now. */
static inline bool kube_config_may_write(const kube_config *c)
{
    return !c->may_write || c->may_write(c->writer);
}

/* In a pod: KUBERNETES_SERVICE_HOST and the service account's folder `dir` (NULL: the usual
 * folder). ERR_NOT_FOUND outside a pod. */
int kube_config_in_cluster(const char *dir, kube_config *out, err *e);
/* Reads kubeconfigs. `paths` NULL: KUBECONFIG or ~/.kube/config; `context` NULL: the current
 * context. ERR_NOT_FOUND, ERR_INVALID naming file and field, ERR_UNSUPPORTED. */
int kube_config_read(const char *paths, const char *context, kube_config *out, err *e);
/* The same, but also runs the program of `exec`, until the deadline; blocks. kube_exec.h has the
 * errors. Only for a program that a person started. */
int kube_config_sign_in(const char *paths, const char *context, int64_t deadline_ms,
                        kube_config *out, err *e);
/* In a pod (unless `context` is given) the service account, otherwise the kubeconfig. */
int kube_config_find(const char *context, kube_config *out, err *e);
/* Decodes base64 `text`; the caller frees *out. `field` names it in errors. ERR_INVALID. */
int kube_config_decode(const char *text, const char *field, char **out, err *e);
void kube_config_free(kube_config *c);

#endif
