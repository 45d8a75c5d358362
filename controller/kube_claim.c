/* kube_claim.c: see kube_claim.h. */
#include "kube_claim.h"

#include <string.h>

#include "json_read.h"
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
    /* The version makes the API server refuse whoever comes second. */
    cleanup_json json_t *patch =
        json_pack("{s:{s:s, s:{s:s, s:s*}}}", "metadata", "resourceVersion",
                  kube_object_text(object, "resourceVersion"), "labels", KUBE_LABEL_INSTALL,
                  install, KUBE_LABEL_JOB, job);
    return patch ? kube_merge_patch(c, path, patch, deadline_ms, NULL, e)
                 : err_set(e, ERR_NOMEM, "no memory for a label");
}
