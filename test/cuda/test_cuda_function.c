/* test_cuda_function.c: the functions' training loop on the fake device: the training set stays
 * there and gives the bits that batches from the host give, also cut into rounds; what is over the
 * cap is named. */
#include "test/unit/function_fixture.h"

#include <limits.h>
#include <math.h>

#include "test/unit/far_dataset.h"

#include "kernels/cuda/cuda_memory.h"
#include "fake_driver.h"
#include "modelstore_memory.h"
#include "function-runtime/base/function_gpu.h"
#include "common/base/clock.h"
#include "function-runtime/train/group.h"
#include "function-runtime/member/member_internal.h"
#include "common/modelstore/merge.h"

typedef struct setup {
    program *program;
    dataset *data;
    trainer *trainer;
    char reason[TRAINER_REASON_BYTES];
} setup;

/* What is trained on what. */
typedef struct task_kind {
    const char *layers, *settings;
    dataset *(*open)(void);
} task_kind;

static dataset *open_bytes(void)
{
    return open_blobs(2);
}

static const task_kind blobs = {BLOB_LAYERS, BLOB_SETTINGS, open_bytes};

/* Compiled once in a process: what was loaded stays. */
static program *load_program(const task_kind *kind)
{
    static program *loaded;
    char object[300], text[2048];
    err e = ERR_INIT;
    if (loaded)
        return loaded;
    snprintf(text, sizeof text,
             "#include <kubeml.h>\nstatic kml_tensor model(kml_graph *g, kml_tensor x)\n{\n%s}\n"
             "KUBEML_FUNCTION(.model = model%s);\n",
             kind->layers, kind->settings);
    make_object("blobs", text, object);
    CHECK_OK(program_open_object(object, &loaded, &e), e);
    return loaded;
}

static int open_trainer(setup *s, const task_kind *kind, size_t cap, err *e)
{
    s->program = load_program(kind);
    s->data = kind->open();
    trainer_config c = {.program = s->program, .data = s->data,     .batch = 16,
                        .epochs = 2,           .threads = 1,        .seed = 3,
                        .backend = "cuda",     .device_memory = cap};
    return trainer_open(&c, &s->trainer, s->reason, e);
}

static void close_trainer(setup *s)
{
    trainer_close(s->trainer);
    dataset_close(s->data);
}

/* An epoch of function 1 of 2 in rounds of `k` batches; its state in *out. */
static trainer_result train_epoch(setup *s, uint32_t k, float **out)
{
    err e = ERR_INIT;
    trainer_result sum = {0}, r;
    uint32_t batches;
    CHECK_OK(trainer_batches(s->trainer, 1, 2, 1, &batches, &e), e);
    for (uint32_t at = 0; at < batches; at += k) {
        trainer_task task = {.epoch = 1, .parallelism = 2, .function = 1, .batch_begin = at,
                             .batch_count = batches - at < k ? batches - at : k, .lr = 0.05};
        CHECK_OK(trainer_train(s->trainer, &task, &r, &e), e);
        CHECK_INT(r.batches, task.batch_count);
        sum.samples += r.samples;
        sum.loss_sum += r.loss_sum;
        sum.batches += r.batches;
    }
    engine *m = trainer_engine(s->trainer);
    size_t bytes = engine_state_floats(m) * sizeof(float);
    *out = malloc(bytes);
    CHECK(*out);
    memcpy(*out, engine_floats(m, &e), bytes);
    return sum;
}

typedef struct look {
    const trainer *at;
    uint32_t seen;
} look;

static void see(void *user)
{
    look *l = user;
    l->seen = trainer_progress(l->at);
}

/* Who waits for a function sees that it gets on within what the device is given at once: it is
 * looked at in the middle, at every call to the device. */
TEST_LIMIT(progress_is_seen_while_the_device_runs, 60)
{
    enum { BATCHES = 16 };
    err e = ERR_INIT;
    setup s = {0};
    trainer_task task = {.parallelism = 1, .batch_count = BATCHES, .lr = 0.05};
    trainer_result r;
    bool seen = false;
    CHECK_OK(open_trainer(&s, &blobs, 0, &e), e);
    CHECK_OK(trainer_train(s.trainer, &task, &r, &e), e);
    for (int calls = 0; !seen && calls < 12; calls++) {
        look l = {.at = s.trainer};
        uint32_t begin = trainer_progress(s.trainer);
        fake_interrupt(calls, see, &l);
        CHECK_OK(trainer_train(s.trainer, &task, &r, &e), e);
        fake_interrupt(0, NULL, NULL);
        uint32_t end = trainer_progress(s.trainer);
        CHECK_INT(end - begin, 2 * BATCHES); /* brought, and trained */
        seen = l.seen > begin + BATCHES && l.seen < end;
    }
    CHECK(seen);
    close_trainer(&s);
}

