/* store.h: stores records, blobs and datasets. The seam over LMDB, MongoDB and memory.
 *
 * - A record is a JSON object under (collection, key) with a version that is never used twice.
 * - A blob is an immutable byte string with a name: sources, shared objects, models, checkpoints.
 * - A chunk set is the data of a dataset: numbered byte strings under an id, written by one
 * process,
 *   sealed, and from then on only read. dataset.h gives them their meaning.
 *
 * A write that returned 0 is durable: it survives kill -9 and power loss. A write that fails, or
 * whose process dies, leaves nothing that can be seen; the next store_sweep removes its bytes from
 * the disk. Several processes may open the same store at once, and several threads may use one
 * handle. Every function may block on the disk or the database; none waits without bound for
 * another process (a commit waits for the commits before it). Besides the errors named, each may
 * give ERR_IO, ERR_UNAVAILABLE (the database is gone; a retry may help), ERR_CORRUPT and
 * ERR_NOMEM. */
#ifndef KUBEML_STORE_H
#define KUBEML_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/fs.h"

enum {
    STORE_KEY_BYTES = 201,             /* a record's key or a blob's name, with the NUL */
    STORE_COLLECTION_BYTES = 33,       /* with the NUL */
    STORE_ID_BYTES = 33,               /* a chunk set's id, with the NUL */
    STORE_LOCATOR_BYTES = 512,         /* with the NUL */
    STORE_RECORD_BYTES_MAX = 12 << 20, /* MongoDB's documents end at 16 MiB */
    STORE_CHUNK_BYTES_MAX = 12 << 20,
    STORE_LIST_MAX = 1000,      /* records or names a page */
    STORE_LIST_BYTES = 4 << 20, /* of records' text: a page ends after the record that reaches it */
};

typedef struct store store;

/* Opens a store. NULL on error: ERR_UNSUPPORTED for another scheme, and for MongoDB in a build
 * without it; ERR_UNAVAILABLE when no server answers within 10 s. `locator` is one of
 *   lmdb:DIR               a folder, made if it is not there; "lmdb:DIR?map_bytes=N" starts with
 *                          another size of the map, which grows by itself
 *   mongodb://...          a URI with the database's name; docs/guides/mongodb.md has its options
 *   mongodb+srv://...      likewise
 *   memory:                a new, empty store of this process, in tests (store_add_driver) */
store *store_open(const char *locator, err *e);
void store_close(store *s);       /* NULL is fine; close its writers and readers before */
int store_ping(store *s, err *e); /* can a record be read now? */
/* Removes the remains of dead writers: half-written blobs, unpublished chunk sets, slots of dead
 * readers. Data that living processes are writing stays. `removed` (may be NULL) counts. Called at
 * a program's start. */
int store_sweep(store *s, size_t *removed, err *e);
/* The folder of this store for scratch files (fs_scratch_file). */
const char *store_scratch_dir(const store *s);

/* ---- records ---------------------------------------------------------------------------------
 * Keys and collections are made of A-Z a-z 0-9 . _ - and, within keys, '/' (ERR_INVALID). */

#define STORE_NEW ((uint64_t)0) /* as `expected`: there must be no record; ERR_EXISTS */
#define STORE_ANY (UINT64_MAX)  /* as `expected`: any version, or none */

/* Writes a record if its present version is `expected`: otherwise ERR_EXISTS (STORE_NEW),
 * ERR_CONFLICT (another version) or ERR_NOT_FOUND (a version was expected, the record is gone).
 * Borrows `value`, an object. `version` (may be NULL) receives the new version. ERR_LIMIT above
 * STORE_RECORD_BYTES_MAX. */
int store_put(store *s, const char *collection, const char *key, const json_t *value,
              uint64_t expected, uint64_t *version, err *e);
/* A new reference in *value; ERR_NOT_FOUND. `version` may be NULL. */
int store_get(store *s, const char *collection, const char *key, json_t **value, uint64_t *version,
              err *e);
/* ERR_NOT_FOUND, or ERR_CONFLICT when the version is not `expected` (STORE_ANY: any version). */
int store_delete(store *s, const char *collection, const char *key, uint64_t expected, err *e);

typedef struct store_record {
    char *key;
    json_t *value;
    uint64_t version;
} store_record;

typedef struct store_page {
    store_record *records;
    size_t count;
    bool more; /* there are records after the last of the page */
} store_page;

