/* test_function_trainer.c: the loader's batches and the training loop, on two blobs. */
#include "far_dataset.h"
#include "function-runtime/base/samples.h"
#include "function-runtime/model/program.h"
#include "function-runtime/train/loader.h"
#include "function-runtime/train/trainer.h"
#include "function_fixture.h"

static program *open_program(const char *text)
{
    static int number;
    char name[32], path[300];
    program *p;
    err e = ERR_INIT;
    snprintf(name, sizeof name, "object-%d", number++);
    make_object(name, text, path);
    CHECK_OK(program_open_object(path, &p, &e), e);
    return p;
}

static trainer *open_trainer(program *p, dataset *d, uint64_t seed)
{
    trainer *t;
    char reason[TRAINER_REASON_BYTES];
    err e = ERR_INIT;
    trainer_config c = {.program = p, .data = d,    .batch = 32,
                        .epochs = 3,  .threads = 1, .seed = seed};
    CHECK_OK(trainer_open(&c, &t, reason, &e), e);
    return t;
}

typedef struct model {
    block block;
    size_t floats, counters;
} model;

static model export_model(trainer *t)
{
    err e = ERR_INIT;
    state *s = trainer_state(t);
    model m = {.floats = state_floats(s), .counters = state_counters(s)};
    m.block.floats = calloc(m.floats, sizeof(float));
    m.block.counters = calloc(m.counters + 1, sizeof(int64_t));
    CHECK(m.block.floats && m.block.counters);
    CHECK_OK(state_export(s, m.block, NULL, &e), e);
    return m;
}

static bool same_model(const model *a, const model *b)
{
    return a->floats == b->floats && a->counters == b->counters &&
           memcmp(a->block.floats, b->block.floats, a->floats * sizeof(float)) == 0 &&
           memcmp(a->block.counters, b->block.counters, a->counters * sizeof(int64_t)) == 0;
}

static void free_model(model *m)
{
    free(m->block.floats);
    free(m->block.counters);
}

static trainer_result train_task(trainer *t, const trainer_task *task)
{
    trainer_result r;
    err e = ERR_INIT;
    CHECK_OK(trainer_train(t, task, &r, &e), e);
    return r;
}

static trainer_result train(trainer *t, uint32_t epoch, int parallelism, int function,
                            uint32_t begin, uint32_t count)
{
    trainer_task task = {.epoch = epoch, .parallelism = parallelism, .function = function,
                         .batch_begin = begin, .batch_count = count, .lr = 0.01};
    return train_task(t, &task);
}

TEST(two_blobs_are_told_apart)
{
    dataset *d = open_blobs(2);
    program *p = open_program(BLOB_MODEL(BLOB_LAYERS, BLOB_AUGMENTED));
    trainer *t = open_trainer(p, d, 1);
    trainer_result r, v;
    err e = ERR_INIT;
    for (uint32_t epoch = 0; epoch < 3; epoch++) {
        r = train(t, epoch, 1, 0, 0, BLOB_TRAIN / 32);
        CHECK_INT(r.samples, BLOB_TRAIN);
        CHECK_INT(r.batches, BLOB_TRAIN / 32);
        CHECK_INT(trainer_progress(t), (epoch + 1) * BLOB_TRAIN / 32);
    }
    CHECK_OK(trainer_validate(t, 2, 1, 0, &v, &e), e);
    CHECK_INT(v.samples, BLOB_TEST);
    CHECK(v.correct > BLOB_TEST * 95 / 100);
    CHECK(v.loss_sum / (double)v.samples < 0.3);
    trainer_close(t);
    program_close(p);
    dataset_close(d);
}

/* Validation in shares adds up to validation in one. */
TEST(shares_of_the_test_set_add_up)
{
    dataset *d = open_blobs(2);
    program *p = open_program(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS));
    trainer *t = open_trainer(p, d, 1);
    trainer_result whole, part;
    err e = ERR_INIT;
    uint64_t tested = 0;
    int64_t correct = 0;
    CHECK_OK(trainer_validate(t, 0, 1, 0, &whole, &e), e);
    for (int f = 0; f < 7; f++) {
        CHECK_OK(trainer_validate(t, 0, 7, f, &part, &e), e);
        tested += part.samples;
        correct += part.correct;
    }
    CHECK_INT(tested, BLOB_TEST);
    CHECK_INT(correct, whole.correct);
    trainer_close(t);
    program_close(p);
    dataset_close(d);
}

