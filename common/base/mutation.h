/* mutation.h: deliberate mistakes, so that the simulator can be shown to find them.
 *
 * MUTATE(n, original, mutant) is `original`. The simulator's build alone compiles an object
 * with -DMUTATION=n, where it is `mutant`; that object is linked into nothing but mutant-n. */
#ifndef KUBEML_MUTATION_H
#define KUBEML_MUTATION_H

#ifdef MUTATION
#define MUTATE(n, original, mutant) ((n) == MUTATION ? (mutant) : (original))
#else
#define MUTATE(n, original, mutant) (original)
#endif

#endif
