/* store.h: where records, blobs and datasets are kept. The seam over LMDB, MongoDB and memory.
 *
 * - A record is a JSON object under (collection, key) with a version that is never used twice.
 * - A blob is an immutable byte string with a name: sources, shared objects, models, checkpoints.
 * - A chunk set is what a dataset is made of: numbered byte strings under an id, written by one
 *   process, sealed, and from then on only read. dataset.h gives them their meaning.
 *
 * What returns 0 is durable: it survives kill -9 and power loss. What fails or dies half-way leaves
 * nothing that can be seen; what it leaves on disk goes with the next store_sweep. Several
 * processes may open the same store at once, and several threads may use one handle. Every function
 * may block on the disk or the database; none waits without bound for another process (a commit
 * waits for the commits before it). Besides the errors named, each may give ERR_IO, ERR_UNAVAILABLE
 * (the database is gone; a retry may help), ERR_CORRUPT and ERR_NOMEM. */
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
    STORE_LIST_BYTES = 4 << 20, /* of records' text: the one that reaches it is a page's last */
};

typedef struct store store;

/* `locator` is "lmdb:DIR" (made if it is not there; "lmdb:DIR?map_bytes=N" starts with a smaller or
 * larger map, which grows by itself), "memory:" (a fresh, empty store of this process), or a URI
 * "mongodb://..." or "mongodb+srv://..." with the database's name (docs/guides/mongodb.md has its
 * options). ERR_UNSUPPORTED for another scheme, and for MongoDB in a build without it;
 * ERR_UNAVAILABLE when no server answers within 10 s. NULL on error. */
store *store_open(const char *locator, err *e);
void store_close(store *s);       /* NULL is fine; writers and readers are closed before */
int store_ping(store *s, err *e); /* can a record be read now? */
/* Removes what dead writers left: half-written blobs, unpublished chunk sets, slots of dead
 * readers. What living processes are writing stays. `removed` (may be NULL) counts. For a program's
 * start. */
int store_sweep(store *s, size_t *removed, err *e);
/* A folder of this store for scratch files (fs_scratch_file). */
const char *store_scratch_dir(const store *s);

/* ---- records ---------------------------------------------------------------------------------
 * Keys and collections are made of A-Z a-z 0-9 . _ - and, within keys, '/' (ERR_INVALID). */

#define STORE_NEW ((uint64_t)0) /* as `expected`: there must be none; ERR_EXISTS */
#define STORE_ANY (UINT64_MAX)  /* as `expected`: whatever is there */

/* Writes if the present version is `expected`: otherwise ERR_EXISTS (STORE_NEW), ERR_CONFLICT
 * (another version) or ERR_NOT_FOUND (a version was expected, the record is gone). Borrows `value`,
 * an object. `version` (may be NULL) receives the new one. ERR_LIMIT above STORE_RECORD_BYTES_MAX.
 */
int store_put(store *s, const char *collection, const char *key, const json_t *value,
              uint64_t expected, uint64_t *version, err *e);
/* A new reference in *value; ERR_NOT_FOUND. `version` may be NULL. */
int store_get(store *s, const char *collection, const char *key, json_t **value, uint64_t *version,
              err *e);
/* ERR_NOT_FOUND, or ERR_CONFLICT when the version is not `expected` (STORE_ANY: whichever). */
int store_delete(store *s, const char *collection, const char *key, uint64_t expected, err *e);

typedef struct store_record {
    char *key;
    json_t *value;
    uint64_t version;
} store_record;

typedef struct store_page {
    store_record *records;
    size_t count;
    bool more; /* there are records after the last one */
} store_page;

/* The records whose key begins with `prefix` (NULL: all) and comes after `after` (NULL: from the
 * first), in byte order of the keys, at most `limit` (0: STORE_LIST_MAX) and about
 * STORE_LIST_BYTES. One snapshot. Free with store_page_free, also after an error. */
int store_list(store *s, const char *collection, const char *prefix, const char *after,
               size_t limit, store_page *out, err *e);
