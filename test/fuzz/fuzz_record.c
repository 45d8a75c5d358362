/* fuzz_record.c: JSON as the body of a train request, and as a job's record from the store: what is
 * accepted says the same when it is written and read again. */
#include "common/base/json_read.h"
#include "common/contract/request.h"
#include "controller/job/job.h"
#include "fuzz.h"

static void check_request(const json_t *body)
{
    request r, same;
    err e = ERR_INIT;
    if (request_parse(body, &r, &e) != 0) {
        FUZZ_CHECK(e.code == ERR_INVALID || e.code == ERR_UNSUPPORTED || e.code == ERR_LIMIT);
        return;
    }
    json_t *text = request_json(&r);
    FUZZ_CHECK(text && request_parse(text, &same, &e) == 0);
    json_t *again = request_json(&same);
    FUZZ_CHECK(json_equal(text, again));
    json_decref(text);
    json_decref(again);
}

/* What a controller does with it that begins, and finds its pods. */
static void check_record(const json_t *record)
{
    const job_action *actions;
    job_limits limits;
    jobs *m;
    err e = ERR_INIT;
    job_limits_default(&limits);
    FUZZ_CHECK(jobs_open(&limits, 4, &m, &e) == 0);
    if (jobs_restore(m, record, &e) == 0) {
        const job *j = jobs_find(m, json_string_value(json_object_get(record, "id")));
        job_reason why;
        FUZZ_CHECK(j);
        json_t *text = job_record(j);
        FUZZ_CHECK(text);
        json_decref(text);
        job_event event[] = {
            {.type = JOB_POD_FOUND, .function = JOB_KUBEML_PS, .pod = "ps"},
            {.type = JOB_POD_FOUND, .function = 0, .pod = "f-0"},
            {.type = JOB_ADOPT},
            {.type = JOB_PS_ACCEPTED},
            {.type = JOB_PS_EPOCH, .epoch = 1, .value = 2, .seconds = 1},
            {.type = JOB_PS_FINISHED, .state = JOB_FAILED, .reason = "NaNLoss"},
            {.type = JOB_POD_ENDED, .pod = "ps"},
        };
        for (size_t i = 0; i < sizeof event / sizeof *event; i++) {
            event[i].now_ms = 1000;
            event[i].wall_ms = 1700000000000;
            event[i].job = json_string_value(json_object_get(record, "id"));
            jobs_step(m, &event[i], &actions);
            jobs_explain(m, j, 1000, &why);
        }
        FUZZ_CHECK(jobs_deadline(m) >= 0);
    } else {
        FUZZ_CHECK(e.code == ERR_INVALID || e.code == ERR_UNSUPPORTED || e.code == ERR_LIMIT);
    }
    jobs_close(m);
}

FUZZ(record)
{
    json_t *json = NULL;
    err e = ERR_INIT;
    if (json_read((const char *)bytes, len, 16, &json, &e) != 0)
        return 0;
    check_request(json);
    check_record(json);
    json_decref(json);
    return 0;
}
