/* test_ps_resume.c: a job that goes on in another kubeml-ps than the one that it was in: killed at
 * each of its failpoints, overtaken, suspended or cancelled. It ends with the bits of a job that
 * nothing happened to. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/storage/checkpoint.h"
#include "ps_world.h"
#include "test.h"

/* ---- killed -------------------------------------------------------------------------------- */

static void die_with(world_options o, const char *failpoint)
{
    world w;
    char want[65], got[65];
    o.job = "again";
    o.epochs = 3;
    o.failpoint = failpoint;
    world_calm(&o, want);
    world_start(&w, &o);
    world_await_death(&w);
    world_restart(&w);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    json_t *record = world_history(&w);
    world_check_shares(record, 3, 100);
    CHECK_STR(json_string_value(json_object_get(record, "sha256")), want);
    json_decref(record);
    world_end(&w);
}

static void die_at(const char *failpoint)
{
    die_with((world_options){0}, failpoint);
}

/* Where the weights of another job's lie over what was drawn. */
static void die_at_weights(const char *failpoint)
{
    world w;
    world_start(&w, &(world_options){.job = "first", .epochs = 1});
    world_finish(&w, "succeeded", NULL);
    world_end(&w);
    die_with((world_options){.init = "first", .init_without = "fc.weight"}, failpoint);
}
TEST_LIMIT(killed_before_weights_are_laid_over, 60)
{
    die_at_weights("before-weights");
}
TEST_LIMIT(killed_after_weights_are_laid_over, 60)
{
    die_at_weights("after-weights");
}

TEST_LIMIT(killed_when_opened, 60)
{
    die_at("opened");
}
TEST_LIMIT(killed_when_the_model_is_created, 60)
{
    die_at("created");
}
TEST_LIMIT(killed_before_a_merge, 60)
{
    die_at("before-merge:4");
}
TEST_LIMIT(killed_after_a_merge, 60)
{
    die_at("after-merge:4");
}
TEST_LIMIT(killed_after_the_first_merge, 60)
{
    die_at("after-merge");
}
TEST_LIMIT(killed_before_the_first_history, 60)
{
    die_at("before-history");
}
TEST_LIMIT(killed_before_a_history, 60)
{
    die_at("before-history:2");
}
TEST_LIMIT(killed_after_a_history, 60)
{
    die_at("after-history:2");
}
TEST_LIMIT(killed_in_the_first_checkpoint, 60)
{
    die_at("mid-checkpoint");
}
TEST_LIMIT(killed_in_a_checkpoint, 60)
{
    die_at("mid-checkpoint:2");
}
TEST_LIMIT(killed_after_a_checkpoint, 60)
{
    die_at("after-checkpoint:2");
}
TEST_LIMIT(killed_before_the_final_model, 60)
{
    die_at("before-final");
}
TEST_LIMIT(killed_in_the_final_model, 60)
{
    die_at("mid-checkpoint:4");
}
TEST_LIMIT(killed_after_the_final_model, 60)
{
    die_at("after-final");
}
TEST_LIMIT(killed_before_it_says_finished, 60)
{
    die_at("finished");
}

TEST_LIMIT(killed_in_every_epoch, 60)
{
    world w;
    char want[65], got[65];
    world_options o = {.job = "hunted", .epochs = 6, .k = 1};
    world_calm(&o, want);
    o.failpoint = "before-merge:12:stop"; /* 9 merges are an epoch */
    world_start(&w, &o);
    for (int i = 0; i < 4; i++) {
        world_hold(&w);
        CHECK_INT(kill(w.ps, SIGKILL), 0);
        world_await_death(&w);
        w.waited = json_array_size(w.told);
        world_restart_at(&w, i < 3 ? o.failpoint : NULL);
    }
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    json_t *record = world_history(&w);
    world_check_shares(record, 6, 100);
    json_decref(record);
    world_end(&w);
}

/* ---- what a job goes on from is away for a moment ------------------------------------------ */