static size_t train_bytes(const dataset *d)
{
    const dataset_info *info = dataset_get_info(d);
    return (size_t)info->samples[DATASET_TRAIN] * dataset_sample_bytes(info);
}

/* Kept, carried by every batch since the cap has no room, and kept over rounds. */
static void check_same(const task_kind *kind)
{
    err e = ERR_INIT;
    setup kept = {0}, carried = {0};
    float *a, *b, *c;
    CHECK_OK(open_trainer(&kept, kind, 0, &e), e);
    trainer_result from_device = train_epoch(&kept, 1000, &a);
    size_t held = cuda_memory_held(), set = train_bytes(kept.data);
    size_t floats = engine_state_floats(trainer_engine(kept.trainer));
    CHECK(held > set);
    close_trainer(&kept);
    CHECK_OK(open_trainer(&carried, kind, held - 1, &e), e);
    trainer_result from_host = train_epoch(&carried, 1000, &b);
    CHECK(cuda_memory_held() < held - set);
    close_trainer(&carried);
    cuda_memory_cap(0);
    CHECK_OK(open_trainer(&kept, kind, 0, &e), e);
    trainer_result in_rounds = train_epoch(&kept, 3, &c);
    CHECK_INT(cuda_memory_held(), held);
    close_trainer(&kept);
    CHECK(memcmp(a, b, floats * sizeof *a) == 0);
    CHECK(memcmp(a, c, floats * sizeof *a) == 0);
    CHECK_INT(from_device.samples, from_host.samples);
    CHECK_INT(from_device.batches, in_rounds.batches);
    CHECK_NEAR(from_device.loss_sum, from_host.loss_sum, 1e-9 * from_host.loss_sum);
    free(a), free(b), free(c);
}

TEST_LIMIT(samples_on_the_device_give_the_bits_of_samples_from_the_host, 120)
{
    check_same(&blobs);
}

TEST_LIMIT(so_do_flips_and_crops, 120)
{
    check_same(&(task_kind){BLOB_LAYERS, BLOB_AUGMENTED, open_bytes});
}

/* Two channels of float images, which no uint8 stands for. */
static void write_floats(const char *x_path, const char *y_path, size_t n, uint64_t stream)
{
    size_t each = 2 * BLOB_SIDE * BLOB_SIDE;
    float *x = malloc(n * each * sizeof *x);
    int64_t *y = malloc(n * sizeof *y);
    char text[64];
    rng r;
    CHECK(x && y);
    rng_init(&r, 7, RNG_TEST, 3, stream);
    for (size_t i = 0; i < n * each; i++)
        x[i] = 5 * rng_uniform(&r) - 2;
    for (size_t i = 0; i < n; i++)
        y[i] = (int64_t)rng_below(&r, 2);
    snprintf(text, sizeof text, "(%zu, 2, %d, %d)", n, BLOB_SIDE, BLOB_SIDE);
    write_npy(x_path, "<f4", text, x, n * each * sizeof *x);
    snprintf(text, sizeof text, "(%zu,)", n);
    write_npy(y_path, "<i8", text, y, n * sizeof *y);
    free(x);
    free(y);
}

static dataset *open_floats(void)
{
    char paths[4][300], locator[STORE_LOCATOR_BYTES];
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/floats-%d.npy", test_tmp(), i);
    write_floats(paths[0], paths[1], BLOB_TRAIN, 1);
    write_floats(paths[2], paths[3], BLOB_TEST, 2);
    store_arrays("floats", "floats", false, paths, locator);
    return open_stored(locator);
}

TEST_LIMIT(so_do_float_samples, 120)
{
    check_same(&(task_kind){BLOB_LAYERS, BLOB_AUGMENTED, open_floats});
}

TEST_LIMIT(so_do_targets, 120)
{
    check_same(&(task_kind){SUM_LAYERS, SUM_SETTINGS, open_sums});
}

static far_reader *far; /* of the dataset that was opened last */

static dataset *open_far_bytes(void)
{
    char locator[STORE_LOCATOR_BYTES];
    make_blobs(2, locator);
    return open_far(locator, &far);
}

static const task_kind far_blobs = {BLOB_LAYERS, BLOB_AUGMENTED, open_far_bytes};

TEST_LIMIT(so_do_samples_of_a_store_that_is_far_away, 120)
{
    check_same(&far_blobs);
}

