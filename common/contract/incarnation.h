/* incarnation.h: numbers a function's processes.
 *
 * A function index has one process at a time. The incarnation is the number of that process; the
 * replacement of a lost process has the next number. The controller counts the starts of a job's
 * kubeml-ps: its generation g is the number of earlier starts. The incarnations of generation g
 * begin at g * ROUND_GENERATION_STEP. So no process of an earlier kubeml-ps is taken for a present
 * function, and the controller reads a pod's generation from its label. */
#ifndef KUBEML_INCARNATION_H
#define KUBEML_INCARNATION_H

enum { ROUND_GENERATION_STEP = 10000 };

#endif
