/* kube_tls.h: a kubeconfig's certificates and token on a libcurl handle. */
#ifndef KUBEML_KUBE_TLS_H
#define KUBEML_KUBE_TLS_H

#include <curl/curl.h>

#include "kube_config.h"

/* `c` outlives the handle's use. */
void kube_tls_set(CURL *curl, const kube_config *c);
/* "Authorization: Bearer ..."; *out stays NULL where it has no token. A token's file is read anew
 * each time: it is rotated. Caller frees. */
int kube_bearer(const kube_config *c, char **out, err *e);

#endif
