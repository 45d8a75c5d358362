/* parallel.h: one loop, shared by a few threads that are started for it.
 *
 * For work on whole model blocks (hashing, copying, merging), which is rare and long enough to pay
 * for starting threads. Any thread may run any index: results must not depend on it. */
#ifndef KUBEML_PARALLEL_H
#define KUBEML_PARALLEL_H

#include <stddef.h>

enum { PARALLEL_THREADS_MAX = 64 };

/* Calls work(i, user) once for every i in [0, count), from the caller's and up to threads - 1
 * further threads, and returns when all calls are done. Uses fewer threads when some cannot be
 * started. */
void parallel_for(size_t count, int threads, void (*work)(size_t i, void *user), void *user);
/* Processors that this process may use at once, at least 1: the size of its affinity mask, at most
 * the CPU quota of its control group. The first call reads the quota. */
int parallel_cores(void);
/* The CPU quota in processors of `group`, under the control groups (v2) mounted at `root`: the
 * least cpu.max of the group and its ancestors, rounded down, at least 1; INT_MAX: no limit. */
int parallel_quota(const char *root, const char *group);

#endif
