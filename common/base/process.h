/* process.h: runs one program under limits and collects its output. If the calling process ends,
 * even by SIGKILL, the program and its whole process group end too. */
#ifndef KUBEML_PROCESS_H
#define KUBEML_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf.h"
#include "err.h"

enum { PROCESS_RUN_FDS_MAX = 40, PROCESS_RUN_LAST_BYTES = 4096 };

typedef struct process_run {
    char *const *argv; /* argv[0] is a path; NULL at the end */
    char *const *envp;
    const char *folder;                /* working directory; NULL: / */
    /* descriptors that the program inherits, with the same numbers */
    int keep[PROCESS_RUN_FDS_MAX];
    size_t keep_count;
    int64_t deadline_ms;
    int cpu_s;                         /* 0: no limit */
    uint64_t memory_bytes, file_bytes; /* 0: no limit */
    /* Filled in: */
    int status;                  /* of waitpid */
    bool timed_out, output_over; /* the program was killed for this reason */
    /* the end of the output that did not fit into `text`, with a NUL: a program writes the reason
     * of its failure last */
    char last[PROCESS_RUN_LAST_BYTES + 1];
    size_t last_len;
} process_run;

/* Runs the program to its end or the deadline; blocks. Afterwards no process of its group is left.
 * stdin is empty. stdout goes to `out`: more than its maximum ends the program. stderr goes to
 * `text`; output that does not fit is dropped, except its end, which goes to `last`. -1 when the
 * program could not be started (ERR_NOT_FOUND, ERR_IO, ERR_NOMEM). */
int process_run_program(process_run *r, buf *out, buf *text, err *e);

/* Makes a file in memory with these bytes, its offset at the beginning, for `keep`. Returns its
 * descriptor, the caller's to close, or -1. */
int builder_memory_file(const void *bytes, size_t len, err *e);

/* Checks a linked object: 64-bit ELF of this machine, defines `symbol`, and every undefined symbol
 * is the SDK's (kml_*), weak, or versioned (libc, libm). ERR_INVALID names the failed check. */
int builder_object_check(const unsigned char *bytes, size_t len, const char *symbol, err *e);

#endif
