/* incarnation.h: the numbers of a function's processes, which tell an old process from its successor.
 *
 * A function index is filled by one process at a time, its incarnation; a lost one is followed by
 * the next number. The numbers of kubeml-ps's generation g (how often the job's kubeml-ps was
 * started before; the controller counts) begin at g * ROUND_GENERATION_STEP. Nothing that is left of
 * an earlier kubeml-ps is ever taken for a present function so, and the controller reads from a
 * pod's label which generation it belongs to. */
#ifndef KUBEML_INCARNATION_H
#define KUBEML_INCARNATION_H

enum { ROUND_GENERATION_STEP = 10000 };

#endif