/* A function that trained all its life, and one that was made anew for the second round. */
static void replacement_equals(const char *text)
{
    dataset *d = open_blobs(2);
    program *p = open_program(text);
    trainer *old = open_trainer(p, d, 5);
    uint32_t half = BLOB_TRAIN / 32 / 2;
    err e = ERR_INIT;
    train(old, 0, 1, 0, 0, half);
    model between = export_model(old);
    train(old, 1, 2, 1, 0, 5);
    model want = export_model(old);
    trainer *fresh = open_trainer(p, d, 5);
    model start = export_model(fresh);
    CHECK(!same_model(&between, &start)); /* it did learn something */
    CHECK_OK(state_import(trainer_state(fresh), between.block, &e), e);
    train(fresh, 1, 2, 1, 0, 5);
    model got = export_model(fresh);
    CHECK(same_model(&got, &want));
    trainer *other = open_trainer(p, d, 6); /* another seed: other batches, other draws */
    CHECK_OK(state_import(trainer_state(other), between.block, &e), e);
    train(other, 1, 2, 1, 0, 5);
    model differs = export_model(other);
    CHECK(!same_model(&differs, &want));
    model *all[] = {&between, &want, &start, &got, &differs};
    for (size_t i = 0; i < 5; i++)
        free_model(all[i]);
    trainer_close(old);
    trainer_close(fresh);
    trainer_close(other);
    program_close(p);
    dataset_close(d);
}

TEST(a_replacement_computes_the_same_bits)
{
    replacement_equals(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS));
}

TEST(a_replacement_draws_the_same_flips_and_crops)
{
    replacement_equals(BLOB_MODEL(BLOB_LAYERS, BLOB_AUGMENTED));
}

TEST(without_optimizer_state_a_round_begins_with_none)
{
    dataset *d = open_blobs(2);
    program *p = open_program(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS));
    trainer *t, *full = open_trainer(p, d, 1);
    char reason[TRAINER_REASON_BYTES];
    err e = ERR_INIT;
    trainer_config c = {.program = p, .data = d, .batch = 32, .epochs = 3, .threads = 1, .seed = 1,
                        .reset_optimizer = true};
    CHECK_OK(trainer_open(&c, &t, reason, &e), e);
    CHECK(state_floats(trainer_state(t)) < state_floats(trainer_state(full)));
    train(t, 0, 1, 0, 0, 4);
    model a = export_model(t);
    CHECK_OK(state_import(trainer_state(t), a.block, &e), e);
    size_t count;
    const engine_var *vars = engine_layout(trainer_engine(t), &count);
    const float *floats = engine_floats(trainer_engine(t), &e);
    const int64_t *counters = engine_counters(trainer_engine(t), &e);
    int states = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; vars[i].kind == VAR_STATE && j < vars[i].count; j++)
            CHECK(floats[vars[i].offset + j] == 0.0f);
        states += vars[i].kind == VAR_STATE;
        if (strcmp(vars[i].name, "optimizer.step") == 0)
            CHECK_INT(counters[vars[i].offset], 0);
    }
    CHECK(states > 0);
    free_model(&a);
    trainer_close(t);
    trainer_close(full);
    program_close(p);
    dataset_close(d);
}

/* ---- targets --------------------------------------------------------------------------------- */

#define SUM_MODEL BLOB_MODEL(SUM_LAYERS, SUM_SETTINGS)

