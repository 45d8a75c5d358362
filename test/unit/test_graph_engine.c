/* test_graph_engine.c: compiled models: their state, short batches, what they refuse, and that a
 * training step allocates nothing. */
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "golden.h"
#include "kernels/zoo/zoo.h"
#include "kernels/zoo/zoo_models.h"

/* With the sanitizers the allocator is theirs, and on a GPU its driver's: not counted. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(TEST_GPU)
#define COUNTED 0
#else
#define COUNTED 1
static atomic_long allocations, live;
static atomic_long fail_in =
    -1; /* this many allocations succeed, the next one fails; -1: all succeed */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);

static bool refused(void)
{
    allocations++;
    return fail_in >= 0 && fail_in-- == 0;
}

static void *counted(void *p)
{
    live += p != NULL;
    return p;
}

void *malloc(size_t n)
{
    return refused() ? NULL : counted(__libc_malloc(n));
}
void *calloc(size_t n, size_t size)
{
    return refused() ? NULL : counted(__libc_calloc(n, size));
}
void *realloc(void *p, size_t n)
{
    if (refused())
        return NULL;
    return p ? __libc_realloc(p, n) : counted(__libc_realloc(p, n));
}
void *aligned_alloc(size_t align, size_t n)
{
    return refused() ? NULL : counted(__libc_memalign(align, n));
}
int posix_memalign(void **p, size_t align, size_t n)
{
    void *made = refused() ? NULL : counted(__libc_memalign(align, n));
    if (made)
        *p = made;
    return made ? 0 : 12; /* ENOMEM */
}
void free(void *p)
{
    live -= p != NULL;
    __libc_free(p);
}

#ifndef ON_SHIM /* whose threads have their stacks from there */
static atomic_long mappings;

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    mappings++;
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset);
}
void *mremap(void *at, size_t n, size_t now, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(args, void *) : NULL;
    va_end(args);
    mappings++;
    return (void *)syscall(SYS_mremap, at, n, now, flags, to);
}
#endif
#endif

static const shape tiny = {3, 2, 6, 6};

static int build_tiny(graph *g, int x, int outputs, void *user)
{
    (void)user;
    x = graph_conv2d(g, x, (conv2d_options){.filters = 4, .kernel = 3, .padding = 1});
    x = graph_relu(g, graph_batch_norm(g, x, (batch_norm_options){0}));
    x = graph_dropout(g, graph_max_pool2d(g, x, (pool_options){.kernel = 2}), 0.25);
    return graph_linear(g, graph_flatten(g, x), outputs ? outputs : 5, (linear_options){0});
}

static engine_config tiny_config(const char *on)
{
    return (engine_config){.build = build_tiny,
                           .input = tiny,
                           .outputs = 5,
                           .batch = 8,
                           .backend = on,
                           .seed = 3,
                           .optim = {.kind = OPTIM_SGD, .momentum = 0.9}};
}

static engine *compile(const engine_config *c)
{
    err e = ERR_INIT;
    engine *m = NULL;
    CHECK_OK(engine_compile(c, &m, &e), e);
    return m;
}

static double train(engine *m, uint64_t index, int n)
{
    err e = ERR_INIT;
    golden_batch b = {0};
    engine_result r;
    golden_draw(&b, index, n, engine_input(m), engine_outputs(m));
    CHECK_OK(engine_train(m, &b.b, 0.05, &r, &e), e);
    free(b.x);
    return r.loss;
}

/* The state as one block each, for comparing bits. */
typedef struct snapshot {
    size_t floats, counters;
    float *f;
    int64_t *c;
} snapshot;

static snapshot take_snapshot(engine *m)
{
    err e = ERR_INIT;
    snapshot s = {.floats = engine_state_floats(m), .counters = engine_counter_count(m)};
    s.f = calloc(s.floats, sizeof *s.f);
    s.c = calloc(s.counters, sizeof *s.c);
    CHECK(s.f && s.c);
    CHECK_OK(engine_export(m, s.f, s.c, &e), e);
    return s;
}

static void free_snapshot(snapshot *s)
{
    free(s->f);
    free(s->c);
}

static bool same(const snapshot *a, const snapshot *b)
{
    return a->floats == b->floats && a->counters == b->counters &&
           memcmp(a->f, b->f, a->floats * sizeof *a->f) == 0 &&
           memcmp(a->c, b->c, a->counters * sizeof *a->c) == 0;
}

