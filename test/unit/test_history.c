/* test_history.c: a job's record, as a later kubeml-ps finds it. */
#include "common/base/json_read.h"
#include "common/contract/request.h"
#include "common/store/store.h"
#include "ps/storage/history.h"
#include "test.h"

static history *make(void)
{
    err e = ERR_INIT;
    json_t *nothing = json_object();
    history *h = history_new(&(history_subject){.job = "job1",
                                                .task = nothing,
                                                .function = nothing,
                                                .dataset = nothing},
                             &e);
    json_decref(nothing);
    CHECK_OK(h ? 0 : -1, e);
    return h;
}

/* Of two epochs. */
static json_t *record(void)
{
    err e = ERR_INIT;
    history *h = make();
    for (int n = 0; n < 2; n++) {
        epoch_result r = {.epoch = n,         .train_loss = 2 - n, .parallelism = 3, .load_s = 0.25,
                          .convert_s = 0.125, .train_s = 4,        .samples = 100};
        CHECK_OK(history_add(h, &r, json_array(), &e), e);
    }
    CHECK(history_plan(h, "algorithms", json_string("conv1 direct\n")) == 0);
    json_t *out = history_json(h);
    history_free(h);
    return out;
}

TEST(restored)
{
    err e = ERR_INIT;
    cleanup_json json_t *before = record();
    history *h = make();
    CHECK_OK(history_restore(h, before, 1, &e), e);
    CHECK_INT(history_epochs(h), 1);
    epoch_result r;
    CHECK(history_at(h, 0, &r) == 0);
    CHECK_NEAR(r.load_s, 0.25, 0);
    CHECK_NEAR(r.convert_s, 0.125, 0);
    CHECK_NEAR(r.train_s, 4, 0);
    /* The algorithms of its first run are the job's: others are told apart. */
    CHECK(history_plan(h, "algorithms", json_string("conv1 direct\n")) == 0);
    CHECK(history_plan(h, "algorithms", json_string("conv1 winograd4\n")) != 0);
    history_free(h);
}

/* Targets have a validation loss and no accuracy. */
TEST(an_epoch_without_accuracy_was_validated)
{
    err e = ERR_INIT;
    history *h = make();
    epoch_result r = {.validated = true, .validation_loss = 0.5, .accuracy = (double)NAN};
    CHECK_OK(history_add(h, &r, json_array(), &e), e);
    cleanup_json json_t *before = history_json(h);
    const json_t *data = json_object_get(before, "data");
    CHECK(json_is_null(json_array_get(json_object_get(data, "accuracy"), 0)));
    CHECK_NEAR(json_number_value(json_array_get(json_object_get(data, "validation_loss"), 0)), 0.5,
               0);
    history_free(h);
    h = make();
    CHECK_OK(history_restore(h, before, 1, &e), e);
    CHECK(history_at(h, 0, &r) == 0);
    CHECK(r.validated && isnan(r.accuracy));
    CHECK_NEAR(r.validation_loss, 0.5, 0);
    history_free(h);
}

/* Whose epochs are trained again, with their shares. */
TEST(a_record_is_cut_to_the_epochs_that_count)
{
    err e = ERR_INIT;
    cleanup_json json_t *before = record();
    history *h = make();
    CHECK_OK(history_restore(h, before, 2, &e), e);
    history_cut(h, 1);
    CHECK_INT(history_epochs(h), 1);
    cleanup_json json_t *cut = history_json(h);
    CHECK_INT(json_array_size(json_object_get(cut, "shares")), 1);
    CHECK_INT(json_array_size(json_object_get(json_object_get(cut, "data"), "train_loss")), 1);
    CHECK_INT(json_array_size(json_object_get(json_object_get(cut, "seconds"), "load")), 1);
    history_free(h);
}

TEST(an_epoch_that_was_not_validated_comes_back_as_one)
{
    err e = ERR_INIT;
    cleanup_json json_t *before = record();
    epoch_result r = {.validated = true};
    history *h = make();
    CHECK_OK(history_restore(h, before, 2, &e), e);
    CHECK(history_at(h, 1, &r) == 0);
    CHECK(!r.validated);
    CHECK_NEAR(r.train_loss, 1, 0);
    history_free(h);
}

static const json_t *condition_at(const json_t *record, size_t i)
{
    return json_array_get(json_object_get(record, "conditions"), i);
}