TEST(targets_are_learned)
{
    dataset *d = open_sums();
    program *p = open_program(SUM_MODEL);
    trainer *t = open_trainer(p, d, 1);
    trainer_result first, last = {0}, part;
    err e = ERR_INIT;
    CHECK_OK(trainer_validate(t, 0, 1, 0, &first, &e), e);
    for (uint32_t epoch = 0; epoch < 10; epoch++) {
        trainer_task task = {.epoch = epoch, .parallelism = 1, .batch_count = BLOB_TRAIN / 32,
                             .lr = 0.1};
        trainer_result r = train_task(t, &task);
        CHECK_INT(r.samples, BLOB_TRAIN);
    }
    CHECK_OK(trainer_validate(t, 10, 1, 0, &last, &e), e);
    CHECK(first.loss_sum / BLOB_TEST > 1 && last.loss_sum / BLOB_TEST < 1e-3);
    CHECK_INT(last.correct, 0); /* there is nothing to be right about */
    double sum = 0;
    for (int f = 0; f < 3; f++) {
        CHECK_OK(trainer_validate(t, 10, 3, f, &part, &e), e);
        sum += part.loss_sum;
    }
    CHECK_NEAR(sum, last.loss_sum, 1e-6 * last.loss_sum);
    trainer_close(t);
    program_close(p);
    dataset_close(d);
}

/* ---- the learning rate ----------------------------------------------------------------------- */

enum { BATCHES = BLOB_TRAIN / 32 };

/* Two programs alike but for the schedule, and what they train on. */
typedef struct pair {
    dataset *data;
    program *scheduled, *constant;
} pair;

#define OPEN_PAIR(schedule)                                                                        \
    {                                                                                              \
        open_blobs(2), open_program(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS ", " schedule)),         \
            open_program(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS))                                   \
    }

static void close_pair(pair *p)
{
    program_close(p->scheduled);
    program_close(p->constant);
    dataset_close(p->data);
}

/* A new model after that epoch, trained at `lr`. */
static model one_epoch(program *p, dataset *d, uint32_t epoch, double lr, const double *history,
                       size_t count)
{
    trainer *t = open_trainer(p, d, 1);
    trainer_task task = {.epoch = epoch, .parallelism = 1, .batch_count = BATCHES, .lr = lr,
                         .history = history, .history_count = count};
    train_task(t, &task);
    model m = export_model(t);
    trainer_close(t);
    return m;
}

/* An epoch under the schedule is that epoch at a rate of `factor` times as much, bit for bit. */
static void check_epoch(const pair *p, uint32_t epoch, const double *history, size_t count,
                        double factor)
{
    model got = one_epoch(p->scheduled, p->data, epoch, 0.01, history, count);
    model want = one_epoch(p->constant, p->data, epoch, 0.01 * factor, NULL, 0);
    model other = one_epoch(p->constant, p->data, epoch, 0.01 * factor / 2, NULL, 0);
    CHECK(same_model(&got, &want));
    CHECK(!same_model(&got, &other)); /* the rate does count */
    free_model(&got);
    free_model(&want);
    free_model(&other);
}

TEST(a_step_schedule_goes_by_the_epoch)
{
    pair p = OPEN_PAIR(".schedule = kml_step_lr(.every = 2, .gamma = 0.5)");
    check_epoch(&p, 1, NULL, 0, 1);
    check_epoch(&p, 2, NULL, 0, 0.5);
    check_epoch(&p, 5, NULL, 0, 0.25);
    close_pair(&p);
}

TEST(a_plateau_goes_by_the_losses_before)
{
    pair p = OPEN_PAIR(".schedule = kml_plateau(.patience = -1, .gamma = 0.5)");
    check_epoch(&p, 0, NULL, 0, 1);
    check_epoch(&p, 3, (double[]){3, 2, 1}, 3, 1);
    check_epoch(&p, 3, (double[]){3, 2, 2}, 3, 0.5);
    check_epoch(&p, 3, (double[]){1, 2, 2}, 3, 0.25);
    close_pair(&p);
}