/* A killed kubeml-ps's job, about to be resumed with a store that is not there: a file stands in
 * its folder's place. */
TEST_LIMIT(a_store_that_is_away_when_a_job_goes_on_is_waited_for, 60)
{
    world w;
    char want[65], got[65], store_dir[300], away[310];
    const world_options o = {.job = "away", .epochs = 3, .failpoint = "after-checkpoint:2"};
    world_calm(&o, want);
    world_start(&w, &o);
    world_await_death(&w);
    snprintf(store_dir, sizeof store_dir, "%s/store", test_tmp());
    snprintf(away, sizeof away, "%s-away", store_dir);
    CHECK_INT(rename(store_dir, away), 0);
    FILE *f = fopen(store_dir, "w");
    CHECK(f && fclose(f) == 0);
    w.waited = json_array_size(w.told);
    world_restart(&w);
    json_t *m = world_wait(&w, "condition");
    CHECK_STR(json_string_value(json_object_get(m, "name")), "StoreUnavailable");
    CHECK_STR(json_string_value(json_object_get(m, "status")), "True");
    CHECK(unlink(store_dir) == 0 && rename(away, store_dir) == 0);
    do
        m = world_wait(&w, "condition");
    while (strcmp(json_string_value(json_object_get(m, "status")), "False") != 0);
    CHECK_STR(json_string_value(json_object_get(m, "name")), "StoreUnavailable");
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    json_t *record = world_history(&w);
    world_check_shares(record, 3, 100);
    json_decref(record);
    world_end(&w);
}

/* An elastic job of four functions that has grown to five finds room for three at most. */
TEST_LIMIT(an_elastic_job_goes_on_in_a_smaller_cluster, 60)
{
    world w;
    world_start(&w, &(world_options){.functions = 4,
                                     .epochs = 4,
                                     .k = 1,
                                     .elastic = true,
                                     .failpoint = "after-checkpoint:2"});
    world_await_death(&w);
    json_t *before = world_history(&w);
    w.waited = json_array_size(w.told);
    w.o.functions = 1;
    world_restart(&w);
    world_finish(&w, "succeeded", NULL);
    json_t *record = world_history(&w);
    world_check_shares(record, 4, 100);
    for (size_t i = 0; i < 2; i++)
        CHECK(json_equal(json_array_get(json_object_get(record, "ledger"), i),
                         json_array_get(json_object_get(before, "ledger"), i)));
    json_decref(before);
    json_decref(record);
    world_end(&w);
}

/* It is the history that is lost: to begin anew would lose the epochs too. */
TEST_LIMIT(checkpoints_that_no_history_knows_are_not_trained_again, 60)
{
    world w;
    err e = ERR_INIT;
    world_start(&w, &(world_options){.epochs = 4, .failpoint = "after-checkpoint:2"});
    world_await_death(&w);
    store *s = store_open(w.locator, &e);
    CHECK(s != NULL);
    json_t *record = world_history(&w);
    CHECK_INT(json_array_clear(json_object_get(record, "versions")), 0);
    CHECK_OK(store_put(s, "history", "job", record, STORE_ANY, NULL, &e), e);
    json_decref(record);
    store_close(s);
    w.waited = json_array_size(w.told);
    world_restart(&w);
    json_t *m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), "CheckpointCorrupt");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "the history has 0 epochs");
    w.waited--;
    world_finish(&w, "failed", NULL);
    world_end(&w);
}

static void kill_redis_while_resumed(world_options o, const char *failpoint)
{
    world w;
    char want[65], got[65];
    o.job = "unlucky";
    o.epochs = 3;
    world_calm(&o, want);
    world_start(&w, &o);
    world_await_death(&w);
    world_restart_at(&w, failpoint);
    world_hold(&w);
    pid_t redis = world_redis(&w);
    CHECK(redis > 0 && kill(redis, SIGKILL) == 0);
    world_go_on(&w);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    world_end(&w);
}

