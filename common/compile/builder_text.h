/* builder_text.h: parses the messages of a compiler and a linker. For builder.c alone. */
#ifndef KUBEML_BUILDER_TEXT_H
#define KUBEML_BUILDER_TEXT_H

#include "builder.h"

/* Fills out->text (without the linker's messages about the SDK's symbols, which the runtime
 * resolves) and out->diagnostics, at most BUILDER_DIAGNOSTICS_MAX of them. ERR_NOMEM. */
int builder_text_read(const char *said, size_t len, builder_result *out, err *e);
/* -1 with ERR_INVALID and the first error, "file.c:12:5: error: ... (and 2 more)"; 0 when there is
 * no error. */
int builder_text_error(const builder_result *r, err *e);

#endif