/* Also where a round begins in the middle of an epoch. */
TEST(a_warm_up_goes_by_the_batch)
{
    pair p = OPEN_PAIR(".schedule = kml_constant(.warmup_epochs = 2)");
    trainer *warm = open_trainer(p.scheduled, p.data, 1);
    trainer *by_hand = open_trainer(p.constant, p.data, 1);
    for (uint32_t epoch = 0; epoch < 3; epoch++) {
        train(warm, epoch, 1, 0, 0, 7);
        train(warm, epoch, 1, 0, 7, BATCHES - 7);
        for (uint32_t i = 0; i < BATCHES; i++) {
            double lr = epoch < 2 ? 0.01 * (epoch * BATCHES + i + 1) / (2 * BATCHES) : 0.01;
            trainer_task task = {.epoch = epoch, .parallelism = 1, .batch_begin = i,
                                 .batch_count = 1, .lr = lr};
            train_task(by_hand, &task);
        }
        model got = export_model(warm), want = export_model(by_hand);
        CHECK(same_model(&got, &want));
        free_model(&got);
        free_model(&want);
    }
    trainer_close(warm);
    trainer_close(by_hand);
    close_pair(&p);
}

/* ---- the loader ------------------------------------------------------------------------------ */

static loader *open_loader(dataset *d, const transform *t)
{
    loader_config c = {.data = d, .transform = t, .seed = 4, .batch = 48};
    loader *l;
    err e = ERR_INIT;
    CHECK_OK(loader_open(&c, &l, &e), e);
    return l;
}

/* Counts how often each sample of the upload is handed out in the epoch. */
static void count_epoch(loader *l, uint32_t epoch, int parallelism, int *seen)
{
    engine_batch b;
    err e = ERR_INIT;
    for (int f = 0; f < parallelism; f++) {
        uint32_t batches;
        uint64_t begin, end, got = 0;
        CHECK_OK(loader_batches(l, epoch, parallelism, f, &batches, &e), e);
        CHECK_OK(loader_train(l, epoch, parallelism, f, 0, batches, &begin, &end, &e), e);
        int more;
        while ((more = loader_next(l, &b, &e)) == 1) {
            for (int i = 0; i < b.n; i++)
                seen[b.sample[i]]++;
            got += (uint64_t)b.n;
        }
        CHECK_INT(more, 0);
        CHECK_INT(got, end - begin);
    }
}

TEST(every_sample_once_an_epoch)
{
    dataset *d = open_blobs(2);
    transform plain = {0}, moving = {.flip = true};
    const transform *kinds[] = {&plain, &moving};
    for (int k = 0; k < 2; k++) {
        loader *l = open_loader(d, kinds[k]);
        for (int parallelism = 1; parallelism <= 11; parallelism += 5) {
            int seen[BLOB_TRAIN] = {0};
            count_epoch(l, 3, parallelism, seen);
            for (int i = 0; i < BLOB_TRAIN; i++)
                CHECK_INT(seen[i], 1);
        }
        loader_close(l);
    }
    dataset_close(d);
}

TEST(a_run_that_is_broken_off_leaves_nothing)
{
    dataset *d = open_blobs(2);
    transform moving = {.flip = true, .crop = 2};
    loader *l = open_loader(d, &moving);
    engine_batch b;
    uint64_t begin, end;
    err e = ERR_INIT;
    for (uint32_t turn = 0; turn < 50; turn++) {
        CHECK_OK(loader_train(l, turn, 1, 0, 0, 13, &begin, &end, &e), e);
        for (uint32_t i = 0; i < turn % 4; i++)
            CHECK_INT(loader_next(l, &b, &e), 1);
    }
    loader_end(l);
    CHECK_INT(loader_next(l, &b, &e), 0);
    CHECK_ERR(loader_train(l, 0, 1, 0, 10, 5, &begin, &end, &e), e, ERR_INVALID,
              "a share that has 14");
    CHECK_ERR(loader_train(l, 0, 2, 2, 0, 1, &begin, &end, &e), e, ERR_INVALID, "function 2 of 2");
    loader_close(l);
    dataset_close(d);
}

