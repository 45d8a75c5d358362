/* nvml.c: see nvml.h. The declarations are those of NVML's ABI, stable since 2013; of the list of
 * processes the third version, of 2021. */
#include "nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

typedef struct device_handle *device;

typedef struct memory_info {
    unsigned long long total, free, used;
} memory_info;

typedef struct utilization {
    unsigned gpu, memory;
} utilization;

typedef struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process_info;

typedef struct process_utilization {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder; /* per cent */
} process_utilization;

enum { PROCESSES_MAX = 256, SEEN_MS = 2000 /* without a word of it, it computes nothing */ };

struct nvml {
    void *library;
    device gpu;
    int (*shutdown)(void);
    int (*by_index)(unsigned index, device *out);
    int (*by_uuid)(const char *uuid, device *out);
    int (*name)(device, char *out, unsigned bytes);
    int (*memory)(device, memory_info *out);
    int (*busy)(device, utilization *out);
    int (*power)(device, unsigned *milliwatts);
    int (*processes)(device, unsigned *count, process_info *out);
    int (*count)(unsigned *out);
    int (*uuid)(device, char *out, unsigned bytes);
    /* since that time; NULL: an older driver */
    int (*process_busy)(device, process_utilization *out, unsigned *count,
                        unsigned long long since);
    /* what it told last of this process: when by its clock and by ours (0: never), and how busy */
    unsigned long long seen_us;
    int64_t seen_ms;
    unsigned seen_percent;
};

/* By number or UUID, up to the next comma. */
static int find_named(nvml *n, const char *name, device *out, err *e)
{
    char first[NVML_NAME_BYTES], *end;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(name, ","), name);
    unsigned long index = strtoul(first, &end, 10);
    int status = end != first && !*end ? n->by_index((unsigned)index, out) : n->by_uuid(first, out);
    return status == 0
               ? 0
               : err_set(e, ERR_UNAVAILABLE, "NVML knows no GPU \"%s\" (%d)", first, status);
}

static int find_calls(nvml *n, int (**init)(void), err *e)
{
    const struct {
        void *to;
        const char *name;
    } calls[] = {{init, "nvmlInit_v2"},
                 {&n->shutdown, "nvmlShutdown"},
                 {&n->by_index, "nvmlDeviceGetHandleByIndex_v2"},
                 {&n->by_uuid, "nvmlDeviceGetHandleByUUID"},
                 {&n->name, "nvmlDeviceGetName"},
                 {&n->memory, "nvmlDeviceGetMemoryInfo"},
                 {&n->busy, "nvmlDeviceGetUtilizationRates"},
                 {&n->power, "nvmlDeviceGetPowerUsage"},
                 {&n->processes, "nvmlDeviceGetComputeRunningProcesses_v3"},
                 {&n->count, "nvmlDeviceGetCount_v2"},
                 {&n->uuid, "nvmlDeviceGetUUID"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = dlsym(n->library, calls[i].name);
        if (!found)
            return err_set(e, ERR_UNAVAILABLE, "NVML has no %s: the driver is too old",
                           calls[i].name);
        /* C knows no cast from an object's pointer to a function's */
        memcpy(calls[i].to, &found, sizeof found);
    }
    void *optional = dlsym(n->library, "nvmlDeviceGetProcessUtilization");
    memcpy(&n->process_busy, &optional, sizeof optional);
    return 0;
}

static int load(nvml **out, err *e)
{
    const char *named = getenv("KUBEML_NVML");
    nvml *n = calloc(1, sizeof *n);
    int (*init)(void) = NULL;
    if (!n)
        return err_set(e, ERR_NOMEM, "no memory for NVML");
    n->library = dlopen(named && *named ? named : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->library) {
        free(n);
        return err_set(e, ERR_UNAVAILABLE, "there is no NVML: %.200s", dlerror());
    }
    int status = find_calls(n, &init, e);
    int answer = status == 0 ? init() : 0;
    if (status == 0 && answer != 0)
        status = err_set(e, ERR_UNAVAILABLE, "NVML does not start (%d)", answer);
    if (status != 0) {
        dlclose(n->library);
        free(n);
        return -1;
    }
    *out = n;
    return 0;
}

int nvml_open(nvml **out, err *e)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    nvml *n = NULL;
    if (load(&n, e) != 0)
        return -1;
    if (find_named(n, visible ? visible : "0", &n->gpu, e) != 0) {
        nvml_close(n);
        return -1;
    }
    *out = n;
    return 0;
}

static int describe(nvml *n, device gpu, nvml_gpu *out, err *e)
{
    memory_info memory = {0};
    int status = n->uuid(gpu, out->uuid, sizeof out->uuid);
    if (status == 0)
        status = n->memory(gpu, &memory);
    if (status != 0)
        return err_set(e, ERR_UNAVAILABLE, "a GPU does not say what it is (%d)", status);
    out->memory_bytes = memory.total;
    return 0;
}