/* The records whose key begins with `prefix` (NULL: all) and comes after `after` (NULL: from the
 * first), in byte order of the keys, at most `limit` (0: STORE_LIST_MAX) and about
 * STORE_LIST_BYTES. One snapshot. Free with store_page_free, also after an error. */
int store_list(store *s, const char *collection, const char *prefix, const char *after,
               size_t limit, store_page *out, err *e);
void store_page_free(store_page *p);
/* Calls `visit` for every record of a collection, in order of the keys, a page at a time. A record
 * that is put meanwhile may be among them or not. `key` and `value` are borrowed for the call. A
 * result of `visit` other than 0 ends the walk and is returned. */
typedef int (*store_visit)(void *context, const char *key, json_t *value, err *e);
int store_walk(store *s, const char *collection, store_visit visit, void *context, err *e);

/* ---- blobs ----------------------------------------------------------------------------------- */

typedef struct blob_writer blob_writer;
typedef struct blob blob;

/* Begins a blob, which does not appear under `name` until blob_commit. */
int store_blob_begin(store *s, const char *name, blob_writer **out, err *e);
int blob_write(blob_writer *w, const void *bytes, size_t len, err *e);
/* Publishes the blob and frees the writer, also on error. ERR_EXISTS: there is a blob of this name,
 * which is untouched. */
int blob_commit(blob_writer *w, err *e);
/* The same, replacing a blob of this name: the name always has the old blob or the new one.
 * (MongoDB has no such step: between two calls that follow each other the name has no blob.) */
int blob_commit_over(blob_writer *w, err *e);
void blob_abort(blob_writer *w); /* NULL is fine */
/* Begins, writes and commits a blob. */
int store_blob_put(store *s, const char *name, const void *bytes, size_t len, err *e);

/* Finds a blob and its size, without the cost of an open. ERR_NOT_FOUND. `bytes` may be NULL. */
int store_blob_find(store *s, const char *name, uint64_t *bytes, err *e);

/* ERR_NOT_FOUND. An open blob stays readable when its name is deleted; a store over the network
 * fetches all of it here. */
int store_blob_open(store *s, const char *name, blob **out, err *e);
void blob_close(blob *b); /* NULL is fine */
uint64_t blob_size(const blob *b);
/* ERR_INVALID beyond the end. */
int blob_read_at(blob *b, uint64_t offset, void *out, size_t len, err *e);
/* A read-only descriptor of the whole blob, for mmap or to pass on. It belongs to the blob: do not
 * close it. */
int blob_fd(blob *b, int *fd, err *e);
/* A path that another process of this host and user can open, valid while the blob is open. */
int blob_path(blob *b, char out[FS_PATH_BYTES], err *e);
/* Appends all of a blob to `out`, whose maximum is the limit. */
int store_blob_read(store *s, const char *name, buf *out, err *e);

int store_blob_delete(store *s, const char *name, err *e); /* ERR_NOT_FOUND */

typedef struct blob_entry {
    char name[STORE_KEY_BYTES];
    uint64_t bytes;
} blob_entry;

/* Names in byte order, as store_list. The caller frees *out. */
int store_blob_list(store *s, const char *prefix, const char *after, size_t limit, blob_entry **out,
                    size_t *count, err *e);

/* ---- chunk sets ------------------------------------------------------------------------------
 * A chunk set is written under an id in small transactions. A record of collection `datasets` names
 * it ("upload": id). A sweep removes a chunk set that no record names and that has no living
 * writer. */

#define STORE_DATASETS "datasets"

typedef struct chunk_writer chunk_writer;
typedef struct chunk_reader chunk_reader;

/* `bytes_hint`: about the size of the set; 0: unknown. `id` has room for STORE_ID_BYTES. */
int store_chunks_begin(store *s, uint64_t bytes_hint, char *id, chunk_writer **out, err *e);
/* Puts each (split, index) once. `bytes` is borrowed for the call. ERR_LIMIT above
 * STORE_CHUNK_BYTES_MAX. */
int chunk_put(chunk_writer *w, uint32_t split, uint32_t index, const void *bytes, size_t len,
              err *e);
/* Puts the text that chunk_reader_info gives; once. */
int chunk_put_info(chunk_writer *w, const char *text, size_t len, err *e);
/* Makes the chunk set durable; nothing can be put afterwards. */
int chunk_seal(chunk_writer *w, err *e);
/* Frees the writer, after chunk_seal and after the record that names the id was put, or may have
 * been put: a later sweep removes a set that no record names. */
