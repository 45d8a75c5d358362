/* name.h: what a job, function or dataset may be called.
 *
 * 1 to 63 characters of A-Z a-z 0-9 . _ -, the first a letter or digit: such a name is a file name,
 * a key of Redis, a part of a URL and (in lower case) of a Kubernetes object without any quoting.
 */
#ifndef KUBEML_NAME_H
#define KUBEML_NAME_H

#include "err.h"

enum { NAME_BYTES = 64 }; /* with the NUL */

/* ERR_INVALID, "dataset name ...", for `kind` "dataset". A NULL name is refused too. */
int name_check(const char *kind, const char *name, err *e);

#endif
