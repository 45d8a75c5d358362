/* job_record.c: a job as JSON and back, and the one reason why it is where it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "job_internal.h"

static const char *const state_names[] = {"queued",    "starting", "running",
                                          "succeeded", "failed",   "cancelled",
                                          "suspended"};

const char *job_state_name(job_state s)
{
    return state_names[s];
}

bool job_state_from_name(const char *name, job_state *out)
{
    for (unsigned s = 0; s < sizeof state_names / sizeof *state_names; s++)
        if (strcmp(state_names[s], name) == 0) {
            *out = (job_state)s;
            return true;
        }
    return false;
}

static json_t *conditions_json(const job *j)
{
    json_t *list = json_array();
    for (int i = 0; list && i < j->conditions; i++) {
        const job_condition *c = &j->condition[i];
        json_t *one = json_pack("{s:s, s:b, s:s, s:s, s:I}", "type", c->type, "status",
                                (int)c->status, "reason", c->reason, "message", c->message,
                                "since_ms", (json_int_t)c->since_wall_ms);
        if (!one || json_array_append_new(list, one) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* The GPU of each function, counted from 1; NULL if no function has a GPU. */
static json_t *gpus_json(const job *j)
{
    json_t *list = j->gpu_functions ? json_array() : NULL;
    for (int f = 0; list && f < j->gpu_functions; f++)
        json_array_append_new(list, json_integer(j->gpu[f]));
    return list;
}

json_t *job_record(const job *j)
{
    json_t *asked = request_json(&j->request), *conditions = conditions_json(j);
    if (!asked || !conditions) {
        json_decref(asked);
        json_decref(conditions);
        return NULL;
    }
    return json_pack(
        "{s:s, s:o, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:f, s:i, s:i, s:i, "
        "s:b, s:s, s:s, s:i, s:i, s:o, s:i, s:I, s:o*, s:i, s:i}",
        "id", j->id, "request", asked, "state", job_state_name(j->state), "reason", j->reason,
        "message", j->message, "created_ms", (json_int_t)j->created_wall_ms, "started_ms",
        (json_int_t)j->started_wall_ms, "finished_ms", (json_int_t)j->finished_wall_ms, "order",
        (json_int_t)j->order, "parallelism", j->parallelism, "functions_max", j->functions_max,
        "epochs", j->epochs, "reference_seconds", j->reference_seconds, "decided_epoch",
        j->decided_epoch, "generation", j->generation, "restarts", j->restarts, "resumed",
        (int)j->resumed, "verdict", j->verdict ? job_state_name(j->verdict_state) : "", "phase",
        j->phase, "epoch", j->epoch, "round", j->round, "conditions", conditions, "retries",
        j->retries, "again_ms", (json_int_t)j->again_wall_ms, "gpus", gpus_json(j), "threads",
        j->threads, "trained", j->trained);
}

/* ---- back ------------------------------------------------------------------------------------ */

static int read_text(const json_t *o, const char *name, char *out, size_t size, err *e)
{
    const char *text = json_string_value(json_object_get(o, name));
    if (!text || strlen(text) >= size)
        return err_set(e, ERR_INVALID, "job record: %s", name);
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

static int read_number(const json_t *o, const char *name, json_int_t low, json_int_t high,
                       json_int_t *out, err *e)
{
    const json_t *v = json_object_get(o, name);
    if (!json_is_integer(v) || json_integer_value(v) < low || json_integer_value(v) > high)
        return err_set(e, ERR_INVALID, "job record: %s", name);
    *out = json_integer_value(v);
    return 0;
}

static int read_small(const json_t *o, const char *name, int low, int high, int *out, err *e)
{
    json_int_t n;
    if (read_number(o, name, low, high, &n, e) < 0)
        return -1;
    *out = (int)n;
    return 0;
}

static int read_wall(const json_t *o, const char *name, int64_t *out, err *e)
{
    json_int_t n;
    if (read_number(o, name, 0, INT64_MAX, &n, e) < 0)
        return -1;
    *out = n;
    return 0;
}

static int read_state(const json_t *o, job *j, err *e)
{
    char name[16];
    if (read_text(o, "state", name, sizeof name, e) < 0)
        return -1;
    if (!job_state_from_name(name, &j->state))
        return err_set(e, ERR_INVALID, "job record: state");
    if (read_text(o, "verdict", name, sizeof name, e) < 0)
        return -1;
    j->verdict = name[0] != '\0';
    if (j->verdict && !job_state_from_name(name, &j->verdict_state))
        return err_set(e, ERR_INVALID, "job record: verdict");
    return 0;
}

static int read_conditions(const json_t *o, job *j, err *e)
{
    const json_t *list = json_object_get(o, "conditions"), *one;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) > JOB_CONDITIONS_MAX)
        return err_set(e, ERR_INVALID, "job record: conditions");
    json_array_foreach(list, i, one)
    {
        job_condition *c = &j->condition[j->conditions++];
        c->status = json_is_true(json_object_get(one, "status"));
        if (read_text(one, "type", c->type, sizeof c->type, e) < 0 ||
            read_text(one, "reason", c->reason, sizeof c->reason, e) < 0 ||
            read_text(one, "message", c->message, sizeof c->message, e) < 0 ||
            read_wall(one, "since_ms", &c->since_wall_ms, e) < 0)
            return err_wrap(e, "conditions[%zu]", i);
    }
    return 0;
}

