/* ps_job.c: see ps_job.h. Begin, outcomes of tasks, Redis, time. */
#include "ps_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "ps_job_internal.h"

/* ---- begin and end --------------------------------------------------------------------------- */

static int functions_max(const job_spec *s)
{
    int most = s->parallelism;
    bool fixed = s->request.static_parallelism || s->plan_epochs > 0;
    if (!fixed && s->slots_max > most)
        most = s->slots_max;
    for (int i = 0; i < s->plan_epochs; i++)
        most = s->plan[i] > most ? s->plan[i] : most;
    return most < ROUND_FUNCTIONS_MAX ? most : ROUND_FUNCTIONS_MAX;
}

static int open_machine(job *j, err *e)
{
    const job_spec *s = &j->spec;
    round_config config = {.request = s->request,
                           .parallelism = s->parallelism,
                           .functions_max = functions_max(s),
                           .plan = s->plan,
                           .plan_epochs = s->plan_epochs,
                           .train_samples = s->train_samples,
                           .test_samples = s->test_samples,
                           .chunk_samples = (uint32_t)s->chunk_samples,
                           .generation = s->generation >= 0 ? s->generation : s->resume};
    round_limits_default(&config.limits);
    if (round_open(&config, &j->machine, e))
        return err_wrap(e, "job");
    j->storage_worker = storage_worker_new(round_slots(&config), e);
    return j->storage_worker ? 0 : -1;
}

static int open_averaging(job *j, err *e)
{
    const request *r = &j->spec.request;
    const averaging_config config = {.parallelism = j->spec.parallelism,
                                     .own_processes = r->process != PROCESS_SHARED,
                                     .whole_state = r->optimizer_state != STATE_RESET,
                                     .nccl = r->merge == MERGE_NCCL,
                                     .tensor_path = j->member.tensor_path};
    j->averaging = averaging_open(&config, e);
    return j->averaging ? 0 : -1;
}

static int post_prepare(job *j, err *e)
{
    database_task *t = database_task_new(j->host.database, DATABASE_PREPARE);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for the job's first task");
    snprintf(t->job, sizeof t->job, "%s", j->spec.id);
    snprintf(t->kind_name, sizeof t->kind_name, "%s",
             j->spec.request.merge == MERGE_SERVER ? "server" : "database");
    snprintf(t->shm_dir, sizeof t->shm_dir, "%s", j->spec.shm_dir);
    j->database_busy = true;
    worker_post(j->host.nurse, &t->work);
    return 0;
}

job *job_begin(const job_host *host, conn *c, const json_t *message, err *e)
{
    job *j = calloc(1, sizeof *j);
    if (!j) {
        err_set(e, ERR_NOMEM, "no memory for a job");
        return NULL;
    }
    j->host = *host;
    j->epoch = j->round = -1;
    j->retry_due_ms = j->revive_due_ms = j->ping_due_ms = INT64_MAX;
    j->asker = c;
    if (job_spec_parse(message, &j->spec, e) || open_machine(j, e) ||
        job_record_init(&j->record, &j->spec, e) || open_averaging(j, e) || post_prepare(j, e)) {
        job_free(j, true);
        return NULL;
    }
    log_context(j->spec.id, -1, -1);
    j->stage = JOB_PREPARING;
    return j;
}

void job_free(job *j, bool kept)
{
    if (!j)
        return;
    storage_worker_free(j->storage_worker, !kept);
    round_close(j->machine);
    job_record_free(&j->record);
    for (size_t i = 0; i < ROUND_FUNCTIONS_MAX; i++)
        json_decref(j->about[i]);
    job_usage_clear(&j->usage);
    averaging_close(j->averaging);
    json_decref(j->gathered);
    json_decref(j->finished);
    free(j->layout);
    free(j->stop);
    explicit_bzero(&j->owner, sizeof j->owner);
    explicit_bzero(&j->member, sizeof j->member);
    job_spec_free(&j->spec);
    free(j);
}

const char *job_id(const job *j)
{
    return j->spec.id;
}

const char *job_shm_dir(const job *j)
{
    return j->spec.shm_dir;
}

bool job_over(const job *j)
{
    return j->stage == JOB_OVER;
}

bool job_refused(const job *j)
{
    return j->stage == JOB_REFUSED;
}

bool job_database_busy(const job *j)
{
    return j->database_busy;
}

bool job_pings_database(const job *j)
{
    return j->pings;
}

/* ---- outcomes of tasks ----------------------------------------------------------------------- */

