/* cuda_preload.c: runs the known fastest ways of some layers before any program has such a layer;
 * see backend.h.
 *
 * The first run of a library's kernel loads it, which takes milliseconds, and so does making a plan
 * of cuDNN's: together half of a large model's start. The cache's entries of this device and build
 * are run once, the newest first, on zeros. They run on the device that the next program gets
 * (cuda_devices.h), which keeps its plans. Other users of the GPU must hardly notice: memory,
 * number and time are bounded. Our own kernels take microseconds to load. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/cleanup.h"
#include "cuda_devices.h"
#include "cuda_memory.h"
#include "cuda_program.h"

enum { PARTS_MAX = 128, MS_MAX = 2000, OPERANDS = 4 };
#define BYTES_MAX ((size_t)256 << 20)
#define ALIGNMENT ((size_t)256)

typedef struct part {
    conv_task task;
    conv_offer way;
    size_t at[OPERANDS + 1]; /* of a, b, bias, out and the workspace in memory */
    size_t bytes;
} part;

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* False: the operands need more memory than one entry may have. Sizes are in floating point, where
 * no product overflows. */
static bool place(part *p)
{
    const conv_shape *s = &p->task.s;
    double each = p->task.t == ELEMENT_BF16 ? 2 : 4, x = each * s->n * s->h * s->w * s->c;
    double y = each * s->n * s->p * s->q * s->k;
    double w = (p->task.pass == CONV_WEIGHTS ? 4 : each) * s->k * s->r * s->s * (s->c / s->groups);
    const double wanted[CONV_PASSES][OPERANDS] = {[CONV_FORWARD] = {x, w, 4.0 * s->k, y},
                                                  [CONV_DATA] = {y, w, 0, x},
                                                  [CONV_WEIGHTS] = {x, y, 0, w}};
    size_t bytes = 0;
    for (int i = 0; i < OPERANDS; i++) {
        double operand = wanted[p->task.pass][i];
        if (operand > (double)(BYTES_MAX - bytes))
            return false;
        p->at[i] = bytes;
        bytes += ((size_t)operand + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        if (bytes > BYTES_MAX)
            return false;
    }
    p->at[OPERANDS] = bytes;
    p->bytes = bytes + p->way.workspace;
    return p->way.workspace <= BYTES_MAX - bytes;
}

/* Lists what can be run, without running it. */
static int collect(const driver *d, device *dev, const device_facts *f, int64_t deadline_ms,
                   part *list)
{
    char key[KEY_BYTES], winner[WINNER_BYTES];
    int count = 0;
    for (int i = 0; count < PARTS_MAX && cuda_algorithm_at(i, key, winner); i++) {
        part *p = &list[count];
        if (strcmp(winner, WINNER_OWN) == 0 || !cuda_task_of_key(f, key, &p->task))
            continue;
        p->way.workspace = 0;
        if (!place(p)) /* the library is not asked about what is too large already */
            continue;
        if (now_ms() >= deadline_ms)
            break;
        count += d->offer(dev, &p->task, winner, &p->way) == 0 && place(p);
    }
    return count;
}

static void run_part(const driver *d, device *dev, const part *p, char *memory)
{
    conv_operands o = {.a = memory + p->at[0],
                       .b = memory + p->at[1],
                       .bias = (const float *)(const void *)(memory + p->at[2]),
                       .out = memory + p->at[3],
                       .workspace = memory + p->at[OPERANDS],
                       .workspace_bytes = p->way.workspace};
    (void)d->run(dev, &p->task, p->way.id, &o, NULL); /* a failure shows where the way is used */
}

static void run_all(const driver *d, device *dev, int64_t deadline_ms)
{
    device_facts f;
    void *memory;
    size_t most = 0;
    err ignored = ERR_INIT;
    cleanup_free part *list = calloc(PARTS_MAX, sizeof *list);
    if (!list || d->facts(dev, &f, &ignored))
        return;
    int count = collect(d, dev, &f, deadline_ms, list);
    for (int i = 0; i < count; i++)
        most = list[i].bytes > most ? list[i].bytes : most;
    if (most > f.free_bytes / 2) /* a program that starts now may count on the rest */
        return;
    if (!count || cuda_memory_take(d, dev, most, "what is rehearsed", &memory, &ignored))
        return;
    if (d->zero(dev, memory, most, NULL) == 0)
        for (int i = 0; i < count && now_ms() < deadline_ms; i++)
            run_part(d, dev, &list[i], memory);
    if (d->wait(dev, NULL))
        d->wait(dev, NULL); /* clears the failure */
    cuda_memory_give(d, dev, memory, most);
}

void cuda_preload(int ordinal)
{
    int64_t deadline_ms = now_ms() + MS_MAX;
    device *dev;
    err ignored = ERR_INIT;
    if (cuda_device_open(cuda_driver, ordinal, &dev, &ignored))
        return;
    run_all(cuda_driver, dev, deadline_ms);
    cuda_device_close(cuda_driver, ordinal, dev);
}
