/* fake_nvml.c: an NVML with two GPUs, one of which is ours, and by their names the one of each node
 * of the tests' cluster (GPU-node...). FAKE_NVML is one word of how it is otherwise: "broken", its
 * memory cannot be asked for; "alone", it does not tell processes' shares of a GPU's time apart;
 * "lost", the first GPU does not answer; "old", the first is of another age; "host", the GPUs have
 * no memory of their own; "mps", our process is a client of MPS's; "mig", the first GPU is divided
 * and we may use one part of it; "empty", it is to be divided, and has no part; "reserve", the
 * driver keeps some of the memory for itself; "behind", that is of CUDA 12.8; "long", UUIDs have
 * more digits. */
#include <stdbool.h>
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
static const gpu part = {"MIG-2", 1ULL << 28};

typedef struct memory_info {
    unsigned long long total, free, used;
} memory_info;

typedef struct memory_split {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_split;

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
int nvmlDeviceGetMemoryInfo_v2(const gpu *g, memory_split *out);
int nvmlDeviceGetUtilizationRates(const gpu *g, utilization *out);
int nvmlDeviceGetPowerUsage(const gpu *g, unsigned *milliwatts);
int nvmlDeviceGetComputeRunningProcesses_v3(const gpu *g, unsigned *count, process_info *out);
int nvmlDeviceGetProcessUtilization(const gpu *g, process_utilization *out, unsigned *count,
                                    unsigned long long since);

int nvmlDeviceGetMPSComputeRunningProcesses_v3(const gpu *g, unsigned *count, process_info *out);
int nvmlDeviceGetCudaComputeCapability(const gpu *g, int *major, int *minor);
int nvmlSystemGetCudaDriverVersion_v2(int *out);
int nvmlSystemGetDriverVersion(char *out, unsigned bytes);
int nvmlDeviceGetMigMode(const gpu *g, unsigned *now, unsigned *later);
int nvmlDeviceGetMigDeviceHandleByIndex(const gpu *g, unsigned index, const gpu **out);

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, IS_LOST = 15 };

#define EXPORT __attribute__((visibility("default")))

static bool is(const char *word)
{
    const char *how = getenv("FAKE_NVML");
    return how && strcmp(how, word) == 0;
}

static void write_uuid(const gpu *g, char *out, unsigned bytes)
{
    snprintf(out, bytes, "%s%s", g->uuid, is("long") ? "-8932f937" : "");
}

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
        return NOT_FOUND;
    if (index == 0 && is("lost"))
        return IS_LOST;
    *out = &gpus[index];
    return 0;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, const gpu **out)
{
    if (is("mig") && strcmp(uuid, part.uuid) == 0) {
        *out = &part;
        return 0;
    }
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        char whole[64];
        write_uuid(&gpus[i], whole, sizeof whole);
        if (strcmp(whole, uuid) == 0) {
            *out = &gpus[i];
            return 0;
        }
    }
    if (strncmp(uuid, "GPU-node", 8) != 0 || strlen(uuid) >= sizeof node_gpu_uuid)
        return NOT_FOUND;
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
    write_uuid(g, out, bytes);
    return 0;
}

EXPORT int nvmlDeviceGetName(const gpu *g, char *out, unsigned bytes)
{
    snprintf(out, bytes, "Fake %s", g->uuid);
    return 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(const gpu *g, memory_info *out)
{
    if (is("host"))
        return NOT_SUPPORTED;
    unsigned long long total = (g == &part ? 2ULL : 8ULL) << 30;
    *out = (memory_info){total, total - g->used, g->used};
    return is("broken") ? IS_LOST : 0;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(const gpu *g, memory_split *out)
{
    memory_info all;
    if (out->version != (sizeof *out | 2u << 24))
        return 25; /* another version of the argument is meant */
    if (!is("reserve"))
        return NOT_SUPPORTED; /* as of a driver before 510 */
    nvmlDeviceGetMemoryInfo(g, &all);
    *out = (memory_split){out->version, all.total, 600ULL << 20, all.free, all.used};
    return 0;
}

EXPORT int nvmlDeviceGetUtilizationRates(const gpu *g, utilization *out)
{
    if (g == &part)
        return NOT_SUPPORTED;
    *out = (utilization){g == &gpus[0] ? 40 : 90, 10};
    return 0;
}

EXPORT int nvmlDeviceGetPowerUsage(const gpu *g, unsigned *milliwatts)
{
    if (g == &part)
        return NOT_SUPPORTED;
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
    *count = (g == &gpus[0] || g == &part) && !is("mps") ? 2 : 1;
    return 0;
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(const gpu *g, unsigned *count,
                                                      process_info *out)
{
    if (g != &gpus[0] || !is("mps") || *count < 1)
        return NOT_SUPPORTED;
    out[0] = (process_info){(unsigned)getpid(), 9 << 20, 0, 0};
    *count = 1;
    return 0;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(const gpu *g, int *major, int *minor)
{
    bool old = g == &gpus[0] && is("old");
    *major = old ? 7 : 9;
    *minor = old ? 5 : 0;
    return 0;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    *out = is("behind") ? 12080 : 99000;
    return 0;
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned bytes)
{
    snprintf(out, bytes, "570.86.15");
    return 0;
}

EXPORT int nvmlDeviceGetMigMode(const gpu *g, unsigned *now, unsigned *later)
{
    if (g == &part)
        return NOT_SUPPORTED;
    *now = *later = g == &gpus[0] && (is("mig") || is("empty"));
    return 0;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(const gpu *g, unsigned index, const gpu **out)
{
    if (g != &gpus[0] || index != 2 || !is("mig"))
        return NOT_FOUND;
    *out = &part;
    return 0;
}

/* Two samples of ours among another's; nothing new after them. */
EXPORT int nvmlDeviceGetProcessUtilization(const gpu *g, process_utilization *out, unsigned *count,
                                           unsigned long long since)
{
    if (is("alone"))
        return NOT_SUPPORTED;
    if (g != &gpus[0] || since >= 2000)
        return NOT_FOUND; /* no samples */
    if (*count < 3)
        return 7;
    out[0] = (process_utilization){(unsigned)getpid(), 1000, 11, 0, 0, 0};
    out[1] = (process_utilization){1, 1500, 28, 0, 0, 0};
    out[2] = (process_utilization){(unsigned)getpid(), 2000, 12, 0, 0, 0};
    *count = 3;
    return 0;
}