/* Half of the device has to stay free where there is no cap. */
TEST_LIMIT(a_set_that_does_not_fit_travels, 120)
{
    err e = ERR_INIT;
    setup s = {0};
    float *model;
    CHECK_OK(open_trainer(&s, &blobs, 0, &e), e);
    size_t before = cuda_memory_held();
    fake_memory(2 * before);
    trainer_result r = train_epoch(&s, 1000, &model);
    CHECK_INT(r.samples, BLOB_TRAIN / 2);
    CHECK_INT(cuda_memory_held(), before);
    close_trainer(&s);
    free(model);
}

/* ---- what comes, and when -------------------------------------------------------------------- */

/* How often chunks were looked at, of those that were; and how many never. */
static void count_views(int *fewest, int *most, int *never)
{
    *fewest = INT_MAX, *most = 0, *never = 0;
    for (int i = 0; i < BLOB_TRAIN / BLOB_CHUNK; i++) {
        CHECK(far->told[i] || !far->viewed[i]);
        *never += !far->viewed[i];
        *most = far->viewed[i] > *most ? far->viewed[i] : *most;
        if (far->viewed[i] && far->viewed[i] < *fewest)
            *fewest = far->viewed[i];
    }
}

TEST_LIMIT(a_chunk_comes_once_when_it_is_dealt, 120)
{
    err e = ERR_INIT;
    setup s = {0};
    float *model;
    trainer_result r;
    int fewest, most, never;
    CHECK_OK(open_trainer(&s, &far_blobs, 0, &e), e);
    train_epoch(&s, 3, &model);
    count_views(&fewest, &most, &never);
    CHECK_INT(never, BLOB_TRAIN / BLOB_CHUNK / 2);
    CHECK(fewest == 1 && most == 1);
    for (uint32_t epoch = 0; epoch < 3; epoch++) {
        trainer_task task = {.epoch = epoch, .parallelism = 1,
                             .batch_count = BLOB_TRAIN / 16, .lr = 0.05};
        CHECK_OK(trainer_train(s.trainer, &task, &r, &e), e);
    }
    count_views(&fewest, &most, &never);
    CHECK_INT(never, 0);
    CHECK(fewest == 1 && most == 1);
    CHECK_INT(far->held_most, 1);
    close_trainer(&s);
    free(model);
}

/* As when batches travel: the task fails, and can be done again. */
TEST_LIMIT(a_chunk_that_does_not_come_is_the_tasks_error, 120)
{
    err e = ERR_INIT;
    setup whole = {0}, cut = {0};
    trainer_result r;
    trainer_task task = {.parallelism = 2, .batch_count = BLOB_TRAIN / 2 / 16, .lr = 0.05};
    CHECK_OK(open_trainer(&whole, &blobs, 0, &e), e);
    CHECK_OK(open_trainer(&cut, &far_blobs, 0, &e), e);
    far->fails = 3;
    CHECK_ERR(trainer_train(cut.trainer, &task, &r, &e), e, ERR_UNAVAILABLE, "the line is cut");
    CHECK_STR(trainer_reason(cut.trainer), "DataError");
    CHECK_OK(trainer_train(cut.trainer, &task, &r, &e), e);
    CHECK_INT(far->views, BLOB_TRAIN / 2 / BLOB_CHUNK + 1);
    CHECK_OK(trainer_train(whole.trainer, &task, &r, &e), e);
    engine *a = trainer_engine(cut.trainer), *b = trainer_engine(whole.trainer);
    CHECK(memcmp(engine_floats(a, &e), engine_floats(b, &e),
                 engine_state_floats(a) * sizeof(float)) == 0);
    close_trainer(&cut);
    close_trainer(&whole);
}

TEST_LIMIT(a_model_over_the_cap_names_need_cap_and_layer, 60)
{
    err e = ERR_INIT;
    setup s = {0};
    CHECK_ERR(open_trainer(&s, &blobs, 4096, &e), e, ERR_LIMIT, "of GPU memory are needed");
    CHECK_STR(s.reason, "GpuMemory");
    CHECK_CONTAINS(e.message, "the cap is 0.0 MiB");
    CHECK_CONTAINS(e.message, "conv");
    close_trainer(&s);
}