/* Row after row what the chunks hold, with one of them in hand at a time. */
static void compare_share(dataset *lent, dataset *d, bool regression)
{
    transform moving = {.flip = true, .crop = 2};
    loader_config c = {.data = lent, .transform = &moving, .seed = 4, .batch = 48,
                       .regression = regression};
    const dataset_info *info = dataset_get_info(d);
    loader *l;
    backend_share s;
    backend_rows rows;
    dataset_chunk want;
    err e = ERR_INIT;
    CHECK_OK(loader_open(&c, &l, &e), e);
    CHECK_OK(loader_share(l, &s, &e), e);
    CHECK_INT(s.rows, BLOB_TRAIN);
    CHECK_INT(s.rows_each, BLOB_CHUNK);
    CHECK_INT(s.type, info->dtype == DATASET_U8 ? INPUT_UINT8 : INPUT_FLOAT);
    CHECK(s.flip && s.crop == 2 && s.seed == 4 && s.set && strcmp(s.set, info->digest) == 0);
    for (uint32_t chunk = 0; chunk < info->chunks[DATASET_TRAIN]; chunk++) {
        CHECK_OK(s.reader.read(s.reader.from, chunk * BLOB_CHUNK, &rows, &e), e);
        CHECK_OK(dataset_view(d, DATASET_TRAIN, chunk, &want, &e), e);
        CHECK(memcmp(rows.x, want.data, want.samples * dataset_sample_bytes(info)) == 0);
        for (uint32_t i = 0; i < want.samples; i++) {
            CHECK_INT(rows.sample[i], want.index[i]);
            CHECK(regression || rows.labels[i] == want.labels[i]);
        }
        CHECK(!regression || memcmp(rows.targets, want.targets,
                                    want.samples * TARGETS * sizeof(float)) == 0);
        dataset_release(d, DATASET_TRAIN, chunk);
    }
    loader_close(l);
}

TEST(a_share_is_read_a_chunk_at_a_time)
{
    char locator[STORE_LOCATOR_BYTES];
    far_reader *far;
    dataset *d = open_blobs(2), *sums = open_sums();
    make_blobs(2, locator);
    dataset *lent = open_far(locator, &far);
    compare_share(lent, d, false);
    CHECK_INT(far->held_most, 1);
    CHECK_INT(far->held, 0);
    compare_share(sums, sums, true);
    dataset_close(lent);
    dataset_close(d);
    dataset_close(sums);
}

TEST(a_chunk_that_does_not_come_can_be_asked_for_again)
{
    char locator[STORE_LOCATOR_BYTES];
    far_reader *far;
    make_blobs(2, locator);
    dataset *d = open_far(locator, &far);
    loader *l = open_loader(d, &(transform){0});
    backend_share s;
    backend_rows rows;
    err e = ERR_INIT;
    CHECK_OK(loader_share(l, &s, &e), e);
    far->fails = 2;
    CHECK_OK(s.reader.read(s.reader.from, 0, &rows, &e), e);
    CHECK_ERR(s.reader.read(s.reader.from, BLOB_CHUNK, &rows, &e), e, ERR_UNAVAILABLE,
              "the line is cut");
    CHECK_INT(far->held, 0);
    CHECK_OK(s.reader.read(s.reader.from, BLOB_CHUNK, &rows, &e), e);
    loader_end(l);
    CHECK_INT(far->held, 0);
    loader_close(l);
    dataset_close(d);
}

/* ---- what is wrong with the code ------------------------------------------------------------- */

TEST(a_loss_that_is_no_number)
{
    dataset *d = open_blobs(2);
    program *p = open_program(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS));
    trainer *t = open_trainer(p, d, 1);
    trainer_task task = {.epoch = 2, .parallelism = 1, .batch_begin = 3, .batch_count = 17,
                         .lr = 1e30};
    trainer_result r;
    err e = ERR_INIT;
    CHECK_ERR(trainer_train(t, &task, &r, &e), e, ERR_INVALID, "in epoch 3, batch ");
    CHECK_STR(trainer_reason(t), "NaNLoss");
    CHECK_CONTAINS(e.message, "learning rate 1e+30");
    trainer_close(t);
    program_close(p);
    dataset_close(d);
}