void store_page_free(store_page *p);
/* Hands over every record of a collection, in order of the keys, a page at a time: what is put
 * meanwhile may be among them or not. Borrowed for the call. What `visit` returns other than 0 ends
 * it and is returned. */
typedef int (*store_visit)(void *context, const char *key, json_t *value, err *e);
int store_walk(store *s, const char *collection, store_visit visit, void *context, err *e);

/* ---- blobs ----------------------------------------------------------------------------------- */

typedef struct blob_writer blob_writer;
typedef struct blob blob;

/* Nothing is seen under `name` until blob_commit. */
int store_blob_begin(store *s, const char *name, blob_writer **out, err *e);
int blob_write(blob_writer *w, const void *bytes, size_t len, err *e);
/* Publishes and frees the writer, also on error. ERR_EXISTS: the name has been taken meanwhile, and
 * what stands there is untouched. */
int blob_commit(blob_writer *w, err *e);
/* The same in the place of what stands there: under the name there is always the one or the other.
 * (MongoDB has no such step: it is nobody's between two calls that follow each other.) */
int blob_commit_over(blob_writer *w, err *e);
void blob_abort(blob_writer *w); /* NULL is fine */
/* All in one. */
int store_blob_put(store *s, const char *name, const void *bytes, size_t len, err *e);

/* Is there one, and how large? ERR_NOT_FOUND. Costs no more than a look, unlike an open. `bytes`
 * may be NULL. */
int store_blob_find(store *s, const char *name, uint64_t *bytes, err *e);

/* ERR_NOT_FOUND. An open blob stays readable when its name is deleted; a store over the network
 * fetches all of it here. */
int store_blob_open(store *s, const char *name, blob **out, err *e);
void blob_close(blob *b); /* NULL is fine */
uint64_t blob_size(const blob *b);
/* ERR_INVALID beyond the end. */
int blob_read_at(blob *b, uint64_t offset, void *out, size_t len, err *e);
/* A read-only descriptor of the whole blob, for mmap or to pass on; the blob's own, do not close.
 */
int blob_fd(blob *b, int *fd, err *e);
/* A path another process of this host and user can open; valid while the blob is open (a store that
 * keeps blobs as files may keep it longer). */
int blob_path(blob *b, char out[FS_PATH_BYTES], err *e);
/* Appends all of a blob to `out`, whose maximum is the limit. */
int store_blob_read(store *s, const char *name, buf *out, err *e);

int store_blob_delete(store *s, const char *name, err *e); /* ERR_NOT_FOUND */

typedef struct blob_entry {
    char name[STORE_KEY_BYTES];
    uint64_t bytes;
} blob_entry;

/* Names in byte order, as store_list. `*out` is the caller's to free(). */
int store_blob_list(store *s, const char *prefix, const char *after, size_t limit, blob_entry **out,
                    size_t *count, err *e);

/* ---- chunk sets ------------------------------------------------------------------------------
 * Written under an id in small transactions; a chunk set that no record of collection `datasets`
 * names ("upload": id) belongs to its living writer, or to nobody and is swept. */

#define STORE_DATASETS "datasets"

typedef struct chunk_writer chunk_writer;
typedef struct chunk_reader chunk_reader;

/* `bytes_hint`: about how much will come, 0: unknown. `id` holds STORE_ID_BYTES. */
int store_chunks_begin(store *s, uint64_t bytes_hint, char *id, chunk_writer **out, err *e);
/* The bytes may be gone after the call. Each (split, index) once. */
int chunk_put(chunk_writer *w, uint32_t split, uint32_t index, const void *bytes, size_t len,
              err *e);
/* The text that chunk_reader_info gives; once. */
int chunk_put_info(chunk_writer *w, const char *text, size_t len, err *e);
/* Makes all of it durable; nothing can be put afterwards. */
int chunk_seal(chunk_writer *w, err *e);
/* After chunk_seal and after the record that names the id was put, or may have been: a set that no
 * record names goes with a later sweep. Frees the writer. */
