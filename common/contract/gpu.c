/* gpu.c: see gpu.h. */
#include "gpu.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    uint64_t unit;
} units[] = {{"Ti", (uint64_t)1 << 40},
             {"Gi", (uint64_t)1 << 30},
             {"Mi", (uint64_t)1 << 20},
             {"Ki", (uint64_t)1 << 10},
             {"", 1}};
enum { UNITS = sizeof units / sizeof *units };

int gpu_memory_parse(const char *text, uint64_t *bytes, err *e)
{
    char *end = NULL;
    size_t digits = strspn(text, "0123456789.");
    double number = digits && text[0] != '.' ? strtod(text, &end) : NAN;
    bool whole = end == text + digits; /* refuses hexadecimal numbers and exponents */
    for (int i = 0; whole && i < UNITS; i++) {
        double value = number * (double)units[i].unit;
        if (strcmp(end, units[i].name) == 0 && value >= 1 && value < 0x1p53) {
            *bytes = (uint64_t)value;
            return 0;
        }
    }
    return err_set(e, ERR_INVALID,
                   "\"%.32s\" is no size of memory such as 2Gi, 512Mi or 1073741824", text);
}

void gpu_memory_text(uint64_t bytes, char out[GPU_MEMORY_TEXT_BYTES])
{
    int i = 0;
    while (i < UNITS - 1 && (bytes < units[i].unit || bytes % units[i].unit))
        i++;
    snprintf(out, GPU_MEMORY_TEXT_BYTES, "%" PRIu64 "%s", bytes / units[i].unit, units[i].name);
}

/* ---- placing --------------------------------------------------------------------------------- */

static const char *const policy_names[] = {"best-fit", "spread", "pack"};

int gpu_policy_parse(const char *text, gpu_policy *out, err *e)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(text, policy_names[i]) == 0) {
            *out = (gpu_policy)i;
            return 0;
        }
    return err_set(e, ERR_INVALID, "\"%.32s\": must be \"best-fit\", \"spread\" or \"pack\"", text);
}

uint64_t gpu_share_bytes(const gpu_state *gpu, gpu_share want)
{
    return want.memory_bytes ? want.memory_bytes : gpu->memory_bytes / GPU_UNCAPPED_PARTS;
}

int gpu_engine_bytes(uint64_t share_bytes, uint64_t context_bytes, uint64_t *out, err *e)
{
    uint64_t half = share_bytes / 2, taken = half < GPU_CONTEXT_BYTES ? half : GPU_CONTEXT_BYTES;
    if (context_bytes)
        taken = context_bytes + GPU_LATER_BYTES;
    *out = 0;
    if (share_bytes && context_bytes && share_bytes < taken + GPU_ENGINE_LEAST)
        return err_set(e, ERR_LIMIT,
                       "a share of %.0f MiB of the GPU's memory is too small: CUDA's context takes "
                       "%.0f MiB of it, and more than %.0f MiB are needed",
                       (double)share_bytes / 0x1p20, (double)context_bytes / 0x1p20,
                       (double)(taken + GPU_ENGINE_LEAST) / 0x1p20);
    if (share_bytes)
        *out = share_bytes - taken;
    return 0;
}

static uint64_t free_bytes(const gpu_state *g)
{
    return g->taken_bytes < g->memory_bytes ? g->memory_bytes - g->taken_bytes : 0;
}

static bool fits(const gpu_state *g, gpu_share want)
{
    return g->memory_bytes && gpu_share_bytes(g, want) <= free_bytes(g) &&
           (g->time_sliced || g->threads_taken + want.threads <= 100);
}

static bool better(gpu_policy policy, const gpu_state *a, const gpu_state *b)
{
    if (policy == GPU_SPREAD)
        return a->functions != b->functions ? a->functions < b->functions
                                            : free_bytes(a) > free_bytes(b);
    if (policy == GPU_PACK && a->functions != b->functions)
        return a->functions > b->functions;
    return free_bytes(a) < free_bytes(b);
}

int gpu_place(gpu_policy policy, const gpu_state *gpus, int count, gpu_share want)
{
    assert(count >= 0 && count <= GPU_COUNT_MAX && want.threads >= 0 && want.threads <= 100);
    int best = -1;
    for (int i = 0; i < count; i++)
        if (fits(&gpus[i], want) && (best < 0 || better(policy, &gpus[i], &gpus[best])))
            best = i;
    return best;
}

void gpu_book(gpu_state *gpu, gpu_share want)
{
    gpu->taken_bytes += gpu_share_bytes(gpu, want);
    gpu->threads_taken += gpu->time_sliced ? 0 : want.threads;
    gpu->functions++;
}

/* ---- MPS ------------------------------------------------------------------------------------- */

bool gpu_mps_runs(void)
{
    const char *named = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[512];
    int len =
        snprintf(path, sizeof path, "%s/control", named && *named ? named : "/tmp/nvidia-mps");
    return len > 0 && (size_t)len < sizeof path && access(path, W_OK) == 0;
}

static int set(const char *name, const char *value, err *e)
{
    return setenv(name, value, 1) ? err_set(e, ERR_NOMEM, "no memory for %s", name) : 0;
}

int gpu_mps_limit(gpu_share share, int device, err *e)
{
    char text[64];
    if (!gpu_mps_runs())
        return 0;
    if (share.threads) {
        snprintf(text, sizeof text, "%d", share.threads);
        if (set("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", text, e))
            return -1;
    }
    if (share.memory_bytes) { /* MPS counts in M and G, powers of two */
        uint64_t mib = (share.memory_bytes + ((uint64_t)1 << 20) - 1) >> 20;
        snprintf(text, sizeof text, "%d=%" PRIu64 "M", device, mib);
        if (set("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", text, e))
            return -1;
    }
    return 0;
}
