/* kube_end.h: what is left of an installation when its controllers are gone.
 *
 * The pods that a job has belong to its TrainJob, so that they outlive a controller and an upgrade
 * of the chart; an uninstall leaves the TrainJob, and them with it. The chart's last Job ends
 * them. */
#ifndef KUBEML_KUBE_END_H
#define KUBEML_KUBE_END_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/kube/kube_config.h"

enum {
    KUBE_END_MS = 60000,
    KUBE_END_GRACE_S = 2,
    KUBE_END_EVERY_MS = 500,
    KUBE_END_LATE_MS = 20000,
};

/* Deletes the pods with that label `kubeml.dev/install`, and waits until they are gone. Those that
 * are still there at `late_ms` (of clock_monotonic_ms) are deleted without grace: their nodes may be
 * gone. *count: how many there were. ERR_TIMEOUT names one that stays. */
int kube_end_pods(const kube_config *access, const char *install, int64_t late_ms,
                  int64_t deadline_ms, int *count, err *e);

#endif
