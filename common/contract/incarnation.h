/* incarnation.h: how a function's processes are numbered.
 *
 * One process at a time fills a function index, its incarnation; a lost process is followed by the
 * next number. The generation g of a job's kubeml-ps is how often it was started before; the
 * controller counts. The incarnations of generation g begin at g * ROUND_GENERATION_STEP. So no
 * process of an earlier kubeml-ps is taken for a present function, and the controller reads a pod's
 * generation from its label. */
#ifndef KUBEML_INCARNATION_H
#define KUBEML_INCARNATION_H

enum { ROUND_GENERATION_STEP = 10000 };

#endif