/* Of what is booked the engine has what CUDA leaves (test_gpu): that is its cap. */
TEST_LIMIT(a_function_is_held_to_what_it_is_booked_with, 60)
{
    char reason[TRAINER_REASON_BYTES];
    err e = ERR_INIT;
    setup s = {.program = load_program(&blobs), .data = open_blobs(2)};
    member m = {.program = s.program,
                .data = s.data,
                .backend = "cuda",
                .threads = 1,
                .engine_bytes = 4096,
                .request = {.batch_size = 16, .epochs = 1, .seed = 3}};
    CHECK_ERR(member_make_trainer(&m, reason, &e), e, ERR_LIMIT, "the cap is 0.0 MiB");
    CHECK_STR(reason, "GpuMemory");
    m.engine_bytes = 32 << 20;
    CHECK_OK(member_make_trainer(&m, reason, &e), e);
    CHECK_INT(cuda_memory_left(), (32 << 20) - cuda_memory_held());
    trainer_close(m.trainer);
    dataset_close(s.data);
}

/* Without a cap of its own it meets what others have left. */
TEST_LIMIT(a_full_device_is_named_as_a_passed_cap_is, 60)
{
    err e = ERR_INIT;
    setup s = {0};
    load_program(&blobs);
    fake_memory(4096);
    CHECK_ERR(open_trainer(&s, &blobs, 0, &e), e, ERR_NOMEM, "the GPU has 0 MiB left");
    CHECK_STR(s.reason, "GpuMemory");
    close_trainer(&s);
}

/* At each call to the device. */
static void fail_everywhere(const task_kind *kind, bool travels)
{
    err e = ERR_INIT;
    trainer_task task = {.parallelism = 1, .batch_count = 3, .lr = 0.05};
    trainer_result r;
    int calls = 0, rc = -1;
    for (; rc != 0 && calls < 100; calls++) {
        setup s = {0};
        fake_fail_after(-1);
        CHECK_OK(open_trainer(&s, kind, 0, &e), e);
        if (travels)
            fake_memory(2 * cuda_memory_held());
        fake_fail_after(calls);
        rc = trainer_train(s.trainer, &task, &r, &e);
        if (rc == 0) {
            fake_fail_after(0);
            CHECK(trainer_validate(s.trainer, 0, 1, 0, &r, &e) != 0);
        }
        CHECK_INT(e.code, ERR_UNAVAILABLE);
        CHECK_CONTAINS(e.message, "GPU failed");
        CHECK_STR(trainer_reason(s.trainer), "GpuFailed");
        close_trainer(&s);
        fake_memory((size_t)8 << 30);
    }
    CHECK(rc == 0 && calls > 9);
}

TEST_LIMIT(a_gpu_that_fails_is_neither_the_codes_fault_nor_the_datas, 120)
{
    fail_everywhere(&blobs, false);
}

TEST_LIMIT(nor_where_samples_travel, 120)
{
    fail_everywhere(&blobs, true);
}

TEST_LIMIT(nor_in_a_step_of_the_codes_own, 120)
{
    static const task_kind stepped = {
        BLOB_LAYERS "}\nstatic int step(kml_step *s)\n{\n"
                    "    return kml_gradients(s) ? -1 : kml_update(s, kml_learning_rate(s));\n",
        BLOB_SETTINGS ", .step = step", open_bytes};
    fail_everywhere(&stepped, false);
}

TEST_LIMIT(a_loss_that_is_no_number_is_found_on_the_device, 60)
{
    err e = ERR_INIT;
    setup s = {0};
    trainer_result r;
    CHECK_OK(open_trainer(&s, &blobs, 0, &e), e);
    trainer_task task = {.epoch = 0, .parallelism = 1, .batch_count = 40, .lr = 1e30};
    CHECK_ERR(trainer_train(s.trainer, &task, &r, &e), e, ERR_INVALID,
              "in epoch 1, within batches 1 to 40 of function 0");
    CHECK_STR(trainer_reason(s.trainer), "NaNLoss");
    close_trainer(&s);
}

/* ---- several functions on one device --------------------------------------------------------- */

static group *open_group(setup *s, const char *on, int functions, int gpus, reduce_wish wish)
{
    err e = ERR_INIT;
    group *g = NULL;
    s->program = load_program(&blobs);
    s->data = s->data ? s->data : open_blobs(2);
    group_config c = {.trainer = {.program = s->program, .data = s->data, .batch = 16, .epochs = 2,
                                  .threads = 1, .seed = 3, .backend = on},
                      .functions = functions,
                      .gpus = gpus,
                      .k = 3,
                      .together = 1,
                      .wish = wish};
    CHECK_OK(group_open(&c, &g, s->reason, &e), e);
    return g;
}