void job_recall_exact(job *j, const json_t *record)
{
    int count = read_conditions(record, j, NULL) < 0 ? 0 : j->conditions;
    j->conditions = 0;
    for (int i = 0; i < count; i++)
        if (strcmp(j->condition[i].type, "Exact") == 0)
            j->condition[j->conditions++] = j->condition[i];
}

/* Records of older versions have no "gpus". */
static int read_gpus(const json_t *o, job *j, err *e)
{
    const json_t *list = json_object_get(o, "gpus"), *one;
    size_t f;
    if (list && (!json_is_array(list) || json_array_size(list) > REQUEST_PARALLELISM_MAX))
        return err_set(e, ERR_INVALID, "job record: gpus");
    json_array_foreach(list, f, one)
    {
        json_int_t at = json_integer_value(one);
        if (!json_is_integer(one) || at < 0 || at > GPU_COUNT_MAX)
            return err_set(e, ERR_INVALID, "job record: gpus");
        j->gpu[f] = (uint8_t)at;
    }
    j->gpu_functions = (int)json_array_size(list);
    return 0;
}

static int read_record(const json_t *o, job *j, err *e)
{
    json_int_t order;
    if (read_text(o, "id", j->id, sizeof j->id, e) < 0 ||
        read_text(o, "reason", j->reason, sizeof j->reason, e) < 0 ||
        read_text(o, "message", j->message, sizeof j->message, e) < 0 ||
        read_text(o, "phase", j->phase, sizeof j->phase, e) < 0 || read_state(o, j, e) < 0 ||
        read_wall(o, "created_ms", &j->created_wall_ms, e) < 0 ||
        read_wall(o, "started_ms", &j->started_wall_ms, e) < 0 ||
        read_wall(o, "finished_ms", &j->finished_wall_ms, e) < 0 ||
        read_number(o, "order", 0, INT64_MAX - 1, &order, e) < 0 ||
        read_small(o, "parallelism", 0, REQUEST_PARALLELISM_MAX, &j->parallelism, e) < 0 ||
        read_small(o, "functions_max", 0, REQUEST_PARALLELISM_MAX, &j->functions_max, e) < 0 ||
        read_small(o, "epochs", 0, REQUEST_EPOCHS_MAX, &j->epochs, e) < 0 ||
        read_small(o, "decided_epoch", -1, REQUEST_EPOCHS_MAX, &j->decided_epoch, e) < 0 ||
        read_small(o, "generation", 0, 200000, &j->generation, e) < 0 ||
        read_small(o, "restarts", 0, 1000, &j->restarts, e) < 0 ||
        read_small(o, "epoch", 0, REQUEST_EPOCHS_MAX, &j->epoch, e) < 0 ||
        read_small(o, "round", 0, INT32_MAX, &j->round, e) < 0 || read_conditions(o, j, e) < 0 ||
        read_gpus(o, j, e) < 0 ||
        (json_object_get(o, "threads") &&
         read_small(o, "threads", 0, JOB_THREADS_MAX, &j->threads, e) < 0) ||
        (json_object_get(o, "trained") &&
         read_small(o, "trained", 0, REQUEST_PARALLELISM_MAX, &j->trained, e) < 0) ||
        (json_object_get(o, "retries") &&
         read_small(o, "retries", 0, REQUEST_BACKOFF_MAX, &j->retries, e) < 0) ||
        (json_object_get(o, "again_ms") && read_wall(o, "again_ms", &j->again_wall_ms, e) < 0))
        return -1;
    j->order = (uint64_t)order;
    j->resumed = json_is_true(json_object_get(o, "resumed"));
    /* Records of older versions do not have it. */
    j->reference_seconds = json_number_value(json_object_get(o, "reference_seconds"));
    if (request_parse(json_object_get(o, "request"), &j->request, e) < 0)
        return err_wrap(e, "job record: request");
    return 0;
}

