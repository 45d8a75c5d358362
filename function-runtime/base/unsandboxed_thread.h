/* unsandboxed_thread.h: a thread that starts before the sandbox, whose limits on files and ports
 * therefore do not hold for it. It is for a library that opens files and ports only when it is
 * used, and not only known ones. The sandbox's limits on system calls hold for the thread too
 * (sandbox.h). One call at a time, for the one thread that asks and waits. */
#ifndef KUBEML_UNSANDBOXED_THREAD_H
#define KUBEML_UNSANDBOXED_THREAD_H

#include "common/base/err.h"

typedef struct unsandboxed_thread unsandboxed_thread;

int unsandboxed_thread_open(unsandboxed_thread **out, err *e);
/* Ends the thread, and waits for its end. NULL is fine. */
void unsandboxed_thread_close(unsandboxed_thread *o);
/* Calls `what` on that thread, and returns its result. `o` NULL: on the calling thread. */
int unsandboxed_thread_run(unsandboxed_thread *o, int (*what)(void *of, err *e), void *of, err *e);

#endif
