/* kube_claim.c: see kube_claim.h. */
#include "kube_claim.h"

#include <stdio.h>
#include <string.h>

#include "common/base/json_read.h"
#include "common/base/log.h"
#include "kube_pods.h"

bool kube_claim_is_others(const json_t *object, const char *install)
{
    const char *whose = kube_object_label(object, KUBE_LABEL_INSTALL);
    return *whose && strcmp(whose, install) != 0;
}

int kube_claim_note(kube_client *c, const char *path, const json_t *object, const char *install,
                    const char *job, int64_t deadline_ms, err *e)
{
    if (strcmp(kube_object_label(object, KUBE_LABEL_INSTALL), install) == 0 &&
        (!job || strcmp(kube_object_label(object, KUBE_LABEL_JOB), job) == 0))
        return 0;
    /* With this version the API server refuses the second writer. */
    cleanup_json json_t *patch =
        json_pack("{s:{s:s, s:{s:s, s:s*}}}", "metadata", "resourceVersion",
                  kube_object_text(object, "resourceVersion"), "labels", KUBE_LABEL_INSTALL,
                  install, KUBE_LABEL_JOB, job);
    return patch ? kube_merge_patch(c, path, patch, deadline_ms, NULL, e)
                 : err_set(e, ERR_NOMEM, "no memory for a label");
}

static int get_namespace(kube_client *c, const char *name, int64_t deadline_ms, json_t **out,
                         err *e)
{
    char path[300];
    snprintf(path, sizeof path, "/api/v1/namespaces/%s", name);
    return kube_get(c, path, NULL, deadline_ms, out, e);
}

int kube_claim_namespace(kube_client *c, const char *name, int64_t deadline_ms,
                         char uid[KUBE_UID_BYTES], err *e)
{
    cleanup_json json_t *namespace = NULL;
    err why = ERR_INIT;
    if (get_namespace(c, name, deadline_ms, &namespace, &why)) {
        if (why.code == ERR_CANCELLED || err_retry_may_help(why.code)) {
            *e = why;
            return -1;
        }
        log_warn("namespace %s has no uid for us, and is not told from one of that name before it: "
                 "%s",
                 name, why.message);
    }
    snprintf(uid, KUBE_UID_BYTES, "%s", kube_object_text(namespace, "uid"));
    return 0;
}

/* False also where the namespace cannot be read: its deletion may have taken our right to read it
 * first. */
bool kube_claim_stands(kube_client *c, const char *name, const char *uid, int64_t deadline_ms)
{
    cleanup_json json_t *namespace = NULL;
    if (!*uid)
        return true;
    return get_namespace(c, name, deadline_ms, &namespace, NULL) == 0 &&
           strcmp(kube_object_text(namespace, "uid"), uid) == 0 &&
           !*kube_object_text(namespace, "deletionTimestamp");
}
