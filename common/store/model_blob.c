/* model_blob.c: see model_blob.h. */
#include "model_blob.h"

#include <stdio.h>

#include "common/base/cleanup.h"
#include "common/base/failpoint.h"

/* A job may end between the two reads of a look: then its final model replaces its checkpoints. A
 * job may also be resumed: then a checkpoint replaces the final model. */
enum { LOOKS = 2 };

static int find_newest(store *s, const char *job, char name[STORE_KEY_BYTES], err *e)
{
    char prefix[STORE_KEY_BYTES];
    cleanup_free blob_entry *found = NULL;
    size_t count = 0;
    snprintf(prefix, sizeof prefix, "models/%s/epoch-", job);
    if (store_blob_list(s, prefix, NULL, 0, &found, &count, e))
        return -1;
    if (!count)
        return err_set(e, ERR_NOT_FOUND, "job %s has no model", job);
    snprintf(name, STORE_KEY_BYTES, "%s", found[count - 1].name);
    return 0;
}

/* Looks for the blob; opens it if `out` is not NULL. */
static int look_up(store *s, const char *name, blob **out, err *e)
{
    return out ? store_blob_open(s, name, out, e) : store_blob_find(s, name, NULL, e);
}

static int find(store *s, const char *job, char name[STORE_KEY_BYTES], blob **out, err *e)
{
    err none = ERR_INIT;
    for (int look = 0; look < LOOKS; look++) {
        err_clear(&none);
        snprintf(name, STORE_KEY_BYTES, "models/%s/final", job);
        if (look_up(s, name, out, &none) == 0)
            return 0;
        failpoint("open-model");
        if (none.code == ERR_NOT_FOUND) {
            err_clear(&none);
            if (find_newest(s, job, name, &none) == 0 && look_up(s, name, out, &none) == 0)
                return 0;
        }
        if (none.code != ERR_NOT_FOUND)
            break;
    }
    if (e)
        *e = none;
    return -1;
}

int model_blob_find(store *s, const char *job, char name[STORE_KEY_BYTES], err *e)
{
    return find(s, job, name, NULL, e);
}

int model_blob_open(store *s, const char *job, blob **out, err *e)
{
    char name[STORE_KEY_BYTES];
    return find(s, job, name, out, e);
}