static const char *backend_name(int i)
{
    return backend_at(i) && backend_at(i)->missing(NULL) == 0 ? backend_at(i)->name : NULL;
}

TEST(the_layout_names_every_piece)
{
    engine_config c = tiny_config("reference");
    c.optim = optim_default(OPTIM_ADAM);
    engine *m = compile(&c);
    CHECK_STR(engine_layout_text(m), "conv1.weight param 4 2 3 3\n"
                                     "conv1.bias param 4\n"
                                     "bn1.weight param 4\n"
                                     "bn1.bias param 4\n"
                                     "fc1.weight param 5 36\n"
                                     "fc1.bias param 5\n"
                                     "bn1.running_mean buffer 4\n"
                                     "bn1.running_var buffer 4\n"
                                     "optimizer.exp_avg.conv1.weight state 4 2 3 3\n"
                                     "optimizer.exp_avg.conv1.bias state 4\n"
                                     "optimizer.exp_avg.bn1.weight state 4\n"
                                     "optimizer.exp_avg.bn1.bias state 4\n"
                                     "optimizer.exp_avg.fc1.weight state 5 36\n"
                                     "optimizer.exp_avg.fc1.bias state 5\n"
                                     "optimizer.exp_avg_sq.conv1.weight state 4 2 3 3\n"
                                     "optimizer.exp_avg_sq.conv1.bias state 4\n"
                                     "optimizer.exp_avg_sq.bn1.weight state 4\n"
                                     "optimizer.exp_avg_sq.bn1.bias state 4\n"
                                     "optimizer.exp_avg_sq.fc1.weight state 5 36\n"
                                     "optimizer.exp_avg_sq.fc1.bias state 5\n"
                                     "bn1.num_batches_tracked counter\n"
                                     "optimizer.step counter\n");
    size_t count, end = 0;
    const engine_var *layout = engine_layout(m, &count);
    for (size_t i = 0; i < count; i++) {
        if (layout[i].kind == VAR_COUNTER)
            continue;
        CHECK(layout[i].offset >= end && layout[i].offset % GRAPH_ALIGN_FLOATS == 0);
        end = layout[i].offset + layout[i].count;
    }
    CHECK(end <= engine_state_floats(m));
    CHECK(engine_weights_floats(m) < engine_state_floats(m));
    engine_free(m);
}

TEST(gaps_stay_zero)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        c.optim = optim_default(OPTIM_ADAMW);
        engine *m = compile(&c);
        train(m, 0, 8);
        train(m, 1, 8);
        snapshot s = take_snapshot(m);
        size_t count, end = 0;
        const engine_var *layout = engine_layout(m, &count);
        for (size_t v = 0; v < count; v++) {
            if (layout[v].kind == VAR_COUNTER)
                continue;
            for (; end < layout[v].offset; end++)
                CHECK(s.f[end] == 0);
            end = layout[v].offset + layout[v].count;
        }
        free_snapshot(&s);
        engine_free(m);
    }
}

/* What a replaced function must do: export, import elsewhere, go on with the same bits. */
TEST(a_model_goes_on_from_its_exported_state_with_the_same_bits)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        engine *a = compile(&c), *b = compile(&c);
        train(a, 0, 8);
        train(a, 1, 5);
        snapshot middle = take_snapshot(a);
        train(b, 7, 8);
        err e = ERR_INIT;
        CHECK_OK(engine_import(b, middle.f, middle.c, &e), e);
        for (uint64_t step = 2; step < 5; step++) {
            double la = train(a, step, 8), lb = train(b, step, 8);
            CHECK(la == lb);
        }
        snapshot sa = take_snapshot(a), sb = take_snapshot(b);
        CHECK(same(&sa, &sb) && !same(&sa, &middle));
        CHECK_INT(sa.c[0], 5); /* num_batches_tracked */
        CHECK_INT(sa.c[1], 5); /* optimizer.step */
        free_snapshot(&sa);
        free_snapshot(&sb);
        free_snapshot(&middle);
        engine_free(a);
        engine_free(b);
    }
}

#ifndef WIDE /* less where each thread of a GPU is a fiber */
#define WIDE 32
#define ROOM 64
#endif

/* Wide 3x3 layers, batch norm and a shortcut: what shares memory, and at large batches packs
 * anew. */
