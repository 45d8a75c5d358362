/* test_cuda_algorithms.c: how the CUDA backend computes a layer, or all of a small model, on the
 * fake device: chosen by measuring, kept, told to other processes; whatever is chosen computes the
 * same. */
#include <unistd.h>

#include "fake_driver.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/zoo/zoo.h"
#include "small_model.h"

/* ---- algorithms ------------------------------------------------------------------------------ */

/* The small model, compiled on the device. */
static engine *compiled(void)
{
    err e = ERR_INIT;
    engine *m;
    engine_config c = config("cuda");
    CHECK_OK(engine_compile(&c, &m, &e), e);
    return m;
}

/* Compiled once more, it has that choice among its own. */
static void chooses(const char *choice)
{
    engine *m = compiled();
    CHECK_CONTAINS(engine_choices(m), choice);
    engine_free(m);
}

/* The file that outlives a process. */
static void keep_at(char *path, size_t size)
{
    snprintf(path, size, "%s/algorithms", test_tmp());
    setenv("KUBEML_CUDA_CACHE", path, 1);
}

TEST(the_fastest_way_is_found_once_and_kept)
{
    char path[512];
    keep_at(path, sizeof path);
    fake_favourite(0);
    engine *m = compiled();
    CHECK_CONTAINS(engine_choices(m), "conv1 forward direct\n");
    CHECK_CONTAINS(engine_choices(m), "conv2 data direct\n");
    CHECK_CONTAINS(engine_choices(m), "conv2 weights direct\n");
    CHECK_CONTAINS(engine_choices(m), "fc1 head fused\n");
    CHECK(strstr(engine_choices(m), "conv1 data") == NULL); /* nobody needs the input's gradient */
    engine_free(m);
    long first = fake_measurements();
    CHECK(first > 0);
    fake_favourite(-1); /* another process: memory is gone, the file is there */
    cuda_algorithms_forget();
    chooses("conv1 forward direct\n");
    CHECK_INT(fake_measurements(), first);
    CHECK(unlink(path) == 0);
    cuda_algorithms_forget();
    chooses("conv1 forward own\n");
    CHECK(fake_measurements() > first);
}

TEST(what_one_process_has_measured_another_is_told)
{
    char path[512];
    setenv("KUBEML_CUDA_CACHE", "", 1);
    fake_favourite(0);
    CHECK(!backend_autotune_dump("cuda"));
    engine_free(compiled());
    char *learned = backend_autotune_dump("cuda");
    long first = fake_measurements();
    CHECK(learned && first > 0);
    CHECK_CONTAINS(learned, "\tdirect\n");
    cuda_algorithms_forget(); /* another process, of a machine whose file says otherwise */
    keep_at(path, sizeof path);
    FILE *f = fopen(path, "w");
    CHECK(f);
    for (const char *line = learned; *line; line = strchr(line, '\n') + 1)
        fprintf(f, "%.*s\town\n", (int)strcspn(line, "\t"), line);
    CHECK(fclose(f) == 0);
    backend_autotune_load("cuda", "of another form\n");
    backend_autotune_load("cuda", learned);
    chooses("conv1 forward direct\n");
    CHECK_INT(fake_measurements(), first);
    CHECK(!backend_autotune_dump("cuda"));
    backend_autotune_load("reference", learned); /* which measures nothing */
    CHECK(!backend_autotune_dump("reference"));
    free(learned);
}

/* A kernel of ours that was made faster, or slower, competes anew. */
TEST(what_was_measured_with_other_kernels_is_measured_again)
{
    setenv("KUBEML_CUDA_CACHE", "", 1);
    fake_favourite(0);
    engine_free(compiled());
    char *learned = backend_autotune_dump("cuda"), *others = strdup(learned), *at = others;
    for (; *at; at = strchr(at, '\n') + 1) {
        char *version = strstr(at, " own");
        CHECK(version && version < strchr(at, '\t') && version[4] >= '0' && version[4] <= '9');
        version[4] = version[4] == '1' ? '2' : '1';
    }
    long first = fake_measurements();
    cuda_algorithms_forget();
    fake_favourite(-1);
    backend_autotune_load("cuda", others);
    chooses("conv1 forward own\n");
    CHECK(fake_measurements() > first);
    free(learned);
    free(others);
}

