/* builder.h: compiles an uploaded function's C files into a shared object, once, in a sandbox.
 *
 * The compiler runs under bubblewrap. It sees the compiler's files, the SDK's headers and the
 * sources, but no home, /etc, /proc or network, and can write to a small tmpfs only. CPU time,
 * memory, file size and output are limited, and a deadline kills the whole process tree. Without
 * bubblewrap nothing is compiled, unless the caller sets BUILDER_SANDBOX_NONE. That is for a
 * container that is the sandbox itself, and for `kubeml run` on the user's own files.
 *
 * A hostile source (an include of /etc/shadow, an include bomb, minutes of compiling, gigabytes of
 * memory) is an error within the limits. builder_compile blocks its thread for up to wall_ms; it
 * may be called from several threads at once and keeps no state between calls. */
#ifndef KUBEML_BUILDER_H
#define KUBEML_BUILDER_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    BUILDER_FILES_MAX = 32,
    BUILDER_NAME_BYTES = 64,
    BUILDER_SOURCE_BYTES_MAX = 1 << 20,  /* all files together */
    BUILDER_OBJECT_BYTES_MAX = 16 << 20,
    BUILDER_TEXT_BYTES_MAX = 256 << 10,  /* of the compiler's messages */
    BUILDER_DIAGNOSTICS_MAX = 50,
    BUILDER_KEY_BYTES = 65,              /* SHA-256 in hex and a NUL */
    /* Defaults of builder_limits. */
    BUILDER_WALL_MS = 30000,
    BUILDER_CPU_S = 20,
    BUILDER_PROCESSES = 64,
};
#define BUILDER_MEMORY_BYTES ((uint64_t)1 << 30)
#define BUILDER_SYMBOL "kubeml_function" /* defined by KUBEML_FUNCTION(...) */

/* One file. The name is without a folder, [A-Za-z0-9_][A-Za-z0-9_.-]*, and ends in .c or .h. */
typedef struct builder_source {
    const char *name;
    const char *text;
    size_t len;
} builder_source;

/* 0: the default. Memory is each process's address space. */
typedef struct builder_limits {
    int wall_ms, cpu_s, processes;
    uint64_t memory_bytes;
} builder_limits;

typedef enum builder_sandbox { BUILDER_SANDBOX_BWRAP, BUILDER_SANDBOX_NONE } builder_sandbox;

typedef struct builder_config {
    const char *include_dir; /* the folder of kubeml.h; required */
    const char *compiler;    /* NULL: gcc, cc or clang of /usr/bin */
    const char *bwrap;       /* NULL: found in PATH */
    const char *tmp_dir;     /* for BUILDER_SANDBOX_NONE; NULL: TMPDIR or /tmp */
    builder_sandbox sandbox;
    int abi;                 /* the SDK's; part of the key */
} builder_config;

typedef struct builder_diagnostic {
    char file[BUILDER_NAME_BYTES]; /* as uploaded; "" where the compiler names none */
    int line, column;              /* 0 where unknown */
    char severity[16];             /* "error", "warning", "note" */
    char message[224];
} builder_diagnostic;

typedef struct builder_result {
    char key[BUILDER_KEY_BYTES];
    unsigned char *object; /* NULL unless the build succeeded */
    size_t object_bytes;
    builder_diagnostic *diagnostics;
    size_t diagnostic_count, error_count;
    char *text; /* all messages of the compiler, as a terminal would show them; or "" */
    double seconds;
} builder_result;

/* The ABI version of the SDK's headers in that folder; 0: there are no headers. */
int builder_abi(const char *include_dir);

/* Checks the sources' names, number and sizes. ERR_INVALID, ERR_LIMIT. */
int builder_check(const builder_source *files, size_t n, err *e);

/* The key under which the object is stored: SHA-256 of the sources (in order of their names), the
 * SDK's ABI, the compiler's version, the flags and the instruction set. Runs the compiler once for
 * its version. builder_check's errors; ERR_UNSUPPORTED: there is no compiler. */
int builder_key(const builder_source *files, size_t n, const builder_config *c,
                char key[BUILDER_KEY_BYTES], err *e);

/* Compiles and links; blocks. `limits` NULL: the defaults. *out is set in every case, and the
 * caller frees it with builder_result_free; after a failure it has the compiler's messages. Errors:
 *   ERR_INVALID      a file's name; the first compile error as "file.c:12:5: error: ...";
 *                    KUBEML_FUNCTION is missing; an undefined symbol
 *   ERR_LIMIT        too large; time, memory or output used up
 *   ERR_UNSUPPORTED  no bubblewrap, no compiler, no namespaces
 *   ERR_NOMEM        also when the compiler was killed by none of the limits
 *   ERR_IO */
int builder_compile(const builder_source *files, size_t n, const builder_limits *limits,
                    const builder_config *c, builder_result *out, err *e);
void builder_result_free(builder_result *r);

#endif
