/* test_cuda_function.c: the functions' training loop on the fake device: the training set stays there and gives the
 * bits that batches from the host give, also cut into rounds; what is over the cap is named. */
#include "../unit/function_fixture.h"

#include "cuda/cuda_memory.h"
#include "fake_driver.h"
#include "trainer.h"

typedef struct setup {
    program *program;
    dataset *data;
    trainer *trainer;
    char reason[TRAINER_REASON_BYTES];
} setup;

/* Compiled once in a process: what was loaded stays. */
static program *load_program(const char *settings)
{
    static program *loaded;
    char object[300], text[2048];
    err e = ERR_INIT;
    if (loaded)
        return loaded;
    snprintf(text, sizeof text, "#include <kubeml.h>\nstatic kml_tensor model(kml_graph *g, kml_tensor x)\n{\n%s}\n"
             "KUBEML_FUNCTION(.model = model%s);\n", BLOB_LAYERS, settings);
    make_object("blobs", text, object);
    CHECK_OK(program_open_object(object, &loaded, &e), e);
    return loaded;
}

static int open_trainer(setup *s, const char *settings, size_t cap, err *e)
{
    s->program = load_program(settings);
    s->data = open_blobs(2);
    trainer_config c = {.program = s->program, .data = s->data, .batch = 16, .epochs = 2, .threads = 1, .seed = 3,
                        .backend = "cuda", .device_memory = cap};
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

static void check_same(const char *settings)
{
    err e = ERR_INIT;
    setup kept = {0}, carried = {0};
    float *a, *b, *c;
    CHECK_OK(open_trainer(&kept, settings, 0, &e), e);
    trainer_result from_device = train_epoch(&kept, 1000, &a);
    size_t held = cuda_memory_held();
    size_t floats = engine_state_floats(trainer_engine(kept.trainer));
    CHECK(held > (size_t)BLOB_TRAIN * BLOB_SIDE * BLOB_SIDE);
    close_trainer(&kept);
    /* A cap without room for the samples: they travel. */
    CHECK_OK(open_trainer(&carried, settings, held - 1, &e), e);
    trainer_result from_host = train_epoch(&carried, 1000, &b);
    CHECK(cuda_memory_held() < held - (size_t)BLOB_TRAIN * BLOB_SIDE * BLOB_SIDE);
    close_trainer(&carried);
    CHECK_OK(open_trainer(&kept, settings, 0, &e), e);
    trainer_result in_rounds = train_epoch(&kept, 3, &c);
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
    check_same(BLOB_SETTINGS);
}

TEST_LIMIT(so_do_flips_and_crops, 120)
{
    check_same(BLOB_AUGMENTED);
}

TEST_LIMIT(a_model_over_the_cap_names_need_cap_and_layer, 60)
{
    err e = ERR_INIT;
    setup s = {0};
    CHECK_ERR(open_trainer(&s, BLOB_SETTINGS, 4096, &e), e, ERR_NOMEM, "of GPU memory are needed");
    CHECK_STR(s.reason, "GpuMemory");
    CHECK_CONTAINS(e.message, "the cap is 0.0 MiB");
    CHECK_CONTAINS(e.message, "conv");
    close_trainer(&s);
}

TEST_LIMIT(a_loss_that_is_no_number_is_found_on_the_device, 60)
{
    err e = ERR_INIT;
    setup s = {0};
    trainer_result r;
    CHECK_OK(open_trainer(&s, BLOB_SETTINGS, 0, &e), e);
    trainer_task task = {.epoch = 0, .parallelism = 1, .batch_count = 40, .lr = 1e30};
    CHECK_ERR(trainer_train(s.trainer, &task, &r, &e), e, ERR_INVALID, "in epoch 1, within batches 1 to 40 of function 0");
    CHECK_STR(trainer_reason(s.trainer), "NaNLoss");
    close_trainer(&s);
}