TEST(a_damaged_cache_is_measured_again)
{
    char path[512];
    keep_at(path, sizeof path);
    FILE *f = fopen(path, "w");
    CHECK(f);
    fputs("no tab\nkey\tan-algorithm-with-a-name-that-is-much-too-long-to-be-one\n\t\n", f);
    CHECK(fclose(f) == 0);
    fake_favourite(0);
    chooses("conv1 forward direct\n");
}

/* What fails leaves nothing behind that would be taken for the next one's failure. */
TEST(a_way_that_fails_is_not_taken_and_harms_no_other)
{
    fake_favourite(1);
    fake_break(0); /* which is tried before it */
    chooses("conv1 forward reversed\n");
    cuda_algorithms_forget();
    fake_break(1); /* the last */
    chooses("conv1 forward own\n");
}

/* Wherever in compiling the device is lost. */
TEST(what_a_device_at_fault_leaves_is_not_learned)
{
    char path[512];
    keep_at(path, sizeof path);
    fake_favourite(0);
    for (int calls = 1, rc = -1; rc; calls += 17) {
        err e = ERR_INIT;
        engine *m;
        engine_config c = config("cuda");
        fake_fail_after(calls);
        rc = engine_compile(&c, &m, &e);
        fake_fail_after(-1);
        if (rc == 0)
            engine_free(m);
        cuda_algorithms_forget(); /* another process; the file is there */
        chooses("conv1 forward direct\n");
        chooses("conv2 weights direct\n");
        cuda_algorithms_forget();
        unlink(path);
    }
}

/* As a full GPU does, whose libraries cannot load their kernels. */
TEST(where_every_way_failed_the_next_process_measures_again)
{
    setenv("KUBEML_CUDA_CACHE", "", 1);
    fake_favourite(0);
    fake_break(FAKE_EVERY);
    chooses("conv1 forward own\n");
    fake_break(-1);
    chooses("conv1 forward direct\n");
}

TEST(a_way_that_spoils_a_graph_is_not_taken)
{
    fake_favourite(1);
    fake_break_capture(0); /* which is tried before it */
    chooses("conv1 forward reversed\n");
    cuda_algorithms_forget();
    fake_break_capture(1);
    chooses("conv1 forward own\n");
}

TEST(what_was_known_and_fails_here_is_measured_again)
{
    fake_favourite(0);
    chooses("conv1 forward direct\n");
    fake_break(0);
    chooses("conv1 forward own\n");
}

/* Nor is a library asked for anything else: its lists take long. */
TEST(what_is_known_is_the_only_way_that_is_asked_for)
{
    setenv("KUBEML_CUDA_CACHE", "", 1);
    for (int favourite = -1; favourite <= 2; favourite++) {
        cuda_algorithms_forget();
        fake_favourite(favourite);
        engine *m = compiled();
        char *choices = strdup(engine_choices(m));
        engine_free(m);
        long listed = fake_listings(), measured = fake_measurements();
        CHECK(listed > 0 && choices);
        chooses(choices);
        CHECK_INT(fake_listings(), listed);
        CHECK_INT(fake_measurements(), measured);
        free(choices);
    }
    char *learned = backend_autotune_dump("cuda"), *at = learned;
    CHECK(learned);
    while ((at = strstr(at, "\tdirect\n"))) /* as a library's name of before: nobody has it now */
        memcpy(at, "\tdirekt\n", 8);
    fake_favourite(1);
    cuda_algorithms_forget();
    backend_autotune_load("cuda", learned);
    long listed = fake_listings();
    engine *m = compiled();
    CHECK(fake_listings() > listed);
    CHECK(strstr(engine_choices(m), "direct") == NULL);
    engine_free(m);
    free(learned);
}

