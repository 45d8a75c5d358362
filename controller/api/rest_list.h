/* rest_list.h: lists, one page a response.
 *
 * The query's `limit` and `continue` give the page's size and where it begins. Where there is more,
 * the header Link (RFC 8288) has the next page's address. */
#ifndef KUBEML_CONTROLLER_REST_LIST_H
#define KUBEML_CONTROLLER_REST_LIST_H

#include "common/net/http_server.h"
#include "common/store/list_page.h"
#include "controller/controller.h"

/* Reads `limit` and `continue` of the query. ERR_INVALID. */
int list_page_parse(http_request *r, list_page *out, err *e);
/* Takes `out`. `path` is the list's own path, with the rest of its query. */
void list_answer(http_request *r, const list_page *p, const char *path, json_t *out);
/* Answers a request for a list of one collection. */
void rest_list(http_request *r, const controller *c, const char *path, const char *collection,
               list_show show);

#endif