/* What was trained may be finite, and what it says of the test set not. */
TEST(a_validation_loss_that_is_no_number)
{
    dataset *d = open_blobs(2);
    program *p = open_program(BLOB_MODEL(BLOB_LAYERS, BLOB_SETTINGS));
    trainer *t = open_trainer(p, d, 1);
    model m = export_model(t);
    trainer_result r;
    err e = ERR_INIT;
    for (size_t i = 0; i < m.floats; i++)
        m.block.floats[i] = 1e38f;
    CHECK_OK(state_import(trainer_state(t), m.block, &e), e);
    CHECK_ERR(trainer_validate(t, 2, 3, 1, &r, &e), e, ERR_INVALID, "the validation loss is ");
    CHECK_CONTAINS(e.message, "in epoch 3, in function 1's part");
    CHECK_STR(trainer_reason(t), "NaNLoss");
    free_model(&m);
    trainer_close(t);
    program_close(p);
    dataset_close(d);
}

static void refuse_on(dataset *d, const char *text, const char *part)
{
    program *p = open_program(text);
    trainer *t;
    char reason[TRAINER_REASON_BYTES];
    err e = ERR_INIT;
    trainer_config c = {.program = p, .data = d, .batch = 32, .epochs = 3, .threads = 1};
    CHECK_ERR(trainer_open(&c, &t, reason, &e), e, ERR_INVALID, part);
    CHECK_STR(reason, "ShapeMismatch");
    program_close(p);
    dataset_close(d);
}

static void refuse(const char *text, int classes, const char *part)
{
    refuse_on(open_blobs(classes), text, part);
}

TEST(labels_beyond_the_outputs)
{
    refuse(BLOB_MODEL("    return kml_linear(g, kml_flatten(g, x), 3);\n", ""), 5,
           "labels up to 4, the model has 3 outputs");
}

TEST(a_loss_that_does_not_fit_the_labels)
{
    refuse(
        SUM_MODEL, 2,
        "dataset blobs has labels of classes, the function's loss KML_MSE needs targets (uploaded "
        "with --regression)");
    refuse_on(open_sums(), BLOB_MODEL(SUM_LAYERS, ""),
              "dataset sums has targets for regression, the function's loss needs labels");
}

TEST(other_targets_than_outputs)
{
    refuse_on(open_sums(),
              BLOB_MODEL("    return kml_linear(g, kml_flatten(g, x), 3);\n", ", .loss = KML_MSE"),
              "dataset sums has 2 targets a sample, the model has 3 outputs");
}

TEST(images_too_small_for_the_model)
{
    refuse(BLOB_MODEL("    x = kml_conv2d(g, x, .filters = 4, .kernel = 9, .name = \"big\");\n"
                      "    return kml_linear(g, kml_flatten(g, x), 2);\n", ""), 2, "big");
}

TEST(a_crop_too_large_for_the_images)
{
    refuse(BLOB_MODEL(BLOB_LAYERS, ", .transform = kml_transform(.crop = 8)"), 2, "crop of 8");
}

TEST(a_step_that_gives_up)
{
    dataset *d = open_blobs(2);
    program *p =
        open_program("#include <kubeml.h>\n"
                     "static kml_tensor model(kml_graph *g, kml_tensor x)\n"
                     "{ return kml_linear(g, kml_flatten(g, x), 2); }\n"
                     "static int step(kml_step *s) { return kml_step_fail(s, \"no more\"); }\n"
                     "KUBEML_FUNCTION(.model = model, .step = step);\n");
    trainer *t = open_trainer(p, d, 1);
    trainer_task task = {.parallelism = 1, .batch_count = 1, .lr = 0.1};
    trainer_result r;
    err e = ERR_INIT;
    CHECK_ERR(trainer_train(t, &task, &r, &e), e, ERR_INVALID, "no more");
    CHECK_STR(trainer_reason(t), "StepFailed");
    trainer_close(t);
    program_close(p);
    dataset_close(d);
}

TEST(an_object_that_is_none)
{
    char path[300];
    program *p;
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/x.so", test_tmp());
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("no object", f) >= 0 && fclose(f) == 0);
    CHECK_ERR(program_open_object(path, &p, &e), e, ERR_UNSUPPORTED, "cannot be loaded");
    CHECK_ERR(program_open_zoo("lenet55", &p, &e), e, ERR_NOT_FOUND, "lenet");
}