/* ---- rehearsal ------------------------------------------------------------------------------- */

/* As a process that waits for its job and knows that; how much the libraries then ran for the first
 * time. */
static long rehearses(const char *known)
{
    long before = fake_first_runs();
    cuda_devices_forget(cuda_driver);
    cuda_algorithms_forget();
    if (known)
        backend_autotune_load("cuda", known);
    backend_preload("cuda", 0);
    CHECK_INT(cuda_memory_held(), 0);
    return fake_first_runs() - before;
}

/* A job of such a process starts nothing for the first time. */
TEST(a_process_that_waits_runs_what_is_known)
{
    char path[512];
    for (int favourite = 0; favourite <= 1; favourite++) { /* without a workspace, and with one */
        char *learned;
        keep_at(path, sizeof path);
        unlink(path);
        cuda_algorithms_forget();
        fake_favourite(favourite);
        engine *m = compiled();
        char *choices = strdup(engine_choices(m));
        engine_free(m);
        learned = backend_autotune_dump("cuda");
        CHECK(choices && learned);
        for (int told = 0; told <= 1; told++) {
            setenv("KUBEML_CUDA_CACHE", told ? "" : path, 1);
            CHECK(rehearses(told ? learned : NULL) > 0);
            long first = fake_first_runs(), opens = fake_opens();
            backend_preload("cuda", 0); /* again, which is no harm */
            chooses(choices);
            CHECK_INT(fake_first_runs(), first);
            CHECK_INT(fake_opens(), opens);
            CHECK_INT(fake_first_runs_captured(), 0);
        }
        free(choices);
        free(learned);
    }
    backend_preload("reference", 0); /* which has nothing to load */
    backend_preload("cuda", 4);      /* nor is it an error that there is no such device */
}

/* A line for the fake device, of this build's kernels: those of a linear layer whose batch is n. */
static void write_line(char line[512], int n, const char *format)
{
    static char begin[256];
    if (!begin[0]) {
        fake_favourite(0);
        engine_free(compiled());
        char *learned = backend_autotune_dump("cuda");
        char *end = strchr(strchr(learned, '|') + 1, '|');
        snprintf(begin, sizeof begin, "%.*s", (int)(end + 1 - learned), learned);
        free(learned);
    }
    size_t used = (size_t)snprintf(line, 512, "%s", begin);
    snprintf(line + used, 512 - used, format, n);
}

#define LINEAR(n, c, k) "n" n " c" c " h1 w1 k" k " r1 s1 p1 q1 stride1x1 pad0x0 dil1x1 g1"

