/* job_manager_algorithms.c: what functions have measured on GPUs, in the store's record `cuda` of
 * collection `algorithms`.
 *
 * A function measures in its sandbox, where it can write nothing that lasts. It reports its
 * measurements in `specialised`. Every later function, and every warm pod on a GPU, receives all of
 * them: each shape is measured once, and all functions of a job compute it the same way. A warm pod
 * runs the measured algorithms while it waits. Of functions that start together, the first measures
 * and the others wait for their turn (pool_talk.c), once for each kind of function while this
 * controller runs. A record that cannot be read or written only costs the next function its
 * measurements. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/hash64.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/store/store.h"
#include "controller/ha/store_watch.h"
#include "controller/job/algorithms.h"
#include "job_manager_internal.h"

enum { TRIES = 3 };

/* ---- which functions measure ----------------------------------------------------------------- */

/* A hash of what decides on a function's shapes, and on the room for the libraries' workspaces, as
 * far as the controller knows it. */
static uint64_t sort_of(const job_context *s, const job *j)
{
    char text[512];
    int together = j->request.process == PROCESS_SHARED ? j->request.default_parallelism : 1;
    const char *code = json_string_value(json_object_get(s->function, "object"));
    const char *data = json_string_value(json_object_get(s->dataset, "digest"));
    int length = snprintf(text, sizeof text, "%s|%s|%d|%d|%" PRIu64 "x%d", code ? code : "",
                          data ? data : "", j->request.batch_size, (int)j->request.precision,
                          j->request.gpu.memory_bytes, together);
    return hash64(text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

bool algorithms_measured(const job_manager *o, const job_context *s, const job *j)
{
    uint64_t sort = sort_of(s, j);
    for (unsigned i = 0; i < o->measured_count && i < MEASURED_MAX; i++)
        if (o->measured[i] == sort)
            return true;
    return false;
}

void algorithms_note(job_manager *o, const job_context *s, const job *j)
{
    if (!algorithms_measured(o, s, j))
        o->measured[o->measured_count++ % MEASURED_MAX] = sort_of(s, j);
}

/* ---- the record ------------------------------------------------------------------------------ */

/* Reads the store's record into o->algorithms; *version is STORE_NEW where there is none. */
static int load(job_manager *o, uint64_t *version, err *e)
{
    cleanup_json json_t *record = NULL;
    err why = ERR_INIT;
    *version = STORE_NEW;
    if (store_get(o->controller->store, "algorithms", "cuda", &record, version, &why) != 0 &&
        why.code != ERR_NOT_FOUND) {
        *e = why;
        return -1;
    }
    json_t *lines = json_object_get(record, "lines");
    json_decref(o->algorithms);
    o->algorithms = json_is_string(lines) ? json_incref(lines) : json_string("");
    return o->algorithms ? 0 : err_set(e, ERR_NOMEM, "no memory for algorithms");
}

json_t *algorithms_text(job_manager *o)
{
    uint64_t version;
    err e = ERR_INIT;
    if (!o->algorithms && load(o, &version, &e) != 0)
        log_warn("the algorithms that are known: %s", e.message);
    return o->algorithms && json_string_length(o->algorithms) ? json_incref(o->algorithms) : NULL;
}

/* Adds measurements to the store's record. 1: there was nothing new. */
static int add(job_manager *o, const char *told, err *e)
{
    cleanup_free char *all = NULL;
    uint64_t version;
    int added;
    if (load(o, &version, e) != 0 ||
        algorithms_add(json_string_value(o->algorithms), told, &all, &added, e) != 0)
        return -1;
    if (added == 0)
        return 1;
    cleanup_json json_t *record = json_pack("{s:s}", "lines", all);
    if (!record)
        return err_set(e, ERR_NOMEM, "no memory for algorithms");
    if (store_put(o->controller->store, "algorithms", "cuda", record, version, NULL, e) != 0)
        return -1;
    json_decref(o->algorithms);
    o->algorithms = json_incref(json_object_get(record, "lines"));
    log_info("%d measured algorithms more are known", added);
    return 0;
}

void algorithms_take(job_manager *o, const char *told)
{
    err e = ERR_INIT;
    int rc = -1;
    if (!told[0])
        return;
    /* Tries again where another controller has written meanwhile. */
    for (int i = 0; i < TRIES && rc < 0; i++) {
        e = (err)ERR_INIT;
        if (!store_watch_writable(o->controller->watch, &e))
            break;
        rc = add(o, told, &e);
        if (rc < 0 && e.code != ERR_CONFLICT && e.code != ERR_EXISTS)
            break;
    }
    if (rc < 0)
        log_warn("measured algorithms are not kept: %s", e.message);
    for (link_pod *p = o->pods, *next; rc == 0 && p; p = next) {
        next = p->next;
        pool_send_autotuned(o, p);
    }
}
