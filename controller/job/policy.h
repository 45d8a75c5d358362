/* policy.h: how many functions a job's next epoch gets.
 *
 * KubeML's elastic policy: one more function when the epoch took at most 1.05 times the reference,
 * one fewer when it took 1.2 times and more, otherwise the same. Never fewer than one, never more
 * than the ceiling, which is what the job has and the free slots.
 *
 * The reference is the epoch before the last function was added: what is judged is whether that
 * was worth it, and not how two epochs with the same functions differ by chance. As in KubeML it
 * stays while the number does. A function fewer makes the next epoch slower, as is to be expected:
 * then there is none. */
#ifndef KUBEML_POLICY_H
#define KUBEML_POLICY_H

/* `reference_seconds` 0: there is none; then one more, as in KubeML. */
int policy_elastic(int parallelism, double seconds, double reference_seconds, int ceiling);
/* The reference from then on, `next` being what the job has got. */
double policy_reference(int parallelism, double seconds, double reference_seconds, int next);

#endif
