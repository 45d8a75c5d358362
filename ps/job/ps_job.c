/* ps_job.c: see ps_job.h. A job's life: its begin, its stages, what its tasks have come to, its
 * database, time. */
#include "ps_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/log.h"
#include "common/net/tokens.h"
#include "frame_out.h"
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
    return effects_init(&j->effects, s, j->host.storage_worker, round_slots(&config), e);
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

static int prepare_database(job *j, err *e)
{
    const job_spec *s = &j->spec;
    const char *kind = s->request.merge == MERGE_SERVER ? "server" : "database";
    return database_watch_prepare(&j->database, s->id, kind, s->shm_dir, e);
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
    j->retry_due_ms = INT64_MAX;
    j->asker = c;
    database_watch_init(&j->database, host->database, host->nurse);
    if (job_spec_parse(message, &j->spec, e) || open_machine(j, e) ||
        job_record_init(&j->record, &j->spec, e) || open_averaging(j, e) ||
        prepare_database(j, e)) {
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
    effects_free(&j->effects, kept);
    round_close(j->machine);
    averaging_close(j->averaging);
    job_record_free(&j->record);
    job_usage_clear(&j->usage);
    for (size_t i = 0; i < ROUND_FUNCTIONS_MAX; i++)
        json_decref(j->about[i]);
    json_decref(j->shared_task);
    json_decref(j->finished);
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

bool job_secret_is(const job *j, const char *token)
{
    return tokens_same(token, j->spec.secret);
}

bool job_over(const job *j)
{
    return j->stage == JOB_OVER;
}

bool job_refused(const job *j)
{
    return j->stage == JOB_REFUSED;
}

/* Controllers hear of it. */
static bool is_accepted(const job *j)
{
    return j->stage == JOB_OPENING || j->stage == JOB_RUNNING || j->stage == JOB_FINISHING;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* `finished` is what is told now, and to whoever asks later. */
static void end(job *j, const char *state, const char *reason, const char *message, int epochs,
                const char *sha256)
{
    j->stage = JOB_OVER;
    json_decref(j->finished);
    j->finished = frame_out_finished(state, reason, message, epochs, sha256);
    log_info("finished: state=%s reason=%s epochs=%d sha256=%s %s", state, reason, epochs, sha256,
             message);
    connections_tell(j->host.connections, json_incref(j->finished));
}

static void post_finish(job *j)
{
    j->retry_due_ms = INT64_MAX;
    effects_finish(&j->effects, &j->final, j->keep_model, history_json(j->record.history));
}

void job_finish(job *j, const round_action *a)
{
    const char *state = round_state_name(a->state);
    history_state(j->record.history, state, a->reason, a->message, "");
    history_lost(j->record.history, round_losses(j->machine));
    if (a->superseded) {
        end(j, state, a->reason, a->message, a->epochs, "");
        return;
    }
    j->stage = JOB_FINISHING;
    j->give_up_ms = clock_deadline_ms(JOB_GIVE_UP_MS);
    j->final = (checkpoint_info){
        .epochs = a->epochs, .seed = j->spec.request.seed, .parallelism = a->parallelism};
    snprintf(j->final.state, sizeof j->final.state, "%s", state);
    j->keep_model = a->state != ROUND_FAILED_STATE;
    job_record_cut(&j->record, a->epochs);
    json_t *open = a->state == ROUND_SUSPENDED
                       ? job_record_open(&j->record, a->epochs, round_version(j->machine),
                                         round_seconds(j->machine))
                       : NULL;
    if (open) /* else the one that it was resumed with, if there is no checkpoint after it */
        history_open(j->record.history, open);
    post_finish(j);
}

/* A store or a Redis that is away may come back; so may a disk, see round_commit_failed. False: a
 * retry cannot help, or there were enough. */
static bool retry_later(job *j, const task *t)
{
    bool io = t->e.code == ERR_IO;
    bool enough = clock_monotonic_ms() >= j->give_up_ms;
    if (t->kind == TASK_OPEN && io)
        enough = t->last; /* which does without what cannot be read */
    if (enough || !(err_retry_may_help(t->e.code) || io || j->database.down))
        return false;
    j->retry_due_ms = clock_deadline_ms(JOB_RETRY_MS);
    return true;
}

static void finished(job *j, const task *t)
{
    const json_t *r = t->record;
    if (t->status && retry_later(j, t))
        return;
    if (t->status) {
        char text[ERR_MESSAGE_BYTES + 32];
        snprintf(text, sizeof text, "the end could not be written: %s", t->e.message);
        end(j, "failed", "StoreUnavailable", text, j->final.epochs, "");
        return;
    }
    const char *state = "", *reason = "", *message = "";
    json_unpack((json_t *)r, "{s:s,s:s,s:s}", "state", &state, "reason", &reason, "message",
                &message);
    end(j, state, reason, message, j->final.epochs, t->info.sha256);
}

/* ---- OPENING: what a resumed job goes on from ------------------------------------------------ */

static void post_open(job *j)
{
    j->retry_due_ms = INT64_MAX;
    effects_open(&j->effects, &j->owner, clock_monotonic_ms() >= j->give_up_ms);
}

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
    end(j, "succeeded", reason, message, (int)epochs, sha);
}

static void open_failed(job *j, const err *e)
{
    const char *reason = e->code == ERR_CORRUPT ? "CheckpointCorrupt" : "StoreUnavailable";
    end(j, "failed", reason, e->message, 0, "");
}

/* Where it goes on, if `t` has found a checkpoint; the rows are the caller's to free. */
static int read_resume(job *j, const task *t, const json_t *open, round_resume *resume, err *e)
{
    if (job_record_restore(&j->record, t->record, &t->info, e))
        return -1;
    if (t->open)
        return job_record_resume_open(&j->record, open, resume, e);
    *resume = job_record_resume(&j->record, &t->info);
    return 0;
}

static void go_on(job *j, const task *t, const json_t *open)
{
    err e = ERR_INIT;
    round_resume resume = {0};
    if (read_resume(j, t, open, &resume, &e)) {
        open_failed(j, &e);
        return;
    }
    char text[ERR_MESSAGE_BYTES];
    snprintf(text, sizeof text, "goes on from the checkpoint after %d epoch%s%s", t->info.epochs,
             t->info.epochs == 1 ? "" : "s",
             t->open ? " and the merges of the next one so far" : "");
    job_tell_condition(j, NULL, "Resumed", true, "Checkpoint", text);
    j->effects.initial_done = true;
    run(j, &resume);
    free((void *)(uintptr_t)(t->open ? resume.rows : NULL));
}

static void opened(job *j, const task *t)
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
    if (t->resumed) {
        go_on(j, t, open);
        return;
    }
    history_lost(j->record.history, (int)json_integer_value(json_object_get(t->record, "lost")));
    run(j, NULL);
}

/* ---- tasks that have come back --------------------------------------------------------------- */

static void note_committed(job *j, const task *t)
{
    int epoch = t->info.epochs - 1;
    log_info("checkpoint of epoch %d: version=%lld sha256=%s seconds=%.3f", epoch + 1,
             (long long)t->info.version, t->info.sha256, t->work.seconds);
    job_record_committed(&j->record, epoch, t->work.seconds);
}

/* The model store has the state of a checkpoint. */
static round_resume note_older(job *j, const task *t)
{
    cleanup_json json_t *record = history_json(j->record.history);
    err e = ERR_INIT;
    if (job_record_restore(&j->record, record, &t->info, &e))
        log_error("%s", e.message);
    return job_record_resume(&j->record, &t->info);
}

/* A task of the round machine's has come back: into the books, then to the machine. */
static void note_outcome(job *j, const task *t, round_event event)
{
    round_resume resume;
    bool done = t->status == 0;
    if (done && t->kind == TASK_MERGE && round_version(j->machine) == t->merge.base_version)
        job_record_merge(&j->record, &t->merge, t->rows, t->work.seconds);
    if (done && t->kind == TASK_COMMIT)
        note_committed(j, t);
    if (done && t->kind == TASK_RESTORE && t->resumed) {
        resume = note_older(j, t);
        event.resume = &resume;
    } else if (done && t->kind == TASK_RESTORE && t->version < 0 && j->record.told_epochs == 0) {
        job_record_begin_again(&j->record);
    }
    job_step(j, event);
}

/* The news that Redis is back waits for the tasks that still spoke to the old one: the machine
 * would take their outcomes for those of what comes after. */
static void say_redis_back(job *j)
{
    database_watch *w = &j->database;
    if (!w->back || j->effects.out > 0 || j->stage == JOB_OPENING)
        return;
    w->back = w->down = false;
    if (j->stage == JOB_RUNNING)
        job_step(j, (round_event){.type = ROUND_REDIS_BACK, .empty = true});
    else if (j->stage == JOB_FINISHING)
        effects_restore(&j->effects, false);
}

static void outcome(job *j, const task *t)
{
    round_event event;
    if (effects_event(&j->effects, t, j->database.down, &event))
        note_outcome(j, t, event);
    else if (t->kind == TASK_OPEN)
        opened(j, t);
    else if (t->kind == TASK_CREATE)
        job_send_init(j);
    else if (t->kind == TASK_FINISH)
        finished(j, t);
}

void job_task_done(job *j, task *t)
{
    j->effects.out--;
    log_context(j->spec.id, j->epoch, j->round);
    if (j->stage != JOB_OVER)
        outcome(j, t);
    task_free(t);
    say_redis_back(j);
}

/* ---- the database ---------------------------------------------------------------------------- */

bool job_database_busy(const job *j)
{
    return j->database.busy;
}

bool job_pings_database(const job *j)
{
    return j->database.pings;
}

static void refuse(job *j, const err *e)
{
    j->stage = JOB_REFUSED;
    log_error("no Redis for the job: %s", e->message);
    if (j->asker)
        connections_send(j->host.connections, j->asker,
                         frame_out_refused(e->code,
                                           e->code == ERR_NOT_FOUND ? "RedisMissing" : "RedisGone",
                                           e->message));
}

static void accept_job(job *j)
{
    if (!j->asker)
        return;
    j->asker->attached = true;
    connections_send(j->host.connections, j->asker, frame_out_plain("accepted"));
    connections_send(j->host.connections, j->asker,
                     frame_out_access(j->host.address, modelstore_access_json(&j->member)));
}

static void prepared(job *j, const database_task *t)
{
    if (t->status) {
        refuse(j, &t->e);
        return;
    }
    j->owner = t->owner;
    j->member = t->member;
    accept_job(j);
    j->give_up_ms = clock_deadline_ms(JOB_GIVE_UP_MS);
    database_watch_begin(&j->database);
    post_open(j);
    if (j->spec.resume)
        j->stage = JOB_OPENING;
    else
        run(j, NULL);
}

static void tell_machine(job *j, round_event_type type, const char *message)
{
    if (j->stage == JOB_RUNNING)
        job_step(j, (round_event){.type = type, .message = message});
}

static void revived(job *j)
{
    say_redis_back(j);
    if (j->database.back)
        tell_machine(j, ROUND_REDIS_RUNS,
                     "redis-server runs again; a call to the one before has not returned");
}

/* Until the machine's deadline for it ends the job. */
static void not_revived(job *j, const err *e)
{
    char text[ERR_MESSAGE_BYTES + 64];
    snprintf(text, sizeof text, "the job's redis-server cannot be restarted: %s", e->message);
    log_error("%s", text);
    tell_machine(j, ROUND_REDIS_GONE, text);
}

void job_database_done(job *j, database_task *t)
{
    database_watch_done(&j->database, t);
    if (t->kind == DATABASE_PREPARE)
        prepared(j, t);
    else if (t->kind == DATABASE_REVIVE && t->status)
        not_revived(j, &t->e);
    else if (t->kind == DATABASE_REVIVE)
        revived(j);
    database_task_drop(&t->work);
}

void job_database_died(job *j, const char *message)
{
    char text[ERR_MESSAGE_BYTES + 32];
    database_watch_died(&j->database, message, text, sizeof text);
    log_context(j->spec.id, j->epoch, j->round);
    log_warn("%s", text);
    tell_machine(j, ROUND_REDIS_GONE, text);
    database_watch_revive(&j->database);
}

/* ---- time ------------------------------------------------------------------------------------ */

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t job_deadline(const job *j)
{
    int64_t due = j->retry_due_ms;
    if (j->stage == JOB_RUNNING)
        due = sooner(due, sooner(round_deadline(j->machine), averaging_deadline(j->averaging)));
    if (is_accepted(j))
        due = sooner(due, j->usage.tell_ms);
    if (j->stage != JOB_OVER)
        due = sooner(due, database_watch_deadline(&j->database, is_accepted(j)));
    return due;
}

void job_tick(job *j, int64_t now)
{
    if (j->stage == JOB_RUNNING && now >= round_deadline(j->machine))
        job_step(j, (round_event){.type = ROUND_TICK});
    if (j->stage == JOB_RUNNING && now >= averaging_deadline(j->averaging))
        job_average(j, (averaging_event){.type = AVERAGING_TICK, .store_down = j->database.down});
    if (now >= j->retry_due_ms && j->stage == JOB_OPENING)
        post_open(j);
    else if (now >= j->retry_due_ms)
        post_finish(j);
    if (is_accepted(j) && now >= j->usage.tell_ms)
        connections_tell(j->host.connections, job_usage_message(&j->usage, now));
    if (j->stage != JOB_OVER)
        database_watch_tick(&j->database, now, is_accepted(j));
}
