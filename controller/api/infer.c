/* infer.c: /infer: runtimes that serve trained models, kept warm for a while.
 *
 * A runtime of the pool gets a model and its code (`serve`), and belongs to that model from then
 * on. A handler takes an idle runtime or makes one, talks to it over its connection, and puts it
 * back. Two requests for a model run beside each other in two runtimes; all models together have at
 * most JOB_MANAGER_SERVERS_MAX runtimes.
 *
 * No more requests than runtimes are at work. The others wait as the bytes in which they came,
 * since parsed JSON is many times as large. ROOM_BYTES limits what all requests at work take, and
 * what their answers take, so that large ones run one after the other. A runtime runs any user's
 * code: its answer gets no more room than its model's outputs need. Requests get room in the order
 * of their coming: small requests do not pass a large one. */
#include "infer.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/base/name.h"
#include "common/contract/infer_answer.h"
#include "common/contract/request.h"
#include "common/net/wire.h"
#include "common/store/model_blob.h"
#include "controller/ha/store_watch.h"
#include "controller/jobs/job_manager.h"
#include "forward.h"
#include "rest.h"

enum {
    TAKE_MS = 30000,
    SERVE_MS = 30000,
    INFER_MS = 60000,
    /* for the questions at work, and as much for their answers; the largest, which may be larger
     * than this, counts as LARGE_BYTES and leaves room for small ones beside it */
    ROOM_BYTES = 256 << 20,
    LARGE_BYTES = 240 << 20,
};
/* The sum of all waits for an answer; a standby waits longer for it. */
_Static_assert(INFER_MS + TAKE_MS + SERVE_MS + INFER_MS + INFER_MS < FORWARD_ANSWER_MS,
               "a standby waits for the leader's answer");

typedef struct server {
    char model[64];
    char version[72]; /* the model's SHA-256; of a checkpoint its name */
    char pod[CLUSTER_NAME_BYTES];
    wire *wire;
    size_t outputs; /* of the model, as the runtime reports */
    bool busy;
    int64_t used_ms;
    struct server *next;
} server;

/* A request, from the moment that it asks to enter. */
typedef struct visit {
    size_t question_bytes, answer_bytes;
    struct visit *next; /* in the line that it waits in */
} visit;

struct infer {
    controller *controller;
    pthread_mutex_t lock;
    pthread_cond_t freed;
    server *servers;
    int count;
    int asking; /* requests that have a server, or will get one */
    size_t questions_bytes, answers_bytes; /* room that they take */
    visit *entering, *answering;           /* requests that wait for room, in their order */
};

infer *infer_open(controller *c)
{
    infer *i = calloc(1, sizeof *i);
    if (!i)
        return NULL;
    i->controller = c;
    pthread_mutex_init(&i->lock, NULL);
    clock_cond_init(&i->freed);
    return i;
}

/* Takes a server out of the list. Needs the lock. */
static void unlist(infer *i, server *gone)
{
    for (server **at = &i->servers; *at; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            i->count--;
            return;
        }
}

/* Not under the lock: it asks the job manager. */
static void end(infer *i, server *s)
{
    wire_close(s->wire);
    if (s->pod[0] && i->controller->job_manager)
        job_manager_release_function(i->controller->job_manager, s->pod);
    free(s);
}

void infer_close(infer *i)
{
    if (!i)
        return;
    while (i->servers) {
        server *s = i->servers;
        unlist(i, s);
        wire_close(s->wire);
        free(s);
    }
    pthread_cond_destroy(&i->freed);
    pthread_mutex_destroy(&i->lock);
    free(i);
}

