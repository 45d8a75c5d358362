/* fake_nvml.c: an NVML with two GPUs, one of which is ours, and by their names the one of each node
 * of the tests' cluster (GPU-node...). FAKE_NVML=broken: its memory cannot be
 * asked for; FAKE_NVML=alone: it does not tell processes' shares of a GPU's time apart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct gpu {
    const char *uuid;
    unsigned long long used;
} gpu;

static const gpu gpus[] = {{"GPU-0", 1ULL << 30}, {"GPU-1", 3ULL << 30}};
static char node_gpu_uuid[64];
static const gpu node_gpu = {node_gpu_uuid, 0};

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
    unsigned sm, memory, encoder, decoder;
} process_utilization;

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, const gpu **out);
int nvmlDeviceGetHandleByUUID(const char *uuid, const gpu **out);
int nvmlDeviceGetCount_v2(unsigned *out);
int nvmlDeviceGetUUID(const gpu *g, char *out, unsigned bytes);
int nvmlDeviceGetName(const gpu *g, char *out, unsigned bytes);
int nvmlDeviceGetMemoryInfo(const gpu *g, memory_info *out);
int nvmlDeviceGetUtilizationRates(const gpu *g, utilization *out);
int nvmlDeviceGetPowerUsage(const gpu *g, unsigned *milliwatts);
int nvmlDeviceGetComputeRunningProcesses_v3(const gpu *g, unsigned *count, process_info *out);
int nvmlDeviceGetProcessUtilization(const gpu *g, process_utilization *out, unsigned *count,
                                    unsigned long long since);

#define EXPORT __attribute__((visibility("default")))

EXPORT int nvmlInit_v2(void)
{
    return 0;
}

EXPORT int nvmlShutdown(void)
{
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, const gpu **out)
{
    if (index >= sizeof gpus / sizeof *gpus)
        return 6;
    *out = &gpus[index];
    return 0;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, const gpu **out)
{
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        if (strcmp(gpus[i].uuid, uuid) == 0) {
            *out = &gpus[i];
            return 0;
        }
    if (strncmp(uuid, "GPU-node", 8) != 0 || strlen(uuid) >= sizeof node_gpu_uuid)
        return 6;
    snprintf(node_gpu_uuid, sizeof node_gpu_uuid, "%s", uuid);
    *out = &node_gpu;
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = sizeof gpus / sizeof *gpus;
    return 0;
}

EXPORT int nvmlDeviceGetUUID(const gpu *g, char *out, unsigned bytes)
{
    snprintf(out, bytes, "%s", g->uuid);
    return 0;
}

EXPORT int nvmlDeviceGetName(const gpu *g, char *out, unsigned bytes)
{
    snprintf(out, bytes, "Fake %s", g->uuid);
    return 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(const gpu *g, memory_info *out)
{
    const char *how = getenv("FAKE_NVML");
    *out = (memory_info){8ULL << 30, (8ULL << 30) - g->used, g->used};
    return how && strcmp(how, "broken") == 0 ? 15 : 0;
}

EXPORT int nvmlDeviceGetUtilizationRates(const gpu *g, utilization *out)
{
    *out = (utilization){g == &gpus[0] ? 40 : 90, 10};
    return 0;
}

EXPORT int nvmlDeviceGetPowerUsage(const gpu *g, unsigned *milliwatts)
{
    *milliwatts = g == &gpus[0] ? 123400 : 300000;
    return 0;
}

/* Ours is on the first, beside another. */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const gpu *g, unsigned *count, process_info *out)
{
    if (*count < 2)
        return 7;
    out[0] = (process_info){1, 5 << 20, 0, 0};
    out[1] = (process_info){(unsigned)getpid(), 7 << 20, 0, 0};
    *count = g == &gpus[0] ? 2 : 1;
    return 0;
}

/* Two samples of ours among another's; nothing new after them. */
EXPORT int nvmlDeviceGetProcessUtilization(const gpu *g, process_utilization *out, unsigned *count,
                                           unsigned long long since)
{
    const char *how = getenv("FAKE_NVML");
    if (how && strcmp(how, "alone") == 0)
        return 3; /* not supported */
    if (g != &gpus[0] || since >= 2000)
        return 6; /* not found: no samples */
    if (*count < 3)
        return 7;
    out[0] = (process_utilization){(unsigned)getpid(), 1000, 11, 0, 0, 0};
    out[1] = (process_utilization){1, 1500, 28, 0, 0, 0};
    out[2] = (process_utilization){(unsigned)getpid(), 2000, 12, 0, 0, 0};
    *count = 3;
    return 0;
}