TEST_LIMIT(redis_dies_while_a_job_is_resumed, 60)
{
    kill_redis_while_resumed((world_options){.failpoint = "after-checkpoint:2"}, "opened:1:stop");
}
/* With the only epoch that there is on its way into it. */
TEST_LIMIT(redis_dies_while_it_is_given_the_model_of_a_job_that_is_resumed, 60)
{
    kill_redis_while_resumed(
        (world_options){.k = 1, .tensor_path = "socket", .failpoint = "after-checkpoint:1"},
        "chunk-sent:1:stop");
}

/* ---- overtaken ----------------------------------------------------------------------------- */

/* The node of a kubeml-ps is given up, another one goes on, and the old one is still there. */
TEST_LIMIT(a_later_kubeml_ps_fences_the_one_before, 60)
{
    world w;
    err e = ERR_INIT;
    world_start(&w, &(world_options){.epochs = 1000, .job = "fenced"});
    world_wait(&w, "epoch");
    store *s = store_open(w.locator, &e);
    CHECK(s);
    json_t *record = world_history(&w);
    json_object_set_new(record, "generation", json_integer(1));
    CHECK_OK(store_put(s, "history", "fenced", record, STORE_ANY, NULL, &e), e);
    json_t *m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "state")), "failed");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "goes on");
    json_t *now = world_history(&w);
    CHECK_INT(json_integer_value(json_object_get(now, "generation")), 1);
    CHECK_STR(json_string_value(json_object_get(now, "state")), "running");
    json_decref(record);
    json_decref(now);
    store_close(s);
    world_end(&w);
    kill(w.ps, SIGTERM);
    world_ended(&w, -1);
}

static void check_writer(const world *w, int generation, const char *state)
{
    json_t *record = world_history(w);
    CHECK_INT(json_integer_value(json_object_get(record, "generation")), generation);
    CHECK_STR(json_string_value(json_object_get(record, "state")), state);
    json_decref(record);
}

/* From when it has read what it goes on from, not from its first epoch on; also where the one
 * before wrote an end. */
TEST_LIMIT(a_later_kubeml_ps_has_the_history_before_its_first_epoch, 60)
{
    world w;
    err e = ERR_INIT;
    char want[65], got[65];
    world_options o = {.job = "claimed", .epochs = 3, .k = 1};
    world_calm(&o, want);
    o.failpoint = "before-merge:12:stop";
    world_start(&w, &o);
    world_hold(&w);
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", "asked to"), e);
    world_go_on(&w);
    world_finish(&w, "cancelled", NULL);
    check_writer(&w, 0, "cancelled");
    world_restart_at(&w, "opened");
    world_await_death(&w);
    check_writer(&w, 1, "running");
    world_restart(&w);
    world_finish(&w, "succeeded", got);
    check_writer(&w, 2, "succeeded");
    CHECK_STR(got, want);
    world_end(&w);
}

static void leave_checkpoint(store *s, const char *job, int epochs)
{
    char name[STORE_KEY_BYTES];
    blob_writer *to;
    err e = ERR_INIT;
    CHECK_OK(checkpoint_name(name, job, epochs, &e), e);
    CHECK_OK(store_blob_begin(s, name, &to, &e), e);
    CHECK_OK(blob_write(to, "overtaken", 9, &e), e);
    CHECK_OK(blob_commit(to, &e), e);
}

/* One that trained on where nobody heard it has left checkpoints of later epochs. They are no
 * reason to remove those of the one that counts, which may be killed before it gets there. */
TEST_LIMIT(checkpoints_of_an_overtaken_kubeml_ps_cost_none_of_the_next_one, 60)
{
    world w;
    err e = ERR_INIT;
    char want[65], got[65];
    const world_options o = {.job = "overtaken", .epochs = 9, .failpoint = "after-checkpoint:2"};
    world_calm(&o, want);
    world_start(&w, &o);
    world_await_death(&w);
    store *s = store_open(w.locator, &e);
    CHECK(s);
    leave_checkpoint(s, "overtaken", 50);
    leave_checkpoint(s, "overtaken", 51);
    world_restart_at(&w, "before-history:3");
    world_await_death(&w);
    world_restart(&w);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    store_close(s);
    world_end(&w);
}

