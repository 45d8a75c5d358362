/* list_page.c: see list_page.h. */
#include "list_page.h"

#include <string.h>

enum { LOOK_AHEAD = 64 }; /* records read at once; few, because records may be large */

static int add_records(const store_page *records, list_page *p, list_show show, void *context,
                       json_t *out)
{
    for (size_t i = 0; i < records->count; i++) {
        if (p->count == p->limit || p->bytes >= LIST_BYTES) {
            p->more = true;
            return 0;
        }
        const store_record *one = &records->records[i];
        json_t *shown = show ? show(context, one->key, one->value) : json_incref(one->value);
        memcpy(p->after, one->key, strlen(one->key) + 1);
        if (!shown)
            continue;
        p->count++;
        p->bytes += json_dumpb(shown, NULL, 0, JSON_COMPACT);
        if (json_array_append_new(out, shown))
            return -1;
    }
    return 0;
}

int list_add(store *s, const char *collection, list_page *p, list_show show, void *context,
             json_t *out, err *e)
{
    for (bool more = true; more && !p->more;) {
        store_page records = {0};
        int status =
            store_list(s, collection, NULL, p->after[0] ? p->after : NULL, LOOK_AHEAD, &records, e);
        if (status == 0 && add_records(&records, p, show, context, out))
            status = err_set(e, ERR_NOMEM, "no memory for the answer");
        more = records.more;
        store_page_free(&records);
        if (status)
            return -1;
    }
    return 0;
}