TEST(what_is_no_layer_of_this_device_is_not_rehearsed)
{
    static const struct {
        const char *format;
        long runs;
    } lines[] = {
        {"forward fp32 " LINEAR("%d", "8", "4") "\tdirect\n", 1},
        {"forward tf32 " LINEAR("%d", "8", "4") " bias relu\tdirect\n", 1},
        {"data bf16 " LINEAR("%d", "8", "4") " add\tdirect\n", 1},
        {"weights bf16 " LINEAR("%d", "8", "4") "\treversed\n", 1},
        {"forward fp32 n%d c4 h7 w6 k4 r3 s3 p4 q3 stride2x2 pad1x1 dil1x1 g1\tdirect\n", 1},
        {"forward fp32 " LINEAR("%d", "8", "4") "\town\n", 0},
        {"forward fp32 " LINEAR("%d", "8", "4") "\tdirekt\n", 0},
        {"forward fp32 " LINEAR("%d", "8", "4") " workspace 1024\tdirect\n", 0},
        {"forward fp32 " LINEAR("%d", "8", "4") " add\tdirect\n", 0},
        {"weights fp32 " LINEAR("%d", "8", "4") " bias\tdirect\n", 0},
        {"forward fp32 " LINEAR("%d", "8", "4") " relu bias\tdirect\n", 0},
        {"forward fp32 " LINEAR("0%d", "8", "4") "\tdirect\n", 0},
        {"forward fp32 " LINEAR("-%d", "8", "4") "\tdirect\n", 0},
        {"forward fp32 " LINEAR("%d", "0", "4") "\tdirect\n", 0},
        {"forward fp32 " LINEAR("%d", "99999999999", "4") "\tdirect\n", 0},
        {"forward fp16 " LINEAR("%d", "8", "4") "\tdirect\n", 0},
        {"backward fp32 " LINEAR("%d", "8", "4") "\tdirect\n", 0},
        {"forward fp32 n%d c4 h7 w6 k4 r3 s3 p7 q6 stride2x2 pad1x1 dil1x1 g1\tdirect\n", 0},
        {"forward fp32 n%d c4 h7 w6 k4 r3 s3 p4 q3 stride0x0 pad1x1 dil1x1 g1\tdirect\n", 0},
        {"forward fp32 n%d c4 h2 w2 k4 r3 s3 p0 q0 stride1x1 pad0x0 dil1x1 g1\tdirect\n", 0},
        {"forward fp32 n%d c6 h1 w1 k4 r1 s1 p1 q1 stride1x1 pad0x0 dil1x1 g4\tdirect\n", 0},
        {"train pooling fp32 " LINEAR("%d", "8", "4") "\tfused\n", 0},
        /* more than 256 MiB in all */
        {"forward fp32 " LINEAR("%d", "9000", "9000") "\tdirect\n", 0},
        {"forward fp32 " LINEAR("%d00000000", "900000000", "900000000") "\tdirect\n", 0},
    };
    char line[512];
    setenv("KUBEML_CUDA_CACHE", "", 1);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        write_line(line, 3, lines[i].format);
        long runs = rehearses(line);
        if (runs != lines[i].runs)
            test_fail(__FILE__, __LINE__, "%ld runs of %s", runs, line);
    }
    write_line(line, 3, lines[0].format);
    line[0] = 'F'; /* another machine's */
    CHECK_INT(rehearses(line), 0);
    CHECK_INT(rehearses("of another form\n\t\n"), 0);
}

TEST_LIMIT(a_rehearsal_is_bounded, 60)
{
    enum { MANY = 200 };
    static char lines[MANY * 512], line[512];
    setenv("KUBEML_CUDA_CACHE", "", 1);
    for (int n = 1; n <= MANY; n++) {
        write_line(line, n, "forward fp32 " LINEAR("%d", "2", "2") "\tdirect\n");
        strcat(lines, line);
    }
    CHECK_INT(rehearses(lines), 128);
    fake_slow_start(900);
    long runs = rehearses(lines);
    fake_slow_start(0);
    CHECK(runs >= 1 && runs <= 3);
    fake_memory(6 << 10); /* more than half of it would be taken */
    CHECK_INT(rehearses(lines), 0);
    fake_memory(12 << 10);
    CHECK_INT(rehearses(lines), 128);
    fake_memory(64); /* a full device */
    CHECK_INT(rehearses(lines), 0);
    fake_memory((size_t)8 << 30);
}

TEST(a_rehearsal_that_fails_harms_nobody)
{
    setenv("KUBEML_CUDA_CACHE", "", 1);
    fake_favourite(0);
    engine_free(compiled());
    char *learned = backend_autotune_dump("cuda");
    fake_break(0);
    rehearses(learned);
    long opens = fake_opens();
    chooses("conv1 forward own\n"); /* as without a rehearsal */
    CHECK_INT(fake_opens(), opens);
    fake_break(-1);
    chooses("conv1 forward own\n");
    free(learned);
}

/* ---- under a cap ----------------------------------------------------------------------------- */

