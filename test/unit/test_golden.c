/* test_golden.c: the first 50 losses of LeNet-5 and ResNet-20 against PyTorch's, on every backend.
 */
#include "golden.h"
#include "kernels/zoo/zoo.h"

/* A golden line holds PyTorch's fp32 and fp64. Their distance is how far rounding alone carries two
 * runs apart; it grows from step to step (ReLU's kinks and batch norm amplify it). Allowed is,
 * relative to the fp64 value, a floor for what is computed once plus 4 times the largest distance
 * so far: an engine with a wrong gradient of one layer leaves that within a few steps. */
typedef struct envelope {
    double floor, rounding, worst;
} envelope;

/* The sanitizers look for other mistakes than numbers, and the reference is slow under them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEPS = 3 };
#else
enum { STEPS = 50 };
#endif

/* Whether it is within what rounding explains, or within `kink` where that is more. */
static bool is_near(envelope *v, const char *model, const char *key, double got, double kink)
{
    double want[2];
    golden_line(model, key, want, 2);
    double scale = fabs(want[1]) + 1e-30, apart = fabs(got - want[1]) / scale;
    v->rounding = fmax(v->rounding, fabs(want[0] - want[1]) / scale);
    v->worst = fmax(v->worst, apart);
    double rounding = v->floor + 4 * v->rounding, allowed = fmax(kink, rounding);
    if (!(apart <= allowed))
        test_fail(__FILE__, __LINE__, "%s, %s: %.9g, PyTorch's %.9g: %.2g apart, %.2g allowed",
                  model, key, got, want[1], apart, allowed);
    return apart <= rounding;
}

static void check_near(envelope *v, const char *model, const char *key, double got)
{
    is_near(v, model, key, got, 0);
}

static double norm(const float *x, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* Every parameter's gradient of the first batch; nothing has had time to grow. Backward, so that
 * one thing may show: where a ReLU's input is 0 but for rounding, compilers and processors disagree
 * on whether its gradient passes, and all that lies before it moves by up to a few thousandths.
 * Behind it, a quarter of the model at least, rounding alone is allowed. */
static void check_gradients(envelope *v, const char *model, engine *m, const engine_batch *b)
{
    err e = ERR_INIT;
    engine_result r;
    size_t floats, count;
    CHECK_OK(engine_gradients(m, b, &r, &e), e);
    const float *grads = engine_grads(m, &floats, &e);
    const engine_var *layout = engine_layout(m, &count);
    size_t params = 0;
    for (size_t i = 0; i < count; i++)
        params += layout[i].kind == VAR_PARAM;
    bool crossed = false;
    for (size_t i = count, seen = 0; i-- > 0;) {
        if (layout[i].kind != VAR_PARAM)
            continue;
        char key[160];
        snprintf(key, sizeof key, "grad %s", layout[i].name);
        bool may_cross = 4 * seen++ >= params;
        crossed |= !is_near(v, model, key, norm(grads + layout[i].offset, layout[i].count),
                            may_cross ? 5e-3 : 0);
    }
    if (crossed)
        printf("%s: a ReLU at 0 went the other way than PyTorch's\n", model);
}

static void check_norms(envelope *v, const char *model, engine *m)
{
    err e = ERR_INIT;
    size_t count;
    const engine_var *layout = engine_layout(m, &count);
    const float *floats = engine_floats(m, &e);
    for (size_t i = 0; i < count; i++) {
        if (layout[i].kind != VAR_PARAM && layout[i].kind != VAR_BUFFER)
            continue;
        char key[160];
        snprintf(key, sizeof key, "norm %s", layout[i].name);
        check_near(v, model, key, norm(floats + layout[i].offset, layout[i].count));
    }
}

static void check_losses(const char *model, const char *on, int n, double lr)
{
    err e = ERR_INIT;
    const zoo_model *z = zoo_find(model, &e);
    CHECK(z);
    engine *m = NULL;
    engine_config c = {.build = z->build,
                       .input = {3, z->channels, z->height, z->width},
                       .outputs = z->outputs,
                       .batch = n,
                       .backend = on,
                       .optim = {.kind = OPTIM_SGD, .momentum = 0.9, .weight_decay = 1e-4}};
    CHECK_OK(engine_compile(&c, &m, &e), e);
    golden_batch b = {0};
    engine_result r;
    envelope gradients = {.floor = 1e-5}, losses = {.floor = 1e-4};
    golden_fill(m, 1);
    golden_draw(&b, 0, n, c.input, z->outputs);
    check_gradients(&gradients, model, m, &b.b);
    golden_fill(m, 1); /* the running statistics have moved */
    for (int step = 0; step < STEPS; step++) {
        char key[32];
        snprintf(key, sizeof key, "loss %d", step);
        golden_draw(&b, (uint64_t)step % 4, n, c.input, z->outputs);
        CHECK_OK(engine_train(m, &b.b, lr, &r, &e), e);
        check_near(&losses, model, key, r.loss);
    }
    printf("%s on %s: gradients within %.2g, losses within %.2g of PyTorch's in %d "
           "steps\n",
           model, on, gradients.worst, losses.worst, STEPS);
    golden_draw(&b, 4, n, c.input, z->outputs);
    CHECK_OK(engine_eval(m, &b.b, &r, &e), e);
    if (STEPS == 50) {
        check_near(&losses, model, "eval", r.loss);
        check_norms(&losses, model, m);
    }
    free(b.x);
    engine_free(m);
}

#ifndef TEST_GPU
TEST_LIMIT(lenet5_on_the_reference, 120)
{
    check_losses("lenet5", "reference", 32, 0.01);
}

TEST_LIMIT(resnet20_on_the_reference, 600)
{
    check_losses("resnet20", "reference", 4, 0.001);
}

#endif

/* The fastest backend here, which is what a job trains on; on a GPU never another one. */
static const char *fastest(void)
{
    err e = ERR_INIT;
#ifdef TEST_GPU
    const backend *fast = backend_find("cuda", &e);
#else
    const backend *fast = backend_find(NULL, &e);
#endif
    CHECK(fast);
    if (fast == &backend_reference)
        test_skip("no backend but the reference runs on this machine");
    return fast->name;
}

TEST_LIMIT(lenet5_on_the_fastest_backend, 60)
{
    check_losses("lenet5", fastest(), 32, 0.01);
}

TEST_LIMIT(resnet20_on_the_fastest_backend, 300)
{
    check_losses("resnet20", fastest(), 4, 0.001);
}