void infer_reap(infer *i)
{
    int64_t before = clock_monotonic_ms() - JOB_MANAGER_SERVER_IDLE_MS;
    for (;;) {
        pthread_mutex_lock(&i->lock);
        server *s = i->servers;
        while (s && (s->busy || s->used_ms > before))
            s = s->next;
        if (s)
            unlist(i, s);
        pthread_mutex_unlock(&i->lock);
        if (!s)
            return;
        end(i, s);
    }
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Everything `serve` needs, and the blobs that must stay open until it is loaded. */
typedef struct material {
    json_t *record;
    blob *model, *object;
    bool local; /* the runtime opens our paths; otherwise it reads the blobs from the store */
    char model_name[STORE_KEY_BYTES];
    char model_path[FS_PATH_BYTES], object_path[FS_PATH_BYTES];
    char version[72];
} material;

static void material_free(material *m)
{
    json_decref(m->record);
    blob_close(m->model);
    blob_close(m->object);
}

static int still_runs(const char *id, err *e)
{
    return err_set(e, ERR_CONFLICT,
                   "model_id: job %s still runs; its model is there once it has ended", id);
}

static int find_model(controller *c, const char *id, char name[STORE_KEY_BYTES], err *e)
{
    err why = ERR_INIT;
    if (model_blob_find(c->store, id, name, &why) == 0)
        return 0;
    if (why.code == ERR_NOT_FOUND && job_query_trains(c->job_manager, id))
        return still_runs(id, e);
    if (why.code == ERR_NOT_FOUND) { /* the job may have ended between the two */
        err_clear(&why);
        if (model_blob_find(c->store, id, name, &why) == 0)
            return 0;
    }
    if (why.code == ERR_NOT_FOUND)
        return err_set(e, ERR_NOT_FOUND, "model_id: there is no trained model \"%s\"", id);
    *e = why;
    return -1;
}

static int open_material(controller *c, const char *id, material *m, err *e)
{
    if (name_check("model_id", id, e))
        return -1;
    m->local = strcmp(c->config.cluster, "local") == 0 && !store_watch_is_far(c->watch);
    err why = ERR_INIT;
    if (find_model(c, id, m->model_name, e))
        return -1;
    if (store_get(c->store, "jobs", id, &m->record, NULL, &why)) {
        *e = why;
        return why.code == ERR_NOT_FOUND
                   ? err_set(e, ERR_CONFLICT,
                             "model \"%s\" was uploaded: it has no code to infer with", id)
                   : -1;
    }
    /* the job's earlier model may still be there, and a restarted job's checkpoints */
    if (!jobs_record_ended(m->record) && job_query_trains(c->job_manager, id))
        return still_runs(id, e);
    /* The SHA-256 is the final model's; each checkpoint has a name of its own. */
    const char *sha = json_string_value(json_object_get(m->record, "sha256")),
               *kind = strrchr(m->model_name, '/') + 1;
    snprintf(m->version, sizeof m->version, "%.64s",
             strcmp(kind, "final") == 0 && sha && *sha ? sha : kind);
    if (m->local && (store_blob_open(c->store, m->model_name, &m->model, e) ||
                     blob_path(m->model, m->model_path, e)))
        return -1;
    const char *object =
        json_string_value(json_object_get(json_object_get(m->record, "function"), "object"));
    if (!object)
        return err_set(e, ERR_CORRUPT, "the record of job %s names no object", id);
    if (!m->local || strncmp(object, "zoo:", 4) == 0)
        return 0;
    return store_blob_open(c->store, object, &m->object, e) ||
                   blob_path(m->object, m->object_path, e)
               ? -1
               : 0;
}

/* ---- one server ------------------------------------------------------------------------------ */

/* Sends a message and waits for the answer; a `failed` answer is an error. */
static int exchange(wire *w, json_t *message, const char *want, int timeout_ms, json_t **out,
                    err *e)
{
    int64_t deadline = clock_deadline_ms(timeout_ms);
    cleanup_json json_t *question = message;
    json_t *answer = NULL;
    if (!question)
        return err_set(e, ERR_NOMEM, "no memory for the question");
    if (wire_send_wait(w, question, deadline, e) || wire_receive_wait(w, &answer, deadline, e))
        return err_wrap(e, "the runtime");
    if (strcmp(wire_type(answer), want) == 0) {
        *out = answer;
        return 0;
    }
    const char *code = json_string_value(json_object_get(answer, "code"));
    const char *text = json_string_value(json_object_get(answer, "message"));
    err_set(e, code ? err_from_name(code) : ERR_INTERNAL, "%s",
            text ? text : "the runtime did not answer");
    json_decref(answer);
    return 1; /* refused; the runtime is as it was */
}

static int load(infer *i, server *s, const material *m, err *e)
{
    cleanup_json json_t *answer = NULL;
    const json_t *function = json_object_get(m->record, "function");
    if (job_manager_take_function(i->controller->job_manager, clock_deadline_ms(TAKE_MS), &s->wire,
                                  s->pod, e))
        return -1;
    store *st = i->controller->store;
    char locator[STORE_LOCATOR_BYTES] = "";
    if (!m->local && store_locator(st, STORE_USE_READ, locator, e))
        return -1;
    json_t *order = json_pack(
        "{s:s, s:s*, s:s*, s:s*, s:s*, s:O, s:O*}", "type", "serve", "object_path",
        m->local ? m->object_path : NULL, "model_path", m->local ? m->model_path : NULL, "store",
        m->local ? NULL : locator, "model", m->local ? NULL : m->model_name, "object",
        json_object_get(function, "object"), "dataset", json_object_get(m->record, "dataset_info"));
    int status = exchange(s->wire, order, "serving", SERVE_MS, &answer, e) ? -1 : 0;
    if (locator[0])
        /* it has what it needs; a user that stays is revoked at the next start */
        store_revoke(st, locator, NULL);
    explicit_bzero(locator, sizeof locator);
    json_int_t outputs = json_integer_value(json_object_get(answer, "outputs"));
    s->outputs = outputs > 0 && outputs < LIMITS_OUTPUTS_MAX ? (size_t)outputs : LIMITS_OUTPUTS_MAX;
    return status;
}

static size_t counted(size_t bytes)
{
    return bytes < LARGE_BYTES ? bytes : LARGE_BYTES;
}

static bool fits(size_t used, size_t bytes)
{
    return used + bytes <= ROOM_BYTES;
}

static bool question_fits(const infer *i, size_t bytes)
{
    return i->asking < JOB_MANAGER_SERVERS_MAX && fits(i->questions_bytes, bytes);
}

static bool answer_fits(const infer *i, size_t bytes)
{
    return fits(i->answers_bytes, bytes);
}

/* Waits until the visit is the first in its line and has room, or its time is over. Needs the
 * lock. */
static bool wait_in_line(infer *i, visit **line, visit *v, size_t bytes,
                         bool (*has_room)(const infer *, size_t))
{
    int64_t deadline_ms = clock_deadline_ms(INFER_MS);
    visit **at = line;
    while (*at)
        at = &(*at)->next;
    *at = v;
    v->next = NULL;
    while ((*line != v || !has_room(i, bytes)) && clock_cond_wait(&i->freed, &i->lock, deadline_ms))
        ;
    bool in = *line == v && has_room(i, bytes);
    for (at = line; *at != v;)
        at = &(*at)->next;
    *at = v->next;
    pthread_cond_broadcast(&i->freed); /* the next in the line may have room too */
    return in;
}

static int enter(infer *i, visit *v, err *e)
{
    pthread_mutex_lock(&i->lock);
    bool in = wait_in_line(i, &i->entering, v, v->question_bytes, question_fits),
         busy = i->asking == JOB_MANAGER_SERVERS_MAX;
    i->asking += in;
    i->questions_bytes += in ? v->question_bytes : 0;
    pthread_mutex_unlock(&i->lock);
    if (in)
        return 0;
    return busy ? err_set(e, ERR_UNAVAILABLE, "all %d runtimes for inference are busy",
                          JOB_MANAGER_SERVERS_MAX)
                : err_set(e, ERR_UNAVAILABLE,
                          "other questions take all memory that there is for them: ask with fewer "
                          "samples, or later");
}

static int enter_answer(infer *i, visit *v, size_t bytes, err *e)
{
    pthread_mutex_lock(&i->lock);
    i->answers_bytes -= v->answer_bytes; /* of a runtime that was gone */
    v->answer_bytes = 0;
    if (wait_in_line(i, &i->answering, v, bytes, answer_fits))
        i->answers_bytes += v->answer_bytes = bytes;
    pthread_mutex_unlock(&i->lock);
    return v->answer_bytes ? 0
                           : err_set(e, ERR_UNAVAILABLE,
                                     "other answers take all memory that there is for them");
}

static void leave(infer *i, const visit *v)
{
    pthread_mutex_lock(&i->lock);
    i->asking--;
    i->questions_bytes -= v->question_bytes;
    i->answers_bytes -= v->answer_bytes;
    pthread_cond_broadcast(&i->freed);
    pthread_mutex_unlock(&i->lock);
}

/* Marks a server busy: an idle server of the model, or a new one (its wire is NULL). There always
 * is one for a request that has entered: at most JOB_MANAGER_SERVERS_MAX requests are in. */
static int reserve(infer *i, const char *id, const char *version, server **out, err *e)
{
    pthread_mutex_lock(&i->lock);
    for (*out = NULL; !*out;) {
        server *idle = NULL;
        for (server *s = i->servers; s && !*out; s = s->next) {
            if (s->busy)
                continue;
            idle = s;
            if (strcmp(s->model, id) == 0 && strcmp(s->version, version) == 0)
                *out = s;
        }
        if (*out)
            break;
        if (i->count < JOB_MANAGER_SERVERS_MAX) {
            *out = calloc(1, sizeof **out);
            if (!*out)
                break;
            (*out)->next = i->servers;
            i->servers = *out;
            i->count++;
        } else {
            assert(idle);
            unlist(i, idle);
            pthread_mutex_unlock(&i->lock);
            end(i, idle);
            pthread_mutex_lock(&i->lock);
        }
    }
    if (*out)
        (*out)->busy = true;
    pthread_mutex_unlock(&i->lock);
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory for a runtime");
}

static void give_back(infer *i, server *s, bool fit)
{
    pthread_mutex_lock(&i->lock);
    s->busy = false;
    s->used_ms = clock_monotonic_ms();
    if (!fit)
        unlist(i, s);
    pthread_mutex_unlock(&i->lock);
    if (!fit)
        end(i, s);
}

/* Ends a server's runtime; the next load takes another. */
static void unload(infer *i, server *s)
{
    wire_close(s->wire);
    s->wire = NULL;
    job_manager_release_function(i->controller->job_manager, s->pod);
    s->pod[0] = '\0';
}

/* Asks the server, and loads its runtime first where it has none. exchange's 1, 0 or -1. */
static int load_and_ask(infer *i, server *s, const material *m, visit *v, json_t *data,
                        json_t **out, err *e)
{
    size_t frame_bytes, values_bytes;
    if (!s->wire && load(i, s, m, e))
        return -1;
    infer_answer_limits(json_array_size(data), s->outputs, WIRE_FRAME_BYTES_MAX, &frame_bytes,
                        &values_bytes);
    if (enter_answer(i, v, counted(frame_bytes + values_bytes), e))
        return 1;
    wire_set_limit(s->wire, frame_bytes);
    wire_set_values_limit(s->wire, values_bytes);
    return exchange(s->wire, json_pack("{s:s, s:O}", "type", "infer", "data", data), "predictions",
                    INFER_MS, out, e);
}

/* Asks the server. A runtime that was idle may have ended unnoticed, perhaps with its node: loads
 * another in its place. A runtime that uses up all the time is slow, not gone. */
static int ask_server(infer *i, server *s, const material *m, visit *v, json_t *data, json_t **out,
                      err *e)
{
    bool was_idle = s->wire;
    int64_t deadline = clock_deadline_ms(INFER_MS);
    int status = load_and_ask(i, s, m, v, data, out, e);
    if (status >= 0 || !was_idle || clock_left_ms(deadline) == 0)
        return status;
    log_warn("runtime %s of model %s is gone, another is loaded: %s", s->pod, s->model, e->message);
    err_clear(e);
    unload(i, s);
    return load_and_ask(i, s, m, v, data, out, e);
}

static int ask(infer *i, visit *v, const char *id, json_t *data, json_t **out, err *e)
{
    material m = {0};
    server *s = NULL;
    int status = open_material(i->controller, id, &m, e);
    if (status == 0)
        status = reserve(i, id, m.version, &s, e);
    if (status == 0) {
        snprintf(s->model, sizeof s->model, "%s", id);
        snprintf(s->version, sizeof s->version, "%s", m.version);
        status = ask_server(i, s, &m, v, data, out, e);
    }
    if (s)
        give_back(i, s, status >= 0);
    material_free(&m);
    return status ? -1 : 0;
}

static void answer(http_request *r, infer *i, visit *v)
{
    static const char *const known[] = {"model_id", "data", NULL};
    cleanup_json json_t *body = NULL, *told = NULL;
    err e = ERR_INIT;
    const json_t *id = NULL;
    json_t *data = NULL;
    if (http_body_json(r, &body, &e) == 0 && json_read_known(body, known, &e) == 0) {
        id = json_object_get(body, "model_id");
        data = json_object_get(body, "data");
        if (!json_is_string(id))
            err_set(&e, ERR_INVALID, "model_id must be the id of a job");
        else if (!json_is_array(data) || json_array_size(data) == 0)
            err_set(&e, ERR_INVALID, "data must be a list of at least one sample");
    }
    if (e.code != ERR_NONE || ask(i, v, json_string_value(id), data, &told, &e))
        http_response_error(r, &e);
    else
        http_response_json(r, 200, json_incref(json_object_get(told, "data")));
}

void rest_infer(http_request *r, void *context)
{
    controller *c = context;
    err e = ERR_INIT;
    size_t len, most = json_values_max(REQUEST_INFER_BYTES_MAX);
    const char *text = http_body_bytes(r, &len);
    size_t bytes = json_measure(text, len).bytes;
    /* a request over the limit is refused before it is parsed */
    visit v = {.question_bytes = bytes > most ? 0 : counted(bytes)};
    if (enter(c->infer, &v, &e)) {
        http_response_error(r, &e);
        return;
    }
    answer(r, c->infer, &v);
    leave(c->infer, &v);
}