/* Each has one place, and the time of its last change of status. */
TEST(conditions_are_kept_by_their_name)
{
    history *h = make();
    history_condition(h, "RedisGone", "True", "RedisGone", "closed");
    history_condition(h, "Exact", "False", "LeftOut", "function 1");
    cleanup_json json_t *first = history_json(h);
    CHECK_INT(json_array_size(json_object_get(first, "conditions")), 2);
    CHECK(text_of(condition_at(first, 0), "lastTransitionTime"));
    json_object_set_new((json_t *)condition_at(first, 1), "lastTransitionTime",
                        json_string("then"));
    history_free(h);

    err e = ERR_INIT;
    h = make();
    CHECK_OK(history_restore(h, first, 0, &e), e);
    history_condition(h, "Exact", "False", "LeftOut", "function 2");
    cleanup_json json_t *second = history_json(h);
    CHECK_INT(json_array_size(json_object_get(second, "conditions")), 2);
    CHECK_STR(text_of(condition_at(second, 0), "type"), "RedisGone");
    CHECK_STR(text_of(condition_at(second, 1), "type"), "Exact");
    CHECK_STR(text_of(condition_at(second, 1), "message"), "function 2");
    CHECK_STR(text_of(condition_at(second, 1), "lastTransitionTime"), "then");
    history_condition(h, "Exact", "True", "", "");
    cleanup_json json_t *third = history_json(h);
    CHECK(strcmp(text_of(condition_at(third, 1), "lastTransitionTime"), "then") != 0);
    history_free(h);
}

/* One that had ended goes on. */
TEST(a_record_says_that_the_job_runs_again)
{
    history *h = make();
    history_state(h, "failed", "NaNLoss", "function 0", "abc");
    cleanup_json json_t *ended = history_json(h);
    CHECK_STR(text_of(ended, "state"), "failed");
    history_set_running(ended);
    CHECK_STR(text_of(ended, "state"), "running");
    CHECK_STR(text_of(ended, "reason"), "");
    CHECK_STR(text_of(ended, "sha256"), "");
    history_free(h);
}

/* For schedules, which count epochs. */
TEST(losses_have_a_place_for_each_epoch)
{
    err e = ERR_INIT;
    history *h = make();
    for (int n = 0; n < 3; n++) {
        epoch_result r = {.epoch = n, .validated = n == 1, .validation_loss = 0.5};
        CHECK_OK(history_add(h, &r, json_array(), &e), e);
    }
    cleanup_json json_t *losses = history_losses(h, 2);
    CHECK_INT(json_array_size(losses), 2);
    CHECK(json_is_null(json_array_get(losses, 0)));
    CHECK_NEAR(json_number_value(json_array_get(losses, 1)), 0.5, 0);
    history_free(h);
}

/* Written before converting was a stage of its own. */
TEST(restored_from_a_record_with_fewer_stages)
{
    err e = ERR_INIT;
    cleanup_json json_t *before = record();
    CHECK(json_object_del(json_object_get(before, "seconds"), "convert") == 0);
    history *h = make();
    CHECK_OK(history_restore(h, before, 2, &e), e);
    epoch_result r = {.epoch = 2, .convert_s = 1};
    CHECK_OK(history_add(h, &r, json_array(), &e), e);
    CHECK(history_at(h, 1, &r) == 0);
    CHECK_NEAR(r.convert_s, 0, 0);
    CHECK_NEAR(r.train_s, 4, 0);
    CHECK(history_at(h, 2, &r) == 0);
    CHECK_NEAR(r.convert_s, 1, 0);
    history_free(h);
}

TEST(not_restored_without_its_losses)
{
    err e = ERR_INIT;
    cleanup_json json_t *before = record();
    CHECK(json_object_del(json_object_get(before, "data"), "train_loss") == 0);
    history *h = make();
    CHECK_ERR(history_restore(h, before, 2, &e), e, ERR_CORRUPT, "train_loss");
    history_free(h);
}

TEST(not_restored_beyond_its_end)
{
    err e = ERR_INIT;
    cleanup_json json_t *before = record();
    history *h = make();
    CHECK_ERR(history_restore(h, before, 3, &e), e, ERR_CORRUPT, "before epoch 3");
    history_free(h);
}

