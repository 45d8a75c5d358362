/* infer.h: the runtimes that serve trained models for /infer. */
#ifndef KUBEML_CONTROLLER_INFER_H
#define KUBEML_CONTROLLER_INFER_H

#include "controller/controller.h"

/* NULL: no memory. */
infer *infer_open(controller *c);
void infer_close(infer *i); /* NULL is fine */
void infer_reap(infer *i);  /* ends runtimes that have been idle for long */

#endif
