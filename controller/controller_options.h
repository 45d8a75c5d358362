/* controller_options.h: what the command line of kubeml-controller says. */
#ifndef KUBEML_CONTROLLER_OPTIONS_H
#define KUBEML_CONTROLLER_OPTIONS_H

#include "controller.h"

/* What the program itself wants to know beside the controller's configuration; texts are argv's. */
typedef struct controller_options {
    int ready_fd;           /* where its URL is written when it answers; -1: nowhere */
    const char *lease_name; /* of several controllers that of this Lease leads; NULL: it is alone */
    const char *end_pods;   /* only end the pods of this installation; NULL */
    bool end_left;          /* only end what a controller that was killed has left */
    bool sandbox;           /* around the compiler */
} controller_options;

/* Defaults, from the environment too, and then the options, into *c (zeroed before; its tokens and
 * builder_token are the caller's to free) and *o. -1, with a line on stderr, for wrong usage.
 * --help and --version end the process. */
int controller_options_parse(controller_config *c, controller_options *o, int argc, char **argv);

#endif