static json_t *shares_of(int functions, int epoch)
{
    json_t *shares = json_array();
    for (int f = 0; f < functions; f++)
        json_array_append_new(shares, json_pack("[i,i,i,i]", f, f * 10000, 0, 100 + epoch % 2));
    return shares;
}

static void add_epoch(history *h, int n, int functions)
{
    err e = ERR_INIT;
    epoch_result r = {.epoch = n,
                      .train_loss = 1.0 / (n + 3),
                      .validated = true,
                      .validation_loss = 1.0 / (n + 7),
                      .accuracy = 100.0 / 3,
                      .parallelism = functions,
                      .seconds = 1.0 / 3 + n,
                      .version = (uint64_t)n * 100,
                      .samples = 60000,
                      .fetch_s = 1.0 / 7,
                      .load_s = 1.0 / 9,
                      .convert_s = 1.0 / 11,
                      .train_s = 1.0 / 13,
                      .publish_s = 1.0 / 17,
                      .merge_s = 1.0 / 19,
                      .validate_s = 1.0 / 21,
                      .cpu_percent = 1000.0 / 7,
                      .memory_bytes = UINT64_C(12345678901)};
    snprintf(r.ledger, sizeof r.ledger, "%064d", n);
    CHECK_OK(history_add(h, &r, shares_of(functions, n), &e), e);
    history_checkpoint_seconds(h, n, 1.0 / 23);
}

/* However many epochs and functions there are, the record can be written; what the newest epochs
 * are known by is there, and losses are there of all. */
static void check_long(history *h, int epochs, int functions)
{
    cleanup_json json_t *record = history_json(h);
    char *text = json_dumps(record, JSON_COMPACT);
    CHECK(text);
    CHECK(strlen(text) < STORE_RECORD_BYTES_MAX);
    free(text);
    json_int_t left_out = json_integer_value(json_object_get(record, "left_out"));
    CHECK(left_out > 0 && left_out < epochs - 100);
    const json_t *shares = json_object_get(record, "shares"),
                 *seconds = json_object_get(record, "seconds");
    CHECK_INT(json_array_size(shares), epochs - left_out);
    CHECK_INT(json_array_size(json_object_get(record, "ledger")), epochs - left_out);
    CHECK_INT(json_array_size(json_object_get(seconds, "checkpoint")), epochs - left_out);
    CHECK_INT(json_array_size(json_object_get(json_object_get(record, "data"), "train_loss")),
              epochs);
    cleanup_json json_t *newest = shares_of(functions, epochs - 1);
    CHECK(json_equal(json_array_get(shares, (size_t)(epochs - 1 - left_out)), newest));

    err e = ERR_INIT;
    epoch_result r;
    char want[DIGEST_HEX_BYTES];
    history *again = make();
    CHECK_OK(history_restore(again, record, epochs - 1, &e), e);
    add_epoch(again, epochs - 1, functions);
    CHECK(history_at(again, epochs - 1, &r) == 0);
    snprintf(want, sizeof want, "%064d", epochs - 1);
    CHECK_STR(r.ledger, want);
    CHECK_NEAR(r.checkpoint_s, 1.0 / 23, 0);
    CHECK(history_at(again, 0, &r) == 0); /* of the first ones the details alone are gone */
    CHECK_NEAR(r.train_loss, 1.0 / 3, 0);
    CHECK_NEAR(r.train_s, 0, 0);
    history_cut(again, epochs - 2);
    CHECK_INT(history_epochs(again), epochs - 2);
    add_epoch(again, epochs - 2, functions);
    CHECK(history_at(again, epochs - 2, &r) == 0);
    snprintf(want, sizeof want, "%064d", epochs - 2);
    CHECK_STR(r.ledger, want);
    CHECK_ERR(history_restore(again, record, 1, &e), e, ERR_CORRUPT, "after epoch 1");
    history_free(again);
}

TEST_LIMIT(many_epochs_of_many_functions_stay_a_record, 120)
{
    history *h = make();
    for (int n = 0; n < 2500; n++)
        add_epoch(h, n, 256);
    check_long(h, 2500, 256);
    history_free(h);
}

TEST_LIMIT(the_most_epochs_stay_a_record, 120)
{
    history *h = make();
    for (int n = 0; n < REQUEST_EPOCHS_MAX; n++)
        add_epoch(h, n, 1);
    check_long(h, REQUEST_EPOCHS_MAX, 1);
    history_free(h);
}