int jobs_restore(jobs *m, const json_t *record, err *e)
{
    job *j = calloc(1, sizeof *j);
    if (!j)
        return err_set(e, ERR_NOMEM, "no memory for a job");
    j->trained = REQUEST_PARALLELISM_MAX; /* if the record, of an older version, does not have it */
    if (read_record(record, j, e) < 0) {
        free(j);
        return -1;
    }
    /* There may be fewer GPUs than when the record was written: then the function is placed again
     * when its pod is next asked for. JOB_POD_FOUND gives the GPUs of pods. */
    for (int f = 0; f < j->gpu_functions; f++)
        if (j->gpu[f] > m->gpus)
            j->gpu[f] = 0;
    if (job_active(j) && job_pods_room(m, j) < 0) {
        free(j);
        return err_set(e, ERR_NOMEM, "no memory for a job");
    }
    if (job_active(j)) /* records of older versions have no threads */
        job_decide_threads(m, j);
    m->adopting = true;
    return jobs_add(m, j, e);
}

/* ---- the one reason -------------------------------------------------------------------------- */

/* The most important first: conditions that block the job, then conditions that slow it down. */
static const char *const dominant[] = {"RedisGone",    "StoreUnavailable", "PoolEmpty",
                                       "FunctionLost", "PSRestarted",      "Straggler"};

static void set(job_reason *out, const char *reason, const char *message)
{
    snprintf(out->reason, sizeof out->reason, "%s", reason);
    snprintf(out->message, sizeof out->message, "%s", message);
}

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

static void explain_queued(jobs_look *l, const job *j, job_reason *out);

static int compare_turns(const void *a, const void *b)
{
    const job *x = *(job *const *)a, *y = *(job *const *)b;
    return job_sooner(x, y) ? -1 : job_sooner(y, x);
}

/* Fills in what jobs wait for: the queue, in the order of jobs_next, and the jobs that hold
 * slots. */
static void look_around(jobs_look *l)
{
    const jobs *m = l->machine;
    job_reason why;
    if (l->known)
        return;
    l->known = true;
    l->slots_free = jobs_slots_free(m);
    jobs_gpu_states(m, l->gpu);
    jobs_gpu_wishes(m, NULL, l->gpu);
    for (size_t k = 0, used = 0; k < m->count; k++) {
        job *j = m->job[k];
        int held = job_held(j);
        if (j->state == JOB_QUEUED && j->again_ms <= m->now_ms && job_possible(m, j))
            m->queue[l->queued++] = j;
        if (held > 0 && used < sizeof l->holders - 1)
            used += (size_t)snprintf(l->holders + used, sizeof l->holders - used, "%s%s (%d)",
                                     used ? ", " : "", j->id, held);
    }
    if (!l->queued)
        return;
    qsort(m->queue, l->queued, sizeof(*m->queue), compare_turns);
    explain_queued(l, m->queue[0], &why); /* no job is before it */
    snprintf(l->first_reason, sizeof l->first_reason, "%s", why.reason);
}

static int count_before(const jobs_look *l, const job *j)
{
    size_t low = 0, high = l->queued;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (job_sooner(l->machine->queue[middle], j))
            low = middle + 1;
        else
            high = middle;
    }
    return (int)low;
}

/* ", 2 jobs are before it (first b: NoGpuMemory)": the jobs that it waits for. */
static void say_before(const jobs_look *l, int before, char *out, size_t bytes)
{
    int used = snprintf(out, bytes, ", %d job%s before it", before, before == 1 ? " is" : "s are");
    if (before)
        snprintf(out + used, bytes - (size_t)used, " (first %s: %s)", l->machine->queue[0]->id,
                 l->first_reason);
}

/* The message begins with what the job needs: a TrainJob shows no more (kube_trainjob.c). */
static void explain_queued(jobs_look *l, const job *j, job_reason *out)
{
    const jobs *m = l->machine;
    char queue[48 + JOB_ID_BYTES + JOB_REASON_BYTES];
    size_t used;
    look_around(l);
    int before = count_before(l, j), wants = job_wants(m, j);
    if ((before == 0 && wants <= l->slots_free) || !job_gpus_hold(m, j, wants))
        if (job_explain_gpu(m, j, wants, l->gpu, out)) {
            used = strlen(out->message);
            if (l->holders[0] && m->gpus)
                snprintf(out->message + used, sizeof out->message - used, "; slots are held by: %s",
                         l->holders);
            return;
        }
    snprintf(out->reason, sizeof out->reason, "NoFreeSlot");
    if (wants > m->slots) {
        snprintf(out->message, sizeof out->message,
                 "it needs %d function slots and the cluster has %d", wants, m->slots);
        return;
    }
    say_before(l, before, queue, sizeof queue);
    snprintf(out->message, sizeof out->message, "it needs %d function slot%s, %d of %d are free%s",
             wants, plural(wants), l->slots_free, m->slots, queue);
    used = strlen(out->message);
    snprintf(out->message + used, sizeof out->message - used, "; held by: %s",
             l->holders[0] ? l->holders : "nobody");
}

