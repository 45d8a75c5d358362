/* function_gpu.c: see function_gpu.h. */
#include "function_gpu.h"

#include <dirent.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/contract/nvml.h"
#include "kernels/backend.h"

static bool ready; /* CUDA has started */

static int warm(err *e)
{
    int64_t began_ns = clock_monotonic_ns();
    if (backend_warm("cuda", 0, e) != 0)
        return -1;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    ready = true;
    log_info("GPU %s is ready after %.0f ms", visible ? visible : "0",
             (double)(clock_monotonic_ns() - began_ns) * 1e-6);
    return 0;
}

void function_gpu_warm(void)
{
    const char *wanted = getenv("KUBEML_WARM_GPU");
    err e = ERR_INIT;
    if (wanted && *wanted && warm(&e) != 0)
        log_warn("the GPU is not made ready: %s", e.message);
    if (ready)
        backend_preload("cuda", 0); /* the algorithms in a file of this machine */
}

void function_gpu_preload(const char *known)
{
    if (!ready)
        return;
    int64_t began_ns = clock_monotonic_ns();
    backend_autotune_load("cuda", known);
    backend_preload("cuda", 0);
    log_info("what functions have measured was run on the GPU, for %.0f ms",
             (double)(clock_monotonic_ns() - began_ns) * 1e-6);
}

json_t *function_gpu_told(void)
{
    const char *wanted = getenv("KUBEML_TELL_GPU");
    nvml_gpu gpu = {0};
    err e = ERR_INIT;
    if (!wanted || !*wanted)
        return NULL;
    if (nvml_given(&gpu, &e) != 0) {
        log_warn("nobody is told on which GPU this is: %s", e.message);
        return NULL;
    }
    bool mps = gpu_mps_runs();
    log_info("this is on GPU %s with %.1f GiB%s", gpu.uuid, (double)gpu.memory_bytes / 0x1p30,
             mps ? ", and MPS runs" : "");
    return json_pack("{s:s, s:I, s:b}", "id", gpu.uuid, "memory_bytes",
                     (json_int_t)gpu.memory_bytes, "mps", (int)mps);
}

int function_gpu_open(const char *on, const char *gpu, gpu_share share, err *none, err *e)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    bool insists = strcmp(on, "cuda") == 0;
    if (!insists && strcmp(on, "auto") != 0)
        return 0;
    if (ready && gpu[0] && (!visible || strcmp(visible, gpu) != 0))
        return err_set(e, ERR_CONFLICT,
                       "this process was made ready on GPU %.40s and is wanted on %.40s",
                       visible ? visible : "0", gpu);
    if (ready && gpu_mps_runs() && (share.threads || share.memory_bytes))
        log_warn(
            "CUDA has started: MPS does not hold it to its share; the engine keeps the cap on memory");
    if (ready)
        return 0;
    if (gpu[0] && setenv("CUDA_VISIBLE_DEVICES", gpu, 1) != 0)
        return err_set(e, ERR_NOMEM, "no memory for the GPU's name");
    if (gpu_mps_limit(share, 0, e) != 0)
        return -1;
    if (gpu_mps_runs() && (share.threads || share.memory_bytes))
        log_info("MPS: %s %% of the threads, memory %s",
                 getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") ?: "100",
                 getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") ?: "without a limit");
    if (insists)
        return warm(e);
    if (warm(none) == 0 || none->code != ERR_UNAVAILABLE)
        return 0;
    return err_set(e, none->code, "%s", none->message);
}

static int find_folder(struct dl_phdr_info *info, size_t size, void *to)
{
    char *out = to;
    (void)size;
    if (!info->dlpi_name || !strstr(info->dlpi_name, "/libcudnn") || strlen(info->dlpi_name) > 255)
        return 0;
    snprintf(out, 256, "%s", info->dlpi_name);
    *strrchr(out, '/') = '\0';
    return 1;
}

bool function_gpu_libraries(char out[256])
{
    out[0] = '\0';
    return dl_iterate_phdr(find_folder, out) == 1;
}

static bool listed(char all[][FUNCTION_GPU_DEVICE_BYTES], int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(all[i], name) == 0)
            return true;
    return false;
}

int function_gpu_devices(char out[FUNCTION_GPU_DEVICES_MAX][FUNCTION_GPU_DEVICE_BYTES])
{
    static const char begins[] = "/dev/nvidia";
    DIR *open_files = opendir("/proc/self/fd");
    int count = 0;
    for (const struct dirent *f; open_files && (f = readdir(open_files));) {
        char name[FUNCTION_GPU_DEVICE_BYTES];
        ssize_t n = readlinkat(dirfd(open_files), f->d_name, name, sizeof name - 1);
        if (n < 0 || count == FUNCTION_GPU_DEVICES_MAX)
            continue;
        name[n] = '\0';
        if (strncmp(name, begins, sizeof begins - 1) == 0 && !listed(out, count, name))
            memcpy(out[count++], name, sizeof name);
    }
    if (open_files)
        closedir(open_files);
    return count;
}