/* An epoch by hand: every function trains, its state is exported, merge_run merges, all import. */
static void train_by_hand(setup *s, int functions, float *out, size_t floats)
{
    enum { MOST = 4 };
    trainer *t[MOST];
    block blocks[MOST], merged;
    uint32_t batches[MOST], done[MOST] = {0}, most = 0;
    err e = ERR_INIT;
    const merge_rule *mean;
    CHECK_OK(merge_rule_find("mean", &mean, &e), e);
    for (int i = 0; i < functions; i++) {
        trainer_config c = {.program = s->program, .data = s->data, .batch = 16,      .epochs = 2,
                            .threads = 1,          .seed = 3,       .backend = "cuda"};
        CHECK_OK(trainer_open(&c, &t[i], s->reason, &e), e);
        CHECK_OK(trainer_batches(t[i], 0, functions, i, &batches[i], &e), e);
        most = batches[i] > most ? batches[i] : most;
        const layout *l = state_layout(trainer_state(t[i]));
        blocks[i] = (block){calloc(l->shape.floats, 4), calloc(l->shape.counters + 1, 8)};
    }
    block_shape shape_of = state_layout(trainer_state(t[0]))->shape;
    merged = (block){calloc(shape_of.floats, 4), calloc(shape_of.counters + 1, 8)};
    for (uint32_t round = 0; round < (most + 2) / 3; round++) {
        merge_input in[MOST];
        const void *chunks[MOST][2];
        merge_result merged_how;
        for (int i = 0; i < functions; i++) {
            trainer_result r;
            uint32_t left = batches[i] - done[i];
            trainer_task task = {.parallelism = functions, .function = i, .batch_begin = done[i],
                                 .batch_count = left < 3 ? left : 3, .lr = 0.05};
            CHECK_OK(trainer_train(t[i], &task, &r, &e), e);
            done[i] += r.batches;
            CHECK_OK(state_export(trainer_state(t[i]), blocks[i], NULL, &e), e);
            in[i] = (merge_input){.function = i, .samples = r.samples};
            CHECK_OK(block_checksum(shape_of, blocks[i], 1, &in[i].checksum, &e), e);
            merge_input_contiguous(&in[i], &blocks[i], chunks[i]);
        }
        CHECK_OK(merge_run(mean, shape_of, in, functions, merged, 1, &merged_how, &e), e);
        for (int i = 0; i < functions; i++)
            CHECK_OK(state_import(trainer_state(t[i]), merged, &e), e);
    }
    memcpy(out, engine_floats(trainer_engine(t[0]), &e), floats * sizeof *out);
    for (int i = 0; i < functions; i++) {
        trainer_close(t[i]);
        free(blocks[i].floats), free(blocks[i].counters);
    }
    free(merged.floats), free(merged.counters);
}

TEST_LIMIT(functions_of_one_device_are_averaged_on_it_with_a_jobs_bits, 120)
{
    err e = ERR_INIT;
    setup s = {0};
    trainer_result r;
    group *g = open_group(&s, "cuda", 3, 1, REDUCE_ANY);
    CHECK_INT(group_choice(g)->path, REDUCE_DEVICE);
    trainer_task task = {.lr = 0.05};
    CHECK_OK(group_train(g, &task, &r, &e), e);
    CHECK_INT(r.samples, BLOB_TRAIN);
    size_t floats = engine_state_floats(trainer_engine(group_trainer(g)));
    float *want = malloc(floats * sizeof *want);
    train_by_hand(&s, 3, want, floats);
    CHECK(memcmp(engine_floats(trainer_engine(group_trainer(g)), &e), want,
                 floats * sizeof *want) == 0);
    CHECK_OK(group_validate(g, 0, &r, &e), e);
    CHECK_INT(r.samples, BLOB_TEST);
    group_close(g);
    free(want);
    dataset_close(s.data);
    CHECK_INT(cuda_memory_held(), 0);
}

/* As a member does it for kubeml-ps: rounds that others open, a reference that is fetched, a mean
 * that is published. */
static void train_rounds(group *g, int functions, block to, bool fetches)
{
    group_part parts[4];
    uint32_t batches[4], most = 0;
    err e = ERR_INIT;
    trainer *first = group_trainer(g);
    for (int f = 0; f < functions; f++) {
        CHECK_OK(trainer_batches(first, 0, functions, f, &batches[f], &e), e);
        most = batches[f] > most ? batches[f] : most;
    }
    CHECK_OK(state_export(trainer_state(first), to, NULL, &e), e);
    for (uint32_t at = 0; at < most; at += 3) {
        int n = 0;
        for (int f = 0; f < functions; f++) /* only those that have batches left are named */
            if (batches[f] > at)
                parts[n++] = (group_part){.function = f,
                                          .batch_begin = at,
                                          .batch_count = batches[f] - at < 3 ? batches[f] - at : 3};
        trainer_task task = {.parallelism = functions, .lr = 0.05};
        if (fetches || at == 0)
            CHECK_OK(group_import(g, to, &e), e);
        else
            CHECK_OK(group_take_mean(g, to, &e), e);
        CHECK_OK(group_train_parts(g, &task, parts, n, &e), e);
        CHECK_OK(group_mean(g, parts, n, to, NULL, &e), e);
    }
}

