/* redis_program.h: where a redis-server is looked for, and what is said where there is none: by
 * kubeml-ps, which starts it, and before by who is asked for a job that needs it. */
#ifndef KUBEML_REDIS_PROGRAM_H
#define KUBEML_REDIS_PROGRAM_H

#include "common/base/err.h"

#define REDIS_PROGRAM "redis-server"

/* Can it be run? As execlp looks for it: in PATH, where there is no slash in it. ERR_NOT_FOUND. */
int redis_program_find(const char *program, err *e);

#endif
