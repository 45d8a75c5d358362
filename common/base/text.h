/* text.h: text that is UTF-8, whatever went into it and wherever it was cut.
 *
 * Output of user code may be in any encoding, and a full buffer may end within a character. JSON
 * takes neither: jansson refuses to build a message with such a text. So a text for others is put
 * together with text_print. An error's message (err.h) and texts out of JSON are UTF-8 already. */
#ifndef KUBEML_TEXT_H
#define KUBEML_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

bool text_valid(const char *text, size_t len); /* UTF-8 without NUL */

/* Makes `text` UTF-8, in place: drops a character that the end cuts, and puts a '?' for each other
 * run of bytes that is no character. */
void text_mend(char *text);

/* As snprintf and vsnprintf, but `out` is UTF-8 afterwards. `size` is not 0. */
void text_print(char *out, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void text_vprint(char *out, size_t size, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));

#endif
