/* mutation.h: deliberate mistakes, so that the simulator can be shown to find them.
 *
 * MUTATE(n, original, mutant) is `original`. Only for the simulator an object is compiled with
 * -DMUTATION=n, where it is `mutant`; those objects are linked into nothing but mutant-n. */
#ifndef KUBEML_MUTATION_H
#define KUBEML_MUTATION_H

#ifdef MUTATION
#define MUTATE(n, original, mutant) ((n) == MUTATION ? (mutant) : (original))
#else
#define MUTATE(n, original, mutant) (original)
#endif

#endif