/* While OPENING: the machine, which says so of a job that runs, has not begun. */
static void say_store_away(job *j, const err *e)
{
    if (!j->store_away && e)
        job_tell_condition(j, NULL, "StoreUnavailable", true, "StoreDown", e->message);
    else if (j->store_away && !e)
        job_tell_condition(j, NULL, "StoreUnavailable", false, "Answers", "the store answers");
    j->store_away = e;
}

/* What a part of the job was computed with counts for all of it: also what of an earlier run made
 * it another one than an undisturbed run. */
static void start(job *j, const round_resume *resume)
{
    char algorithms[DIGEST_HEX_BYTES];
    cleanup_json json_t *record = history_json(j->record.history);
    round_event event = {.type = ROUND_START, .resume = resume, .algorithms = algorithms};
    event.value = (int)json_integer_value(json_object_get(record, "lost"));
    json_t *one;
    size_t i;
    if (job_record_algorithms(json_object_get(record, "plan"), algorithms, NULL) != 0)
        algorithms[0] = '\0';
    json_array_foreach (json_object_get(record, "conditions"), i, one) {
        const char *type = "", *status = "";
        json_unpack(one, "{s:s,s:s}", "type", &type, "status", &status);
        if (strcmp(type, "Exact") == 0 && strcmp(status, "False") == 0)
            json_unpack(one, "{s:s,s:s}", "reason", &event.reason, "message", &event.message);
    }
    job_step(j, event);
}

static void run(job *j, const round_resume *resume)
{
    j->stage = JOB_RUNNING;
    say_store_away(j, NULL);
    start(j, resume);
    if (j->stop)
        job_step(j, (round_event){.type = j->stop_suspends ? ROUND_SUSPEND : ROUND_STOP,
                                  .message = j->stop});
}

static void end_as_recorded(job *j, const json_t *record)
{
    const char *reason = "", *message = "", *sha = "";
    json_unpack((json_t *)record, "{s:s,s:s,s:s}", "reason", &reason, "message", &message, "sha256",
                &sha);
    size_t epochs = json_array_size(json_object_get(record, "versions"));
    err e = ERR_INIT;
    if (history_restore(j->record.history, record, (int)epochs, &e))
        log_warn("%s", e.message);
    j->record.told_epochs = (int)epochs;
    job_end(j, "succeeded", reason, message, (int)epochs, sha);
}

/* A store or a Redis that is away may come back; so may a disk, see round_commit_failed. False: a
 * retry cannot help, or there were enough. */
static bool retry_later(job *j, const task *t)
{
    bool io = t->e.code == ERR_IO;
    bool enough = clock_monotonic_ms() >= j->give_up_ms;
    if (t->kind == TASK_OPEN && io)
        enough = t->last; /* which does without what cannot be read */
    if (enough || !(err_retry_may_help(t->e.code) || io || j->redis_down))
        return false;
    j->retry_due_ms = clock_deadline_ms(JOB_RETRY_MS);
    return true;
}

static void open_failed(job *j, const err *e)
{
    const char *reason = e->code == ERR_CORRUPT ? "CheckpointCorrupt" : "StoreUnavailable";
    job_end(j, "failed", reason, e->message, 0, "");
}

static void opened(job *j, task *t)
{
    if (j->stage != JOB_OPENING)
        return; /* a fresh job runs already; what it cannot write it hears of later */
    if (t->status && retry_later(j, t)) {
        say_store_away(j, &t->e);
        return;
    }
    if (t->status) {
        open_failed(j, &t->e);
        return;
    }
    const char *state = json_string_value(json_object_get(t->record, "state"));
    if (!t->resumed && state && strcmp(state, "succeeded") == 0) {
        say_store_away(j, NULL);
        end_as_recorded(j, t->record);
        return;
    }
    /* It stays until there is a checkpoint after it, whatever ends the job. */
    json_t *open = json_object_get(t->record, "open");
    history_open(j->record.history, json_incref(open));
    if (!t->resumed) {
        history_lost(j->record.history,
                     (int)json_integer_value(json_object_get(t->record, "lost")));
        run(j, NULL);
        return;
    }
    err e = ERR_INIT;
    if (job_record_restore(&j->record, t->record, &t->info, &e)) {
        open_failed(j, &e);
        return;
    }
    round_resume resume = {0};
    if (!t->open)
        resume = job_record_resume(&j->record, &t->info);
    else if (job_record_resume_open(&j->record, open, &resume, &e)) {
        open_failed(j, &e);
        return;
    }
    char text[ERR_MESSAGE_BYTES];
    snprintf(text, sizeof text, "goes on from the checkpoint after %d epoch%s%s", t->info.epochs,
             t->info.epochs == 1 ? "" : "s",
             t->open ? " and the merges of the next one so far" : "");
    job_tell_condition(j, NULL, "Resumed", true, "Checkpoint", text);
    j->initial_done = true;
    run(j, &resume);
    free((void *)(uintptr_t)(t->open ? resume.rows : NULL));
}