static void train_shared(bool fetches)
{
    err e = ERR_INIT;
    setup s = {0};
    group *g = open_group(&s, "cuda", 3, 1, REDUCE_ANY);
    state *of = trainer_state(group_trainer(g));
    block mean = {calloc(state_floats(of), 4), calloc(state_counters(of) + 1, 8)};
    CHECK_INT(group_choice(g)->path, REDUCE_DEVICE);
    train_rounds(g, 3, mean, fetches);
    long copied = fake_copies_in();
    if (fetches)
        CHECK_OK(group_import(g, mean, &e), e);
    else
        CHECK_OK(group_take_mean(g, mean, &e), e);
    CHECK((fake_copies_in() > copied) == fetches);
    engine *m = trainer_engine(group_trainer(g));
    size_t floats = engine_state_floats(m);
    float *want = malloc(floats * sizeof *want);
    train_by_hand(&s, 3, want, floats);
    CHECK(memcmp(engine_floats(m, &e), want, floats * sizeof *want) == 0);
    group_part parts[3] = {{.function = 0}, {.function = 1}, {.function = 2}};
    CHECK_OK(group_validate_parts(g, 0, 3, parts, 3, &e), e);
    CHECK_INT(parts[0].result.samples + parts[1].result.samples + parts[2].result.samples,
              BLOB_TEST);
    group_close(g);
    free(want), free(mean.floats), free(mean.counters);
    dataset_close(s.data);
    CHECK_INT(cuda_memory_held(), 0);
}

TEST_LIMIT(a_shared_process_publishes_the_mean_of_its_device, 120)
{
    train_shared(true);
}

TEST_LIMIT(and_trains_on_from_it_without_the_way_through_the_host, 120)
{
    train_shared(false);
}

TEST_LIMIT(weights_alone_are_averaged_on_the_host, 60)
{
    err e = ERR_INIT;
    setup s = {.program = load_program(&blobs), .data = open_blobs(2)};
    group *g;
    group_config c = {.trainer = {.program = s.program,
                                  .data = s.data,
                                  .batch = 16,
                                  .epochs = 2,
                                  .threads = 1,
                                  .seed = 3,
                                  .backend = "cuda",
                                  .reset_optimizer = true},
                      .functions = 2,
                      .gpus = 1,
                      .k = 3,
                      .together = 1};
    CHECK_OK(group_open(&c, &g, s.reason, &e), e);
    CHECK_INT(group_choice(g)->path, REDUCE_HOST);
    state *of = trainer_state(group_trainer(g));
    CHECK(state_floats(of) < engine_state_floats(trainer_engine(group_trainer(g))));
    block mean = {calloc(state_floats(of), 4), calloc(state_counters(of) + 1, 8)};
    train_rounds(g, 2, mean, false);
    float sum = 0;
    for (size_t i = 0; i < state_floats(of); i++)
        sum += fabsf(mean.floats[i]);
    CHECK(isfinite(sum) && sum > 0);
    group_close(g);
    free(mean.floats), free(mean.counters);
    dataset_close(s.data);
}

/* The training set lies once on a device, whoever of its functions came first or leaves first. */
TEST_LIMIT(functions_of_one_device_hold_the_training_set_once, 60)
{
    err e = ERR_INIT;
    setup s[3] = {0};
    trainer_result r;
    trainer_task task = {.parallelism = 3, .batch_count = 2, .lr = 0.05};
    const size_t set = (size_t)BLOB_TRAIN * BLOB_SIDE * BLOB_SIDE;
    size_t before = 0, grown[3];
    for (int i = 0; i < 3; i++) {
        CHECK_OK(open_trainer(&s[i], &blobs, 0, &e), e);
        size_t model = cuda_memory_held() - before;
        task.function = i;
        CHECK_OK(trainer_train(s[i].trainer, &task, &r, &e), e);
        grown[i] = cuda_memory_held() - before - model;
        before = cuda_memory_held();
    }
    CHECK(grown[0] > set);
    CHECK(grown[0] - grown[1] >= set && grown[1] == grown[2]);
    close_trainer(&s[0]); /* who brought it */
    CHECK_OK(trainer_train(s[1].trainer, &task, &r, &e), e);
    close_trainer(&s[2]);
    CHECK(cuda_memory_held() > set);
    close_trainer(&s[1]);
    CHECK_INT(cuda_memory_held(), 0);
}

