/* parity.c: what parity.py asks the engine to compute, with the files that both sides share.
 *
 *     parity zoo                      every model: name, channels, height, width, outputs,
 * parameters parity run FOLDER MODEL CHANNELS SIDE OUTPUTS BATCH BATCHES STEPS LR BACKEND
 *
 * FOLDER has init.safetensors (written by PyTorch), x.f32 (BATCHES of images) and y.i32. Written
 * there: names.txt (a line a tensor: name, kind, offset, dims), logits.f32 (batch 0, not training),
 * grads.f32 (of batch 0), stats.safetensors (after that one pass), trained.safetensors (after STEPS
 * steps of SGD, momentum 0.9, weight decay 1e-4) and logits_trained.f32. Losses go to stdout.
 *
 *     parity follow FOLDER MODEL CHANNELS SIDE OUTPUTS BATCH THREADS LR
 *
 * For each number on stdin: a step like those, from init.safetensors but with the momentum of the
 * steps before, with the so many samples of x.f32 and y.i32; writes trained.safetensors, and then
 * the loss to stdout. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "function-runtime/base/model_file.h"
#include "kernels/zoo/zoo.h"

enum { PATH_BYTES = 4096 };

typedef struct parity {
    const char *folder, *model, *backend;
    int channels, side, outputs, batch, batches, steps, threads;
    double lr;
    engine *m;
    float *x;
    int32_t *y;
} parity;

static const char *in_folder(const parity *p, const char *name, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%s", p->folder, name);
    return path;
}

static int read_file(const parity *p, const char *name, void *to, size_t bytes, err *e)
{
    char path[PATH_BYTES];
    FILE *f = fopen(in_folder(p, name, path), "rb");
    if (!f || fread(to, 1, bytes, f) != bytes || fgetc(f) != EOF) {
        if (f)
            fclose(f);
        return err_set(e, ERR_IO, "%s has not %zu bytes", path, bytes);
    }
    fclose(f);
    return 0;
}

static int write_file(const parity *p, const char *name, const void *from, size_t bytes, err *e)
{
    char path[PATH_BYTES];
    FILE *f = fopen(in_folder(p, name, path), "wb");
    bool written = f && fwrite(from, 1, bytes, f) == bytes;
    if (f && fclose(f) != 0)
        written = false;
    return written ? 0 : err_set(e, ERR_IO, "%s could not be written", path);
}

static int write_names(const parity *p, err *e)
{
    char path[PATH_BYTES];
    size_t count;
    const engine_var *vars = engine_layout(p->m, &count);
    static const char *const kinds[VAR_KIND_COUNT] = {"param", "buffer", "counter", "state"};
    FILE *f = fopen(in_folder(p, "names.txt", path), "w");
    if (!f)
        return err_set(e, ERR_IO, "%s could not be written", path);
    for (size_t i = 0; i < count; i++) {
        fprintf(f, "%s %s %zu", vars[i].name, kinds[vars[i].kind], vars[i].offset);
        for (int d = 0; d < vars[i].rank; d++)
            fprintf(f, " %d", vars[i].dims[d]);
        fputc('\n', f);
    }
    return fclose(f) == 0 ? 0 : err_set(e, ERR_IO, "%s could not be written", path);
}

static int load_weights(const parity *p, err *e)
{
    char path[PATH_BYTES];
    cleanup_close int fd = open(in_folder(p, "init.safetensors", path), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, ERR_NOT_FOUND, "no %s", path);
    return model_file_load(p->m, fd, NULL, e);
}

static int start(const parity *p, err *e)
{
    return load_weights(p, e) || engine_reset_optimizer(p->m, e) ? -1 : 0;
}

static engine_batch batch_of(const parity *p, int step)
{
    size_t sample = (size_t)p->channels * (size_t)(p->side * p->side),
           at = (size_t)(step * p->batch);
    return (engine_batch){.n = p->batch, .x = p->x + at * sample, .labels = p->y + at};
}

static int write_logits(const parity *p, const char *name, err *e)
{
    engine_batch b = batch_of(p, 0);
    size_t bytes = (size_t)(p->batch * p->outputs) * sizeof(float);
    cleanup_free float *logits = malloc(bytes);
    if (!logits)
        return err_set(e, ERR_NOMEM, "no memory for the logits");
    return engine_infer(p->m, &b, logits, e) || write_file(p, name, logits, bytes, e) ? -1 : 0;
}

static int one_pass(const parity *p, err *e)
{
    char path[PATH_BYTES];
    engine_batch b = batch_of(p, 0);
    engine_result r;
    size_t count;
    if (start(p, e) || write_logits(p, "logits.f32", e) || engine_gradients(p->m, &b, &r, e))
        return -1;
    printf("%.9g\n", r.loss);
    const float *grads = engine_grads(p->m, &count, e);
    return !grads || write_file(p, "grads.f32", grads, count * sizeof *grads, e) ||
                   model_file_save(p->m, in_folder(p, "stats.safetensors", path), e)
               ? -1
               : 0;
}

static int many_steps(const parity *p, err *e)
{
    char path[PATH_BYTES];
    if (start(p, e))
        return -1;
    for (int step = 0; step < p->steps; step++) {
        engine_batch b = batch_of(p, step % p->batches);
        engine_result r;
        if (engine_train(p->m, &b, p->lr, &r, e))
            return -1;
        printf("%.9g\n", r.loss);
    }
    return write_logits(p, "logits_trained.f32", e) ||
                   model_file_save(p->m, in_folder(p, "trained.safetensors", path), e)
               ? -1
               : 0;
}

static int compile(parity *p, err *e)
{
    zoo_options o = {.no_dropout = true};
    const zoo_model *z = zoo_parse(p->model, &o, e);
    if (!z)
        return -1;
    engine_config c = {.build = z->build,
                       .user = &o,
                       .input = {3, p->channels, p->side, p->side},
                       .outputs = p->outputs,
                       .batch = p->batch,
                       .threads = p->threads,
                       .backend = p->backend,
                       .optim = {.kind = OPTIM_SGD, .momentum = 0.9, .weight_decay = 1e-4}};
    return engine_compile(&c, &p->m, e);
}

static int make_room(parity *p, int samples, err *e)
{
    size_t pixels = (size_t)samples * (size_t)(p->channels * p->side * p->side);
    p->x = malloc(pixels * sizeof *p->x);
    p->y = malloc((size_t)samples * sizeof *p->y);
    return p->x && p->y ? 0 : err_set(e, ERR_NOMEM, "no memory for the batches");
}

static int read_samples(const parity *p, int samples, err *e)
{
    size_t pixels = (size_t)samples * (size_t)(p->channels * p->side * p->side);
    return read_file(p, "x.f32", p->x, pixels * sizeof *p->x, e) ||
                   read_file(p, "y.i32", p->y, (size_t)samples * sizeof *p->y, e)
               ? -1
               : 0;
}

static int run(parity *p, err *e)
{
    int samples = p->batches * p->batch;
    if (compile(p, e) || make_room(p, samples, e) || read_samples(p, samples, e))
        return -1;
    return write_names(p, e) || one_pass(p, e) || many_steps(p, e) ? -1 : 0;
}

static int one_step(const parity *p, int samples, err *e)
{
    char path[PATH_BYTES];
    engine_batch b = {.n = samples, .x = p->x, .labels = p->y};
    engine_result r;
    if (samples < 1 || samples > p->batch)
        return err_set(e, ERR_INVALID, "a batch of %d", samples);
    if (load_weights(p, e) || read_samples(p, samples, e) || engine_train(p->m, &b, p->lr, &r, e) ||
        model_file_save(p->m, in_folder(p, "trained.safetensors", path), e))
        return -1;
    printf("%.9g\n", r.loss);
    fflush(stdout);
    return 0;
}

static int follow(parity *p, err *e)
{
    char line[32];
    if (compile(p, e) || make_room(p, p->batch, e))
        return -1;
    while (fgets(line, sizeof line, stdin))
        if (one_step(p, atoi(line), e) != 0)
            return -1;
    return 0;
}

static int print_zoo(void)
{
    const zoo_model *z;
    for (int i = 0; (z = zoo_at(i)); i++)
        printf("%s %d %d %d %d %zu\n", z->name, z->channels, z->height, z->width, z->outputs,
               z->params);
    return 0;
}

static int number(const char *text)
{
    return (int)strtol(text, NULL, 10);
}

int main(int argc, char **argv)
{
    err e = ERR_INIT;
    bool runs = argc == 12 && strcmp(argv[1], "run") == 0;
    if (argc == 2 && strcmp(argv[1], "zoo") == 0)
        return print_zoo();
    if (!runs && (argc != 10 || strcmp(argv[1], "follow") != 0)) {
        fputs(
            "usage: parity run FOLDER MODEL CHANNELS SIDE OUTPUTS BATCH BATCHES STEPS LR BACKEND\n"
            "       parity follow FOLDER MODEL CHANNELS SIDE OUTPUTS BATCH THREADS LR\n",
            stderr);
        return 2;
    }
    parity p = {.folder = argv[2],
                .model = argv[3],
                .channels = number(argv[4]),
                .side = number(argv[5]),
                .outputs = number(argv[6]),
                .batch = number(argv[7]),
                .batches = runs ? number(argv[8]) : 1,
                .steps = runs ? number(argv[9]) : 1,
                .threads = runs ? 1 : number(argv[8]),
                .lr = strtod(argv[runs ? 10 : 9], NULL),
                .backend = runs ? argv[11] : "auto"};
    int rc = runs ? run(&p, &e) : follow(&p, &e);
    if (rc != 0)
        fprintf(stderr, "parity: %s\n", e.message);
    engine_free(p.m);
    free(p.x);
    free(p.y);
    return rc == 0 ? 0 : 1;
}
