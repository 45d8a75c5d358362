/* exit_cause.h: the cause of the end of a pod's process. */
#ifndef KUBEML_EXIT_CAUSE_H
#define KUBEML_EXIT_CAUSE_H

#include <stdbool.h>

/* The reason of a pod that was loading when its controller ended, and was stopped therefore: it has
 * no connection to the next controller. */
#define EXIT_CAUSE_CONTROLLER_RESTARTED "ControllerRestarted"

/* kubeml-function's exit status after an error of its own, such as an unreachable store or
 * kubeml-ps. EX_TEMPFAIL of sysexits.h: a retry may help. */
enum { EXIT_CAUSE_GAVE_UP = 75 };

/* The reason of an end with `status` (-1: unknown) or by `signal` (0: no signal):
 *   Crashed  a fault of the program, which a retry would repeat: SIGSEGV and similar signals; where
 *            users' code runs in it, also an exit with a status that is not the runtime's
 *   Killed   by a signal from outside
 *   Exited   otherwise
 * Statuses from 126 on are a container runtime's: the program did not run. The text is static. */
const char *exit_cause_reason(int status, int signal, bool runs_user_code);

bool exit_cause_is_crash(const char *reason);
/* Whether the cluster or KubeML ended the pod, and not a fault of its program: a reason of
 * Kubernetes' condition DisruptionTarget, a reason of a pod that ended with its node, or
 * EXIT_CAUSE_CONTROLLER_RESTARTED. */
bool exit_cause_is_disruption(const char *reason);

#endif
