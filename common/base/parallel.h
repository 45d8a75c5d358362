/* parallel.h: one loop, shared by a few threads for as long as it lasts.
 *
 * For work on whole model blocks (hashing, copying, merging), which is rare and long enough to pay
 * for starting threads. Which thread does which index is left open: results must not depend on it.
 */
#ifndef KUBEML_PARALLEL_H
#define KUBEML_PARALLEL_H

#include <stddef.h>

enum { PARALLEL_THREADS_MAX = 64 };

/* Calls work(i, user) once for every i in [0, count), from the caller's and up to threads - 1
 * further threads, and returns when all are done. Fewer threads are used when some cannot be
 * started. */
void parallel_for(size_t count, int threads, void (*work)(size_t i, void *user), void *user);
/* Processors that this process may use at once, at least 1: those that it may run on, and no more
 * than its control group is given the time of, which the first call finds out. */
int parallel_cores(void);
/* How many processors' time `group` of the control groups (v2) mounted at `root` has by its
 * cpu.max, and by those of the groups that it is in: rounded down, at least 1; INT_MAX: no limit.
 */
int parallel_quota(const char *root, const char *group);

#endif
