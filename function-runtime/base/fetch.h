/* fetch.h: gets the code and the model for a pod that does not see the controller's files: from the
 * platform's store, or from the controller's message.
 *
 * Call before user code is loaded: the locator may hold a password, and only the fetched bytes stay
 * in the process. Blocks on the store. */
#ifndef KUBEML_FUNCTION_FETCH_H
#define KUBEML_FUNCTION_FETCH_H

#include "common/base/err.h"

enum { FETCH_OBJECT_BYTES_MAX = 64 << 20 };

/* Sets *object_fd to a shared object in memory, for program_open_fd. `object` may be NULL or of the
 * zoo: then *object_fd does not change. `model` may be NULL; otherwise *fd becomes a descriptor of
 * that blob's bytes. The caller closes both; after an error neither is open. Wipes `locator`.
 * ERR_NOT_FOUND, ERR_UNAVAILABLE, ERR_LIMIT. */
int fetch(char *locator, const char *object, int *object_fd, const char *model, int *fd, err *e);

/* Sets *object_fd from an object's bytes in base64. ERR_INVALID, ERR_LIMIT. */
int fetch_given(const char *text, int *object_fd, err *e);

#endif