/* Stopped where its history is written and its checkpoint is not, it wakes up when another one has
 * the job. */
TEST_LIMIT(an_overtaken_kubeml_ps_replaces_no_checkpoint_of_the_next_one, 60)
{
    world w;
    err e = ERR_INIT;
    char name[STORE_KEY_BYTES];
    uint64_t bytes;
    world_start(
        &w, &(world_options){.epochs = 1000, .job = "frozen", .failpoint = "after-history:2:stop"});
    world_hold(&w);
    store *s = store_open(w.locator, &e);
    CHECK(s);
    json_t *record = world_history(&w);
    json_object_set_new(record, "generation", json_integer(1));
    CHECK_OK(store_put(s, "history", "frozen", record, STORE_ANY, NULL, &e), e);
    leave_checkpoint(s, "frozen", 2);
    world_go_on(&w);
    json_t *m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "state")), "failed");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "goes on");
    CHECK_OK(checkpoint_name(name, "frozen", 2, &e), e);
    CHECK_OK(store_blob_find(s, name, &bytes, &e), e);
    CHECK_INT(bytes, 9);
    json_decref(record);
    store_close(s);
    world_end(&w);
    kill(w.ps, SIGTERM);
    world_ended(&w, -1);
}

/* ---- suspended ----------------------------------------------------------------------------- */

/* The round of the first epoch in which training begins. */
static int begins_at(world *w)
{
    json_t *m;
    do
        m = world_wait(w, "phase");
    while (strcmp(json_string_value(json_object_get(m, "phase")), "training") != 0);
    CHECK_INT(json_integer_value(json_object_get(m, "epoch")), 0);
    return (int)json_integer_value(json_object_get(m, "round"));
}

/* Suspended within an epoch it goes on there, with the same bits, ledger and shares. kubeml-ps
 * stands still before its `merge`th merge while it is told: however slow we are, it has not gone
 * beyond when it hears of it. */
static void suspend_and_resume(world_options o, const char *merge, bool within)
{
    world w;
    err e = ERR_INIT;
    char want[65], got[65], failpoint[64];
    world_calm(&o, want);
    snprintf(failpoint, sizeof failpoint, "before-merge:%s:stop", merge);
    o.job = "suspended";
    o.failpoint = failpoint;
    world_start(&w, &o);
    world_hold(&w);
    CHECK_OK(
        wire_sendf(w.wire, &e, "{s:s,s:s,s:b}", "type", "stop", "reason", "later", "suspend", 1),
        e);
    world_go_on(&w);
    world_finish(&w, "suspended", NULL);
    json_t *record = world_history(&w);
    CHECK_STR(json_string_value(json_object_get(record, "state")), "suspended");
    CHECK_INT(json_object_get(record, "open") != NULL, within);
    json_decref(record);
    world_restart(&w);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    record = world_history(&w);
    CHECK(!json_object_get(record, "open"));
    world_check_shares(record, o.epochs, o.samples);
    json_t *ledger = json_incref(json_object_get(record, "ledger"));
    json_decref(record);
    w.o.job = "calm";
    record = world_history(&w);
    CHECK(json_equal(ledger, json_object_get(record, "ledger")));
    json_decref(ledger);
    json_decref(record);
    world_end(&w);
}

TEST_LIMIT(suspended_within_an_epoch_it_goes_on_there, 60)
{
    suspend_and_resume((world_options){.k = 1, .epochs = 3, .samples = 400}, "50", true);
}
TEST_LIMIT(suspended_within_the_first_epoch_it_goes_on_there, 60)
{
    suspend_and_resume((world_options){.k = 1, .epochs = 1, .samples = 2000}, "5", true);
}
TEST_LIMIT(suspended_with_one_merge_an_epoch_it_goes_on_there, 60)
{
    suspend_and_resume(
        (world_options){.k = -1, .epochs = 4, .samples = 100, .tensor_path = "socket"}, "2", false);
}