void chunk_release(chunk_writer *w);
/* Removes what was written, which no record can name, and frees the writer. NULL is fine. */
void chunk_abort(chunk_writer *w);
/* Removes a chunk set whose record is gone. Open readers go on reading. ERR_NOT_FOUND. */
int store_chunks_delete(store *s, const char *id, err *e);
/* What chunk_reader_open takes, on any process of this host (LMDB) or of the cluster (MongoDB). It
 * may hold a password, of a user that was made for this call and reads this chunk set alone. */
int store_chunks_locator(store *s, const char *id, char out[STORE_LOCATOR_BYTES], err *e);
/* The locator without user and password, for logs. */
void store_redact(const char *locator, char out[STORE_LOCATOR_BYTES]);

/* `locator`: as above, or a path "/proc/self/fd/N" of a read-only descriptor that was passed on. */
int chunk_reader_open(const char *locator, chunk_reader **out, err *e);
void chunk_reader_close(chunk_reader *r); /* NULL is fine */
/* Views stay valid until chunk_view_release, or the reader's close at the latest; at least 16-byte
 * aligned. Several threads may call. ERR_NOT_FOUND. */
int chunk_view(chunk_reader *r, uint32_t split, uint32_t index, const void **bytes, size_t *len,
               err *e);
void chunk_view_release(chunk_reader *r, uint32_t split, uint32_t index);
int chunk_reader_info(chunk_reader *r, const char **text, size_t *len, err *e);
/* These will be wanted soon, in this order: a store that is far away fetches them ahead, and what
 * is left of the lists before, which may be other threads', behind them. Does not block; what goes
 * wrong is said by chunk_view. */
void chunk_prefetch(chunk_reader *r, uint32_t split, const uint32_t *indices, size_t count);
/* Is that of any use to this reader? */
bool chunk_prefetches(const chunk_reader *r);
/* How long the file may become that this reader keeps what it fetched in; 0: it needs none. */
uint64_t chunk_reader_scratch_bytes(const chunk_reader *r);
/* What a reader opens and dials again while it reads: for walls around its process. */
enum { STORE_REACH_FILES_MAX = 8, STORE_REACH_PORTS_MAX = 48 };
typedef struct store_reach {
    const char *files[STORE_REACH_FILES_MAX + 1];  /* to read; the reader's; NULL at the end */
    uint16_t tcp_ports[STORE_REACH_PORTS_MAX + 1]; /* on any host; 0 at the end */
    bool unix_sockets;
} store_reach;
void chunk_reader_reach(const chunk_reader *r, store_reach *out);
/* Does a chunk_view wait for a store that does not answer? `why` then names it and says how; it is
 * empty otherwise. From any thread; does not block. */
bool chunk_reader_waits(chunk_reader *r, char *why, size_t size);

/* ---- who may read and write -------------------------------------------------------------------
 * Of a MongoDB store whose locator names a user; with the others, who reaches the store may use
 * it. */

typedef enum store_use {
    STORE_USE_JOB,  /* a job's kubeml-ps: reads and writes blobs and the records of `history` */
    STORE_USE_READ, /* reads blobs */
} store_use;

/* What store_open takes in a process that needs this and nothing else. It may hold a password, of a
 * user that was made for this call. */
int store_locator(store *s, store_use use, char out[STORE_LOCATOR_BYTES], err *e);
/* Takes back what store_chunks_locator or store_locator gave: who came by it is shut out. Fine when
 * that was done before; a chunk set's go with it, too. */
int store_revoke(store *s, const char *locator, err *e);
/* Takes back all that were given but the `count` in `kept`: for a program's start, when what was
 * given before a crash is forgotten. `revoked` (may be NULL) counts. */
int store_revoke_others(store *s, const char *const *kept, size_t count, size_t *revoked, err *e);
/* Did it come with a user of its own? */
bool store_locator_has_user(const char *locator);

/* ---- for tests ----------------------------------------------------------------------------- */

/* Removes a "mongodb:" store with all its datasets, whoever uses them. ERR_UNSUPPORTED of
 * others. */
int store_drop(store *s, err *e);

#endif
