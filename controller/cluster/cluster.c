/* cluster.c: the table of backends. See cluster.h. */
#include "cluster.h"

#include <stdlib.h>
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

int cluster_list(cluster *c, pod **out, size_t *count, err *e)
{
    pod *all = NULL;
    for (size_t room = 0;; room = *count) {
        free(all);
        all = calloc(room ? room : 1, sizeof *all);
        if (!all)
            return err_set(e, ERR_NOMEM, "no memory for %zu pods", room);
        if (c->ops->list(c, all, room, count, e)) {
            free(all);
            return -1;
        }
        if (*count <= room)
            break;
    }
    *out = all;
    return 0;
}

int cluster_open(const char *kind, const void *config, cluster **out, err *e)
{
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (strcmp(backends[i].name, kind) == 0)
            return backends[i].open(config, out, e);
    return err_set(e, ERR_UNSUPPORTED, "there is no cluster backend \"%s\"", kind);
}
