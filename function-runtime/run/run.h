/* run.h: `kubeml run`: trains the file that one would upload, in one process, without the
 * platform. */
#ifndef KUBEML_RUN_H
#define KUBEML_RUN_H

/* argv[0] is "run". Returns the exit status: 0 done, 1 failed, 2 wrong usage. */
int run_command(int argc, char **argv);

#endif
