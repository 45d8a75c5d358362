/* rest.h: the routes of the API and their handlers, one file a resource (rest_*.c).
 *
 * Handlers run in HTTP workers; the context of each is the controller. docs/reference/openapi.yaml
 * is the contract. */
#ifndef KUBEML_CONTROLLER_REST_H
#define KUBEML_CONTROLLER_REST_H

#include "common/net/http_server.h"

extern const http_route rest_routes[];
extern const size_t rest_route_count;
/* http_config.refuse: refuses a request that needs the store while the store is away. */
bool rest_refuse(void *context, const http_route *route, http_request *r);

void rest_dataset_list(http_request *r, void *context);
void rest_dataset_get(http_request *r, void *context);
void rest_dataset_create(http_request *r, void *context);
void rest_dataset_delete(http_request *r, void *context);
void rest_function_list(http_request *r, void *context);
void rest_function_get(http_request *r, void *context);
void rest_function_explain(http_request *r, void *context);
void rest_function_create(http_request *r, void *context);
void rest_function_update(http_request *r, void *context);
void rest_function_delete(http_request *r, void *context);
void rest_zoo(http_request *r, void *context);
void rest_train(http_request *r, void *context);
void rest_task_list(http_request *r, void *context);
void rest_task_get(http_request *r, void *context);
void rest_usage(http_request *r, void *context);
void rest_task_stop(http_request *r, void *context);
void rest_task_suspend(http_request *r, void *context);
void rest_task_resume(http_request *r, void *context);
void rest_task_logs(http_request *r, void *context);
void rest_task_events(http_request *r, void *context);
void rest_task_explain(http_request *r, void *context);
void rest_history_list(http_request *r, void *context);
void rest_history_get(http_request *r, void *context);
void rest_history_delete(http_request *r, void *context);
void rest_history_prune(http_request *r, void *context);
void rest_model_get(http_request *r, void *context);
void rest_model_create(http_request *r, void *context);
void rest_model_delete(http_request *r, void *context);
void rest_infer(http_request *r, void *context);

#endif
