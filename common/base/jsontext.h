/* jsontext.h: JSON as text in a buffer, whole or not at all.
 *
 * Jansson 2.14's json_dumps gives out a text with a hole when memory is gone at the wrong moment;
 * here that is ERR_NOMEM. What is written to be read again goes through this. */
#ifndef KUBEML_JSONTEXT_H
#define KUBEML_JSONTEXT_H

#include <jansson.h>

#include "buf.h"

/* Appends `value` with jansson's `flags`. ERR_LIMIT at the buffer's maximum, ERR_NOMEM; the buffer
 * may then hold a part of it. */
int jsontext_append(buf *b, const json_t *value, size_t flags, err *e);

#endif
