/* kube_exec.h: gets the credentials of a kubeconfig's user from a program (`exec`), as in the
 * kubeconfigs of EKS, GKE and AKS: client.authentication.k8s.io, v1 and v1beta1.
 *
 * The program runs with all rights of its caller, so only a program that a person started runs it.
 * It has no terminal, and its input is empty: a program that must ask (`interactiveMode: Always`)
 * is refused. It ends with its caller, and at the deadline. */
#ifndef KUBEML_KUBE_EXEC_H
#define KUBEML_KUBE_EXEC_H

#include <jansson.h>

#include "kube_config.h"

enum { KUBE_EXEC_ITEMS_MAX = 64, KUBE_EXEC_REPLY_BYTES_MAX = 256 << 10 };

/* Runs the user's `exec` and puts its credentials into `c`, which has the cluster already.
 * `folder`: the base of a command with a relative path. ERR_NOT_FOUND (no such program, with its
 * installHint), ERR_FORBIDDEN (the program failed: its status and the end of its stderr),
 * ERR_TIMEOUT, ERR_INVALID, ERR_UNSUPPORTED, ERR_LIMIT; each names the command. */
int kube_exec_run(const json_t *exec, const char *folder, int64_t deadline_ms, kube_config *c,
                  err *e);

#endif
