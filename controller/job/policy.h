/* policy.h: the number of functions of a job's next epoch.
 *
 * KubeML's elastic policy: one more function if the epoch took at most 1.05 times the reference,
 * one fewer if it took at least 1.2 times the reference, otherwise the same number. Never fewer
 * than one, never more than the ceiling: the functions that the job has, and the free slots.
 *
 * The reference is the time of the epoch before the last function was added. So the policy judges
 * whether that function was worth it, and not a chance difference between two epochs with the same
 * functions. As in KubeML, the reference stays while the number of functions does. There is no
 * reference after a function was removed, since the next epoch is slower anyway. */
#ifndef KUBEML_POLICY_H
#define KUBEML_POLICY_H

/* Functions of the next epoch. `reference_seconds` 0: there is none; then one more, as in
 * KubeML. */
int policy_elastic(int parallelism, double seconds, double reference_seconds, int ceiling);
/* The reference for the next epoch, which has `next` functions. */
double policy_reference(int parallelism, double seconds, double reference_seconds, int next);

#endif
