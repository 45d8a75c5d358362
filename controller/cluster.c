/* cluster.c: the table of backends. See cluster.h. */
#include "cluster.h"

#include <string.h>

#include "cluster_kubernetes.h"
#include "cluster_local.h"

static const struct {
    const char *name;
    int (*open)(const void *config, cluster **out, err *e);
} backends[] = {
    {"local", cluster_local_open},
    {"kubernetes", cluster_kubernetes_open},
};

int cluster_open(const char *kind, const void *config, cluster **out, err *e)
{
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (strcmp(backends[i].name, kind) == 0)
            return backends[i].open(config, out, e);
    return err_set(e, ERR_UNSUPPORTED, "there is no cluster backend \"%s\"", kind);
}
