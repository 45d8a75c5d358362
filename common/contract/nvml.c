/* nvml.c: see nvml.h. The declarations follow NVML's ABI, stable since 2013; the list of processes
 * is its third version, of 2021. */
#include "nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"

typedef struct device_handle *device;

typedef struct memory_info {
    unsigned long long total, free, used;
} memory_info;

/* The second version has the driver's own memory apart (`reserved`). */
typedef struct memory_split {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_split;
#define MEMORY_SPLIT_VERSION ((unsigned)sizeof(memory_split) | 2u << 24)

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

enum { PROCESSES_MAX = 256, SEEN_MS = 2000 /* without a sample a process computes nothing */ };
enum { PARTS_MAX = 16, CAPABILITY_LEAST = 8 }; /* scripts/cuda.mk compiles for 8.0 and later */
#ifndef CUDA_MAJOR
#define CUDA_MAJOR 0
#endif
int nvml_cuda_major = CUDA_MAJOR;

/* NVML's return codes */
enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

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
    /* Functions of newer drivers; NULL: the driver is older. */
    int (*process_busy)(device, process_utilization *out, unsigned *count,
                        unsigned long long since);
    int (*mps_processes)(device, unsigned *count, process_info *out);
    int (*memory_split)(device, memory_split *out);
    int (*capability)(device, int *major, int *minor);
    int (*cuda_version)(int *out); /* 12080: 12.8 */
    int (*driver_version)(char *out, unsigned bytes);
    int (*mig_mode)(device, unsigned *now, unsigned *later);
    int (*mig_part)(device, unsigned index, device *out);
    /* the newest utilization sample of this process: its time by NVML's clock and by ours (0:
     * never), and its value */
    unsigned long long seen_us;
    int64_t seen_ms;
    unsigned seen_percent;
};

/* Finds a GPU by a prefix of its UUID, as CUDA does, if the prefix fits one GPU only. */
static int find_begun(nvml *n, const char *name, device *out)
{
    char uuid[NVML_NAME_BYTES];
    unsigned all = 0;
    int found = 0;
    device gpu;
    size_t len = strlen(name);
    if (len <= strlen("GPU-") || strncmp(name, "GPU-", 4) != 0 || n->count(&all) != 0)
        return NOT_FOUND;
    for (unsigned i = 0; i < all; i++)
        if (n->by_index(i, &gpu) == 0 && n->uuid(gpu, uuid, sizeof uuid) == 0 &&
            strncmp(uuid, name, len) == 0 && found++ == 0)
            *out = gpu;
    return found == 1 ? 0 : NOT_FOUND;
}

/* Finds a GPU by number or UUID; `name` ends at the next comma. */
static int find_named(nvml *n, const char *name, device *out, err *e)
{
    char first[NVML_NAME_BYTES], *end;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(name, ","), name);
    unsigned long index = strtoul(first, &end, 10);
    int status = end != first && !*end ? n->by_index((unsigned)index, out) : n->by_uuid(first, out);
    if (status == NOT_FOUND || status == INVALID_ARGUMENT)
        status = find_begun(n, first, out) == 0 ? 0 : status;
    if (status == 0)
        return 0;
    if (status == NOT_FOUND || status == INVALID_ARGUMENT)
        return err_set(e, ERR_UNAVAILABLE, "NVML knows no GPU \"%s\" (%d)", first, status);
    return err_set(e, ERR_UNAVAILABLE, "GPU \"%s\" does not answer (NVML's error %d)", first,
                   status);
}

