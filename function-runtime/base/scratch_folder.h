/* scratch_folder.h: a temporary folder that does not outlive its process, however that ends: by a
 * signal, in a crash, or by exit() in somebody's code. */
#ifndef KUBEML_SCRATCH_FOLDER_H
#define KUBEML_SCRATCH_FOLDER_H

#include <sys/types.h>

#include "common/base/err.h"
#include "common/base/fs.h"

typedef struct scratch_folder {
    char path[FS_PATH_BYTES];
    pid_t keeper; /* a child of its own: what it waits for on `line` is the end of this process */
    int line;
} scratch_folder;

/* An empty "<name>XXXXXX" in TMPDIR, or in /tmp. ERR_IO, ERR_LIMIT. */
int scratch_folder_open(scratch_folder *f, const char *name, err *e);
/* Removes it with all that is in it; what is open or mapped stays so. ERR_IO. */
int scratch_folder_close(scratch_folder *f, err *e);

#endif
