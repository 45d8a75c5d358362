/* outside.h: a thread that was started before the sandbox, and which its walls around files and
 * ports therefore do not hold: for a library that opens what it needs only when it is used, and
 * then nobody knows what. The walls around calls hold it (sandbox.h). One call at a time, for the
 * one thread that asks and waits. */
#ifndef KUBEML_OUTSIDE_H
#define KUBEML_OUTSIDE_H

#include "common/base/err.h"

typedef struct outside outside;

int outside_open(outside **out, err *e);
/* Waits for its end. NULL is fine. */
void outside_close(outside *o);
/* Calls `what` on that thread, and gives back what it returns; with NULL on this one. */
int outside_run(outside *o, int (*what)(void *of, err *e), void *of, err *e);

#endif