static int find_calls(nvml *n, int (**init)(void), err *e)
{
    const struct {
        void *to;
        const char *name;
        bool optional;
    } calls[] = {{init, "nvmlInit_v2", false},
                 {&n->shutdown, "nvmlShutdown", false},
                 {&n->by_index, "nvmlDeviceGetHandleByIndex_v2", false},
                 {&n->by_uuid, "nvmlDeviceGetHandleByUUID", false},
                 {&n->name, "nvmlDeviceGetName", false},
                 {&n->memory, "nvmlDeviceGetMemoryInfo", false},
                 {&n->busy, "nvmlDeviceGetUtilizationRates", false},
                 {&n->power, "nvmlDeviceGetPowerUsage", false},
                 {&n->processes, "nvmlDeviceGetComputeRunningProcesses_v3", false},
                 {&n->count, "nvmlDeviceGetCount_v2", false},
                 {&n->uuid, "nvmlDeviceGetUUID", false},
                 {&n->process_busy, "nvmlDeviceGetProcessUtilization", true},
                 {&n->mps_processes, "nvmlDeviceGetMPSComputeRunningProcesses_v3", true},
                 {&n->memory_split, "nvmlDeviceGetMemoryInfo_v2", true},
                 {&n->capability, "nvmlDeviceGetCudaComputeCapability", true},
                 {&n->cuda_version, "nvmlSystemGetCudaDriverVersion_v2", true},
                 {&n->driver_version, "nvmlSystemGetDriverVersion", true},
                 {&n->mig_mode, "nvmlDeviceGetMigMode", true},
                 {&n->mig_part, "nvmlDeviceGetMigDeviceHandleByIndex", true}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = dlsym(n->library, calls[i].name);
        if (!found && !calls[i].optional)
            return err_set(e, ERR_UNAVAILABLE, "NVML has no %s: the driver is too old",
                           calls[i].name);
        /* C has no cast from an object pointer to a function pointer */
        memcpy(calls[i].to, &found, sizeof found);
    }
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
        return err_set(e, ERR_NOT_FOUND, "there is no NVML: %.200s", dlerror());
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

/* ---- which GPUs ------------------------------------------------------------------------------ */

/* Reads NVIDIA_VISIBLE_DEVICES if it is exactly one name of a GPU or of a part; else "". */
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

/* Lists the devices on which CUDA computes: the GPU, or its parts (MIG). Returns their number. */
static int parts_of(nvml *n, device gpu, device out[PARTS_MAX])
{
    unsigned now = 0, later = 0;
    int count = 0;
    out[0] = gpu;
    if (!n->mig_mode || !n->mig_part || n->mig_mode(gpu, &now, &later) != 0 || !now)
        return 1;
    for (unsigned i = 0; i < PARTS_MAX; i++)
        count += n->mig_part(gpu, i, &out[count]) == 0; /* parts of other containers fail */
    return count;
}

int nvml_open(nvml **out, err *e)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char given[NVML_NAME_BYTES];
    device part[PARTS_MAX];
    nvml *n = NULL;
    read_given(given);
    if (load(&n, e) != 0)
        return -1;
    if (find_named(n, visible ? visible : given[0] ? given : "0", &n->gpu, e) != 0) {
        nvml_close(n);
        return -1;
    }
    if (parts_of(n, n->gpu, part) > 0)
        n->gpu = part[0];
    *out = n;
    return 0;
}

/* The memory for programs. NVML does not report memory that the GPU shares with the processor
 * (GB10): the result is then the machine's memory. */
static int ask_size(nvml *n, device gpu, uint64_t *bytes)
{
    memory_split split = {.version = MEMORY_SPLIT_VERSION};
    memory_info memory = {0};
    if (n->memory_split && n->memory_split(gpu, &split) == 0 && split.reserved < split.total) {
        *bytes = split.total - split.reserved;
        return 0;
    }
    int status = n->memory(gpu, &memory);
    *bytes = memory.total;
    if (status != NOT_SUPPORTED)
        return status;
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    *bytes = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
    return *bytes ? 0 : status;
}

/* Checks that the driver runs the engine: a driver runs code of its own CUDA's major version and of
 * older versions. */
static int check_driver(nvml *n, err *e)
{
    static const char *const least[] = {[11] = "450.80", [12] = "525.60", [13] = "580"};
    char driver[NVML_NAME_BYTES] = "";
    int version = 0, major = nvml_cuda_major;
    if (!n->cuda_version || n->cuda_version(&version) != 0 || version / 1000 >= major)
        return 0;
    if (n->driver_version && n->driver_version(driver, sizeof driver) != 0)
        driver[0] = '\0';
    bool known = major < (int)(sizeof least / sizeof *least) && least[major];
    return err_set(
        e, ERR_UNSUPPORTED,
        "the driver%s%s is of CUDA %d.%d, and the engine of CUDA %d: driver %s or later is needed",
        driver[0] ? " " : "", driver, version / 1000, version % 1000 / 10, major,
        known ? least[major] : "of that CUDA");
}

static int describe(nvml *n, device gpu, nvml_gpu *out, err *e)
{
    int major = 0, minor = 0, status = n->uuid(gpu, out->uuid, sizeof out->uuid);
    if (status == 0)
        status = ask_size(n, gpu, &out->memory_bytes);
    if (status != 0)
        return err_set(e, ERR_UNAVAILABLE, "the GPU does not say what it is (NVML's error %d)",
                       status);
    if (n->capability && n->capability(gpu, &major, &minor) == 0 && major < CAPABILITY_LEAST)
        return err_set(e, ERR_UNSUPPORTED, "the GPU has compute capability %d.%d; %d.0 is needed",
                       major, minor, CAPABILITY_LEAST);
    return check_driver(n, e);
}

typedef struct listing {
    nvml_gpu *out;
    int max, count;
    bool each; /* a GPU that does not respond is an error */
} listing;

