/* store_lmdb_writer.h: who may write the records next. For store_lmdb.c alone.
 *
 * LMDB lets one process write at a time and makes the others wait without a deadline: a writer that
 * is stopped (SIGSTOP, a debugger, a frozen control group) would hold up everybody. So its turn is
 * taken here first, where the wait has an end. LMDB's own lock stays the one that keeps the records
 * whole: should this one fail to exclude somebody, the worst is that wait.
 *
 * The turn is a robust mutex in a file that all processes map, DIR/records.writer. A writer that
 * dies gives it up. A file of an earlier boot, whose owner nobody can ask any more, is replaced. */
#ifndef KUBEML_STORE_LMDB_WRITER_H
#define KUBEML_STORE_LMDB_WRITER_H

#include <stdint.h>

#include "common/base/err.h"

typedef struct lmdb_writer lmdb_writer;

/* Maps `path`, made where it is missing. NULL: ERR_IO, ERR_NOMEM. */
lmdb_writer *lmdb_writer_open(const char *path, err *e);
void lmdb_writer_close(lmdb_writer *w); /* NULL is fine */

/* Blocks until it is this thread's turn, at most until `deadline_ms` (clock_monotonic_ms): then
 * ERR_UNAVAILABLE, which names the process whose turn it is. */
int lmdb_writer_lock(lmdb_writer *w, int64_t deadline_ms, err *e);
void lmdb_writer_unlock(lmdb_writer *w); /* by the thread that locked it */

#endif