static void created(job *j, const task *t)
{
    if (t->status)
        job_step(j, (round_event){
                        .type = ROUND_LOAD_FAILED, .code = t->e.code, .message = t->e.message});
    else if (j->initial_done) /* function 0 was replaced after its model had been merged */
        job_step(j, (round_event){.type = ROUND_INITIALISED,
                                  .function = 0,
                                  .incarnation = j->init_incarnation});
    else
        job_send_init(j);
}

static void loaded(job *j, const task *t)
{
    if (t->status)
        job_step(j, (round_event){
                        .type = ROUND_LOAD_FAILED, .code = t->e.code, .message = t->e.message});
    else
        job_step(j, (round_event){.type = ROUND_LOADED, .version = t->version});
}

static void initial_merged(job *j, const task *t)
{
    if (t->status) {
        job_step(j, (round_event){
                        .type = ROUND_LOAD_FAILED, .code = t->e.code, .message = t->e.message});
        return;
    }
    j->initial_done = true;
    job_step(
        j, (round_event){.type = ROUND_INITIALISED, .function = 0, .incarnation = t->incarnation});
}

static void merged(job *j, const task *t)
{
    round_event event = {.type = ROUND_MERGED,
                         .epoch = t->merge.epoch,
                         .round = t->merge.round,
                         .version = t->version,
                         .function = -1};
    if (t->status) {
        event.type = ROUND_MERGE_FAILED;
        event.code = j->redis_down ? ERR_UNAVAILABLE : t->e.code;
        event.function = t->bad_function;
        event.message = t->e.message;
    } else if (round_version(j->machine) == t->merge.base_version) {
        job_record_merge(&j->record, &t->merge, t->rows, t->work.seconds);
    }
    job_step(j, event);
}

/* A function is ready where there is room for what it publishes; where that is not known it will
 * find out. */
static void looked_for_room(job *j, const task *t)
{
    round_event event = {.type = ROUND_READY,
                         .function = t->function,
                         .incarnation = t->incarnation,
                         .layout = t->layout_digest,
                         .algorithms = t->algorithms};
    if (t->status && t->e.code == ERR_NOMEM) {
        event.type = ROUND_FAILED;
        event.reason = "ModelStoreFull";
        event.message = t->e.message;
    }
    job_step(j, event);
}

static void committed(job *j, const task *t)
{
    int epoch = t->info.epochs - 1;
    if (t->status) {
        job_step(j, (round_event){.type = ROUND_COMMIT_FAILED,
                                  .epoch = epoch,
                                  .code = j->redis_down ? ERR_UNAVAILABLE : t->e.code,
                                  .message = t->e.message});
        return;
    }
    log_info("checkpoint of epoch %d: version=%lld sha256=%s seconds=%.3f", epoch + 1,
             (long long)t->info.version, t->info.sha256, t->work.seconds);
    job_record_committed(&j->record, epoch, t->work.seconds);
    job_step(j, (round_event){.type = ROUND_COMMITTED, .epoch = epoch});
}

static void restore_model(job *j, const task *t)
{
    if (t->status) {
        job_step(j, (round_event){
                        .type = ROUND_LOAD_FAILED, .code = t->e.code, .message = t->e.message});
        return;
    }
    if (!t->resumed) {
        j->initial_done = t->version >= 0;
        if (t->version < 0 && j->record.told_epochs == 0)
            job_record_begin_again(&j->record);
        job_step(j, (round_event){.type = ROUND_LOADED, .version = t->version});
        return;
    }
    json_t *record = history_json(j->record.history);
    err e = ERR_INIT;
    if (job_record_restore(&j->record, record, &t->info, &e))
        log_error("%s", e.message);
    json_decref(record);
    const round_resume resume = job_record_resume(&j->record, &t->info);
    job_step(j, (round_event){.type = ROUND_LOADED, .version = t->version, .resume = &resume});
}

