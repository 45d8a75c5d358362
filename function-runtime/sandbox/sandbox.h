/* sandbox.h: what a runtime gives up before it loads somebody's code.
 *
 * Everything the job needs is open by then: the dataset, the object, the connections. After
 * sandbox_enter the process can start threads but no processes, run no program, signal and trace
 * nobody but itself, create or read no file outside the folders named (where the kernel has
 * Landlock), watch no folder, change no file's mode, owner, times or attributes, connect only to
 * the TCP ports named (where it has Landlock's fourth version; on any host), use no other protocol
 * of the internet but UDP, share no memory and no queue by a name, gain no privileges and leave no
 * core dump; its limits stand. There is no way back. What a kernel cannot do is told in `report`,
 * so that the log says how far the walls reach. */
#ifndef KUBEML_SANDBOX_H
#define KUBEML_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum { SANDBOX_PORTS_MAX = 64, SANDBOX_FOLDERS_MAX = 32, SANDBOX_REPORT_BYTES = 160 };

typedef struct sandbox {
    uint64_t memory_bytes;  /* private memory (RLIMIT_DATA); 0: no limit of it, as the next */
    uint64_t address_bytes; /* all that is mapped: shared memory, programs and stacks, too */
    uint64_t file_bytes;    /* any file it writes to, its log too */
    int open_files;
    /* Or files; NULL at the end. To write: shared-memory segments, and a GPU's devices. */
    const char *write_folders[SANDBOX_FOLDERS_MAX];
    const char *read_folders[SANDBOX_FOLDERS_MAX];
    /* may be NULL; where it may make files: for tests */
    const char *create_folder;
    uint16_t tcp_ports[SANDBOX_PORTS_MAX]; /* 0 at the end */
    /* It dials some again, or a library does. Which ones is not held: code that may make them can
     * connect to whatever this user may. */
    bool unix_sockets;
    bool listens;    /* a library waits for connections, and for those by abstract sockets */
    bool files_must; /* not without Landlock: others' files are where it runs */
} sandbox;

/* ERR_IO when the kernel refuses a limit that it should have accepted, ERR_UNSUPPORTED where what
 * must be is not in it. Call before any thread of
 * user code is there: of threads that are (a GPU driver's own) only the calls are walled, not the
 * files. */
int sandbox_enter(const sandbox *s, char report[SANDBOX_REPORT_BYTES], err *e);
/* Closes every descriptor above 2 but those of the list. */
void sandbox_close_others(const int *keep, size_t count);

#endif
