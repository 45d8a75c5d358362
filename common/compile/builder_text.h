/* builder_text.h: reads what a compiler and a linker print. The builder's own. */
#ifndef KUBEML_BUILDER_TEXT_H
#define KUBEML_BUILDER_TEXT_H

#include "builder.h"

/* Fills out->text (without the linker's words on the SDK's own symbols, which the runtime resolves)
 * and out->diagnostics, at most BUILDER_DIAGNOSTICS_MAX of them. ERR_NOMEM. */
int builder_text_read(const char *said, size_t len, builder_result *out, err *e);
/* -1 with the first error, "file.c:12:5: error: ..., and 2 more", ERR_INVALID; 0 when there is
 * none. */
int builder_text_error(const builder_result *r, err *e);

#endif
