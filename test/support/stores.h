/* stores.h: test cases that run on every store there is.
 *
 *     ON_STORES(what_is_promised)
 *     {
 *         store *s = test_store("");
 *         ...
 *     }
 *
 * makes a case what_is_promised_lmdb, one _memory and one _mongo. The last runs against MONGODB_URI
 * or the stand-in (test/mongo), in a database of its own that is dropped at the end, and is left
 * out with a reason where there is neither. ON_DURABLE_STORES leaves the memory out: for cases that
 * open a store twice. */
#ifndef KUBEML_TEST_STORES_H
#define KUBEML_TEST_STORES_H

#include "common/store/store.h"
#include "store_memory.h"
#include "test.h"

typedef enum test_store_kind { ON_LMDB, ON_MEMORY, ON_MONGO } test_store_kind;

/* The kind of the case that runs; a case of one store alone sets it itself. */
void test_store_use(test_store_kind kind);
test_store_kind test_store_now(void);
/* Where the case's store is: always the same one. `options` for LMDB ("?map_bytes=65536") are not
 * given to others. Leaves the case out where there is no server. */
const char *test_store_locator(const char *options);
/* Opens it, or fails the case. */
store *test_store(const char *options);
/* A further option of MongoDB's, such as "kubeml.lease_ms=300"; before the first locator. */
void test_store_mongo_option(const char *option);
/* Another server than the usual one, whose URI names a user: "open" has no users, "tls" is behind
 * TLS. Before test_store_use. */
void test_store_mongo_server(const char *kind);
/* MongoDB's URI for the database `db` of the server under test; leaves the case out without one. */
const char *test_mongo_uri(const char *db);

#define ON_STORE_(case_name, suffix, kind)                                                         \
    TEST_LIMIT(case_name##suffix, 60)                                                              \
    {                                                                                              \
        test_store_use(kind);                                                                      \
        case_name();                                                                               \
    }

#define ON_DURABLE_STORES(case_name)                                                               \
    static void case_name(void);                                                                   \
    ON_STORE_(case_name, _lmdb, ON_LMDB)                                                           \
    ON_STORE_(case_name, _mongo, ON_MONGO)                                                         \
    static void case_name(void)

#define ON_STORES(case_name)                                                                       \
    static void case_name(void);                                                                   \
    ON_STORE_(case_name, _lmdb, ON_LMDB)                                                           \
    ON_STORE_(case_name, _memory, ON_MEMORY)                                                       \
    ON_STORE_(case_name, _mongo, ON_MONGO)                                                         \
    static void case_name(void)

#endif
