/* jsontext.h: JSON as text in a buffer, whole or not at all.
 *
 * Jansson 2.14's json_dumps may return a text with a hole when memory runs out; here that is
 * ERR_NOMEM. JSON that will be read again is written through this function. */
#ifndef KUBEML_JSONTEXT_H
#define KUBEML_JSONTEXT_H

#include <jansson.h>

#include "buf.h"

/* Appends `value` as text, with jansson's `flags`. ERR_LIMIT at the buffer's maximum, ERR_NOMEM;
 * after an error the buffer may hold a part of the text. */
int jsontext_append(buf *b, const json_t *value, size_t flags, err *e);

#endif
