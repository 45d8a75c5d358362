/* unsandboxed_thread.h: a thread that was started before the sandbox, and which its walls around
 * files and ports therefore do not hold: for a library that opens what it needs only when it is
 * used, and then nobody knows what. The walls around calls hold it (sandbox.h). One call at a time,
 * for the one thread that asks and waits. */
#ifndef KUBEML_UNSANDBOXED_THREAD_H
#define KUBEML_UNSANDBOXED_THREAD_H

#include "common/base/err.h"

typedef struct unsandboxed_thread unsandboxed_thread;

int unsandboxed_thread_open(unsandboxed_thread **out, err *e);
/* Waits for its end. NULL is fine. */
void unsandboxed_thread_close(unsandboxed_thread *o);
/* Calls `what` on that thread, and gives back what it returns; with NULL on this one. */
int unsandboxed_thread_run(unsandboxed_thread *o, int (*what)(void *of, err *e), void *of, err *e);

#endif
