/* text.h: text that is UTF-8, whatever went into it and wherever it was cut.
 *
 * What user code says may be in any encoding, and a buffer ends where it ends, within a character
 * too. JSON takes neither: a message with such a text in it would not be made at all. So whoever
 * puts a text together that others are told prints it with text_print. An error's message (err.h)
 * and what comes out of JSON are UTF-8 already. */
#ifndef KUBEML_TEXT_H
#define KUBEML_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

bool text_valid(const char *text, size_t len); /* UTF-8 without NUL */

/* Makes UTF-8 of it, in place: a character that the end cuts goes, and a '?' stands for each run of
 * bytes elsewhere that is none. */
void text_mend(char *text);

/* As snprintf and vsnprintf; what lies in `out` is UTF-8. `size` is not 0. */
void text_print(char *out, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void text_vprint(char *out, size_t size, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));

#endif
