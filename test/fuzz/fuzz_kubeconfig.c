/* fuzz_kubeconfig.c: a kubeconfig, which is YAML; nothing it names is opened or run. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/kube/kube_config.h"
#include "fuzz.h"

FUZZ(kubeconfig)
{
    char path[32];
    kube_config c;
    err e = ERR_INIT;
    int fd = memfd_create("kubeconfig", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (kube_config_read(path, NULL, &c, &e) == 0)
        FUZZ_CHECK(strncmp(c.server, "http", 4) == 0 && c.namespace_name[0]);
    else
        FUZZ_CHECK(e.code == ERR_INVALID || e.code == ERR_NOT_FOUND || e.code == ERR_UNSUPPORTED);
    kube_config_free(&c);
    close(fd);
    return 0;
}