/* The small model's memory, without a workspace; what is known of its fusings in *fusings. */
static size_t measure_bare(char **fusings)
{
    fake_favourite(0);
    engine *m = compiled();
    size_t bytes = cuda_memory_held();
    char *all = backend_autotune_dump("cuda"), *to = *fusings = calloc(1, strlen(all) + 1);
    for (const char *line = all; *line; line = strchr(line, '\n') + 1)
        if (memmem(line, strcspn(line, "\t"), " head ", 6))
            to += sprintf(to, "%.*s\n", (int)strcspn(line, "\n"), line);
    free(all);
    engine_free(m);
    cuda_algorithms_forget();
    return bytes;
}

/* Compiled with that much room for a workspace (0: no cap); the choice is among its own. How much
 * was measured for it. */
static long measures(size_t bare, size_t room, const char *choice)
{
    long before = fake_measurements();
    cuda_memory_cap(room ? bare + 2 * room : 0);
    chooses(choice);
    return fake_measurements() - before;
}

/* "reversed" wants 384 bytes for the first convolution and 512 for the second. */
TEST(what_was_measured_without_room_says_nothing_to_who_has_it)
{
    char *fusings;
    setenv("KUBEML_CUDA_CACHE", "", 1);
    size_t bare = measure_bare(&fusings);
    fake_favourite(1);
    backend_autotune_load("cuda", fusings);
    CHECK(measures(bare, 300, "conv1 forward own\n") > 0);
    char *learned = backend_autotune_dump("cuda");
    CHECK_CONTAINS(learned, " workspace 256\town\n");
    CHECK_INT(measures(bare, 300, "conv2 forward own\n"), 0); /* once */
    CHECK_INT(measures(bare, 257, "conv2 forward own\n"), 0); /* nearly the same room */
    CHECK(measures(bare, 0, "conv2 forward reversed\n") > 0);
    long listed = fake_listings();
    CHECK_INT(measures(bare, 300, "conv2 forward own\n"), 0); /* neither replaces the other */
    CHECK_INT(measures(bare, 0, "conv2 forward reversed\n"), 0);
    CHECK_INT(fake_listings(), listed);
    cuda_algorithms_forget(); /* another process, without a cap */
    backend_autotune_load("cuda", learned);
    CHECK(measures(bare, 0, "conv2 forward reversed\n") > 0);
    free(learned);
    free(fusings);
}

/* What the first take beside their models the last one's would miss. */
TEST(programs_that_share_a_cap_leave_room_for_each_other_and_choose_alike)
{
    enum { PROGRAMS = 3 };
    err e = ERR_INIT;
    engine *m[PROGRAMS];
    char *fusings;
    setenv("KUBEML_CUDA_CACHE", "", 1);
    size_t bare = measure_bare(&fusings);
    engine_config c = config("cuda");
    c.programs = PROGRAMS;
    for (int roomy = 0; roomy < 2; roomy++) {
        cuda_algorithms_forget();
        fake_favourite(1);
        backend_autotune_load("cuda", fusings);
        c.device_memory = PROGRAMS * (bare + (roomy ? 2048 : 300));
        for (int i = 0; i < PROGRAMS; i++) {
            CHECK_OK(engine_compile(&c, &m[i], &e), e);
            CHECK_CONTAINS(engine_choices(m[i]),
                           roomy ? "conv2 forward reversed\n" : "conv2 forward own\n");
            CHECK_STR(engine_choices(m[i]), engine_choices(m[0]));
        }
        for (int i = 0; i < PROGRAMS; i++)
            engine_free(m[i]);
    }
    free(fusings);
}

/* The fastest of all needs no room: there is nothing to measure. */
TEST(what_was_measured_with_room_is_taken_where_it_needs_none)
{
    char *fusings;
    setenv("KUBEML_CUDA_CACHE", "", 1);
    size_t bare = measure_bare(&fusings);
    fake_favourite(0);
    CHECK(measures(bare, 0, "conv1 forward direct\n") > 0);
    fake_favourite(-1);
    long listed = fake_listings();
    CHECK_INT(measures(bare, 300, "conv1 forward direct\n"), 0);
    fake_memory(bare + 300); /* nor does a device that others have filled ask for more */
    CHECK_INT(measures(bare, 0, "conv1 forward direct\n"), 0);
    CHECK_INT(fake_listings(), listed);
    free(fusings);
}

