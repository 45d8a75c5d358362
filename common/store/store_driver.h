/* store_driver.h: the functions of an implementation of store.h. For store_*.c alone.
 *
 * store.c checks names, and turns JSON into text and back. A driver gives versions their meaning. A
 * driver's handles begin with the struct declared here; the rest is the driver's own. */
#ifndef KUBEML_STORE_DRIVER_H
#define KUBEML_STORE_DRIVER_H

#include "store.h"

typedef struct store_driver store_driver;

struct store {
    const store_driver *driver;
    char locator[STORE_LOCATOR_BYTES]; /* as opened; for store.c alone, not for drivers */
};
struct blob_writer {
    store *store;
};
struct blob {
    store *store;
    uint64_t bytes;
};
struct chunk_writer {
    store *store;
};
struct chunk_reader {
    const store_driver *driver;
};

/* Called for each record of a list, in order; `text` is borrowed for the call. Must not call the
 * store: a read transaction may be open. */
typedef int (*store_each)(void *arg, const char *key, const char *text, size_t len,
                          uint64_t version, err *e);

struct store_driver {
    const char *scheme; /* with the colon */

    /* `rest`: the locator after the scheme. Blocks on the disk. NULL on error. */
    store *(*open)(const char *rest, err *e);
    void (*close)(store *s);
    int (*ping)(store *s, err *e);
    int (*sweep)(store *s, size_t *removed, err *e);
    const char *(*scratch_dir)(const store *s);

    /* As in store.h; the arguments are checked. ERR_EXISTS, ERR_CONFLICT, ERR_NOT_FOUND. */
    int (*put)(store *s, const char *collection, const char *key, const char *text, size_t len,
               uint64_t expected, uint64_t *version, err *e);
    int (*get)(store *s, const char *collection, const char *key, buf *out, uint64_t *version,
               err *e);
    int (*remove)(store *s, const char *collection, const char *key, uint64_t expected, err *e);
    /* A page ends at `limit` records, or after the record whose text reaches STORE_LIST_BYTES. */
    int (*list)(store *s, const char *collection, const char *prefix, const char *after,
                size_t limit, store_each each, void *arg, bool *more, err *e);

    int (*blob_begin)(store *s, const char *name, blob_writer **out, err *e);
    int (*blob_write)(blob_writer *w, const void *bytes, size_t len, err *e);
    int (*blob_commit)(blob_writer *w, bool over, err *e);
    void (*blob_abort)(blob_writer *w);
    /* may be NULL: store.c opens the blob instead, which costs as little */
    int (*blob_find)(store *s, const char *name, uint64_t *bytes, err *e);
    int (*blob_open)(store *s, const char *name, blob **out, err *e);
    void (*blob_close)(blob *b);
    int (*blob_read_at)(blob *b, uint64_t offset, void *out, size_t len, err *e); /* in range */
    int (*blob_fd)(blob *b, int *fd, err *e);
    int (*blob_path)(blob *b, char out[FS_PATH_BYTES], err *e);
    int (*blob_delete)(store *s, const char *name, err *e);
    int (*blob_list)(store *s, const char *prefix, const char *after, size_t limit,
                     blob_entry **out, size_t *count, err *e);

    int (*chunks_begin)(store *s, uint64_t bytes_hint, char *id, chunk_writer **out, err *e);
    int (*chunk_put)(chunk_writer *w, uint32_t split, uint32_t index, const void *bytes, size_t len,
                     err *e);
    int (*chunk_put_info)(chunk_writer *w, const char *text, size_t len, err *e);
    int (*chunk_seal)(chunk_writer *w, err *e);
    void (*chunk_release)(chunk_writer *w);
    void (*chunk_abort)(chunk_writer *w);
    int (*chunks_delete)(store *s, const char *id, err *e);
    int (*chunks_locator)(store *s, const char *id, char out[STORE_LOCATOR_BYTES], err *e);
    /* All three may be NULL: the store has no users. */
    int (*locator)(store *s, store_use use, char out[STORE_LOCATOR_BYTES], err *e);
    int (*revoke)(store *s, const char *locator, err *e);
    int (*revoke_others)(store *s, const char *const *kept, size_t count, size_t *revoked, err *e);

    /* `rest`: the locator after the scheme, or a whole path. */
    int (*reader_open)(const char *rest, chunk_reader **out, err *e);
    void (*reader_close)(chunk_reader *r);
    int (*reader_view)(chunk_reader *r, uint32_t split, uint32_t index, const void **bytes,
                       size_t *len, err *e);
    void (*reader_release)(chunk_reader *r, uint32_t split, uint32_t index); /* may be NULL */
    int (*reader_info)(chunk_reader *r, const char **text, size_t *len, err *e);
    void (*reader_prefetch)(chunk_reader *r, uint32_t split, const uint32_t *indices,
                            size_t count); /* may be NULL; does not block */
    uint64_t (*reader_scratch_bytes)(const chunk_reader *r);       /* may be NULL: 0 */
    void (*reader_reach)(const chunk_reader *r, store_reach *out); /* may be NULL: nothing */
    bool (*reader_waits)(chunk_reader *r, char *why, size_t size); /* may be NULL */

    int (*drop)(store *s, err *e); /* may be NULL */
};

extern const store_driver store_lmdb;

/* Adds one more implementation, which is part of the program: tests have a store in memory. store.c
 * looks for its scheme after the others. Call before the first store is opened. */
void store_add_driver(const store_driver *driver);

/* The function that a driver in a shared object of its own exports (store.c names the objects). It
 * returns NULL if `size` is not its sizeof(store_driver): then the object and the program were
 * built from different versions. */
#define STORE_DRIVER_SYMBOL "kubeml_store_driver"
typedef const store_driver *(*store_driver_find)(const char *scheme, size_t size);

/* The ids of the chunk sets that datasets' records name, sorted. A sweep that holds the lock of a
 * set reads them after taking the lock: then no record can name the set later. */
typedef struct store_ids {
    char (*at)[STORE_ID_BYTES];
    size_t count, room;
} store_ids;

/* Reads all records of the datasets. */
int store_named_chunks(store *s, store_ids *out, err *e);
bool store_ids_have(const store_ids *ids, const char *id);
void store_ids_free(store_ids *ids);
/* A new random id of 16 hex digits. */
void store_new_id(char out[STORE_ID_BYTES]);

#endif
