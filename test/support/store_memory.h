/* store_memory.h: a store in this process's memory, for tests: the promises of store.h but
 * durability, and failures on demand. Programs know no such store. */
#ifndef KUBEML_TEST_STORE_MEMORY_H
#define KUBEML_TEST_STORE_MEMORY_H

#include "common/store/store.h"

/* The locator of a fresh, empty store: "memory:". Makes store_open know it. */
const char *store_memory_locator(void);
/* The n-th operation from now (1: the next) fails with `code`; 0: none. */
void store_memory_fail(store *s, unsigned n, err_code code);

#endif