static int blobs_of(const world *w, const char *prefix)
{
    err e = ERR_INIT;
    size_t count;
    blob_entry *entries;
    store *s = store_open(w->locator, &e);
    CHECK(s);
    CHECK_OK(store_blob_list(s, prefix, NULL, 0, &entries, &count, &e), e);
    free(entries);
    store_close(s);
    return (int)count;
}

static void suspend(world *w)
{
    err e = ERR_INIT;
    CHECK_OK(
        wire_sendf(w->wire, &e, "{s:s,s:s,s:b}", "type", "stop", "reason", "later", "suspend", 1),
        e);
}

static bool has_open_epoch(const world *w)
{
    json_t *record = world_history(w);
    bool has = json_object_get(record, "open");
    json_decref(record);
    return has;
}

static void check_final(const world *w)
{
    char name[STORE_KEY_BYTES];
    checkpoint_info info;
    model m;
    err e = ERR_INIT;
    store *s = store_open(w->locator, &e);
    CHECK(s);
    CHECK_OK(checkpoint_final_name(name, w->o.job, &e), e);
    CHECK_OK(checkpoint_read(s, name, &info, &m, &e), e);
    model_free(&m);
    store_close(s);
}

/* A job of so many epochs that is suspended in its first one, between two merges; `want` are its
 * weights without that. */
static void suspended_within_an_epoch(world *w, const char *job, int epochs, char want[65])
{
    world_options o = {.k = 1, .epochs = epochs, .samples = 400};
    world_calm(&o, want);
    o.job = job;
    o.failpoint = "before-merge:5:stop";
    world_start(w, &o);
    world_hold(w);
    suspend(w);
    world_go_on(w);
    CHECK_INT(begins_at(w), 0);
    world_finish(w, "suspended", NULL);
    CHECK(has_open_epoch(w));
}

/* Suspended a second time, before there is any checkpoint, it dies at `failpoint`: what it had when
 * it was suspended first is still there. */
static void die_while_suspended_again(const char *failpoint)
{
    world w;
    char want[65], got[65];
    char places[96];
    suspended_within_an_epoch(&w, "twice", 1, want);
    snprintf(places, sizeof places, "before-merge:2:stop,%s", failpoint);
    world_restart_at(&w, places);
    world_hold(&w);
    suspend(&w);
    world_go_on(&w);
    int first = begins_at(&w);
    CHECK(first > 0);
    world_await_death(&w);
    check_final(&w);
    world_restart(&w);
    CHECK(begins_at(&w) >= first);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    CHECK_INT(blobs_of(&w, "models/twice/"), 1);
    world_end(&w);
}

TEST_LIMIT(killed_while_it_writes_what_it_is_suspended_with_it_goes_on_where_it_was, 60)
{
    die_while_suspended_again("mid-checkpoint:1");
}
TEST_LIMIT(killed_while_a_suspended_jobs_model_is_replaced_it_goes_on_where_it_was, 60)
{
    die_while_suspended_again("mid-checkpoint:2");
}
TEST_LIMIT(killed_between_the_model_and_the_history_of_a_suspended_job_it_goes_on_where_it_was, 60)
{
    die_while_suspended_again("after-final");
}

/* The commit of the epoch that it was suspended in is not acknowledged before there is a
 * checkpoint; then where it was suspended counts no more. */
TEST_LIMIT(killed_in_the_commit_after_a_suspension_it_goes_on_where_it_was, 60)
{
    world w;
    char want[65], got[65];
    suspended_within_an_epoch(&w, "committing", 2, want);
    world_restart_at(&w, "mid-checkpoint");
    int first = begins_at(&w);
    CHECK(first > 0);
    world_await_death(&w);
    w.waited = json_array_size(w.told);
    world_restart_at(&w, "after-checkpoint");
    CHECK_INT(begins_at(&w), first);
    world_await_death(&w);
    CHECK(has_open_epoch(&w));
    w.waited = json_array_size(w.told);
    world_restart(&w);
    json_t *m = world_wait(&w, "condition");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "after 1 epoch");
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    CHECK(!has_open_epoch(&w));
    CHECK_INT(blobs_of(&w, "models/committing/"), 1);
    world_end(&w);
}