TEST(a_models_text_says_its_transform)
{
    static const struct {
        const char *text;
        transform is;
    } cases[] = {
        {"lenet5", {.standardise = true}},
        {"lenet5,flip=on,crop=4", {.flip = true, .crop = 4, .standardise = true}},
        {"lenet5,scale=min_max", {.min_max = true}},
        {"lenet5,scale=none,crop=1", {.crop = 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program *p;
        err e = ERR_INIT;
        CHECK_OK(program_open_zoo(cases[i].text, &p, &e), e);
        const transform *t = program_transform(p), *is = &cases[i].is;
        CHECK(t->flip == is->flip && t->crop == is->crop && t->standardise == is->standardise &&
              t->min_max == is->min_max && t->channels == 0);
        CHECK_STR(program_name(p), cases[i].text);
        program_close(p);
    }
}

/* ---- samples of a request -------------------------------------------------------------------- */

static void read_samples(const char *text, shape one, size_t want)
{
    json_t *data = json_loads(text, 0, NULL);
    samples s;
    err e = ERR_INIT;
    CHECK(data);
    CHECK_OK(samples_read(data, one, 10, &s, &e), e);
    CHECK_INT(s.n, want);
    for (size_t i = 0; i < want * shape_count(one); i++)
        CHECK(s.values[i] == (float)i);
    free(s.values);
    json_decref(data);
}

static void refuse_samples_of(shape one, const char *text, err_code code, const char *part)
{
    json_t *data = json_loads(text, JSON_DECODE_ANY, NULL);
    samples s;
    err e = ERR_INIT;
    CHECK_ERR(samples_read(data, one, 10, &s, &e), e, code, part);
    json_decref(data);
}

static void refuse_samples(const char *text, err_code code, const char *part)
{
    refuse_samples_of((shape){3, 1, 2, 2}, text, code, part);
}

TEST(samples_in_every_nesting)
{
    shape image = {3, 1, 2, 2}, colour = {3, 2, 1, 2}, vector = {3, 4, 1, 1};
    read_samples("[[0,1],[2,3]]", image, 1);
    read_samples("[[[0,1],[2,3]]]", image, 1);
    read_samples("[[[0,1],[2,3]],[[4,5],[6,7]]]", image, 2);
    read_samples("[[[[0,1],[2,3]]],[[[4,5],[6,7]]],[[[8,9],[10,11]]]]", image, 3);
    read_samples("[[[0,1]],[[2,3]]]", colour, 1);
    read_samples("[0,1,2,3]", vector, 1);
    read_samples("[[0,1,2,3],[4,5,6,7]]", vector, 2);
}

TEST(samples_that_do_not_fit)
{
    refuse_samples("[[0,1,2],[3,4,5]]", ERR_INVALID, "(2, 3), the model takes (1, 2, 2)");
    refuse_samples_of((shape){3, 3, 1, 2}, "[[[0,1,2],[3,4,5]]]", ERR_INVALID,
                      "(3, 1, 2) or (n, 3, 1, 2): bring the channels from the end");
    refuse_samples("[[0,1],[2]]", ERR_INVALID, "different length");
    refuse_samples("[[0,1],[2,\"x\"]]", ERR_INVALID, "data[1][1]: no number");
    refuse_samples("[[0,1],[2,1e300]]", ERR_INVALID,
                   "data[1][1]: 1e+300 is beyond a float's range");
    refuse_samples("[[[0,1],[2,3]],[[4,-1e39],[6,7]]]", ERR_INVALID,
                   "data[1][0][1]: -1e+39 is beyond");
    refuse_samples("[[0,1],[2,[3]]]", ERR_INVALID, "data[1][1]: an array where a number");
    refuse_samples("[]", ERR_INVALID, "empty");
    refuse_samples("7", ERR_INVALID, "array of numbers");
    refuse_samples("[[[[[[[[[[1]]]]]]]]]]", ERR_INVALID, "deeper");
    refuse_samples(
        "[[[0,1],[2,3]],[[0,1],[2,3]],[[0,1],[2,3]],[[0,1],[2,3]],[[0,1],[2,3]],[[0,1],[2,3]],"
        "[[0,1],[2,3]],[[0,1],[2,3]],[[0,1],[2,3]],[[0,1],[2,3]],[[0,1],[2,3]]]",
        ERR_LIMIT, "11 samples");
}
