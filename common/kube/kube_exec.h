/* kube_exec.h: credentials of a kubeconfig's user that come from a program (`exec`), as the files
 * that EKS, GKE and AKS write have them: client.authentication.k8s.io, v1 and v1beta1.
 *
 * The program runs with all rights of its caller, so only what a person starts asks for it. It has
 * no terminal and nothing to read: one that insists on asking (`interactiveMode: Always`) is
 * refused. It ends with its caller, and at the deadline. */
#ifndef KUBEML_KUBE_EXEC_H
#define KUBEML_KUBE_EXEC_H

#include <jansson.h>

#include "kube_config.h"

enum { KUBE_EXEC_ITEMS_MAX = 64, KUBE_EXEC_REPLY_BYTES_MAX = 256 << 10 };

/* Runs `exec` of the user and puts what it gives into `c`, in which the cluster stands already.
 * `folder`: where a command that is a relative path starts from. ERR_NOT_FOUND (no such program,
 * with its installHint), ERR_FORBIDDEN (it failed: its status and last words), ERR_TIMEOUT,
 * ERR_INVALID, ERR_UNSUPPORTED, ERR_LIMIT; each names the command. */
int kube_exec_run(const json_t *exec, const char *folder, int64_t deadline_ms, kube_config *c,
                  err *e);

#endif