static int wide(graph *g, int x, int outputs, void *user)
{
    (void)user;
    conv2d_options o = {.filters = WIDE, .kernel = 3, .padding = 1, .no_bias = true};
    x = graph_relu(g, graph_batch_norm(g, graph_conv2d(g, x, o), (batch_norm_options){0}));
    for (int i = 0; i < 2; i++) {
        int y = graph_relu(g, graph_batch_norm(g, graph_conv2d(g, x, o), (batch_norm_options){0}));
        y = graph_batch_norm(g, graph_conv2d(g, y, o), (batch_norm_options){0});
        x = graph_relu(g, graph_add(g, y, x));
    }
    x = graph_flatten(g, graph_adaptive_avg_pool2d(g, x, 1, 1));
    return graph_linear(g, x, outputs, (linear_options){0});
}

/* How many samples there is room for decides what is kept in memory, and on the CPU no bit of the
 * result (a GPU's sums are split by it); nor does an evaluation between two steps. */
TEST_LIMIT(room_for_more_samples_changes_no_bits, 60)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        c.build = wide;
        c.input = (shape){3, WIDE, 8, 8};
        c.batch = 8;
        engine *a = compile(&c);
        c.batch = ROOM;
        engine *b = compile(&c);
        bool exact = strcmp(backend_name(i), "cuda") != 0;
        float *images = calloc(8, shape_count(c.input) * sizeof *images);
        CHECK(images);
        for (size_t j = 0; j < 8 * shape_count(c.input); j++)
            images[j] = (float)((double)(j * 2654435761u % 1000) / 500 - 1);
        int32_t labels[8] = {0, 1, 2, 0, 1, 2, 0, 1};
        engine_batch batch = {.n = 8, .x = images, .labels = labels};
        engine_result ra, rb, between;
        double first = 0;
        err e = ERR_INIT;
        for (int step = 0; step < 4; step++) {
            CHECK_OK(engine_train(a, &batch, 0.05, &ra, &e), e);
            CHECK_OK(engine_train(b, &batch, 0.05, &rb, &e), e);
            CHECK_NEAR(ra.loss, rb.loss, exact ? 0 : 1e-3 * ra.loss);
            first = step ? first : ra.loss;
            CHECK_OK(engine_eval(b, &batch, &between, &e), e);
        }
        CHECK(ra.loss < first);
        snapshot sa = take_snapshot(a), sb = take_snapshot(b);
        CHECK(!exact || same(&sa, &sb));
        free_snapshot(&sa);
        free_snapshot(&sb);
        free(images);
        engine_free(a);
        engine_free(b);
    }
}

TEST(state_lives_in_the_callers_memory)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        engine *a = compile(&c), *b = compile(&c);
        err e = ERR_INIT;
        float *memory = aligned_alloc(64, (engine_state_floats(a) * sizeof *memory + 63) / 64 * 64);
        int64_t counters[2];
        CHECK_OK(engine_place(a, memory, counters, &e), e);
        CHECK(engine_floats(a, &e) == memory);
        train(a, 0, 8);
        train(b, 0, 8);
        snapshot sb = take_snapshot(b);
        CHECK(engine_floats(a, &e) == memory);
        CHECK(memcmp(memory, sb.f, sb.floats * sizeof *memory) == 0 && counters[1] == 1);
        memory[0] += 1; /* from outside, as a merge does */
        CHECK_OK(engine_state_changed(a, &e), e);
        double moved = train(a, 1, 8);
        CHECK(moved != train(b, 1, 8));
        CHECK_OK(engine_place(a, NULL, NULL, &e), e);
        CHECK(engine_floats(a, &e) != memory);
        free(memory);
        train(a, 2, 8);
        free_snapshot(&sb);
        engine_free(a);
        engine_free(b);
    }
}

/* Nothing is drawn for who imports; and what is drawn later, also after training, is what would
 * have been. */
