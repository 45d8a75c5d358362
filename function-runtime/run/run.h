/* run.h: `kubeml run`: the same file that would be uploaded trains in one process, without
 * platform. */
#ifndef KUBEML_RUN_H
#define KUBEML_RUN_H

/* argv[0] is "run". Returns the exit status: 0 done, 1 failed, 2 wrong usage. */
int run_command(int argc, char **argv);

#endif
