/* exit_cause.h: what the end of a pod's process means. */
#ifndef KUBEML_EXIT_CAUSE_H
#define KUBEML_EXIT_CAUSE_H

#include <stdbool.h>

/* The reason of one that was stopped since it was loading when its controller ended: to the next
 * one it has no connection, and would answer nobody. */
#define EXIT_CAUSE_CONTROLLER_RESTARTED "ControllerRestarted"

/* kubeml-function ends with it after an error of its own: a store or a kubeml-ps that is away, say.
 * EX_TEMPFAIL of sysexits.h: another try may do better. */
enum { EXIT_CAUSE_GAVE_UP = 75 };

/* A reason for an end with `status` (-1: unknown) or by `signal` (0: by none):
 *   Crashed  the program's own fault, which the next try repeats: SIGSEGV and its like; and where
 *            code of users runs in it, an exit with a status that is not the runtime's
 *   Killed   by a signal from outside
 *   Exited   otherwise
 * Statuses from 126 on are a container runtime's: the program did not run. Static. */
const char *exit_cause_reason(int status, int signal, bool runs_user_code);

bool exit_cause_is_crash(const char *reason);
/* Whether it was the cluster's doing or ours, of which the program is not to blame: a reason of
 * Kubernetes' condition DisruptionTarget, of the pod's end with its node, or the one above. */
bool exit_cause_is_disruption(const char *reason);

#endif