TEST(a_blank_model_takes_weights_or_draws_them)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        err e = ERR_INIT;
        engine *m = compile(&c);
        snapshot first = take_snapshot(m);
        double loss = train(m, 0, 8);
        c.blank = true;
        engine *blank = compile(&c);
        const float *floats = engine_floats(blank, &e);
        for (size_t k = 0; k < first.floats; k++)
            CHECK(floats[k] == 0);
        CHECK_OK(engine_import(blank, first.f, first.c, &e), e);
        CHECK(train(blank, 0, 8) == loss);
        snapshot trained = take_snapshot(m), also = take_snapshot(blank);
        CHECK(same(&trained, &also));
        CHECK_OK(engine_draw(blank, &e), e);
        snapshot drawn = take_snapshot(blank);
        CHECK(same(&drawn, &first));
        CHECK(train(blank, 0, 8) == loss);
        engine_free(blank);

        float *memory = aligned_alloc(64, (first.floats * sizeof *memory + 63) / 64 * 64);
        int64_t counters[2];
        blank = compile(&c);
        CHECK_OK(engine_place(blank, memory, counters, &e), e);
        CHECK_OK(engine_reset_optimizer(blank, &e), e);
        CHECK_OK(engine_draw(blank, &e), e);
        CHECK(memcmp(memory, first.f, first.floats * sizeof *memory) == 0);
        CHECK(train(blank, 0, 8) == loss);
        engine_free(blank);
        free(memory);
        free_snapshot(&first), free_snapshot(&trained), free_snapshot(&also);
        free_snapshot(&drawn);
        engine_free(m);
    }
}

TEST(weights_alone_reset_the_optimizer)
{
    engine_config c = tiny_config("reference");
    engine *m = compile(&c);
    err e = ERR_INIT;
    train(m, 0, 8);
    snapshot s = take_snapshot(m);
    CHECK_OK(engine_import_weights(m, s.f, s.c, &e), e);
    snapshot t = take_snapshot(m);
    CHECK(memcmp(s.f, t.f, engine_weights_floats(m) * sizeof *s.f) == 0);
    for (size_t i = engine_weights_floats(m); i < t.floats; i++)
        CHECK(t.f[i] == 0);
    CHECK_INT(t.c[0], 1);
    CHECK_INT(t.c[1], 0);
    free_snapshot(&s);
    free_snapshot(&t);
    train(m, 1, 8);
    CHECK_OK(engine_reset_optimizer(m, &e), e);
    CHECK_INT(engine_counters(m, &e)[1], 0);
    engine_free(m);
}

/* The mean over a short batch is over its own samples: the same as a model compiled for that size.
 */
TEST(a_short_last_batch_counts_only_its_samples)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i)), exact = c;
        exact.batch = 3;
        engine *m = compile(&c), *short_one = compile(&exact);
        train(m, 1, 8);
        snapshot s = take_snapshot(m);
        err e = ERR_INIT;
        CHECK_OK(engine_import(short_one, s.f, s.c, &e), e);
        double got = train(m, 0, 3), want = train(short_one, 0, 3);
        CHECK_NEAR(got, want, 1e-6);
        snapshot a = take_snapshot(m), b = take_snapshot(short_one);
        for (size_t j = 0; j < a.floats; j++)
            CHECK_NEAR(a.f[j], b.f[j], 1e-6);
        free_snapshot(&s);
        free_snapshot(&a);
        free_snapshot(&b);
        engine_free(m);
        engine_free(short_one);
    }
}

TEST(halves_of_a_step_equal_the_step)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        engine *a = compile(&c), *b = compile(&c);
        err e = ERR_INIT;
        golden_batch batch = {0};
        engine_result r;
        size_t count;
        for (uint64_t step = 0; step < 3; step++) {
            golden_draw(&batch, step, 8, tiny, 5);
            train(a, step, 8);
            CHECK_OK(engine_gradients(b, &batch.b, &r, &e), e);
            float *grads = engine_grads(b, &count, &e);
            for (size_t j = 0; j < count; j++)
                grads[j] *= 2; /* a custom step: changed gradients count */
            CHECK_OK(engine_update(b, 0.025, &e), e);
        }
        snapshot sa = take_snapshot(a), sb = take_snapshot(b);
        for (size_t j = 0; j < engine_weights_floats(a); j++)
            CHECK_NEAR(sa.f[j], sb.f[j], 1e-5);
        free(batch.x);
        free_snapshot(&sa);
        free_snapshot(&sb);
        engine_free(a);
        engine_free(b);
    }
}

static void find_gradients(engine *m, uint64_t step)
{
    err e = ERR_INIT;
    golden_batch batch = {0};
    engine_result r;
    golden_draw(&batch, step, 8, tiny, 5);
    CHECK_OK(engine_gradients(m, &batch.b, &r, &e), e);
    free(batch.x);
}

