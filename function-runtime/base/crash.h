/* crash.h: writes one line to the log when user code ends the process.
 *
 * The line names the signal and the phase of the work; then the process dies by that signal, so
 * that the cluster sees it too. If the code calls exit(0) or _exit(0), there is such a line too,
 * and the status becomes 1, so that the end does not pass for success. */
#ifndef KUBEML_CRASH_H
#define KUBEML_CRASH_H

/* Begins. `who` is for the line. The calling thread gets a signal stack of its own, because a stack
 * overflow is a crash too. */
void crash_watch(const char *who);
/* Sets the phase for the line; `phase` is a literal. epoch and round -1: none. */
void crash_phase(const char *phase, int epoch, int round);
/* For the program's _exit: writes the line if there is to be one, and returns the status to end
 * with. */
int crash_status(int status);
/* Makes ends with other statuses than 0 write the line too, for `kubeml run`. In a job the program
 * that started the function reports the status, and the code's last output reaches the user. */
void crash_tell_status(void);
/* User code does not run any more: ends write no line. */
void crash_over(void);

#endif