TEST_LIMIT(functions_of_two_devices_are_averaged_on_the_host_unless_nccl_is_wanted, 120)
{
    err e = ERR_INIT;
    setup s = {0};
    trainer_result r;
    trainer_task task = {.lr = 0.05};
    float *states[2];
    size_t floats = 0;
    fake_gpus(2);
    for (int wish = 0; wish < 2; wish++) {
        group *g = open_group(&s, "cuda", 3, 2, (reduce_wish)wish);
        CHECK_INT(group_choice(g)->path, wish ? REDUCE_NCCL : REDUCE_HOST);
        CHECK_INT(group_choice(g)->exact, !wish);
        CHECK_OK(group_train(g, &task, &r, &e), e);
        CHECK((fake_sums() > 0) == (wish == 1));
        floats = engine_state_floats(trainer_engine(group_trainer(g)));
        states[wish] = malloc(floats * sizeof(float));
        memcpy(states[wish], engine_floats(trainer_engine(group_trainer(g)), &e),
               floats * sizeof(float));
        group_close(g);
    }
    double most = 0;
    for (size_t i = 0; i < floats; i++)
        most = fmax(most, fabs((double)states[0][i] - (double)states[1][i]));
    CHECK(most < 1e-4); /* another order of the same sums */
    free(states[0]), free(states[1]);
    dataset_close(s.data);
}

TEST_LIMIT(a_function_that_diverges_ends_the_group, 60)
{
    err e = ERR_INIT;
    setup s = {0};
    trainer_result r;
    group *g = open_group(&s, "cuda", 2, 1, REDUCE_ANY);
    trainer_task task = {.lr = 1e30};
    CHECK_ERR(group_train(g, &task, &r, &e), e, ERR_INVALID, "");
    CHECK(strcmp(group_reason(g), "NaNLoss") == 0 || strcmp(group_reason(g), "MergeFailed") == 0);
    group_close(g);
    dataset_close(s.data);
}

/* ---- functions in processes of their own ----------------------------------------------------- */

/* What the model store has is asked for: numbers of versions come again where it was put back to an
 * older state. */
TEST_LIMIT(a_mean_on_the_device_is_adopted_only_if_it_is_the_reference, 60)
{
    err e = ERR_INIT;
    setup s[2] = {0};
    trainer_result r;
    trainer_task task = {.parallelism = 2, .batch_count = 2, .lr = 0.05};
    modelstore_memory_add();
    modelstore_access a = {.kind = "memory", .address = "here", .job = "j"};
    modelstore_state start = {.version = 3}, at;
    modelstore *owner;
    member m[2] = {{.attached = true}, {.attached = true}};
    char checksum[20];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(open_trainer(&s[i], &blobs, 0, &e), e);
        m[i].trainer = s[i].trainer;
        member_lend(&m[i]);
        CHECK(m[i].ipc_handle[0]);
    }
    CHECK_OK(trainer_train(s[0].trainer, &task, &r, &e), e);
    state *of = trainer_state(s[0].trainer);
    block b = {calloc(state_floats(of), 4), calloc(state_counters(of) + 1, 8)};
    CHECK_OK(modelstore_open(&a, MODELSTORE_OWNER, clock_deadline_ms(5000), &owner, &e), e);
    CHECK_OK(modelstore_open(&a, MODELSTORE_MEMBER, clock_deadline_ms(5000), &m[1].store, &e), e);
    CHECK_OK(modelstore_create(owner, state_layout(of), &start, 4, &b, NULL,
                               clock_deadline_ms(5000), &e),
             e);
    CHECK_OK(modelstore_state_get(m[1].store, clock_deadline_ms(5000), &at, &e), e);
    json_t *mean = member_fingerprint(&m[0]), *before = member_fingerprint(&m[1]);
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)at.checksum);
    json_object_set_new(mean, "loan", json_string(m[0].ipc_handle));
    json_object_set_new(mean, "checksum", json_string("0123456789abcdef"));
    CHECK(!member_adopt(&m[1], 3, mean, clock_deadline_ms(5000))); /* another reference */
    json_object_set_new(mean, "checksum", json_string(checksum));
    CHECK(!member_adopt(&m[1], 4, mean, clock_deadline_ms(5000))); /* another version */
    CHECK(!member_adopt(&m[1], 3, NULL, clock_deadline_ms(5000)));
    json_t *same = member_fingerprint(&m[1]);
    CHECK(json_equal(before, same)); /* nothing has changed so far */
    CHECK(member_adopt(&m[1], 3, mean, clock_deadline_ms(5000)));
    json_decref(same);
    same = member_fingerprint(&m[1]);
    CHECK_STR(json_string_value(json_object_get(same, "sum")),
              json_string_value(json_object_get(mean, "sum")));
    CHECK_INT(json_integer_value(json_object_get(same, "step")), 2);
    json_object_set_new(mean, "sum", json_string("0123456789abcdef"));
    CHECK(!member_adopt(&m[1], 3, mean, clock_deadline_ms(5000))); /* something else lies there */
    json_object_set_new(mean, "loan", json_string("no loan"));
    CHECK(!member_adopt(&m[1], 3, mean, clock_deadline_ms(5000)));
    json_decref(mean), json_decref(before), json_decref(same);
    modelstore_close(m[1].store);
    modelstore_close(owner);
    free(b.floats), free(b.counters);
    close_trainer(&s[0]);
    close_trainer(&s[1]);
}

