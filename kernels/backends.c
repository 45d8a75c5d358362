/* backends.c: the table of backends; see backend.h.
 *
 * The CUDA backend is an object of its own, lib/kubeml-cuda.so beside the program's folder: CUDA's
 * libraries are half a gigabyte, and only programs that run where there is a GPU load them. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend.h"

static char no_cuda[256] = "no NVIDIA device, or not in this build";

#ifdef BACKEND_CUDA_LINKED /* programs that link it: its tests, check-gpu, bench-gpu */
extern const backend backend_cuda;
static const backend *cuda(void)
{
    return &backend_cuda;
}
#else
#include "backend_seam.h" /* made by the build */

static const backend *loaded;

/* Writes PREFIX/lib/kubeml-cuda.so for the program PREFIX/bin/program or PREFIX/test/program;
 * false: the program's path is not known. */
static bool object_path(char *path, size_t room)
{
    char self[1024];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len <= 0)
        return false;
    self[len] = '\0';
    for (int folders = 0; folders < 2; folders++) {
        char *slash = strrchr(self, '/');
        if (slash)
            *slash = '\0';
    }
    int length = snprintf(path, room, "%s/lib/kubeml-cuda.so", self);
    return length > 0 && (size_t)length < room;
}

static void not_loaded(const char *format, const char *what)
{
    snprintf(no_cuda, sizeof no_cuda, format, what);
    fprintf(stderr, "%s\n", no_cuda);
}

/* Loads the CUDA backend. Without an NVIDIA device there is no reason to. */
static void load(void)
{
    char path[1100];
    if (access("/dev/nvidiactl", F_OK) || !object_path(path, sizeof path) || access(path, R_OK))
        return;
    /* Devices are numbered as NVML does (common/contract/nvml.c), unless the user has set
     * otherwise; CUDA's own order begins with the fastest GPU. */
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed */
    if (!object) {
        not_loaded("the CUDA engine cannot be loaded: %s", dlerror());
        return;
    }
    /* An object of another build may have a table of another form. */
    const char *seam = dlsym(object, "backend_cuda_seam");
    if (!seam || strcmp(seam, BACKEND_SEAM) != 0) {
        not_loaded("the CUDA engine is not used: %s",
                   "lib/kubeml-cuda.so is of another build than this program");
        dlclose(object);
        return;
    }
    loaded = dlsym(object, "backend_cuda");
}

static const backend *cuda(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return loaded;
}
#endif

/* Fastest first: "auto" takes the first that can run here. */
static const backend *const host[] = {
    &backend_cpu,
    &backend_reference,
};
enum { HOSTS = sizeof host / sizeof *host };

const backend *backend_at(int index)
{
    if (cuda() && index-- == 0)
        return cuda();
    return index >= 0 && index < HOSTS ? host[index] : NULL;
}

static const backend *fastest(err *e)
{
    for (int i = 0; backend_at(i); i++)
        if (backend_at(i)->missing(NULL) == 0)
            return backend_at(i);
    err_set(e, ERR_UNSUPPORTED, "no backend can run on this machine");
    return NULL;
}

const backend *backend_find(const char *name, err *e)
{
    if (!name || strcmp(name, "auto") == 0)
        return fastest(e);
    for (int i = 0; backend_at(i); i++) {
        const backend *b = backend_at(i);
        if (strcmp(b->name, name) != 0)
            continue;
        if (b->missing(e) == 0)
            return b;
        err_wrap(e, "backend %s cannot run on this machine", name);
        return NULL;
    }
    if (strcmp(name, "cuda") == 0)
        err_set(e, ERR_UNSUPPORTED, "backend cuda cannot run on this machine: %s", no_cuda);
    else
        err_set(e, ERR_NOT_FOUND, "no backend is named '%.40s'", name);
    return NULL;
}

int backend_warm(const char *name, int device, err *e)
{
    const backend *b = backend_find(name, e);
    return !b || (b->warm && b->warm(device, e)) ? -1 : 0;
}

void backend_preload(const char *name, int device)
{
    err ignored = ERR_INIT;
    const backend *b = backend_find(name, &ignored);
    if (b && b->preload)
        b->preload(device);
}

void backend_autotune_load(const char *name, const char *lines)
{
    err ignored = ERR_INIT;
    const backend *b = backend_find(name, &ignored);
    if (b && b->autotune_load)
        b->autotune_load(lines);
}

char *backend_autotune_dump(const char *name)
{
    err ignored = ERR_INIT;
    const backend *b = backend_find(name, &ignored);
    return b && b->autotune_dump ? b->autotune_dump() : NULL;
}