/* What the epoch had taken when it was suspended; `was`: what to put in its place, "" for a record
 * of before, which has none. */
static double put_open_seconds(const world *w, const char *was)
{
    err e = ERR_INIT;
    store *s = store_open(w->locator, &e);
    json_t *record = world_history(w), *open = json_object_get(record, "open");
    const json_t *had = json_object_get(open, "seconds");
    double epoch = json_real_value(json_object_get(had, "epoch"));
    CHECK(json_is_real(json_object_get(had, "train")));
    json_object_del(open, "seconds");
    if (*was)
        json_object_set_new(open, "seconds", json_loads(was, 0, NULL));
    CHECK(s);
    CHECK_OK(store_put(s, "history", w->o.job, record, STORE_ANY, NULL, &e), e);
    json_decref(record);
    store_close(s);
    return epoch;
}

static double first_of(const json_t *record, const char *object, const char *key)
{
    return json_number_value(
        json_array_get(json_object_get(json_object_get(record, object), key), 0));
}

/* An elastic job's policy goes by them. */
TEST_LIMIT(an_epochs_seconds_are_those_before_it_was_suspended_too, 60)
{
    world w;
    char want[65], got[65];
    suspended_within_an_epoch(&w, "timed", 1, want);
    CHECK(put_open_seconds(&w, "{\"epoch\": 1000.0, \"train\": 400.0, \"merge\": 3}") > 0);
    world_restart_at(&w, "before-merge:2:stop");
    world_hold(&w);
    suspend(&w);
    world_go_on(&w);
    world_finish(&w, "suspended", NULL);
    double epoch = put_open_seconds(&w, "{\"epoch\": 2000.0, \"train\": 400.0, \"merge\": 3}");
    CHECK(epoch > 1000 && epoch < 1100);
    world_restart(&w);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    json_t *record = world_history(&w);
    CHECK(first_of(record, "data", "epoch_duration") > 2000);
    CHECK(first_of(record, "seconds", "train") >= 400.0 / w.o.functions);
    CHECK(first_of(record, "seconds", "merge") > 3);
    json_decref(record);
    world_end(&w);
}

TEST_LIMIT(an_open_epoch_of_before_seconds_were_kept_goes_on, 60)
{
    world w;
    char want[65], got[65];
    suspended_within_an_epoch(&w, "untimed", 1, want);
    put_open_seconds(&w, "");
    world_restart(&w);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    world_end(&w);
}

/* One that is resumed where it was suspended and ends before its next checkpoint, stopped or
 * failed, goes on there again: there is no newer state of it. */
TEST_LIMIT(a_job_that_ends_again_before_a_checkpoint_goes_on_where_it_was_suspended, 60)
{
    world w;
    err e = ERR_INIT;
    char want[65], got[65];
    suspended_within_an_epoch(&w, "ended", 1, want);
    world_restart_at(&w, "before-merge:2:stop");
    world_hold(&w);
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", "asked to"), e);
    world_go_on(&w);
    int first = begins_at(&w);
    CHECK(first > 0);
    world_finish(&w, "cancelled", NULL);
    CHECK(has_open_epoch(&w));
    w.o.deaf = true;
    world_restart(&w);
    json_t *need = world_wait(&w, "need");
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:O,s:O,s:s,s:s}", "type", "lost", "function",
                        json_object_get(need, "function"), "incarnation",
                        json_object_get(need, "incarnation"), "reason", "Crashed", "message", ""),
             e);
    CHECK_INT(begins_at(&w), first);
    world_finish(&w, "failed", NULL);
    CHECK(has_open_epoch(&w));
    w.o.deaf = false;
    world_restart(&w);
    CHECK_INT(begins_at(&w), first);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    CHECK(!has_open_epoch(&w));
    CHECK_INT(blobs_of(&w, "models/ended/"), 1);
    world_end(&w);
}

