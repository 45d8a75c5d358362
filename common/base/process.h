/* builder_run.h: runs one program under limits and collects what it writes. It ends with whoever
 * runs it, killed at any moment too, and all of its process group with it. */
#ifndef KUBEML_BUILDER_RUN_H
#define KUBEML_BUILDER_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf.h"
#include "err.h"

enum { BUILDER_RUN_FDS_MAX = 40, BUILDER_RUN_LAST_BYTES = 4096 };

typedef struct builder_run {
    char *const *argv; /* argv[0] is a path; NULL at the end */
    char *const *envp;
    const char *folder;                /* working directory; NULL: / */
    /* descriptors that the program inherits under their numbers */
    int keep[BUILDER_RUN_FDS_MAX];
    size_t keep_count;
    int64_t deadline_ms;
    int cpu_s;             /* 0: no limit, as the next */
    uint64_t memory_bytes, file_bytes;
    /* Filled in: */
    int status;            /* of waitpid */
    bool timed_out, output_over; /* killed for it */
    /* the end of what did not fit into `text`, with a NUL: why a program ended comes last */
    char last[BUILDER_RUN_LAST_BYTES + 1];
    size_t last_len;
} builder_run;

/* Runs to the end or the deadline; then nothing of the process group is left. stdin is empty.
 * stdout goes to `out`: more than its maximum ends the program. stderr goes to `text`: what does
 * not fit is read and dropped but for its end. -1 when the program could not be started (ERR_NOT_FOUND, ERR_IO,
 * ERR_NOMEM). */
int builder_run_program(builder_run *r, buf *out, buf *text, err *e);

/* A file without a name, at its beginning, for `keep`. Its descriptor, or -1. */
int builder_memory_file(const void *bytes, size_t len, err *e);

/* Checks a linked object: 64-bit ELF of this machine, defines `symbol`, and every undefined symbol
 * is the SDK's (kml_*), weak, or versioned (libc, libm). ERR_INVALID says which is not so. */
int builder_object_check(const unsigned char *bytes, size_t len, const char *symbol, err *e);

#endif