static void look_at_gradients(engine *m)
{
    err e = ERR_INIT;
    size_t count;
    CHECK_OK(engine_grads(m, &count, &e) ? 0 : -1, e);
}

static void update(engine *m)
{
    err e = ERR_INIT;
    CHECK_OK(engine_update(m, 0.05, &e), e);
}

/* All of their states, to the bit: both have computed the same. */
static void check_same(engine *a, engine *b)
{
    snapshot sa = take_snapshot(a), sb = take_snapshot(b);
    CHECK(memcmp(sa.f, sb.f, engine_state_floats(a) * sizeof *sa.f) == 0);
    CHECK(memcmp(sa.c, sb.c, engine_counter_count(a) * sizeof *sa.c) == 0);
    free_snapshot(&sa);
    free_snapshot(&sb);
}

/* A step may look at its gradients and leave the batch out, as an outlier. */
TEST(gradients_that_were_only_looked_at_count_no_more_after_the_next)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        engine *looks = compile(&c), *trusts = compile(&c);
        for (uint64_t step = 0; step < 4; step++) {
            find_gradients(looks, step);
            find_gradients(trusts, step);
            look_at_gradients(looks);
            if (step % 2)
                continue;
            find_gradients(looks, step + 10);
            find_gradients(trusts, step + 10);
            update(looks);
            update(trusts);
        }
        check_same(looks, trusts);
        engine_free(looks);
        engine_free(trusts);
    }
}

TEST(a_mean_that_is_taken_while_gradients_are_out_stays)
{
    const double half[2] = {0.5, 0.5};
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        engine *looks[2] = {compile(&c), compile(&c)}, *trusts[2] = {compile(&c), compile(&c)};
        err e = ERR_INIT;
        for (uint64_t j = 0; j < 2 && engine_averages(looks, 2); j++) {
            train(looks[j], j, 8);
            train(trusts[j], j, 8);
            find_gradients(looks[j], 2 + j);
            find_gradients(trusts[j], 2 + j);
            look_at_gradients(looks[j]);
        }
        if (engine_averages(looks, 2)) {
            CHECK_OK(engine_average(looks, half, 2, false, &e), e);
            CHECK_OK(engine_average(trusts, half, 2, false, &e), e);
            update(looks[0]);
            update(trusts[0]);
            check_same(looks[0], trusts[0]);
        }
        for (int j = 0; j < 2; j++) {
            engine_free(looks[j]);
            engine_free(trusts[j]);
        }
    }
}

TEST(dropout_depends_on_the_sample_and_the_epoch_and_not_on_the_place_in_the_batch)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        err e = ERR_INIT;
        golden_batch b = {0};
        golden_draw(&b, 0, 4, tiny, 5);
        const void *there[4], *back[4];
        uint64_t samples[4] = {100, 200, 300, 400}, reversed[4] = {400, 300, 200, 100};
        int32_t labels[4];
        for (int j = 0; j < 4; j++) {
            there[j] = b.x + (size_t)j * shape_count(tiny);
            back[3 - j] = there[j];
            labels[3 - j] = b.labels[j];
        }
        engine_result r[4];
        engine_batch forward = b.b, backward = b.b, other_epoch, other_sample;
        forward.x = backward.x = NULL;
        forward.rows = there, forward.sample = samples;
        backward.rows = back, backward.sample = reversed, backward.labels = labels;
        other_epoch = other_sample = forward;
        other_epoch.epoch = 1;
        other_sample.sample = reversed;
        const engine_batch *all[4] = {&forward, &backward, &other_epoch, &other_sample};
        for (int j = 0; j < 4; j++) {
            engine *m = compile(&c);
            CHECK_OK(engine_gradients(m, all[j], &r[j], &e), e);
            engine_free(m);
        }
        CHECK_NEAR(r[0].loss, r[1].loss, 1e-6);
        CHECK(fabs(r[0].loss - r[2].loss) > 1e-4 && fabs(r[0].loss - r[3].loss) > 1e-4);
        free(b.x);
    }
}

#if COUNTED
#ifndef ON_SHIM /* there each thread of a GPU's block is a fiber: the small model alone */
/* MobileNet's block, strided groups and DenseNet's stages: what keeps sums, borders and parts of a
 * joined tensor beside what it computes. */
