/* rest_train.c: /train and /tasks. */
#include <stdlib.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "common/base/json_read.h"
#include "common/contract/request.h"
#include "controller/jobs/job_manager.h"
#include "rest.h"
#include "rest_list.h"

static void answer(http_request *r, int status, json_t *body, const err *e)
{
    if (status)
        http_response_error(r, e);
    else
        http_response_json(r, 200, body);
}

void rest_train(http_request *r, void *context)
{
    controller *c = context;
    cleanup_json json_t *body = NULL, *note = NULL;
    request asked;
    char id[40];
    err e = ERR_INIT;
    if (http_body_json(r, &body, &e) || request_parse(body, &asked, &e) ||
        job_manager_submit(c->job_manager, &asked, http_user(r), id, &note, &e)) {
        http_response_error(r, &e);
        return;
    }
    /* The first KubeML's client sends no Accept and takes the whole body as the id. */
    if (!http_has_accept(r) || strcmp(http_accepted(r), "text/plain") == 0)
        http_response_text(r, 200, "text/plain; charset=utf-8", id);
    else
        http_response_json(
            r, 200, json_pack("{s:s, s:O*}", "id", id, "note", json_is_string(note) ? note : NULL));
}

void rest_task_list(http_request *r, void *context)
{
    controller *c = context;
    const char *state = http_query(r, "state");
    bool all = state && strcmp(state, "all") == 0, ended = state && strcmp(state, "ended") == 0;
    err e = ERR_INIT;
    json_t *out = NULL;
    list_page page;
    if (state && !all && !ended && strcmp(state, "active") != 0)
        err_set(&e, ERR_INVALID, "state must be active, ended or all");
    if (e.code != ERR_NONE || list_page_parse(r, &page, &e) ||
        job_query_tasks(c->job_manager, !ended, all || ended, &page, &out, &e)) {
        http_response_error(r, &e);
        return;
    }
    list_answer(r, &page, all ? "/tasks?state=all" : "/tasks?state=ended", out);
}

void rest_usage(http_request *r, void *context)
{
    err e = ERR_INIT;
    json_t *out = NULL;
    int status = job_query_usage(((controller *)context)->job_manager, &out, &e);
    answer(r, status, out, &e);
}

void rest_task_get(http_request *r, void *context)
{
    err e = ERR_INIT;
    json_t *out = NULL;
    int status =
        job_query_task(((controller *)context)->job_manager, http_param(r, "id"), &out, &e);
    answer(r, status, out, &e);
}

static json_t *result(const char *id, const char *what)
{
    json_t *out = json_object();
    json_object_set_new(out, "id", json_string(id));
    json_object_set_new(out, "result", json_sprintf("job %s %s", id, what));
    return out;
}

void rest_task_stop(http_request *r, void *context)
{
    err e = ERR_INIT;
    int status = job_manager_cancel(((controller *)context)->job_manager, http_param(r, "id"), &e);
    answer(r, status, status ? NULL : result(http_param(r, "id"), "is being stopped"), &e);
}

void rest_task_suspend(http_request *r, void *context)
{
    err e = ERR_INIT;
    int status = job_manager_suspend(((controller *)context)->job_manager, http_param(r, "id"), &e);
    answer(r, status, status ? NULL : result(http_param(r, "id"), "stops at its next merge"), &e);
}

void rest_task_resume(http_request *r, void *context)
{
    err e = ERR_INIT;
    int status = job_manager_resume(((controller *)context)->job_manager, http_param(r, "id"), &e);
    answer(r, status, status ? NULL : result(http_param(r, "id"), "is queued again"), &e);
}

void rest_task_explain(http_request *r, void *context)
{
    err e = ERR_INIT;
    json_t *out = NULL;
    int status =
        job_query_explain(((controller *)context)->job_manager, http_param(r, "id"), &out, &e);
    answer(r, status, out, &e);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void open_stream(http_request *r, job_manager *o, bool logs)
{
    const char *id = http_param(r, "id");
    follower *f = NULL;
    err e = ERR_INIT;
    if (logs ? job_manager_follow_logs(o, id, &f, &e) : job_manager_follow_events(o, id, &f, &e))
        http_response_error(r, &e);
    else
        job_manager_follow(
            o, f,
            http_response_stream(r, logs ? "text/plain; charset=utf-8" : "text/event-stream"));
}

void rest_task_events(http_request *r, void *context)
{
    open_stream(r, ((controller *)context)->job_manager, false);
}

/* A log on its way to a client; the log reader counts it as held until it is sent. */
typedef struct log_answer {
    job_manager *job_manager;
    char *text;
    size_t len, sent;
} log_answer;

static ssize_t log_read(void *source, void *out, size_t max)
{
    log_answer *a = source;
    size_t n = a->len - a->sent < max ? a->len - a->sent : max;
    memcpy(out, a->text + a->sent, n);
    a->sent += n;
    return (ssize_t)n;
}

static void log_close(void *source)
{
    log_answer *a = source;
    job_query_logs_give_back(a->job_manager, a->text, a->len);
    free(a);
}

void rest_task_logs(http_request *r, void *context)
{
    controller *c = context;
    const char *follow = http_query(r, "follow");
    char *text = NULL, id[64];
    size_t len = 0;
    err e = ERR_INIT;
    if (follow && strcmp(follow, "true") != 0 && strcmp(follow, "false") != 0) {
        err_set(&e, ERR_INVALID, "follow must be true or false");
        http_response_error(r, &e);
        return;
    }
    snprintf(id, sizeof id, "%s", http_param(r, "id"));
    if (follow && strcmp(follow, "true") == 0 && job_query_runs(c->job_manager, id)) {
        failpoint("controller.follow-logs"); /* the job may end here */
        open_stream(r, c->job_manager, true);
        return;
    }
    log_answer *a = malloc(sizeof *a);
    if (!a)
        err_set(&e, ERR_NOMEM, "no memory for the answer");
    if (!a || job_query_logs(c->job_manager, id, &text, &len, &e)) {
        free(a);
        http_response_error(r, &e);
        return;
    }
    *a = (log_answer){.job_manager = c->job_manager, .text = text, .len = len};
    http_response_source(r, "text/plain; charset=utf-8", len, log_read, log_close, a);
}
