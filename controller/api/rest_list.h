/* rest_list.h: lists, a page an answer.
 *
 * `limit` and `continue` of the query say how much of it and where to go on; where there is more,
 * the header Link (RFC 8288) has the next page's address. */
#ifndef KUBEML_CONTROLLER_REST_LIST_H
#define KUBEML_CONTROLLER_REST_LIST_H

#include "common/net/http_server.h"
#include "common/store/list_page.h"
#include "controller/controller.h"

/* From `limit` and `continue` of the query. ERR_INVALID. */
int list_page_parse(http_request *r, list_page *out, err *e);
/* Takes `out`. `path` is the list's own, with what else its query says. */
void list_answer(http_request *r, const list_page *p, const char *path, json_t *out);
/* A whole answer, for a list of one collection. */
void rest_list(http_request *r, const controller *c, const char *path, const char *collection,
               list_show show);

#endif
