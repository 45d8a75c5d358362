/* failpoint.h: named places where a test makes a program die, stop or wait.
 *
 * KUBEML_FAILPOINT="name[:count[:action]][,...]" arms up to four: at the count-th passage (default
 * 1) the process kills itself with SIGKILL (action "kill", the default), stops itself with SIGSTOP
 * ("stop"), or the thread waits until the file below is removed ("wait"; a minute at most).
 *
 * KUBEML_FAILPOINT_FILE names a file that the process creates before it fires. If the file exists
 * already, the process does not fire: of several processes with one environment one fires, and the
 * test sees from the file that it did. Without KUBEML_FAILPOINT a passage costs one load and a
 * branch. */
#ifndef KUBEML_FAILPOINT_H
#define KUBEML_FAILPOINT_H

extern int failpoint_armed; /* 0 after failpoint_open found nothing to do */

/* Reads the environment; call it once, before threads start. `own` (NULL: arms any name): arms only
 * names that begin with it, for a program that shares its environment with the programs that the
 * other names are for. */
void failpoint_open(const char *own);
void failpoint_pass(const char *name);

static inline void failpoint(const char *name)
{
    if (__builtin_expect(failpoint_armed, 0))
        failpoint_pass(name);
}

#endif