/* ---- what it ended with before it went on --------------------------------------------------- */

/* A job that was suspended in the first of two epochs and has been through both since, and stands
 * still before it writes its final model. */
static void trained_on(world *w, const char *job, char want[65])
{
    suspended_within_an_epoch(w, job, 2, want);
    world_restart_at(w, "before-final:1:stop");
    world_hold(w);
}

/* Whoever asks for the job's model is not given an older one than it has. */
TEST_LIMIT(a_checkpoint_takes_the_place_of_what_the_job_was_suspended_with, 60)
{
    world w;
    char want[65], got[65];
    trained_on(&w, "grown", want);
    CHECK_INT(blobs_of(&w, "models/grown/final"), 0);
    CHECK_INT(blobs_of(&w, "models/grown/epoch-"), 2);
    world_go_on(&w);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    check_final(&w);
    CHECK_INT(blobs_of(&w, "models/grown/"), 1);
    world_end(&w);
}

/* A job was to begin with what another one was suspended with, and that one has trained on. */
TEST_LIMIT(a_job_begins_with_the_checkpoint_of_one_that_was_resumed, 60)
{
    static const char *const named[] = {"elder", "models/elder/final"};
    world w, next;
    char want[65];
    trained_on(&w, "elder", want);
    for (int i = 0; i < 2; i++) {
        world_start(&next, &(world_options){.job = i ? "youngest" : "younger", .init = named[i]});
        world_finish(&next, "succeeded", NULL);
        world_end(&next);
    }
    world_go_on(&w);
    world_finish(&w, "succeeded", NULL);
    world_end(&w);
}

/* Stopped right after its first checkpoint, it wakes up when another one has the job, which may
 * have ended. */
TEST_LIMIT(an_overtaken_kubeml_ps_removes_no_final_model, 60)
{
    world w;
    err e = ERR_INIT;
    char want[65];
    suspended_within_an_epoch(&w, "late", 2, want);
    world_restart_at(&w, "after-checkpoint:1:stop");
    world_hold(&w);
    store *s = store_open(w.locator, &e);
    CHECK(s);
    json_t *record = world_history(&w);
    json_object_set_new(record, "generation", json_integer(2));
    CHECK_OK(store_put(s, "history", "late", record, STORE_ANY, NULL, &e), e);
    world_go_on(&w);
    json_t *m = world_wait(&w, "finished");
    CHECK_STR(json_string_value(json_object_get(m, "state")), "failed");
    check_final(&w);
    json_decref(record);
    store_close(s);
    world_end(&w);
    kill(w.ps, SIGTERM);
    world_ended(&w, -1);
}

/* ---- from the newest checkpoint ------------------------------------------------------------ */

TEST_LIMIT(a_cancelled_job_is_resumed, 60)
{
    world w;
    err e = ERR_INIT;
    char want[65], got[65];
    world_options o = {.job = "cancelled", .epochs = 3, .k = 1};
    world_calm(&o, want);
    o.failpoint = "before-merge:12:stop";
    world_start(&w, &o);
    world_hold(&w);
    CHECK_OK(wire_sendf(w.wire, &e, "{s:s,s:s}", "type", "stop", "reason", "asked to"), e);
    world_go_on(&w);
    world_finish(&w, "cancelled", NULL);
    world_restart(&w);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    world_end(&w);
}

