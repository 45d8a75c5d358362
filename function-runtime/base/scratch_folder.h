/* scratch_folder.h: a temporary folder that is removed when its process ends, in any way: by a
 * signal, in a crash, or by exit() in user code. */
#ifndef KUBEML_SCRATCH_FOLDER_H
#define KUBEML_SCRATCH_FOLDER_H

#include <sys/types.h>

#include "common/base/err.h"
#include "common/base/fs.h"

typedef struct scratch_folder {
    char path[FS_PATH_BYTES];
    pid_t keeper; /* the child process that removes the folder */
    int line;     /* a pipe to the child; its end shows the end of this process */
} scratch_folder;

/* Makes an empty folder "<name>XXXXXX" in TMPDIR, or in /tmp. ERR_IO, ERR_LIMIT. */
int scratch_folder_open(scratch_folder *f, const char *name, err *e);
/* Removes the folder with its content; open and mapped files stay usable. ERR_IO. */
int scratch_folder_close(scratch_folder *f, err *e);

#endif