static int blocks(graph *g, int x, int outputs, void *user)
{
    (void)user;
    conv2d_options into = {.filters = 24, .kernel = 3, .padding = 1, .no_bias = true};
    conv2d_options each = {.filters = 24, .kernel = 5, .padding = 2, .groups = 24};
    conv2d_options down = {.filters = 32, .kernel = 3, .padding = 1, .groups = 4, .stride = 2};
    x = graph_conv2d(g, x, into);
    x = graph_batch_norm(g, x, (batch_norm_options){0});
    x = graph_activation(g, x, ACT_HARDSWISH, 0);
    int gate = graph_adaptive_avg_pool2d(g, x, 1, 1);
    gate = graph_conv2d(g, gate, (conv2d_options){.filters = 24, .kernel = 1});
    gate = graph_activation(g, gate, ACT_HARDSIGMOID, 0);
    x = graph_add(g, graph_conv2d(g, x, each), graph_mul(g, x, gate));
    int parts[4] = {graph_relu(g, graph_conv2d(g, x, down))};
    for (int i = 1; i < 4; i++) {
        int y = i == 1 ? parts[0] : graph_concat(g, parts, i);
        y = graph_relu(g, graph_batch_norm(g, y, (batch_norm_options){0}));
        y = graph_conv2d(g, y, (conv2d_options){.filters = 32, .kernel = 1, .no_bias = true});
        y = graph_relu(g, graph_batch_norm(g, y, (batch_norm_options){0}));
        parts[i] = graph_conv2d(g, y, (conv2d_options){.filters = 32, .kernel = 3, .padding = 1});
    }
    x = graph_relu(g, graph_batch_norm(g, graph_concat(g, parts, 4), (batch_norm_options){0}));
    x = graph_flatten(g, graph_avg_pool2d(g, x, (pool_options){.kernel = 2}));
    return graph_linear(g, x, outputs, (linear_options){0});
}
#endif

/* What is counted, and on the fast CPU backend what it must be computed with to count. */
static const struct counted_model {
    const char *name;
    engine_builder build;
    shape input;
    optim_kind optim;
    const char *choices[4];
} counted_models[] = {
    {"tiny", build_tiny, {3, 2, 6, 6}, OPTIM_SGD, {NULL}},
#ifndef ON_SHIM
    {"LeNet-5", zoo_lenet5, {3, 1, 28, 28}, OPTIM_SGD, {"direct+pool", "gemm+relu"}},
    {"ResNet-20", zoo_resnet20, {3, 3, 16, 16}, OPTIM_ADAM, {"winograd4", "matmul-points", "fused"}},
    {"blocks", blocks, {3, 3, 12, 12}, OPTIM_ADAMW, {"depthwise", "groups", "entry+relu", "joined"}},
#endif
};

static long counted_now(void)
{
#ifdef ON_SHIM
    return allocations;
#else
    return allocations + mappings;
#endif
}

/* Two steps of every kind, the second with a short batch. */
static void check_steps(const struct counted_model *m, const char *on)
{
    enum { SAMPLES = 8, CLASSES = 5 };
    err e = ERR_INIT;
    engine_config c = {.build = m->build, .input = m->input, .outputs = CLASSES, .batch = SAMPLES,
                       .backend = on, .threads = 2, .seed = 3, .optim = optim_default(m->optim)};
    if (m->optim == OPTIM_SGD)
        c.optim.momentum = 0.9;
    engine *trained = compile(&c);
    for (size_t i = 0; strcmp(on, "cpu") == 0 && i < 4 && m->choices[i]; i++)
        CHECK_CONTAINS(engine_choices(trained), m->choices[i]);
    golden_batch b = {0};
    engine_result r;
    float logits[SAMPLES * CLASSES];
    golden_draw(&b, 0, SAMPLES, m->input, CLASSES);
    long before = counted_now();
    for (int n = SAMPLES; n > 0; n -= 5) {
        b.b.n = n;
        CHECK_OK(engine_train(trained, &b.b, 0.1, &r, &e), e);
        CHECK_OK(engine_gradients(trained, &b.b, &r, &e), e);
        CHECK_OK(engine_update(trained, 0.1, &e), e);
        CHECK_OK(engine_eval(trained, &b.b, &r, &e), e);
        CHECK_OK(engine_infer(trained, &b.b, logits, &e), e);
        CHECK_OK(engine_state_changed(trained, &e), e);
    }
    if (counted_now() != before)
        test_fail(__FILE__, __LINE__, "%s on %s: %ld allocations and mappings", m->name, on,
                  counted_now() - before);
    free(b.x);
    engine_free(trained);
}
#endif