/* Logs a GPU that is skipped. With `each` it is an error, unless the engine cannot run on the GPU
 * anyway (ERR_UNSUPPORTED). */
static int leave_out(const listing *to, const char *name, const err *why, err *e)
{
    int len = (int)strcspn(name, ",");
    if (to->each && why->code != ERR_UNSUPPORTED)
        return err_set(e, why->code, "GPU %.*s: %s", len, name, why->message);
    log_warn("GPU %.*s is left out: %s", len, name, why->message);
    return 0;
}

static int take(nvml *n, const char *name, listing *to, err *e)
{
    device gpu, part[PARTS_MAX];
    err why = ERR_INIT;
    if (find_named(n, name, &gpu, &why) != 0)
        return leave_out(to, name, &why, e);
    int parts = parts_of(n, gpu, part);
    if (parts == 0) {
        err_set(&why, ERR_UNSUPPORTED, "it is to be divided (MIG), and has no part");
        return leave_out(to, name, &why, e);
    }
    for (int i = 0; i < parts && to->count < to->max; i++) {
        if (describe(n, part[i], &to->out[to->count], &why) == 0)
            to->count++;
        else if (leave_out(to, name, &why, e) != 0)
            return -1;
    }
    return 0;
}

static int list(nvml *n, listing *to, err *e)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    unsigned all = 0;
    char index[16];
    if (!visible && n->count(&all) != 0)
        return err_set(e, ERR_UNAVAILABLE, "NVML does not say how many GPUs there are");
    for (unsigned i = 0; i < all && to->count < to->max; i++) {
        snprintf(index, sizeof index, "%u", i);
        if (take(n, index, to, e) != 0)
            return -1;
    }
    for (const char *at = visible; at && *at && to->count < to->max; at += *at == ',') {
        if (take(n, at, to, e) != 0)
            return -1;
        at += strcspn(at, ",");
    }
    return 0;
}

int nvml_list(bool each, nvml_gpu *out, int max, int *count, err *e)
{
    listing to = {.out = out, .max = max, .each = each};
    nvml *n = NULL;
    *count = 0;
    if (load(&n, e) != 0)
        return -1;
    int status = list(n, &to, e);
    *count = to.count;
    nvml_close(n);
    return status;
}

static int find_given(nvml *n, nvml_gpu *out, err *e)
{
    nvml_gpu all[2];
    listing to = {.out = all, .max = 2, .each = true};
    char name[NVML_NAME_BYTES];
    read_given(name);
    if ((name[0] ? take(n, name, &to, e) : list(n, &to, e)) != 0)
        return -1;
    if (to.count != 1)
        return err_set(e, ERR_UNAVAILABLE, "there is %s GPU", to.count ? "more than one" : "no");
    *out = all[0];
    return 0;
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

/* ---- measurements of one GPU ----------------------------------------------------------------- */

static uint64_t listed_bytes(nvml *n, int (*processes)(device, unsigned *count, process_info *out))
{
    process_info all[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;
    if (!processes || processes(n->gpu, &count, all) != 0)
        return 0;
    for (unsigned i = 0; i < count && i < PROCESSES_MAX; i++)
        if (all[i].pid == (unsigned)getpid() && all[i].used != ~0ULL)
            return all[i].used;
    return 0;
}

/* The GPU memory of this process; 0 in a container with its own PID namespace, where the driver
 * has another number for the process. Clients of MPS are in a list of their own. */
static uint64_t own_bytes(nvml *n)
{
    uint64_t bytes = listed_bytes(n, n->processes);
    return bytes ? bytes : listed_bytes(n, n->mps_processes);
}

/* The share of the GPU's time in which kernels of this process ran, by NVML's newest sample. NVML
 * may make samples more rarely than this function is called, and makes no sample of an idle
 * process: the share is 0 after SEEN_MS without a sample. It is -1 until the first sample, because
 * a process with another number in the driver never gets a sample. */
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
    *out = (nvml_sample){.busy_percent = -1, .watts = -1};
    int status = n->memory(n->gpu, &memory);
    if (status != 0 && status != NOT_SUPPORTED)
        return err_set(e, ERR_UNAVAILABLE,
                       "the GPU does not say how much of its memory is taken (%d)", status);
    if (n->name(n->gpu, out->name, sizeof out->name) != 0)
        out->name[0] = '\0';
    out->memory_total = memory.total;
    out->memory_bytes = memory.used;
    out->own_bytes = own_bytes(n);
    out->own_percent = own_percent(n);
    if (n->busy(n->gpu, &busy) == 0)
        out->busy_percent = (int)busy.gpu;
    if (n->power(n->gpu, &milliwatts) == 0)
        out->watts = milliwatts / 1000.0;
    return 0;
}
