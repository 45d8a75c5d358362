/* mutation.h: deliberate mistakes, so that the simulator can be shown to find them.
 *
 * MUTATE(n, original, mutant) is `original`. Only the simulator's build compiles an object with
 * -DMUTATION=n, where it is `mutant`, and links that object into the program mutant-n alone. */
#ifndef KUBEML_MUTATION_H
#define KUBEML_MUTATION_H

#ifdef MUTATION
#define MUTATE(n, original, mutant) ((n) == MUTATION ? (mutant) : (original))
#else
#define MUTATE(n, original, mutant) (original)
#endif

#endif
