/* rest.c: the routes of the API, and the handlers about the platform itself.
 * docs/reference/openapi.yaml is the contract. */
#include "rest.h"

#include <string.h>

#include "common/base/json_time.h"
#include "common/base/version.h"
#include "common/net/wire.h"
#include "controller/ha/leading.h"
#include "controller/ha/store_watch.h"
#include "controller/jobs/job_manager.h"
#include "forward.h"

static void rest_health(http_request *r, void *context)
{
    (void)context;
    http_response_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

/* Started: the controller has had its store once. Later the store's state does not matter here:
 * many requests need no store. */
static void rest_started(http_request *r, void *context)
{
    controller *c = context;
    err e = ERR_INIT;
    if (!store_watch_started(c->watch) && !store_watch_up(c->watch, &e))
        http_response_error(r, &e);
    else
        http_response_json(r, 200, json_pack("{s:s}", "status", "started"));
}

/* Why TrainJobs are not looked at; NULL: they are. The API works without them. */
static const char *why_unseen(const controller *c)
{
    switch (atomic_load(&c->unseen)) {
    case ERR_NONE: return NULL;
    case ERR_NOT_FOUND: return "not looked at: the custom resources are not installed";
    case ERR_LIMIT: return "not looked at: there are too many; delete some that have ended";
    case ERR_FORBIDDEN: return "not looked at: the API server forbids it";
    default: return "not looked at: the API server does not list them";
    }
}

/* Ready: the store answers, and there are slots. A standby controller is ready too: it takes
 * uploads. It reports the leader's slots, jobs and pods, where the leader answers. */
static void rest_ready(http_request *r, void *context)
{
    controller *c = context;
    err e = ERR_INIT;
    json_t *status = NULL;
    bool leads = controller_leads(c);
    if (!store_watch_up(c->watch, &e) ||
        (!store_watch_is_far(c->watch) && store_ping(c->store, &e)) ||
        (leads && job_query_status(c->job_manager, &status, &e))) {
        http_response_problem(r, 503, &e, NULL);
        return;
    }
    if (!status && !http_is_forwarded(r))
        status = forward_look(c, "/ready");
    if (!status)
        status = json_object();
    if (leads && why_unseen(c))
        json_object_set_new(status, "trainjobs", json_string(why_unseen(c)));
    if (leads && atomic_load(&c->lacking) > 0)
        json_object_set_new(status, "crds",
                            json_string("older than this controller: kubectl apply --server-side "
                                        "--force-conflicts -f charts/kubeml/crds"));
    if (leads && atomic_load(&c->no_users))
        json_object_set_new(
            status, "users",
            json_string("the database lets none be made for jobs, which fail for it "
                        "(docs/guides/mongodb.md)"));
    json_object_set_new(status, "status", json_string("ready"));
    json_object_set_new(status, "leads", json_boolean(leads));
    http_response_json(r, 200, status);
}

bool rest_refuse(void *context, const http_route *route, http_request *r)
{
    controller *c = context;
    err why = ERR_INIT;
    if (route->live && (!route->led || store_watch_started(c->watch)))
        return false;
    if (store_watch_up(c->watch, &why))
        return false;
    http_response_error(r, &why);
    return true;
}

static void rest_version(http_request *r, void *context)
{
    controller *c = context;
    json_t *out = json_pack("{s:s, s:s, s:i}", "name", "kubeml-controller", "version",
                            KUBEML_VERSION, "abi", WIRE_ABI);
    json_set_time(out, "started", c->started_wall_ms);
    http_response_json(r, 200, out);
}

static void rest_metrics(http_request *r, void *context)
{
    controller *c = context;
    err e = ERR_INIT;
    buf text;
    buf_init(&text, 16 << 20);
    metric_set(c->metrics.leads, controller_leads(c), NULL, NULL, NULL);
    if (controller_leads(c))
        job_query_update_metrics(c->job_manager);
    if (metrics_write(c->metrics.all, &text, &e))
        http_response_error(r, &e);
    else
        http_response_bytes(r, 200, "text/plain; version=0.0.4; charset=utf-8", text.bytes,
                            text.len);
    buf_free(&text);
}

#define JSON_TYPE      "application/json"
#define MULTIPART_TYPE "multipart/form-data"

const http_route rest_routes[] = {
    {.method = "GET", .pattern = "/health", .handle = rest_health, .open = true, .live = true},
    {.method = "GET", .pattern = "/started", .handle = rest_started, .open = true, .live = true},
    {.method = "GET", .pattern = "/ready", .handle = rest_ready, .open = true, .live = true,
     .waits = true},
    {.method = "GET", .pattern = "/version", .handle = rest_version, .open = true, .live = true},
    {.method = "GET", .pattern = "/metrics", .handle = rest_metrics, .live = true,
     .gives = "text/plain"},
    {.method = "GET", .pattern = "/zoo", .handle = rest_zoo, .live = true, .waits = true},

    {.method = "GET", .pattern = "/dataset", .handle = rest_dataset_list,
     .queries = "limit,continue"},
    {.method = "GET", .pattern = "/dataset/{name}", .handle = rest_dataset_get},
    {.method = "POST", .pattern = "/dataset/{name}", .handle = rest_dataset_create,
     .body = HTTP_BODY_STREAM, .takes = MULTIPART_TYPE, .queries = "seed,layout,regression",
     .body_bytes_max = CONTROLLER_UPLOAD_BYTES_MAX, .slow = true},
    {.method = "DELETE", .pattern = "/dataset/{name}", .handle = rest_dataset_delete, .led = true},

    {.method = "GET", .pattern = "/function", .handle = rest_function_list,
     .queries = "limit,continue"},
    {.method = "GET", .pattern = "/function/{name}", .handle = rest_function_get},
    {.method = "GET", .pattern = "/function/{name}/explain", .handle = rest_function_explain},
    {.method = "POST", .pattern = "/function/{name}", .handle = rest_function_create,
     .body = HTTP_BODY_WHOLE, .takes = JSON_TYPE "," MULTIPART_TYPE,
     .body_bytes_max = CONTROLLER_CODE_BYTES_MAX, .slow = true},
    {.method = "PUT", .pattern = "/function/{name}", .handle = rest_function_update,
     .body = HTTP_BODY_WHOLE, .takes = JSON_TYPE "," MULTIPART_TYPE,
     .body_bytes_max = CONTROLLER_CODE_BYTES_MAX, .slow = true},
    {.method = "DELETE", .pattern = "/function/{name}", .handle = rest_function_delete,
     .led = true},

    {.method = "POST", .pattern = "/train", .handle = rest_train, .led = true,
     .body = HTTP_BODY_WHOLE, .takes = JSON_TYPE, .gives = JSON_TYPE ",text/plain",
     .waits = true},
    {.method = "GET", .pattern = "/tasks", .handle = rest_task_list, .led = true,
     .queries = "state,limit,continue"},
    {.method = "GET", .pattern = "/tasks/{id}", .handle = rest_task_get, .led = true, .live = true},
    {.method = "DELETE", .pattern = "/tasks/{id}", .handle = rest_task_stop, .led = true,
     .live = true, .waits = true},
    {.method = "POST", .pattern = "/tasks/{id}/suspend", .handle = rest_task_suspend, .led = true,
     .live = true},
    {.method = "POST", .pattern = "/tasks/{id}/resume", .handle = rest_task_resume, .led = true,
     .waits = true},
    {.method = "GET", .pattern = "/tasks/{id}/explain", .handle = rest_task_explain, .led = true,
     .live = true, .waits = true},
    {.method = "GET", .pattern = "/tasks/{id}/logs", .handle = rest_task_logs, .led = true,
     .live = true, .gives = "text/plain", .queries = "follow", .waits = true},
    {.method = "GET", .pattern = "/tasks/{id}/events", .handle = rest_task_events, .led = true,
     .live = true, .gives = "text/event-stream"},

    {.method = "GET", .pattern = "/usage", .handle = rest_usage, .led = true, .live = true},

    {.method = "GET", .pattern = "/history", .handle = rest_history_list,
     .queries = "limit,continue"},
    {.method = "DELETE", .pattern = "/history", .handle = rest_history_prune, .led = true,
     .slow = true},
    {.method = "GET", .pattern = "/history/{id}", .handle = rest_history_get},
    {.method = "DELETE", .pattern = "/history/{id}", .handle = rest_history_delete, .led = true,
     .waits = true},

    {.method = "POST", .pattern = "/model", .handle = rest_model_create, .body = HTTP_BODY_STREAM,
     .takes = MULTIPART_TYPE, .body_bytes_max = CONTROLLER_MODEL_BYTES_MAX + (1 << 20),
     .slow = true},
    {.method = "GET", .pattern = "/model/{id}", .handle = rest_model_get,
     .gives = "application/octet-stream", .queries = "format", .slow = true},
    {.method = "DELETE", .pattern = "/model/{id}", .handle = rest_model_delete, .led = true,
     .waits = true},

    {.method = "POST", .pattern = "/infer", .handle = rest_infer, .led = true,
     .body = HTTP_BODY_WHOLE, .takes = JSON_TYPE, .body_bytes_max = REQUEST_INFER_BYTES_MAX,
     .slow = true},
};
const size_t rest_route_count = sizeof rest_routes / sizeof *rest_routes;