static void finished(job *j, const task *t)
{
    const json_t *r = t->record;
    if (t->status && retry_later(j, t))
        return;
    if (t->status) {
        char text[ERR_MESSAGE_BYTES + 32];
        snprintf(text, sizeof text, "the end could not be written: %s", t->e.message);
        job_end(j, "failed", "StoreUnavailable", text, j->final.epochs, "");
        return;
    }
    const char *state = "", *reason = "", *message = "";
    json_unpack((json_t *)r, "{s:s,s:s,s:s}", "state", &state, "reason", &reason, "message",
                &message);
    job_end(j, state, reason, message, j->final.epochs, t->info.sha256);
}

/* The news that Redis is back waits for the tasks that still spoke to the old one: the machine
 * would take their outcomes for those of what comes after. */
static void say_redis_back(job *j)
{
    if (!j->redis_back || j->tasks_out > 0 || j->stage == JOB_OPENING)
        return;
    j->redis_back = j->redis_down = false;
    if (j->stage == JOB_RUNNING)
        job_step(j, (round_event){.type = ROUND_REDIS_BACK, .empty = true});
    else if (j->stage == JOB_FINISHING)
        job_post(j, task_new(j->storage_worker, TASK_RESTORE));
}

void job_task_done(job *j, task *t)
{
    j->tasks_out--;
    log_context(j->spec.id, j->epoch, j->round);
    if (j->stage != JOB_OVER) {
        switch (t->kind) {
        case TASK_OPEN: opened(j, t); break;
        case TASK_CREATE: created(j, t); break;
        case TASK_LOAD: loaded(j, t); break;
        case TASK_INITIAL: initial_merged(j, t); break;
        case TASK_MERGE: merged(j, t); break;
        case TASK_ROOM: looked_for_room(j, t); break;
        case TASK_COMMIT: committed(j, t); break;
        case TASK_RESTORE: restore_model(j, t); break;
        case TASK_FINISH: finished(j, t); break;
        }
    }
    task_free(t);
    say_redis_back(j);
}

/* ---- Redis ----------------------------------------------------------------------------------- */

static void post_open(job *j)
{
    task *t = task_new(j->storage_worker, TASK_OPEN);
    if (t) {
        t->access = j->owner;
        t->resume = j->spec.resume;
        t->last = clock_monotonic_ms() >= j->give_up_ms;
        t->parallelism = j->spec.parallelism;
        t->generation = j->spec.generation > 0 ? j->spec.generation : 0;
        snprintf(t->store, sizeof t->store, "%s", j->spec.store);
    }
    j->retry_due_ms = INT64_MAX;
    job_post(j, t);
}

/* Where it is another container's, the cluster asks it, and ends it. */
static void ping_later(job *j, int64_t wait_ms)
{
    bool own = database_pid(j->host.database) > 0;
    j->ping_due_ms = own ? clock_deadline_ms(wait_ms) : INT64_MAX;
}

static void post_ping(job *j)
{
    database_task *t = database_task_new(j->host.database, DATABASE_PING);
    j->ping_due_ms = t ? INT64_MAX : clock_deadline_ms(JOB_PING_MS);
    if (!t)
        return;
    j->database_busy = j->pings = true;
    worker_post(j->host.nurse, &t->work);
}

static bool redis_hangs(const job *j)
{
    return j->pings_lost >= JOB_PINGS_LOST_MAX;
}

/* One that stands still keeps its connections: it is killed, and its end brings the next one. */
static void pinged(job *j, const database_task *t)
{
    bool lost = t->status && t->e.code == ERR_TIMEOUT;
    j->pings = false;
    j->pings_lost = lost ? j->pings_lost + 1 : 0;
    if (redis_hangs(j))
        database_kill(j->host.database);
    else
        ping_later(j, lost ? 0 : JOB_PING_MS);
}

static void prepared(job *j, const database_task *t)
{
    if (t->status) {
        j->stage = JOB_REFUSED;
        log_error("no Redis for the job: %s", t->e.message);
        if (j->asker)
            connections_send(j->host.connections, j->asker,
                             json_pack("{s:s,s:s,s:s,s:s}", "type", "refused", "code",
                                       err_name(t->e.code), "reason",
                                       t->e.code == ERR_NOT_FOUND ? "RedisMissing" : "RedisGone",
                                       "message", t->e.message));
        return;
    }
    j->owner = t->owner;
    j->member = t->member;
    if (j->asker) {
        j->asker->attached = true;
        connections_send(j->host.connections, j->asker, json_pack("{s:s}", "type", "accepted"));
        connections_send(j->host.connections, j->asker, job_access_message(j));
    }
    j->give_up_ms = clock_deadline_ms(JOB_GIVE_UP_MS);
    ping_later(j, JOB_PING_MS);
    post_open(j);
    if (j->spec.resume)
        j->stage = JOB_OPENING;
    else
        run(j, NULL);
}

