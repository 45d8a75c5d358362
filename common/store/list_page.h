/* list_page.h: a collection's records as a JSON array, a page at a time.
 *
 * The pages are no snapshot: a record that is put meanwhile is on one page or on none. */
#ifndef KUBEML_LIST_PAGE_H
#define KUBEML_LIST_PAGE_H

#include "store.h"

enum {
    LIST_LIMIT = 1000,      /* records of a page, at most and by default */
    LIST_BYTES = 16 << 20,  /* of JSON; the record that reaches it is the page's last */
};

typedef struct list_page {
    size_t limit, count, bytes;
    char after[STORE_KEY_BYTES]; /* the last key that list_add has read; "": none */
    bool more;
} list_page;

/* Returns a record as the client sees it, a new reference; NULL: the record is skipped. */
typedef json_t *(*list_show)(void *context, const char *key, json_t *record);

/* Appends to `out` the records of a collection after p->after, until the page is full or the
 * records end. `show` NULL: the records are not changed. ERR_NOMEM, and store_list's. */
int list_add(store *s, const char *collection, list_page *p, list_show show, void *context,
             json_t *out, err *e);

#endif