static int list(nvml *n, nvml_gpu *out, int max, int *count, err *e)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    unsigned all = 0;
    device gpu;
    if (!visible && n->count(&all) != 0)
        return err_set(e, ERR_UNAVAILABLE, "NVML does not say how many GPUs there are");
    for (unsigned i = 0; !visible && i < all && *count < max; i++) {
        if (n->by_index(i, &gpu) != 0)
            return err_set(e, ERR_UNAVAILABLE, "GPU %u does not answer", i);
        if (describe(n, gpu, &out[(*count)++], e) != 0)
            return -1;
    }
    for (const char *at = visible; at && *at && *count < max; at += *at == ',') {
        if (find_named(n, at, &gpu, e) != 0 || describe(n, gpu, &out[(*count)++], e) != 0)
            return -1;
        at += strcspn(at, ",");
    }
    return 0;
}

int nvml_list(nvml_gpu *out, int max, int *count, err *e)
{
    nvml *n = NULL;
    *count = 0;
    if (load(&n, e) != 0)
        return -1;
    int status = list(n, out, max, count, e);
    nvml_close(n);
    return status;
}

/* One name of a GPU or of a part of one, and nothing else: "" where there is none. */
static void read_given(char out[NVML_NAME_BYTES])
{
    const char *told = getenv("NVIDIA_VISIBLE_DEVICES");
    bool named = told && (strncmp(told, "GPU-", 4) == 0 || strncmp(told, "MIG-", 4) == 0);
    const char *share = named ? strstr(told, "::") : NULL;
    size_t len = !named ? 0 : share ? (size_t)(share - told) : strlen(told);
    if (!named || strchr(told, ',') || len >= NVML_NAME_BYTES)
        len = 0;
    snprintf(out, NVML_NAME_BYTES, "%.*s", (int)len, told ? told : "");
}

static int find_given(nvml *n, nvml_gpu *out, err *e)
{
    char name[NVML_NAME_BYTES];
    nvml_gpu all[2];
    device gpu;
    int count = 0;
    read_given(name);
    if (name[0])
        return find_named(n, name, &gpu, e) || describe(n, gpu, out, e) ? -1 : 0;
    if (list(n, all, 2, &count, e) != 0)
        return -1;
    *out = all[0];
    return count == 1
               ? 0
               : err_set(e, ERR_UNAVAILABLE, "there is %s GPU", count ? "more than one" : "no");
}

int nvml_given(nvml_gpu *out, err *e)
{
    nvml *n = NULL;
    if (load(&n, e) != 0)
        return -1;
    int status = find_given(n, out, e);
    nvml_close(n);
    return status;
}

void nvml_close(nvml *n)
{
    if (!n)
        return;
    n->shutdown();
    dlclose(n->library);
    free(n);
}

/* In a container of its own the process has another number than the driver knows. */
static uint64_t own_bytes(nvml *n)
{
    process_info all[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;
    if (n->processes(n->gpu, &count, all) != 0)
        return 0;
    for (unsigned i = 0; i < count && i < PROCESSES_MAX; i++)
        if (all[i].pid == (unsigned)getpid() && all[i].used != ~0ULL)
            return all[i].used;
    return 0;
}

/* The share of the GPU's time in which kernels of this process ran: the newest sample since the
 * last call, which may come seldomer than calls. A process that computes nothing has none; -1 until
 * there is a first, since one that the driver knows by another number has none either. */
static double own_percent(nvml *n)
{
    process_utilization all[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;
    int64_t now_ms = clock_monotonic_ms();
    if (!n->process_busy || n->process_busy(n->gpu, all, &count, n->seen_us) != 0)
        count = 0;
    for (unsigned i = 0; i < count && i < PROCESSES_MAX; i++)
        if (all[i].pid == (unsigned)getpid() && all[i].time_us > n->seen_us && all[i].sm <= 100) {
            n->seen_us = all[i].time_us;
            n->seen_ms = now_ms;
            n->seen_percent = all[i].sm;
        }
    if (!n->seen_ms)
        return -1;
    return now_ms - n->seen_ms <= SEEN_MS ? n->seen_percent : 0;
}

int nvml_read(nvml *n, nvml_sample *out, err *e)
{
    memory_info memory = {0};
    utilization busy = {0};
    unsigned milliwatts = 0;
    *out = (nvml_sample){0};
    int status = n->memory(n->gpu, &memory);
    if (status != 0)
        return err_set(e, ERR_UNAVAILABLE,
                       "the GPU does not say how much of its memory is taken (%d)", status);
    if (n->name(n->gpu, out->name, sizeof out->name) != 0)
        out->name[0] = '\0';
    out->memory_total = memory.total;
    out->memory_bytes = memory.used;
    out->own_bytes = own_bytes(n);
    out->own_percent = own_percent(n);
    if (n->busy(n->gpu, &busy) == 0)
        out->busy_percent = busy.gpu;
    if (n->power(n->gpu, &milliwatts) == 0)
        out->watts = milliwatts / 1000.0;
    return 0;
}