TEST_LIMIT(what_cannot_be_lent_is_not_offered, 60)
{
    err e = ERR_INIT;
    setup s = {0};
    member m = {.request.optimizer_state = STATE_RESET};
    CHECK_OK(open_trainer(&s, &blobs, 0, &e), e);
    m.trainer = s.trainer;
    member_lend(&m);
    CHECK_STR(m.ipc_handle, "");
    m.request.optimizer_state = STATE_AVERAGE;
    member_lend(&m);
    CHECK(m.ipc_handle[0] && !m.no_ipc_handle[0]);
    fake_refuse_sharing(true);
    setup other = {0};
    CHECK_OK(open_trainer(&other, &blobs, 0, &e), e);
    m.trainer = other.trainer;
    member_lend(&m); /* refused: it says so, and publishes as ever */
    CHECK_STR(m.ipc_handle, "");
    CHECK_CONTAINS(m.no_ipc_handle, "not shared between these processes");
    close_trainer(&other);
    close_trainer(&s);
}

/* ---- a warm function ------------------------------------------------------------------------- */

TEST_LIMIT(a_warm_function_has_its_device_before_its_job, 60)
{
    err e = ERR_INIT, none = ERR_INIT;
    setup s = {0};
    setenv("CUDA_VISIBLE_DEVICES", "GPU-a", 1);
    function_gpu_warm();
    function_gpu_preload("");
    CHECK_INT(fake_opens(), 0); /* not one that was not started for a GPU */
    setenv("KUBEML_WARM_GPU", "1", 1);
    function_gpu_warm();
    function_gpu_preload("of another form\n");
    CHECK_INT(fake_opens(), 1);
    CHECK_OK(function_gpu_open("cuda", "GPU-a", (gpu_share){0}, &none, &e), e);
    CHECK_OK(function_gpu_open("cpu", "GPU-b", (gpu_share){0}, &none, &e),
             e); /* it does not concern it */
    CHECK_OK(open_trainer(&s, &blobs, 0, &e), e);
    CHECK_INT(fake_opens(), 1);
    close_trainer(&s);
    CHECK_ERR(function_gpu_open("auto", "GPU-b", (gpu_share){0}, &none, &e), e, ERR_CONFLICT,
              "ready on GPU GPU-a");
}

/* Another process may find it in order: to go on without it is not this one's to decide. */
TEST_LIMIT(a_gpu_that_does_not_answer_is_no_missing_one, 60)
{
    static const char *const on[] = {"cuda", "auto"};
    err e = ERR_INIT, none = ERR_INIT;
    fake_away(true);
    for (size_t i = 0; i < 2; i++) {
        err_clear(&e);
        CHECK_ERR(function_gpu_open(on[i], "GPU-b", (gpu_share){0}, &none, &e), e, ERR_UNAVAILABLE,
                  "the GPU says: ");
    }
    fake_away(false);
    CHECK_OK(function_gpu_open("auto", "GPU-b", (gpu_share){0}, &none, &e), e);
    CHECK_INT(fake_opens(), 1);
}

TEST_LIMIT(a_cold_function_is_told_its_gpu, 60)
{
    err e = ERR_INIT, none = ERR_INIT;
    CHECK_OK(function_gpu_open("auto", "GPU-b", (gpu_share){0}, &none, &e), e);
    CHECK_INT(fake_opens(), 1);
    CHECK_STR(getenv("CUDA_VISIBLE_DEVICES"), "GPU-b");
}
