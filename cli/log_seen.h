/* log_seen.h: which lines of a job's log are new, when it is read again from its beginning.
 *
 * The lines of one process ("function-0  | ...") come in their order whenever they are read, among
 * those of others in any. So of each process it is known how many bytes of its log were read: its
 * lines, and what the log itself says is left out. Where it does not say how much, the time of the
 * last line and the count of lines since say what is new. */
#ifndef KUBEML_LOG_SEEN_H
#define KUBEML_LOG_SEEN_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"

typedef struct log_seen log_seen;

log_seen *log_seen_open(err *e); /* NULL: no memory */
void log_seen_close(log_seen *s); /* NULL is fine */

/* Whether the next line, without its newline, was not there at an earlier reading. */
bool log_seen_is_new(log_seen *s, const char *line, size_t len);
/* The log is read from its beginning. */
void log_seen_rewind(log_seen *s);

#endif
