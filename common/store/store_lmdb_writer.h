/* store_lmdb_writer.h: the lock for writing records. For store_lmdb.c alone.
 *
 * LMDB lets one process write at a time and makes the others wait without a deadline: a writer that
 * is stopped (SIGSTOP, a debugger, a frozen control group) would block every other writer. So a
 * writer takes this lock first, where the wait has a deadline. LMDB's own lock still protects the
 * records: if this lock fails to exclude a process, only the deadline is lost.
 *
 * The lock is a robust mutex in a file that all processes map, DIR/records.writer. A writer that
 * dies gives it up. A file of an earlier boot, whose owner cannot be asked any more, is
 * replaced. */
#ifndef KUBEML_STORE_LMDB_WRITER_H
#define KUBEML_STORE_LMDB_WRITER_H

#include <stdint.h>

#include "common/base/err.h"

typedef struct lmdb_writer lmdb_writer;

/* Maps `path`, made where it is missing. NULL: ERR_IO, ERR_NOMEM. */
lmdb_writer *lmdb_writer_open(const char *path, err *e);
void lmdb_writer_close(lmdb_writer *w); /* NULL is fine */

/* Takes the lock, waiting at most until `deadline_ms` (clock_monotonic_ms): then ERR_UNAVAILABLE,
 * whose message names the process that has the lock. */
int lmdb_writer_lock(lmdb_writer *w, int64_t deadline_ms, err *e);
void lmdb_writer_unlock(lmdb_writer *w); /* by the thread that locked it */

#endif
