/* sandbox.h: the sandbox that a runtime enters before it loads user code.
 *
 * The job's dataset, object and connections are open by then. After sandbox_enter the process
 *   - can start threads, but no processes, and run no program
 *   - can signal and trace only itself
 *   - can create or read no file outside the folders named (if the kernel has Landlock)
 *   - can watch no folder, and change no file's mode, owner, times or attributes
 *   - can connect only to the TCP ports named, on any host (if it has Landlock's fourth version)
 *   - can use no other internet protocol than TCP and UDP
 *   - can share no memory and no queue by a name
 *   - can gain no privileges, leaves no core dump, and has its limits.
 * A process cannot leave the sandbox. `report` names the parts that the kernel does not have, for
 * the log. */
#ifndef KUBEML_SANDBOX_H
#define KUBEML_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum { SANDBOX_PORTS_MAX = 64, SANDBOX_FOLDERS_MAX = 32, SANDBOX_REPORT_BYTES = 160 };

typedef struct sandbox {
    uint64_t memory_bytes;  /* private memory (RLIMIT_DATA); 0: no limit, in all four fields */
    uint64_t address_bytes; /* all mapped memory: with shared memory, programs and stacks */
    uint64_t file_bytes;    /* of each file that it writes, its log too */
    int open_files;
    /* Folders or files; NULL ends them. To write: shared-memory segments, and a GPU's devices. */
    const char *write_folders[SANDBOX_FOLDERS_MAX];
    const char *read_folders[SANDBOX_FOLDERS_MAX];
    /* may be NULL; the folder in which it may make files: for tests */
    const char *create_folder;
    uint16_t tcp_ports[SANDBOX_PORTS_MAX]; /* 0 ends them */
    /* The process, or a library, dials Unix sockets again. They cannot be told apart: then the code
     * can connect to any socket of this user. */
    bool unix_sockets;
    bool listens;    /* a library listens for connections, and uses abstract Unix sockets */
    bool files_must; /* fail without Landlock: other users' files are on this machine */
} sandbox;

/* ERR_IO: the kernel refuses a limit that it should accept; ERR_UNSUPPORTED: it lacks a part that
 * is required. Call before there is a thread of user code: for threads that exist (a GPU driver's
 * own) only the limits on system calls hold, not those on files and ports. */
int sandbox_enter(const sandbox *s, char report[SANDBOX_REPORT_BYTES], err *e);
/* Closes every descriptor above 2, except those in `keep`. */
void sandbox_close_others(const int *keep, size_t count);

#endif