TEST(a_training_step_allocates_nothing)
{
#if COUNTED
    long before = counted_now();
    void *volatile one = malloc(1);
    free(one);
    CHECK_INT(counted_now(), before + 1); /* the counters count */
#ifndef ON_SHIM
    one = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(one != MAP_FAILED && munmap(one, 4096) == 0);
    CHECK_INT(counted_now(), before + 2);
#endif
    for (int i = 0; backend_name(i); i++)
        for (size_t k = 0; k < sizeof counted_models / sizeof *counted_models; k++)
            check_steps(&counted_models[k], backend_name(i));
#else
    test_skip("the sanitizer's allocator is not counted");
#endif
}

#if COUNTED || (defined(__x86_64__) && !defined(TEST_GPU))
/* Its hidden units are dead once their bias is far below zero: their gradients are zeros. */
static int two_linear(graph *g, int x, int outputs, void *user)
{
    (void)user;
    x = graph_relu(g, graph_linear(g, graph_flatten(g, x), 300, (linear_options){0}));
    return graph_linear(g, x, outputs, (linear_options){0});
}
#endif

#if defined(__x86_64__) && !defined(TEST_GPU)
/* Arithmetic on denormals takes x86 a hundred times as long: momentum that decays must end at zero
 * and not at the smallest of them; and whoever calls the engine keeps his own arithmetic. */
static void check_denormals(int threads)
{
    err e = ERR_INIT;
    engine_config c = tiny_config("cpu");
    c.build = two_linear, c.threads = threads;
    engine *m = compile(&c);
    size_t count, weights = 300 * 72;
    const engine_var *layout = engine_layout(m, &count);
    CHECK_STR(layout[1].name, "fc1.bias");
    for (size_t i = 0; i < 300; i++)
        engine_floats(m, &e)[layout[1].offset + i] = -1e6f;
    float *momentum = engine_floats(m, &e) + engine_weights_floats(m);
    volatile float tiny_value = 0x1p-130f;
    for (int step = 0; step < 50; step++) {
        for (size_t i = 0; i < weights; i++)
            momentum[i] = tiny_value;
        CHECK_OK(engine_state_changed(m, &e), e);
        train(m, (uint64_t)step, 8);
        for (size_t i = 0; i < weights; i++)
            CHECK(momentum[i] == 0);
        CHECK(tiny_value * 0.5f == 0x1p-131f);
    }
    engine_free(m);
}

TEST(momentum_of_dead_units_goes_to_zero)
{
    check_denormals(1);
    check_denormals(3);
}
#endif

TEST(a_diverged_loss_is_seen)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        engine *m = compile(&c);
        err e = ERR_INIT;
        golden_batch b = {0};
        engine_result r = {0};
        golden_draw(&b, 0, 8, tiny, 5);
        engine_floats(m, &e)[0] = NAN;
        CHECK_OK(engine_state_changed(m, &e), e);
        CHECK_OK(engine_train(m, &b.b, 0.1, &r, &e), e);
        CHECK(!isfinite(r.loss));
        free(b.x);
        engine_free(m);
    }
}

