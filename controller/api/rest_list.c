/* rest_list.c: see rest_list.h. */
#include "rest_list.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/name.h"

int list_page_parse(http_request *r, list_page *out, err *e)
{
    const char *limit = http_query(r, "limit"), *after = http_query(r, "continue");
    *out = (list_page){.limit = LIST_LIMIT};
    if (limit) {
        size_t digits = strspn(limit, "0123456789");
        out->limit =
            limit[digits] || digits == 0 || digits > 6 ? 0 : (size_t)strtoul(limit, NULL, 10);
        if (out->limit < 1 || out->limit > LIST_LIMIT)
            return err_set(e, ERR_INVALID, "limit must be a whole number from 1 to %d", LIST_LIMIT);
    }
    if (after && name_check("continue", after, NULL)) /* all keys of these lists are names */
        return err_set(e, ERR_INVALID, "continue must be what the page before said");
    if (after)
        memcpy(out->after, after, strlen(after) + 1);
    return 0;
}

void list_answer(http_request *r, const list_page *p, const char *path, json_t *out)
{
    char link[STORE_KEY_BYTES + 128];
    if (p->more) {
        snprintf(link, sizeof link, "<%s%climit=%zu&continue=%s>; rel=\"next\"", path,
                 strchr(path, '?') ? '&' : '?', p->limit, p->after);
        http_add_header(r, "Link", link);
    }
    http_response_json(r, 200, out);
}

void rest_list(http_request *r, const controller *c, const char *path, const char *collection,
               list_show show)
{
    err e = ERR_INIT;
    list_page page;
    json_t *out = json_array();
    if (!out)
        err_set(&e, ERR_NOMEM, "no memory for the answer");
    if (out && list_page_parse(r, &page, &e) == 0 &&
        list_add(c->store, collection, &page, show, NULL, out, &e) == 0) {
        list_answer(r, &page, path, out);
        return;
    }
    json_decref(out);
    http_response_error(r, &e);
}