/* A device that others have filled leaves as little as a cap does. */
TEST(a_full_device_is_such_a_limit_too)
{
    char *fusings;
    setenv("KUBEML_CUDA_CACHE", "", 1);
    size_t bare = measure_bare(&fusings);
    fake_favourite(1);
    backend_autotune_load("cuda", fusings);
    fake_memory(bare + 300);
    CHECK(measures(bare, 0, "conv1 forward own\n") > 0);
    fake_memory((size_t)8 << 30);
    CHECK(measures(bare, 0, "conv1 forward reversed\n") > 0);
    fake_memory(bare + 300); /* what is known now finds no room there */
    CHECK_INT(measures(bare, 0, "conv1 forward own\n"), 0);
    free(fusings);
}

/* ---- when it is timed ------------------------------------------------------------------------ */

/* Our own way is timed first, and the fastest. */
TEST(an_idle_device_is_woken_before_anything_is_timed)
{
    fake_favourite(-1);
    fake_asleep(5000);
    chooses("conv1 forward own\n");
}

TEST(what_is_known_has_run_once_before_it_is_captured)
{
    fake_favourite(0);
    engine_free(compiled());
    fake_first_runs_captured(); /* another process, which is told what to take */
    chooses("conv1 forward direct\n");
    CHECK_INT(fake_first_runs_captured(), 0);
}

TEST_LIMIT(every_way_computes_the_same, 60)
{
    for (int favourite = -1; favourite <= 2; favourite++)
        for (int fused = 0; fused < 2; fused++) {
            cuda_algorithms_forget();
            fake_favourite(favourite);
            fake_favour_few_launches(fused);
            CHECK(train_apart(config("cuda"), 3) < 1e-5);
        }
}

/* ---- models ---------------------------------------------------------------------------------- */

/* LeNet on that backend, and two images with their labels. */
static engine *lenet(const char *on, optim o, backend_precision precision, engine_batch *b)
{
    static float x[2 * 28 * 28];
    static const int32_t labels[2] = {3, 8};
    err e = ERR_INIT;
    engine_config c = {.build = zoo_find("lenet5", &e)->build,
                       .input = {3, 1, 28, 28},
                       .outputs = CLASSES,
                       .batch = 2,
                       .backend = on,
                       .precision = precision,
                       .optim = o,
                       .seed = 11};
    engine *m;
    rng r;
    rng_init(&r, 2, RNG_TEST, 0, 0);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = rng_uniform(&r);
    *b = (engine_batch){.n = 2, .x = x, .labels = labels};
    CHECK_OK(engine_compile(&c, &m, &e), e);
    return m;
}

/* Four steps of LeNet on that backend. */
static void train_lenet(const char *on, backend_precision precision, const char *choice,
                        double loss[4])
{
    static const optim o = {.kind = OPTIM_SGD, .momentum = 0.9, .weight_decay = 1e-4};
    err e = ERR_INIT;
    engine_result result;
    engine_batch b;
    engine *m = lenet(on, o, precision, &b);
    if (choice)
        CHECK_CONTAINS(engine_choices(m), choice);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(engine_train(m, &b, 0.05, &result, &e), e);
        loss[i] = result.loss;
    }
    engine_free(m);
}

/* Its convolutions with their pooling, and its linear layers with the loss; and all of it as layers
 * of their own. */