void job_database_done(job *j, database_task *t)
{
    j->database_busy = false;
    if (t->kind == DATABASE_PREPARE) {
        prepared(j, t);
    } else if (t->kind == DATABASE_PING) {
        pinged(j, t);
    } else if (t->status == 0) {
        log_info("redis-server runs again");
        ping_later(j, JOB_PING_MS);
        j->redis_back = true;
        say_redis_back(j);
        if (j->redis_back && j->stage == JOB_RUNNING)
            job_step(j, (round_event){.type = ROUND_REDIS_RUNS,
                                      .message = "redis-server runs again; a call to the one "
                                                 "before has not returned"});
    } else {
        /* Until the machine's deadline for it ends the job. */
        char text[ERR_MESSAGE_BYTES + 64];
        snprintf(text, sizeof text, "the job's redis-server cannot be restarted: %s", t->e.message);
        log_error("%s", text);
        if (j->stage == JOB_RUNNING)
            job_step(j, (round_event){.type = ROUND_REDIS_GONE, .message = text});
        j->revive_due_ms = clock_deadline_ms(JOB_REVIVE_RETRY_MS);
    }
    database_task_drop(&t->work);
}

static void post_revive(job *j)
{
    database_task *t = database_task_new(j->host.database, DATABASE_REVIVE);
    j->revive_due_ms = t ? INT64_MAX : clock_deadline_ms(JOB_REVIVE_RETRY_MS);
    if (!t)
        return;
    j->database_busy = true;
    worker_post(j->host.nurse, &t->work);
}

void job_database_died(job *j, const char *message)
{
    char text[ERR_MESSAGE_BYTES + 32];
    if (redis_hangs(j))
        snprintf(text, sizeof text, "the job's redis-server answered nothing for %d s: killed",
                 JOB_PINGS_LOST_MAX * DATABASE_PING_MS / 1000);
    else
        snprintf(text, sizeof text, "the job's redis-server %s", message);
    j->ping_due_ms = INT64_MAX;
    j->pings_lost = 0;
    log_context(j->spec.id, j->epoch, j->round);
    log_warn("%s", text);
    j->redis_down = true;
    j->redis_back = false;
    if (j->stage == JOB_RUNNING)
        job_step(j, (round_event){.type = ROUND_REDIS_GONE, .message = text});
    post_revive(j);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* And is not over: controllers hear of it. */
static bool is_accepted(const job *j)
{
    return j->stage == JOB_OPENING || j->stage == JOB_RUNNING || j->stage == JOB_FINISHING;
}

int64_t job_deadline(const job *j)
{
    int64_t due = j->stage == JOB_RUNNING ? round_deadline(j->machine) : INT64_MAX;
    if (j->revive_due_ms < due && j->stage != JOB_OVER)
        due = j->revive_due_ms;
    if (is_accepted(j) && j->usage.tell_ms < due)
        due = j->usage.tell_ms;
    if (is_accepted(j) && j->ping_due_ms < due)
        due = j->ping_due_ms;
    if (j->stage == JOB_RUNNING && averaging_deadline(j->averaging) < due)
        due = averaging_deadline(j->averaging);
    return j->retry_due_ms < due ? j->retry_due_ms : due;
}

void job_tick(job *j, int64_t now)
{
    if (j->stage == JOB_RUNNING && now >= round_deadline(j->machine))
        job_step(j, (round_event){.type = ROUND_TICK});
    if (j->stage == JOB_RUNNING && now >= averaging_deadline(j->averaging))
        job_average(j, (averaging_event){.type = AVERAGING_TICK, .redis_down = j->redis_down});
    if (now >= j->retry_due_ms && j->stage == JOB_OPENING)
        post_open(j);
    else if (now >= j->retry_due_ms)
        job_post_finish(j);
    if (now >= j->revive_due_ms && j->stage != JOB_OVER)
        post_revive(j);
    if (is_accepted(j) && now >= j->usage.tell_ms)
        connections_tell(j->host.connections, job_usage_message(&j->usage, now));
    if (is_accepted(j) && now >= j->ping_due_ms)
        post_ping(j);
}