TEST(wrong_batches_and_models_are_refused)
{
    engine_config c = tiny_config("reference");
    engine *m = compile(&c);
    err e = ERR_INIT;
    golden_batch b = {0};
    engine_result r;
    golden_draw(&b, 0, 8, tiny, 5);
    b.labels[6] = 5;
    CHECK_ERR(engine_train(m, &b.b, 0.1, &r, &e), e, ERR_INVALID,
              "label 5 (sample 6 of the batch)");
    b.labels[6] = -1;
    CHECK_ERR(engine_eval(m, &b.b, &r, &e), e, ERR_INVALID, "label -1");
    int64_t wide[8] = {0, 0, 1LL << 32, 0, 0, 0, 0, 0};
    engine_batch other = b.b;
    other.labels = NULL;
    CHECK_ERR(engine_train(m, &other, 0.1, &r, &e), e, ERR_INVALID, "no labels");
    other.labels64 = wide;
    CHECK_ERR(engine_train(m, &other, 0.1, &r, &e), e, ERR_INVALID, "label 4294967296");
    other = b.b;
    other.n = 9;
    CHECK_ERR(engine_train(m, &other, 0.1, &r, &e), e, ERR_INVALID, "9 samples: between 1 and 8");
    other.n = 0;
    CHECK_ERR(engine_train(m, &other, 0.1, &r, &e), e, ERR_INVALID, "0 samples");
    engine_free(m);
    m = NULL;
    engine_config wrong = c;
    wrong.batch = 0;
    CHECK_ERR(engine_compile(&wrong, &m, &e), e, ERR_INVALID, "batch size 0");
    wrong = c, wrong.backend = "abacus";
    CHECK_ERR(engine_compile(&wrong, &m, &e), e, ERR_NOT_FOUND, "abacus");
    wrong = c, wrong.optim.momentum = -1;
    CHECK_ERR(engine_compile(&wrong, &m, &e), e, ERR_INVALID, "momentum");
    wrong = c, wrong.precision = PRECISION_TF32;
    CHECK_ERR(engine_compile(&wrong, &m, &e), e, ERR_UNSUPPORTED, "fp32");
    wrong = c, wrong.input = (shape){3, 2, 1, 1};
    CHECK_ERR(engine_compile(&wrong, &m, &e), e, ERR_INVALID, "max_pool2d");
    wrong = c, wrong.inference = true;
    m = compile(&wrong);
    b.labels[6] = 0;
    CHECK_ERR(engine_train(m, &b.b, 0.1, &r, &e), e, ERR_UNSUPPORTED, "inference");
    CHECK_OK(engine_eval(m, &b.b, &r, &e), e);
    CHECK_INT(engine_counter_count(m), 1);
    free(b.x);
    engine_free(m);
}

/* A model compiled for inference gives the training model's logits and takes less memory. */
TEST(inference_alone_needs_less)
{
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i)), lean = c;
        lean.inference = true;
        engine *m = compile(&c), *small = compile(&lean);
        err e = ERR_INIT;
        golden_batch b = {0};
        float x[40], y[40];
        train(m, 0, 8);
        snapshot s = take_snapshot(m);
        CHECK_OK(engine_import_weights(small, s.f, s.c, &e), e);
        golden_draw(&b, 1, 8, tiny, 5);
        CHECK_OK(engine_infer(m, &b.b, x, &e), e);
        CHECK_OK(engine_infer(small, &b.b, y, &e), e);
        for (int j = 0; j < 40; j++)
            CHECK_NEAR(x[j], y[j], 1e-5);
        CHECK(engine_memory(small) < engine_memory(m));
        free(b.x);
        free_snapshot(&s);
        engine_free(m);
        engine_free(small);
    }
}

/* Every allocation of a compile made to fail once: an error that says so, and nothing left behind;
 * or a model that trains without it. */
TEST(memory_may_run_out_at_any_moment_of_a_compile)
{
#if COUNTED
    for (int i = 0; backend_name(i); i++) {
        engine_config c = tiny_config(backend_name(i));
        c.threads = 2, c.build = two_linear;
        engine_free(compile(&c)); /* what is made once a process */
        long k = 0;
        for (engine *m = NULL; !m; k++) {
            err e = ERR_INIT;
            long before = live;
            fail_in = k;
            int status = engine_compile(&c, &m, &e);
            bool failed = fail_in == -1;
            fail_in = -1;
            if (status == 0 && !failed) {
                engine_free(m);
                break;
            }
            if (status == 0) { /* it did without */
                train(m, 0, 1);
                engine_free(m);
                m = NULL;
            } else {
                /* a thread that cannot start is told apart: it may start later */
                if (e.code != ERR_NOMEM && e.code != ERR_UNAVAILABLE)
                    test_fail(__FILE__, __LINE__, "allocation %ld: %s (%s)", k, e.message,
                              err_name(e.code));
                CHECK(!m);
            }
            CHECK_INT(live, before);
        }
        CHECK(k > 10);
        printf("%s: %ld allocations\n", backend_name(i), k);
    }
#else
    test_skip("the sanitizer's allocator cannot be made to fail");
#endif
}
