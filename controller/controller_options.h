/* controller_options.h: the command line of kubeml-controller. */
#ifndef KUBEML_CONTROLLER_OPTIONS_H
#define KUBEML_CONTROLLER_OPTIONS_H

#include "controller.h"

/* What the program needs beside the controller's configuration; texts are argv's. */
typedef struct controller_options {
    int ready_fd;           /* its URL is written there when it answers; -1: nowhere */
    const char *lease_name; /* the controller with this Lease leads; NULL: there is only one */
    const char *end_pods;   /* only end the pods of this installation; NULL */
    bool end_left;          /* only end what a killed controller has left running */
    bool sandbox;           /* around the compiler */
} controller_options;

/* Sets defaults, from the environment too, and then the options, in *c (zeroed before; the caller
 * frees its tokens and builder_token) and *o. -1, with a line on stderr, for wrong usage. --help
 * and --version end the process. */
int controller_options_parse(controller_config *c, controller_options *o, int argc, char **argv);

#endif
