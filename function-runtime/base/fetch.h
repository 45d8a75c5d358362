/* fetch.h: what a pod gets where the controller's files are not its own: from the platform's store,
 * or from the controller's message.
 *
 * Called before user code is loaded: the locator may hold a password, and what is fetched is all
 * that stays. Blocks on the store. */
#ifndef KUBEML_FUNCTION_FETCH_H
#define KUBEML_FUNCTION_FETCH_H

#include "common/base/err.h"

enum { FETCH_OBJECT_BYTES_MAX = 64 << 20 };

/* *object_fd is a shared object in memory, for program_open_fd, to close. Wipes `locator`. `model`
 * may be NULL; otherwise *fd is a descriptor of that blob's bytes, to close. `object` may be NULL
 * or of the zoo: then *object_fd stays what it is. After an error neither is open. ERR_NOT_FOUND,
 * ERR_UNAVAILABLE, ERR_LIMIT. */
int fetch(char *locator, const char *object, int *object_fd, const char *model, int *fd, err *e);

/* The same from an object's bytes in base64. ERR_INVALID, ERR_LIMIT. */
int fetch_given(const char *text, int *object_fd, err *e);

#endif
