/* kube_end.c: see kube_end.h. */
#include "kube_end.h"

#include <stdio.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "kube_client.h"
#include "kube_pods.h"

/* Deletes all pods that are not ending yet; with `late`, all pods, without grace. Returns their
 * number, -1 on error; `last` receives the name of one. */
static int end_all(kube_client *c, const char *pods, const char *install, bool late,
                   int64_t deadline_ms, char *last, size_t bytes, err *e)
{
    char query[200], path[500];
    cleanup_json json_t *list = NULL;
    json_t *one;
    size_t i;
    snprintf(query, sizeof query, "labelSelector=kubeml.dev%%2Finstall%%3D%.100s", install);
    if (kube_get(c, pods, query, deadline_ms, &list, e))
        return -1;
    const json_t *items = json_object_get(list, "items");
    json_array_foreach(items, i, one) {
        snprintf(last, bytes, "%s", kube_object_text(one, "name"));
        snprintf(path, sizeof path, "%.200s/%.250s", pods, last);
        bool asked = *kube_object_text(one, "deletionTimestamp");
        if ((late || !asked) &&
            kube_delete(c, path, NULL, late ? 0 : KUBE_END_GRACE_S, deadline_ms, e))
            return -1;
    }
    return (int)json_array_size(items);
}

static int end_and_wait(kube_client *c, const kube_config *access, const char *install,
                        int64_t late_ms, int64_t deadline_ms, int *count, err *e)
{
    char pods[200], last[260] = "";
    snprintf(pods, sizeof pods, "/api/v1/namespaces/%.100s/pods", access->namespace_name);
    *count = 0;
    for (int left; (left = end_all(c, pods, install, clock_left_ms(late_ms) == 0, deadline_ms, last,
                                   sizeof last, e)) != 0;) {
        bool over = clock_left_ms(deadline_ms) == 0;
        if (left < 0 && !(over && last[0]))
            return -1;
        *count = left > *count ? left : *count;
        if (over)
            return err_set(e, ERR_TIMEOUT, "pod %.100s does not end", last);
        kube_client_sleep(c, KUBE_END_EVERY_MS);
    }
    return 0;
}

int kube_end_pods(const kube_config *access, const char *install, int64_t late_ms,
                  int64_t deadline_ms, int *count, err *e)
{
    kube_client *c;
    if (kube_client_open(access, &c, e))
        return -1;
    int status = end_and_wait(c, access, install, late_ms, deadline_ms, count, e);
    kube_client_close(c);
    return status;
}
