/* test_history.c: a job's record, as a later kubeml-ps finds it. */
#include "../../ps/history.h"
#include "json_read.h"
#include "test.h"

static history *make(void)
{
    err e = ERR_INIT;
    json_t *nothing = json_object();
    const job_spec spec = {.id = "job1", .task = nothing, .function = nothing, .dataset = nothing};
    history *h = history_new(&spec, &e);
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
