/* name.h: the names of jobs, functions and datasets.
 *
 * A name has 1 to 63 characters of A-Z a-z 0-9 . _ -, the first a letter or digit. So it needs no
 * quoting as a file name, in a key of Redis, in a URL, and (in lower case) in the name of a
 * Kubernetes object. */
#ifndef KUBEML_NAME_H
#define KUBEML_NAME_H

#include "err.h"

enum { NAME_BYTES = 64 }; /* with the NUL */

/* ERR_INVALID, "dataset name ...", for `kind` "dataset". NULL is no valid name either. */
int name_check(const char *kind, const char *name, err *e);

#endif
