/* probe.c: loads the CUDA engine's object as programs do, with every symbol bound, and asks it
 * whether it can run here. Exit status 0: it can, or says why not. */
#include <dlfcn.h>
#include <stdio.h>

#include "kernels/backend.h"

int main(int argc, char **argv)
{
    void *object = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const backend *b = object ? dlsym(object, "backend_cuda") : NULL;
    if (!b || !dlsym(object, "backend_cuda_seam")) {
        fprintf(stderr, "probe: %s\n", argc == 2 ? dlerror() : "usage: probe OBJECT");
        return 1;
    }
    err why = ERR_INIT;
    bool missing = b->missing(&why) != 0;
    printf("%s is loaded; %s\n", b->name, missing ? why.message : "a GPU is here");
    return 0;
}
