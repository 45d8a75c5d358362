/* failpoint.h: named places where a test makes a program die, stop or wait.
 *
 * KUBEML_FAILPOINT="name[:count[:action]][,...]" arms up to four: at the count-th passage (default
 * 1) the process kills itself with SIGKILL (action "kill", the default), stops itself with SIGSTOP
 * ("stop"), or the thread waits until the file below is removed ("wait"; a minute at most). With
 * KUBEML_FAILPOINT_FILE the file's creation comes first, and a file that already
 * exists disarms: several processes with one environment fire once, and the test sees that they
 * did. Without the variable a passage costs one load and a branch. */
#ifndef KUBEML_FAILPOINT_H
#define KUBEML_FAILPOINT_H

extern int failpoint_armed; /* 0 after failpoint_open found nothing to do */

/* Reads the environment; once, before threads start. `own` (NULL: any): how the names begin that
 * are this program's, where it shares the environment and the library with others that are
 * meant. */
void failpoint_open(const char *own);
void failpoint_pass(const char *name);

static inline void failpoint(const char *name)
{
    if (__builtin_expect(failpoint_armed, 0))
        failpoint_pass(name);
}

#endif
