/* policy.h: how many functions a job's next epoch gets.
 *
 * KubeML's elastic policy: one more function when the epoch took at most 1.05 times the last one,
 * one fewer when it took 1.2 times and more, otherwise the same. Never fewer than one, never more
 * than the ceiling, which is what the job has and the free slots. */
#ifndef KUBEML_POLICY_H
#define KUBEML_POLICY_H

/* `last_seconds` <= 0: there was no epoch before; then one more, as in KubeML. */
int policy_elastic(int parallelism, double seconds, double last_seconds, int ceiling);

#endif
