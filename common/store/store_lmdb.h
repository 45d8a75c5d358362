/* store_lmdb.h: declarations that the files of the LMDB store share. For store_lmdb*.c alone.
 *
 *     DIR/records.mdb         all records, one environment for all processes (store_lmdb.c)
 *     DIR/records.writer      the lock for writing records (store_lmdb_writer.c)
 *     DIR/blobs/NAME          a blob, '/' written as '+' (store_lmdb_blobs.c)
 *     DIR/datasets/ID/        data.mdb, a chunk set (store_lmdb_chunks.c), and `lock`
 *     DIR/tmp/                blobs being written
 *
 * The writer of a blob or chunk set holds a lock (flock) on the blob's file or the set's `lock`
 * until the data is whole and named. If another process can take the lock, there is no living
 * writer: the kernel releases the lock when a process dies, however it dies. */
#ifndef KUBEML_STORE_LMDB_H
#define KUBEML_STORE_LMDB_H

#include <lmdb.h>
#include <pthread.h>

#include "store_driver.h"

typedef struct lmdb_store {
    store base;
    char dir[FS_PATH_BYTES], tmp_dir[FS_PATH_BYTES];
    struct lmdb_records *records; /* shared by all handles of one folder in this process */
} lmdb_store;

/* Sets `e` from LMDB's status; `what` is the file's path. Returns -1. */
int lmdb_error(err *e, int status, const char *what);

/* Takes the lock on an open file if it is free and the file still has a name: 1; else 0. */
int lmdb_try_lock(int fd);

/* After an error on one of the store's own files or folders: turns ERR_NOT_FOUND into ERR_IO (a
 * retry may help), because the caller's name is not at fault. Returns -1. */
int lmdb_own(err *e);

/* The prefix of a new file or folder until its writer has the lock on it, so that no sweep finds
 * data of a living writer without a lock. */
#define LMDB_NEW ".new."
/* A descriptor that a writer holds open while it makes something in the folder, or -1. While no
 * process holds it, names with LMDB_NEW belong to dead writers. */
int lmdb_making(const char *folder, err *e);
/* Removes the LMDB_NEW names of dead writers, and counts them; does nothing while a process holds
 * lmdb_making. */
int lmdb_sweep_left(const char *folder, size_t *removed, err *e);

int lmdb_blob_begin(store *s, const char *name, blob_writer **out, err *e);
int lmdb_blob_write(blob_writer *w, const void *bytes, size_t len, err *e);
int lmdb_blob_commit(blob_writer *w, bool over, err *e);
void lmdb_blob_abort(blob_writer *w);
int lmdb_blob_open(store *s, const char *name, blob **out, err *e);
void lmdb_blob_close(blob *b);
int lmdb_blob_read_at(blob *b, uint64_t offset, void *out, size_t len, err *e);
int lmdb_blob_fd(blob *b, int *fd, err *e);
int lmdb_blob_path(blob *b, char out[FS_PATH_BYTES], err *e);
int lmdb_blob_delete(store *s, const char *name, err *e);
int lmdb_blob_list(store *s, const char *prefix, const char *after, size_t limit, blob_entry **out,
                   size_t *count, err *e);
int lmdb_sweep_blobs(lmdb_store *s, size_t *removed, err *e);

int lmdb_chunks_begin(store *s, uint64_t bytes_hint, char *id, chunk_writer **out, err *e);
int lmdb_chunk_put(chunk_writer *w, uint32_t split, uint32_t index, const void *bytes, size_t len,
                   err *e);
int lmdb_chunk_put_info(chunk_writer *w, const char *text, size_t len, err *e);
int lmdb_chunk_seal(chunk_writer *w, err *e);
void lmdb_chunk_release(chunk_writer *w);
void lmdb_chunk_abort(chunk_writer *w);
int lmdb_chunks_delete(store *s, const char *id, err *e);
int lmdb_chunks_locator(store *s, const char *id, char out[STORE_LOCATOR_BYTES], err *e);
int lmdb_sweep_chunks(lmdb_store *s, size_t *removed, err *e);

int lmdb_reader_open(const char *rest, chunk_reader **out, err *e);
void lmdb_reader_close(chunk_reader *r);
int lmdb_reader_view(chunk_reader *r, uint32_t split, uint32_t index, const void **bytes,
                     size_t *len, err *e);
int lmdb_reader_info(chunk_reader *r, const char **text, size_t *len, err *e);

#endif
