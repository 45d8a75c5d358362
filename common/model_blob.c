/* model_blob.c: see model_blob.h. */
#include "model_blob.h"

#include <stdio.h>

#include "cleanup.h"
#include "failpoint.h"

/* The job may run, and end between two looks: then its final model takes the place of its
 * checkpoints. Or it was resumed, and a checkpoint takes that of the final model. */
enum { LOOKS = 2 };

static int open_newest(store *s, const char *job, blob **out, err *e)
{
    char prefix[STORE_KEY_BYTES];
    cleanup_free blob_entry *found = NULL;
    size_t count = 0;
    snprintf(prefix, sizeof prefix, "models/%s/epoch-", job);
    if (store_blob_list(s, prefix, NULL, 0, &found, &count, e))
        return -1;
    return count ? store_blob_open(s, found[count - 1].name, out, e)
                 : err_set(e, ERR_NOT_FOUND, "job %s has no model", job);
}

int model_blob_open(store *s, const char *job, blob **out, err *e)
{
    char final[STORE_KEY_BYTES];
    err none = ERR_INIT;
    snprintf(final, sizeof final, "models/%s/final", job);
    for (int look = 0; look < LOOKS; look++) {
        err_clear(&none);
        if (store_blob_open(s, final, out, &none) == 0)
            return 0;
        failpoint("open-model");
        if (none.code == ERR_NOT_FOUND) {
            err_clear(&none);
            if (open_newest(s, job, out, &none) == 0)
                return 0;
        }
        if (none.code != ERR_NOT_FOUND)
            break;
    }
    if (e)
        *e = none;
    return -1;
}