void chunk_release(chunk_writer *w);
/* Removes the chunks, when no record can name them, and frees the writer. NULL is fine. */
void chunk_abort(chunk_writer *w);
/* Removes a chunk set whose record is gone. Open readers go on reading. ERR_NOT_FOUND. */
int store_chunks_delete(store *s, const char *id, err *e);
/* The locator for chunk_reader_open, in any process of this host (LMDB) or of the cluster
 * (MongoDB). It may hold a password, of a user that this call makes and that reads this chunk set
 * alone. */
int store_chunks_locator(store *s, const char *id, char out[STORE_LOCATOR_BYTES], err *e);
/* The locator without user and password, for logs. */
void store_redact(const char *locator, char out[STORE_LOCATOR_BYTES]);

/* `locator`: from store_chunks_locator, or a path "/proc/self/fd/N" of a read-only descriptor that
 * was passed on. */
int chunk_reader_open(const char *locator, chunk_reader **out, err *e);
void chunk_reader_close(chunk_reader *r); /* NULL is fine */
/* Gives a chunk's bytes, aligned to at least 16 bytes and valid until chunk_view_release, or the
 * reader's close at the latest. Several threads may call. ERR_NOT_FOUND. */
int chunk_view(chunk_reader *r, uint32_t split, uint32_t index, const void **bytes, size_t *len,
               err *e);
void chunk_view_release(chunk_reader *r, uint32_t split, uint32_t index);
int chunk_reader_info(chunk_reader *r, const char **text, size_t *len, err *e);
/* Announces chunks that will be viewed soon, in this order. A store over the network fetches them
 * ahead, and after them the rest of earlier lists, which may be other threads'. Does not block;
 * chunk_view reports errors. */
void chunk_prefetch(chunk_reader *r, uint32_t split, const uint32_t *indices, size_t count);
/* Whether chunk_prefetch is of any use with this reader. */
bool chunk_prefetches(const chunk_reader *r);
/* The largest size of the scratch file in which this reader stores fetched chunks; 0: it has
 * none. */
uint64_t chunk_reader_scratch_bytes(const chunk_reader *r);
/* The files and ports that a reader opens again while it reads: for the sandbox of its process. */
enum { STORE_REACH_FILES_MAX = 8, STORE_REACH_PORTS_MAX = 48 };
typedef struct store_reach {
    const char *files[STORE_REACH_FILES_MAX + 1];  /* to read; the reader owns them; ends by NULL */
    uint16_t tcp_ports[STORE_REACH_PORTS_MAX + 1]; /* on any host; 0 at the end */
    bool unix_sockets;
} store_reach;
void chunk_reader_reach(const chunk_reader *r, store_reach *out);
/* Whether a chunk_view waits for a store that does not answer. `why` then names the store and the
 * trouble; otherwise it is "". From any thread; does not block. */
bool chunk_reader_waits(chunk_reader *r, char *why, size_t size);

/* ---- users ------------------------------------------------------------------------------------
 * A MongoDB store whose locator names a user makes users with fewer rights. Other stores have no
 * users: any process that reaches the store may use it. */

typedef enum store_use {
    STORE_USE_JOB,  /* a job's kubeml-ps: reads and writes blobs and the records of `history` */
    STORE_USE_READ, /* reads blobs */
} store_use;

/* The locator for store_open in a process that needs `use` and nothing else. It may hold a
 * password, of a user that this call makes. */
int store_locator(store *s, store_use use, char out[STORE_LOCATOR_BYTES], err *e);
/* Drops the user in a locator of store_chunks_locator or store_locator, so that the locator opens
 * nothing any more. Returns 0 if the user is gone already. Deleting a chunk set drops its users. */
int store_revoke(store *s, const char *locator, err *e);
/* Drops the users of all locators except the `count` in `kept`: at a program's start, for locators
 * that a crash has forgotten. `revoked` (may be NULL) counts. */
int store_revoke_others(store *s, const char *const *kept, size_t count, size_t *revoked, err *e);
/* Whether the locator has a user and a password. */
bool store_locator_has_user(const char *locator);

/* ---- for tests ----------------------------------------------------------------------------- */

/* Removes a "mongodb:" store with all its datasets, even if they are in use. ERR_UNSUPPORTED for
 * other stores. */
int store_drop(store *s, err *e);

#endif