TEST_LIMIT(lenet_trains_as_on_the_reference, 120)
{
    static const char fused[] = "conv1 pooling fused\nconv2 pooling fused\nfc1 head fused\n";
    static const char apart[] = "conv1 pooling apart\nconv2 pooling apart\nfc1 head apart\n";
    double want[4], got[4], alone[4];
    fake_favourite(-1);
    train_lenet("reference", PRECISION_FP32, NULL, want);
    train_lenet("cuda", PRECISION_FP32, fused, got);
    CHECK_INT(fake_launches(), 9);
    cuda_algorithms_forget();
    fake_favour_few_launches(false);
    train_lenet("cuda", PRECISION_FP32, apart, alone);
    CHECK_INT(fake_launches(), 38);
    for (int i = 0; i < 4; i++) {
        CHECK_NEAR(got[i], want[i], 1e-5);
        CHECK_NEAR(alone[i], want[i], 1e-5);
    }
    CHECK(want[3] < want[0]);
}

TEST_LIMIT(fused_bf16_computes_what_its_layers_do, 120)
{
    double fused[4], apart[4];
    fake_favourite(-1);
    train_lenet("cuda", PRECISION_BF16, "fc1 head fused\n", fused);
    cuda_algorithms_forget();
    fake_favour_few_launches(false);
    train_lenet("cuda", PRECISION_BF16, "fc1 head apart\n", apart);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(fused[i], apart[i], 1e-2);
}

/* Two steps, each at once or in two calls: the gradients, then the update. */
static engine *train_in(bool two_calls, optim o, backend_precision precision)
{
    err e = ERR_INIT;
    engine_result result;
    engine_batch b;
    engine *m = lenet("cuda", o, precision, &b);
    CHECK_CONTAINS(engine_choices(m), "fc1 head fused\n");
    for (b.n = 2; b.n > 0; b.n--) {
        if (!two_calls)
            CHECK_OK(engine_train(m, &b, 0.05, &result, &e), e);
        else if (engine_gradients(m, &b, &result, &e) || engine_update(m, 0.05, &e))
            test_fail(__FILE__, __LINE__, "%s", e.message);
    }
    return m;
}

/* Where each gradient is made its parameter takes its step: with the bits of the optimizer's own
 * kernel. */
TEST_LIMIT(a_small_models_step_needs_no_optimizers_kernel, 240)
{
    static const optim each[] = {
        {.kind = OPTIM_SGD, .weight_decay = 1e-3},
        {.kind = OPTIM_SGD, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-3},
        {.kind = OPTIM_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-3},
        {.kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2}};
    err e = ERR_INIT;
    fake_favourite(-1);
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        backend_precision precision = i == 1 ? PRECISION_BF16 : PRECISION_FP32;
        engine *at_once = train_in(false, each[i], precision);
        CHECK_INT(fake_launches(), 9);
        engine *in_two = train_in(true, each[i], precision);
        CHECK_INT(fake_launches(), 1); /* the update */
        size_t bytes = engine_state_floats(at_once) * sizeof(float);
        CHECK(memcmp(engine_floats(at_once, &e), engine_floats(in_two, &e), bytes) == 0);
        engine_free(at_once);
        engine_free(in_two);
    }
}

/* What is fused is timed first, and is the faster. */
TEST_LIMIT(fusing_is_not_judged_on_an_idle_device, 120)
{
    double loss[4];
    fake_favourite(-1);
    fake_asleep(5000); /* with everything fused there is nothing to choose before */
    train_lenet("cuda", PRECISION_FP32, "fc1 head fused\n", loss);
}

/* Measured once: what was faster is known to the next model, and told to other processes. */
TEST_LIMIT(what_is_fused_is_measured_and_kept, 120)
{
    double loss[4];
    setenv("KUBEML_CUDA_CACHE", "", 1);
    fake_favour_few_launches(false);
    train_lenet("cuda", PRECISION_FP32, "fc1 head apart\n", loss);
    long measured = fake_measurements();
    char *learned = backend_autotune_dump("cuda");
    CHECK(learned);
    CHECK_CONTAINS(learned, "|train head fp32 n2 c400 120br 84br 10b\tapart\n");
    fake_favour_few_launches(true);
    train_lenet("cuda", PRECISION_FP32, "fc1 head apart\n", loss);
    cuda_algorithms_forget();
    backend_autotune_load("cuda", learned);
    train_lenet("cuda", PRECISION_FP32, "conv1 pooling apart\n", loss);
    CHECK_INT(fake_measurements(), measured);
    cuda_algorithms_forget();
    train_lenet("cuda", PRECISION_FP32, "conv1 pooling fused\n", loss);
    CHECK(fake_measurements() > measured);
    free(learned);
}