static bool explain_condition(const job *j, job_reason *out)
{
    for (size_t d = 0; d < sizeof dominant / sizeof *dominant; d++)
        for (int i = 0; i < j->conditions; i++)
            if (j->condition[i].status && strcmp(j->condition[i].type, dominant[d]) == 0) {
                set(out, j->condition[i].reason, j->condition[i].message);
                return true;
            }
    return false;
}

/* " (its pod) for 2.5 s"; each part only if it is known. */
static const char *waited(const job_pod *p, int64_t now_ms, char out[JOB_POD_BYTES + 32])
{
    int used = p->name[0] ? snprintf(out, JOB_POD_BYTES + 8, " (%s)", p->name) : 0;
    out[used] = '\0';
    if (now_ms - p->since_ms >= 1000)
        snprintf(out + used, 24, " for %.1f s", (double)(now_ms - p->since_ms) / 1000);
    return out;
}

static void explain_starting(const job *j, int64_t now_ms, job_reason *out)
{
    char more[JOB_POD_BYTES + 32];
    for (int i = 0; i < j->pods; i++) {
        const job_pod *p = &j->pod[i];
        if (p->phase >= JOB_POD_GIVEN)
            continue;
        snprintf(out->reason, sizeof out->reason, "Starting");
        if (p->function == JOB_KUBEML_PS)
            snprintf(out->message, sizeof out->message, "waiting for kubeml-ps%s",
                     waited(p, now_ms, more));
        else
            snprintf(out->message, sizeof out->message, "waiting for function %d%s", p->function,
                     waited(p, now_ms, more));
        return;
    }
    set(out, "Starting", "its functions load their code and make the model");
}

static void explain(jobs_look *l, const job *j, job_reason *out)
{
    int64_t now_ms = l->now_ms;
    if (job_ended(j)) {
        set(out, j->reason, j->message);
    } else if (j->verdict) {
        set(out, j->reason, j->message);
    } else if (j->state == JOB_QUEUED && j->again_ms > now_ms) {
        snprintf(out->reason, sizeof out->reason, "Retrying");
        snprintf(out->message, sizeof out->message, "retry %d of %d in %.0f s, after %.180s",
                 j->retries, j->request.backoff_limit, (double)(j->again_ms - now_ms) / 1000,
                 j->message);
    } else if (j->state == JOB_QUEUED) {
        explain_queued(l, j, out);
    } else if (explain_condition(j, out)) {
        return;
    } else if (j->state == JOB_STARTING) {
        explain_starting(j, now_ms, out);
    } else {
        bool bound = j->no_more[0] && j->parallelism >= j->most;
        char why[ERR_MESSAGE_BYTES] = "";
        if (bound)
            snprintf(why, sizeof why, "%s", j->no_more);
        else if (job_useful(j, j->parallelism + 1) <= j->parallelism)
            snprintf(why, sizeof why, "its dataset has %d chunk%s", j->chunks, plural(j->chunks));
        snprintf(out->reason, sizeof out->reason, "Training");
        snprintf(out->message, sizeof out->message, "%s, epoch %d of %d, %d function%s%s%.150s",
                 j->phase, j->epoch + 1, j->request.epochs, j->parallelism, plural(j->parallelism),
                 why[0] ? "; there is no more of them: " : "", why);
    }
}

void jobs_explain_in(jobs_look *l, const job *j, job_reason *out)
{
    explain(l, j, out);
    size_t used = strlen(out->message);
    bool waits = j->state == JOB_QUEUED && j->again_ms > l->now_ms; /* has the retry in its text */
    if (j->retries > 0 && !job_ended(j) && !waits)
        snprintf(out->message + used, sizeof out->message - used, "; retry %d of %d", j->retries,
                 j->request.backoff_limit);
    text_mend(out->message);
}

void jobs_explain(const jobs *m, const job *j, int64_t now_ms, job_reason *out)
{
    jobs_explain_in(&(jobs_look){.machine = m, .now_ms = now_ms}, j, out);
}