/* What it goes on from is not what an undisturbed run would have had there. */
TEST_LIMIT(what_made_a_job_inexact_and_how_often_functions_were_lost_stays_when_it_goes_on, 60)
{
    world w;
    err e = ERR_INIT;
    world_start(&w, &(world_options){.epochs = 3, .failpoint = "after-checkpoint:1"});
    world_await_death(&w);
    store *s = store_open(w.locator, &e);
    CHECK(s != NULL);
    json_t *record = world_history(&w), *m;
    json_array_append_new(json_object_get(record, "conditions"),
                          json_pack("{s:s,s:s,s:s,s:s,s:n}", "type", "Exact", "status", "False",
                                    "reason", "LeftOut", "message", "without function 1",
                                    "lastTransitionTime"));
    json_object_set_new(record, "lost", json_integer(3));
    CHECK_OK(store_put(s, "history", "job", record, STORE_ANY, NULL, &e), e);
    json_decref(record);
    store_close(s);
    w.waited = json_array_size(w.told);
    world_restart(&w);
    do
        m = world_wait(&w, "condition");
    while (strcmp(json_string_value(json_object_get(m, "name")), "Exact") != 0);
    CHECK_STR(json_string_value(json_object_get(m, "status")), "False");
    CHECK_STR(json_string_value(json_object_get(m, "reason")), "LeftOut");
    CHECK_STR(json_string_value(json_object_get(m, "message")), "without function 1");
    world_finish(&w, "succeeded", NULL);
    record = world_history(&w);
    CHECK_INT(json_integer_value(json_object_get(record, "lost")), 3);
    json_decref(record);
    world_end(&w);
}

TEST_LIMIT(losses_from_before_the_first_checkpoint_count_when_the_job_begins_anew, 60)
{
    world w;
    err e = ERR_INIT;
    world_start(&w, &(world_options){.epochs = 2, .failpoint = "after-history:1"});
    world_await_death(&w);
    store *s = store_open(w.locator, &e);
    CHECK(s != NULL);
    json_t *record = world_history(&w);
    json_object_set_new(record, "lost", json_integer(3));
    CHECK_OK(store_put(s, "history", "job", record, STORE_ANY, NULL, &e), e);
    json_decref(record);
    store_close(s);
    world_restart(&w);
    world_finish(&w, "succeeded", NULL);
    record = world_history(&w);
    CHECK_INT(json_integer_value(json_object_get(record, "lost")), 3);
    json_decref(record);
    world_end(&w);
}

/* What an unfinished commit left behind is passed over. */
TEST_LIMIT(a_checkpoint_without_its_history_is_passed_over, 60)
{
    world w;
    err e = ERR_INIT;
    char want[65], got[65];
    json_t *record;
    const world_options o = {.job = "ahead", .epochs = 4, .failpoint = "before-history:4"};
    world_calm(&o, want);
    world_start(&w, &o);
    world_await_death(&w);
    store *s = store_open(w.locator, &e);
    CHECK(s != NULL);
    CHECK_OK(store_get(s, "history", "ahead", &record, NULL, &e), e);
    json_t *list = json_object_get(json_object_get(record, "data"), "train_loss");
    CHECK_INT(json_array_size(list), 3);
    json_array_remove(json_object_get(record, "versions"), 2);
    json_array_remove(list, 2);
    CHECK_OK(store_put(s, "history", "ahead", record, STORE_ANY, NULL, &e), e);
    json_decref(record);
    store_close(s);
    world_restart(&w);
    json_t *m = world_wait(&w, "condition");
    CHECK_CONTAINS(json_string_value(json_object_get(m, "message")), "after 2 epochs");
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    world_end(&w);
}

/* The last checkpoint is damaged: the one before it is taken. */
TEST_LIMIT(a_damaged_checkpoint_is_passed_over, 60)
{
    world w;
    err e = ERR_INIT;
    char want[65], got[65];
    const world_options o = {.job = "damaged", .epochs = 4, .failpoint = "before-history:4"};
    world_calm(&o, want);
    world_start(&w, &o);
    world_await_death(&w);
    store *s = store_open(w.locator, &e);
    CHECK(s != NULL);
    CHECK_OK(store_blob_delete(s, "models/damaged/epoch-000003", &e), e);
    CHECK_OK(store_blob_put(s, "models/damaged/epoch-000003", "rubbish", 7, &e), e);
    store_close(s);
    world_restart(&w);
    world_finish(&w, "succeeded", got);
    CHECK_STR(got, want);
    world_end(&w);
}
