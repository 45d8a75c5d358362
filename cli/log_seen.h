/* log_seen.h: finds the new lines when a job's log is read again from its beginning.
 *
 * The lines of one process ("function-0  | ...") always come in the same order, but their order
 * among other processes' lines varies. So this module counts for each process the bytes of its log
 * that were read: its lines, and the bytes that the log reports as left out. Where the log does not
 * report how many bytes it left out, a line is new by the latest time in the log, and by the count
 * of lines since that time. */
#ifndef KUBEML_LOG_SEEN_H
#define KUBEML_LOG_SEEN_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"

typedef struct log_seen log_seen;

log_seen *log_seen_open(err *e); /* NULL: no memory */
void log_seen_close(log_seen *s); /* NULL is fine */

/* Whether the next line, without its newline, is new since the earlier readings. */
bool log_seen_is_new(log_seen *s, const char *line, size_t len);
/* Begins a new reading of the log, from its beginning. */
void log_seen_rewind(log_seen *s);

#endif
