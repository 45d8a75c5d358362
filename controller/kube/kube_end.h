/* kube_end.h: ends what an installation leaves when its controllers are gone.
 *
 * The pods of a job belong to its TrainJob, so that they outlive a controller and an upgrade of the
 * chart. An uninstall leaves the TrainJob, and so its pods. The chart's last Job ends them. */
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

/* Deletes the pods with that label `kubeml.dev/install`, and waits until they are gone. Pods that
 * are still there at `late_ms` (of clock_monotonic_ms) are deleted without grace: their nodes may
 * be gone. *count: how many there were. ERR_TIMEOUT names a pod that stays. */
int kube_end_pods(const kube_config *access, const char *install, int64_t late_ms,
                  int64_t deadline_ms, int *count, err *e);

#endif
