/* test_frame_out.c: what kubeml-ps says to controllers and functions, frame by frame. */
#include "common/base/json_read.h"
#include "ps/job/frame_out.h"
#include "test.h"

/* `frame` (stolen) is `want`, with its members in that order. */
static void is(json_t *frame, const char *want)
{
    CHECK(frame);
    char *text = json_dumps(frame, JSON_COMPACT | JSON_REAL_PRECISION(6));
    CHECK_STR(text, want);
    free(text);
    json_decref(frame);
}

TEST(what_has_nothing_but_its_type)
{
    is(frame_out_plain("begun"), "{\"type\":\"begun\"}");
}

TEST(refusals)
{
    is(frame_out_refused(ERR_STALE, NULL, "m"),
       "{\"type\":\"refused\",\"code\":\"stale\",\"message\":\"m\"}");
    is(frame_out_refused(ERR_NOT_FOUND, "RedisMissing", "m"),
       "{\"type\":\"refused\",\"code\":\"not-found\",\"reason\":\"RedisMissing\","
       "\"message\":\"m\"}");
}

TEST(actions_that_are_told_to_controllers)
{
    static const struct {
        round_action action;
        const char *frame;
    } cases[] = {
        {{.type = ROUND_NEED, .function = 2, .incarnation = 5, .reason = "Start"},
         "{\"type\":\"need\",\"function\":2,\"incarnation\":5,\"reason\":\"Start\"}"},
        {{.type = ROUND_RELEASE, .function = 2, .incarnation = 5},
         "{\"type\":\"release\",\"function\":2,\"incarnation\":5}"},
        {{.type = ROUND_RELEASE, .function = 2, .incarnation = 5, .message = "no slot"},
         "{\"type\":\"release\",\"function\":2,\"incarnation\":5,\"message\":\"no slot\"}"},
        {{.type = ROUND_PHASE, .phase = "training", .epoch = 1, .round = 3},
         "{\"type\":\"phase\",\"phase\":\"training\",\"epoch\":1,\"round\":3}"},
        {{.type = ROUND_ASK, .epoch = 1, .parallelism = 4, .seconds = 2.5},
         "{\"type\":\"ask\",\"epoch\":1,\"parallelism\":4,\"seconds\":2.5}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        is(frame_out_of(&cases[i].action), cases[i].frame);
}

TEST(conditions_and_ends)
{
    is(frame_out_condition("Exact", false, "LeftOut", "m"),
       "{\"type\":\"condition\",\"name\":\"Exact\",\"status\":\"False\",\"reason\":\"LeftOut\","
       "\"message\":\"m\"}");
    is(frame_out_averaging(REDUCE_NCCL, "by NCCL"),
       "{\"type\":\"averaging\",\"path\":\"nccl\",\"text\":\"by NCCL\"}");
    is(frame_out_access("unix:/a", json_pack("{s:i}", "k", 1)),
       "{\"type\":\"access\",\"address\":\"unix:/a\",\"model\":{\"k\":1}}");
    is(frame_out_finished("succeeded", "r", "m", 3, "ab"),
       "{\"type\":\"finished\",\"state\":\"succeeded\",\"reason\":\"r\",\"message\":\"m\","
       "\"epochs\":3,\"sha256\":\"ab\"}");
}

#define STAGES                                                                                     \
    "\"stages\":{\"fetch\":1.0,\"load\":2.0,\"convert\":3.0,\"train\":4.0,\"publish\":5.0,"        \
    "\"merge\":6.0,\"validate\":7.0,\"checkpoint\":8.0}"
#define EPOCH                                                                                      \
    "{\"type\":\"epoch\",\"epoch\":2,\"train_loss\":0.5,\"parallelism\":3,\"seconds\":9.0,"        \
    "\"version\":11,\"samples\":120,"

TEST(an_epoch_says_only_what_was_validated)
{
    epoch_result r = {.epoch = 2,
                      .train_loss = 0.5,
                      .parallelism = 3,
                      .seconds = 9,
                      .version = 11,
                      .samples = 120,
                      .fetch_s = 1,
                      .load_s = 2,
                      .convert_s = 3,
                      .train_s = 4,
                      .publish_s = 5,
                      .merge_s = 6,
                      .validate_s = 7,
                      .checkpoint_s = 8};
    is(frame_out_epoch(&r), EPOCH STAGES "}");
    r.validated = true;
    r.validation_loss = 0.25;
    r.accuracy = 75;
    is(frame_out_epoch(&r), EPOCH "\"validation_loss\":0.25,\"accuracy\":75.0," STAGES "}");
    r.accuracy = (double)NAN; /* of targets */
    is(frame_out_epoch(&r), EPOCH "\"validation_loss\":0.25," STAGES "}");
}

TEST(tasks)
{
    const round_action train = {.type = ROUND_TRAIN,
                                .epoch = 1,
                                .round = 2,
                                .version = 3,
                                .parallelism = 4,
                                .function = 5,
                                .batch_begin = 6,
                                .batch_count = 7,
                                .slot = 8};
    const round_action validate = {
        .type = ROUND_VALIDATE, .epoch = 1, .version = 3, .parallelism = 4, .function = 5};
    cleanup_json json_t *losses = json_pack("[f]", 0.5), *mean = json_pack("{s:s}", "loan", "h");
    const frame_task plain = {.lr = 0.5};
    const frame_task full = {.lr = 0.5, .losses = losses, .on_gpu = {.keep = true, .mean = mean}};
#define TRAIN                                                                                      \
    "{\"type\":\"train\",\"epoch\":1,\"round\":2,\"version\":3,\"parallelism\":4,\"function\":5,"  \
    "\"batch_begin\":6,\"batch_count\":7,\"lr\":0.5,\"slot\":8"
    is(frame_out_task(&train, &plain), TRAIN "}");
    is(frame_out_task(&train, &full),
       TRAIN ",\"validation_losses\":[0.5],\"keep\":true,\"mean\":{\"loan\":\"h\"}}");
    is(frame_out_task(&validate, &plain),
       "{\"type\":\"validate\",\"epoch\":1,\"version\":3,\"parallelism\":4,\"function\":5}");
    is(frame_out_init(9, 2), "{\"type\":\"init\",\"seed\":9,\"epoch\":-1,\"round\":0,\"slot\":2}");
}

TEST(the_tasks_of_a_shared_process_are_one_frame)
{
    round_action train = {.type = ROUND_TRAIN,
                          .epoch = 1,
                          .round = 2,
                          .version = 3,
                          .parallelism = 2,
                          .batch_begin = 6,
                          .batch_count = 7};
    round_action validate = {.type = ROUND_VALIDATE, .epoch = 1, .version = 3, .parallelism = 2};
    const frame_task t = {.lr = 0.5};
    json_t *frame = NULL;
    for (train.function = 0; train.function < 2; train.function++)
        frame = frame_out_shared_task(frame, &train, &t);
    is(frame, "{\"type\":\"train\",\"epoch\":1,\"round\":2,\"version\":3,\"parallelism\":2,"
              "\"lr\":0.5,\"slot\":0,\"shares\":[[0,6,7],[1,6,7]]}");
    frame = NULL;
    for (validate.function = 0; validate.function < 2; validate.function++)
        frame = frame_out_shared_task(frame, &validate, &t);
    is(frame, "{\"type\":\"validate\",\"epoch\":1,\"version\":3,\"parallelism\":2,"
              "\"functions\":[0,1]}");
}