/* ---- gradients of weights beside the rest ---------------------------------------------------- */

/* Widths with which gradients come to lie where a convolution before had read its own. */
static int residual(graph *g, int x, int outputs, void *user)
{
    static const int widths[] = {6, 4, 12, 4, 24, 24, 8};
    (void)user;
    for (int i = 0; i < 7; i++) {
        conv2d_options o = {
            .filters = widths[i], .kernel = 3, .padding = 1, .stride = i == 3 ? 2 : 1};
        x = graph_relu(g, graph_batch_norm(g, graph_conv2d(g, x, o), (batch_norm_options){0}));
    }
    conv2d_options o = {.filters = 8, .kernel = 3, .padding = 1};
    int y = graph_relu(g, graph_conv2d(g, x, o)); /* one behind the other */
    y = graph_batch_norm(g, graph_conv2d(g, y, o), (batch_norm_options){0});
    x = graph_relu(g, graph_add(g, y, x));
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, 1, 1));
    return graph_linear(g, x, outputs, (linear_options){0});
}

/* The first two are convolutions one behind the other, and two read the input. */
static int without_norms(graph *g, int x, int outputs, void *user)
{
    static const int widths[] = {6, 4, 8, 4};
    conv2d_options o = {.filters = 8, .kernel = 3, .padding = 1};
    int also = graph_relu(g, graph_conv2d(g, x, o));
    (void)user;
    for (int i = 0; i < 4; i++) {
        o.filters = widths[i];
        x = graph_relu(g, graph_conv2d(g, x, o));
    }
    x = graph_concat(g, (int[]){x, also}, 2);
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, 1, 1));
    return graph_linear(g, x, outputs, (linear_options){0});
}

static void train_beside(engine_builder build, backend_precision precision, bool beside)
{
    err e = ERR_INIT;
    engine *truth, *m;
    engine_config c = config("reference");
    c.build = build;
    CHECK_OK(engine_compile(&c, &truth, &e), e);
    c.backend = "cuda";
    c.precision = precision;
    long branches = fake_branches();
    CHECK_OK(engine_compile(&c, &m, &e), e);
    CHECK_CONTAINS(engine_choices(m), beside ? " beside fused\n" : " beside apart\n");
    CHECK(distance(truth, m, 4) < (precision == PRECISION_BF16 ? 0.1 : 1e-4));
    CHECK((fake_branches() > branches) == beside);
    engine_free(m);
    engine_free(truth);
}

/* A branch of the fake's runs as late as it may: what it reads must still be there. */
TEST_LIMIT(gradients_of_weights_beside_the_rest_are_the_same, 120)
{
    fake_favourite(1);
    train_beside(residual, PRECISION_FP32, true);
    train_beside(residual, PRECISION_BF16, true);
    char *learned = backend_autotune_dump("cuda");
    CHECK(learned);
    CHECK_CONTAINS(learned, "|train beside fp32 n4 c2 h12 w12 convolutions9 parameters");
    for (char *at = learned; (at = strstr(at, "|train beside")); at++) {
        char *winner = strchr(at, '\t');
        memcpy(winner + 1, "apart\n", 6); /* as long as "fused\n" */
    }
    backend_autotune_load("cuda", learned);
    train_beside(residual, PRECISION_FP32, false);
    free(learned);
}

/* Those of the first layer are computed where nothing is left to run beside them, and have the
 * workspace of those on the branch. */
TEST(two_gradients_of_weights_do_not_share_a_workspace)
{
    fake_favourite(1);
    train_beside(without_norms, PRECISION_FP32, true);
    train_beside(without_norms, PRECISION_BF16, true);
}
