/* cpu_threads.h: a few threads that compute one thing together and wait in between.
 *
 * The caller takes part. Waiting threads first spin for a short while, because two pieces of one
 * training step follow within microseconds, and then sleep. */
#ifndef KUBEML_CPU_THREADS_H
#define KUBEML_CPU_THREADS_H

#include "common/base/err.h"

typedef struct cpu_threads cpu_threads;
typedef void cpu_work(void *arg, int thread, int threads);

int cpu_threads_start(int threads, cpu_threads **out, err *e); /* ERR_NOMEM, ERR_UNAVAILABLE */
void cpu_threads_stop(cpu_threads *t);                         /* NULL is allowed */
int cpu_threads_count(const cpu_threads *t);

/* Runs work(arg, i, count) once for each i in [0, count), on the i-th thread (0: the caller) unless
 * another thread is free earlier, and returns when all are done. Never fails. */
void cpu_threads_run(cpu_threads *t, cpu_work *work, void *arg);

#endif
