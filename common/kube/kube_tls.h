/* kube_tls.h: sets a kubeconfig's certificates and token on a libcurl handle. */
#ifndef KUBEML_KUBE_TLS_H
#define KUBEML_KUBE_TLS_H

#include <curl/curl.h>

#include "kube_config.h"

/* Sets CA, client certificate and key. `c` must outlive the handle's use. */
void kube_tls_set(CURL *curl, const kube_config *c);
/* Makes the header "Authorization: Bearer ...", the caller's to free; *out stays NULL where `c` has
 * no token. Reads a token's file anew each time, because tokens are rotated. */
int kube_bearer(const kube_config *c, char **out, err *e);

#endif
