/* crash.h: one line in the log when user code brings the process down.
 *
 * The line names the signal and what was being done; then the process dies by that signal, so that
 * the cluster sees it as well. Code that calls exit(0) or _exit(0) is told likewise, and the status
 * is 1 then: nobody is to take its end for success. */
#ifndef KUBEML_CRASH_H
#define KUBEML_CRASH_H

/* On the calling thread, which gets a stack of its own for it (a stack overflow is a crash too). */
void crash_watch(const char *who);
/* What is being done now; `phase` is a literal. epoch and round -1: none. */
void crash_phase(const char *phase, int epoch, int round);
/* For the program's _exit: what the process is to end with instead, and the line is written. */
int crash_status(int status);
/* An end with another status than 0 is told too. In a job what the code wrote last is what its
 * user is told, and the status by who started the function; here nobody else would. */
void crash_tell_status(void);
/* The code is not run any more: the process may end. */
void crash_over(void);

#endif
