/* sandbox.c: see sandbox.h. Landlock's and seccomp's numbers are the kernel's ABI. This file
 * defines numbers that a distribution's headers may not have yet. */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/cleanup.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* a sanitizer's shadow memory is larger than any limit */
#else
#define SANITIZED 0
#endif

#if defined(__SANITIZE_ADDRESS__)
/* Turns off the search for leaks at the end, which forks and traces: the sandbox forbids both. */
static bool inside;
int __lsan_is_turned_off(void);
__attribute__((visibility("default"))) int __lsan_is_turned_off(void)
{
    return inside;
}
#define note_inside() (inside = true)
#else
#define note_inside() ((void)0)
#endif

/* ---- limits ---------------------------------------------------------------------------------- */

/* Lowers a limit; a lower limit stays. */
static int limit(__rlimit_resource_t what, uint64_t value, const char *name, err *e)
{
    struct rlimit now;
    if (value == 0)
        return 0;
    if (getrlimit(what, &now) != 0)
        return err_set_errno(e, errno, "limit of %s", name);
    struct rlimit want = {(rlim_t)value, (rlim_t)value};
    if (now.rlim_max != RLIM_INFINITY && now.rlim_max < want.rlim_max)
        want.rlim_max = want.rlim_cur = now.rlim_max;
    if (setrlimit(what, &want) != 0)
        return err_set_errno(e, errno, "limit of %s", name);
    return 0;
}

static int enter_limits(const sandbox *s, err *e)
{
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    if (limit(RLIMIT_DATA, SANITIZED ? 0 : s->memory_bytes, "memory", e) != 0 ||
        limit(RLIMIT_AS, SANITIZED ? 0 : s->address_bytes, "addresses", e) != 0 ||
        limit(RLIMIT_FSIZE, s->file_bytes, "file size", e) != 0 ||
        limit(RLIMIT_NOFILE, (uint64_t)(s->open_files > 0 ? s->open_files : 0), "open files", e) !=
            0)
        return -1;
    return 0;
}

/* ---- Landlock: files and TCP ----------------------------------------------------------------- */

enum {
    LL_CREATE_RULESET = 444,
    LL_ADD_RULE = 445,
    LL_RESTRICT_SELF = 446,
    LL_VERSION = 1,
    LL_RULE_PATH = 1,
    LL_RULE_PORT = 2,
};

#define LL_EXECUTE     (UINT64_C(1) << 0)
#define LL_WRITE_FILE  (UINT64_C(1) << 1)
#define LL_READ_FILE   (UINT64_C(1) << 2)
#define LL_READ_DIR    (UINT64_C(1) << 3)
#define LL_FILE_ALL_1  ((UINT64_C(1) << 13) - 1) /* all rights of the first version */
#define LL_MAKE_FILE   (UINT64_C(1) << 8)
#define LL_REFER       (UINT64_C(1) << 13)
#define LL_TRUNCATE    (UINT64_C(1) << 14)
#define LL_NET_ALL     UINT64_C(3) /* bind, connect */
#define LL_NET_CONNECT UINT64_C(2)
#define LL_SCOPE_ABSTRACT_UNIX UINT64_C(1)
#define LL_SCOPE_SIGNAL        UINT64_C(2)

struct ll_ruleset {
    uint64_t files, net, scoped;
};
struct ll_path {
    uint64_t allowed;
    int32_t fd;
} __attribute__((packed));
struct ll_port {
    uint64_t allowed, port;
};

static int allow_folder(int ruleset, const char *path, uint64_t allowed, err *e)
{
    cleanup_close int fd = open(path, O_PATH | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return errno == ENOENT ? 0 : err_set_errno(e, errno, "%s", path);
    if (!S_ISDIR(st.st_mode))
        allowed &= ~LL_READ_DIR;
    struct ll_path rule = {allowed, fd};
    if (syscall(LL_ADD_RULE, ruleset, LL_RULE_PATH, &rule, 0) != 0)
        return err_set_errno(e, errno, "Landlock rule for %s", path);
    return 0;
}

static int allow_all(int ruleset, const sandbox *s, long abi, err *e)
{
    uint64_t truncate = abi >= 3 ? LL_TRUNCATE : 0;
    for (int i = 0; i < SANDBOX_FOLDERS_MAX && s->write_folders[i]; i++)
        /* No right to list the folder: its names cannot be guessed, so other jobs' files stay
         * unknown. */
        if (allow_folder(ruleset, s->write_folders[i], LL_READ_FILE | LL_WRITE_FILE | truncate,
                         e) != 0)
            return -1;
    for (int i = 0; i < SANDBOX_FOLDERS_MAX && s->read_folders[i]; i++)
        if (allow_folder(ruleset, s->read_folders[i], LL_READ_FILE | LL_READ_DIR | LL_EXECUTE, e) !=
            0)
            return -1;
    if (s->create_folder &&
        allow_folder(ruleset, s->create_folder, LL_WRITE_FILE | LL_MAKE_FILE | truncate, e) != 0)
        return -1;
    for (int i = 0; abi >= 4 && i < SANDBOX_PORTS_MAX && s->tcp_ports[i]; i++) {
        struct ll_port rule = {LL_NET_CONNECT, s->tcp_ports[i]};
        if (syscall(LL_ADD_RULE, ruleset, LL_RULE_PORT, &rule, 0) != 0)
            return err_set_errno(e, errno, "Landlock rule for port %u", s->tcp_ports[i]);
    }
    return 0;
}

/* Returns the version in force; 0: the kernel has no Landlock; -1: error. */
static long enter_landlock(const sandbox *s, err *e)
{
    long abi = syscall(LL_CREATE_RULESET, NULL, 0, LL_VERSION);
    if (abi < 1)
        return 0;
    struct ll_ruleset rules = {.files = LL_FILE_ALL_1};
    size_t len = sizeof rules.files;
    if (abi >= 2)
        rules.files |= LL_REFER;
    if (abi >= 3)
        rules.files |= LL_TRUNCATE;
    if (abi >= 4) {
        rules.net = LL_NET_ALL;
        len = 2 * sizeof(uint64_t);
    }
    if (abi >= 6) {
        /* CUDA opens other processes' memory by abstract sockets */
        rules.scoped = LL_SCOPE_SIGNAL | (s->listens ? 0 : LL_SCOPE_ABSTRACT_UNIX);
        len = sizeof rules;
    }
    cleanup_close int ruleset = (int)syscall(LL_CREATE_RULESET, &rules, len, 0);
    if (ruleset < 0)
        return err_set_errno(e, errno, "Landlock");
    if (allow_all(ruleset, s, abi, e) != 0)
        return -1;
    if (syscall(LL_RESTRICT_SELF, ruleset, 0) != 0)
        return err_set_errno(e, errno, "Landlock");
    return abi;
}

/* ---- seccomp: calls that Landlock does not restrict ------------------------------------------ */

#if defined(__x86_64__)
#define ARCH_HERE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH_HERE AUDIT_ARCH_AARCH64
#endif

enum { FCHMODAT2 = 452, SETXATTRAT = 463, REMOVEXATTRAT = 466, FILE_SETATTR = 469 };

#define LOAD(field)                                                                                \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, (what))
#define REFUSE(code) RETURN(SECCOMP_RET_ERRNO | (code))
/* Skips `yes` steps if the loaded word is `value`, and `no` steps otherwise. */
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (yes), (no))
/* Refuses a call; other calls go on after this. */
#define DENY(nr) IS(nr, 0, 1), REFUSE(EPERM)
/* Refuses a call if an argument has this bit. */
#define DENY_BIT(nr, arg, bit)                                                                     \
    IS(nr, 0, 4), LOAD(args[arg]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (bit), 0, 1),              \
        REFUSE(EPERM), RETURN(SECCOMP_RET_ALLOW)

/* 1: the filter is in force; 0: the kernel has no seccomp; -1: error. */
static int enter_seccomp(const sandbox *s, err *e)
{
    const uint32_t self = (uint32_t)getpid(), type_bits = 0xf, no_call = UINT32_MAX;
    const uint32_t unix_family = s->unix_sockets ? AF_UNIX : AF_UNSPEC;
    struct sock_filter filter[] = {
        LOAD(arch),
        IS(ARCH_HERE, 1, 0),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
#if defined(__x86_64__)
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1), /* x32 */
        REFUSE(EPERM),
        DENY(SYS_fork),
        DENY(SYS_vfork),
#endif
        DENY(SYS_execve),
        DENY(SYS_execveat),
        DENY(SYS_ptrace),
        DENY(SYS_process_vm_readv),
        DENY(SYS_process_vm_writev),
        DENY(SYS_pidfd_open),
        DENY(SYS_pidfd_send_signal),
        DENY(SYS_pidfd_getfd),
        DENY(SYS_rt_sigqueueinfo),
        DENY(SYS_rt_tgsigqueueinfo),
        DENY(SYS_tkill),
        /* These change shares of the machine, of other processes too. */
        DENY(SYS_setpriority),
        DENY(SYS_sched_setscheduler),
        DENY(SYS_sched_setparam),
        DENY(SYS_sched_setattr),
        DENY(SYS_ioprio_set),
        DENY(SYS_migrate_pages),
        DENY(SYS_move_pages),
        DENY(SYS_unshare),
        DENY(SYS_setns),
        DENY(SYS_mount),
        DENY(SYS_bpf),
        DENY(SYS_perf_event_open),
        DENY(SYS_userfaultfd),
        DENY(SYS_keyctl),
        DENY(SYS_add_key),
        /* System V memory is in no limit of the process, and stays when it ends; processes of the
         * same user share these objects. */
        DENY(SYS_shmget),
        DENY(SYS_shmat),
        DENY(SYS_shmctl),
        DENY(SYS_semget),
        DENY(SYS_semop),
        DENY(SYS_semtimedop),
        DENY(SYS_semctl),
        DENY(SYS_msgget),
        DENY(SYS_msgsnd),
        DENY(SYS_msgrcv),
        DENY(SYS_msgctl),
        DENY(SYS_mq_open),
        DENY(SYS_mq_unlink),
    /* Landlock does not restrict watches, which show the names of new files in a folder that may
     * not be listed. A file handle opens a file without its name. */
#if defined(__x86_64__)
        DENY(SYS_inotify_init),
#endif
        DENY(SYS_inotify_init1),
        DENY(SYS_inotify_add_watch),
        DENY(SYS_fanotify_init),
        DENY(SYS_fanotify_mark),
        DENY(SYS_open_by_handle_at),
        /* These change the mode, owner, times or attributes of any file of this user, by its path
         * or by a read-only descriptor. truncate changes its length, which Landlock restricts from
         * its third version on. */
        DENY(SYS_fchmod),
        DENY(SYS_fchmodat),
        DENY(FCHMODAT2),
        DENY(SYS_fchown),
        DENY(SYS_fchownat),
        DENY(SYS_utimensat),
        DENY(SYS_setxattr),
        DENY(SYS_lsetxattr),
        DENY(SYS_fsetxattr),
        DENY(SETXATTRAT),
        DENY(SYS_removexattr),
        DENY(SYS_lremovexattr),
        DENY(SYS_fremovexattr),
        DENY(REMOVEXATTRAT),
        DENY(FILE_SETATTR),
        DENY(SYS_truncate),
#if defined(__x86_64__)
        DENY(SYS_chmod),
        DENY(SYS_chown),
        DENY(SYS_lchown),
        DENY(SYS_utime),
        DENY(SYS_utimes),
        DENY(SYS_futimesat),
#endif
        /* The requests of io_uring are calls that no filter sees. */
        DENY(SYS_io_uring_setup),
        /* The C library falls back to clone, whose flags a filter can see. */
        IS(SYS_clone3, 0, 1),
        REFUSE(ENOSYS),
        IS(SYS_clone, 0, 4),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0),
        REFUSE(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        /* A process may read and lower its own limits, and put its thread on a core, but not those
         * of other processes of the same user. A filter does not know which other threads belong to
         * the process: they are refused too. */
        IS(SYS_prlimit64, 1, 0),
        IS(SYS_sched_setaffinity, 0, 5),
        LOAD(args[0]),
        IS(0, 2, 0),
        IS(self, 1, 0),
        REFUSE(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        /* A process may signal itself: for abort, and to end by a signal. */
        IS(SYS_kill, 1, 0),
        IS(SYS_tgkill, 0, 4),
        LOAD(args[0]),
        IS(self, 1, 0),
        REFUSE(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        /* Landlock restricts no Unix socket with a path, and, in old kernels, no abstract one (a
         * pair of datagram sockets can be connected again). Of protocols with ports it restricts
         * TCP alone, but MPTCP and SMC reach the same listeners. Finding names needs UDP and
         * netlink. */
        IS(SYS_socket, 1, 0),
        IS(SYS_socketpair, 0, 17),
        LOAD(args[0]),
        IS(unix_family, 14, 0),
        IS(AF_NETLINK, 0, 2),
        LOAD(args[2]),
        IS(NETLINK_ROUTE, 11, 10),
        IS(AF_INET, 1, 0),
        IS(AF_INET6, 0, 8),
        LOAD(args[1]),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, type_bits),
        IS(SOCK_STREAM, 1, 0),
        IS(SOCK_DGRAM, 0, 4),
        LOAD(args[2]),
        IS(0, 3, 0),
        IS(IPPROTO_TCP, 2, 0),
        IS(IPPROTO_UDP, 1, 0),
        REFUSE(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        /* TCP_ULP turns a TCP socket into an SMC socket. */
        IS(SYS_setsockopt, 0, 6),
        LOAD(args[1]),
        IS(IPPROTO_TCP, 0, 3),
        LOAD(args[2]),
        IS(TCP_ULP, 0, 1),
        REFUSE(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        /* TCP Fast Open connects while it sends, without Landlock's check. */
        DENY_BIT(SYS_sendto, 3, MSG_FASTOPEN),
        DENY_BIT(SYS_sendmsg, 2, MSG_FASTOPEN),
        DENY_BIT(SYS_sendmmsg, 3, MSG_FASTOPEN),
        /* Without a bind, which Landlock refuses, listen gets a port from the kernel. */
        DENY(s->listens ? no_call : SYS_listen),
        /* The owner of a descriptor gets a signal, of any kind, when there is data: so a process
         * could signal others. */
        IS(SYS_fcntl, 0, 6),
        LOAD(args[1]),
        IS(F_SETOWN, 2, 0),
        IS(F_SETOWN_EX, 1, 0),
        IS(F_SETSIG, 0, 1),
        REFUSE(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        /* The first two set the owner too; the others set a file's attributes. */
        IS(SYS_ioctl, 0, 7),
        LOAD(args[1]),
        IS(FIOSETOWN, 3, 0),
        IS(SIOCSPGRP, 2, 0),
        IS(FS_IOC_SETFLAGS, 1, 0),
        IS(FS_IOC_FSSETXATTR, 0, 1),
        REFUSE(EPERM),
        RETURN(SECCOMP_RET_ALLOW),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {(unsigned short)(sizeof filter / sizeof *filter), filter};
    /* The filter holds for threads that CUDA has started, too; Landlock cannot do so. */
    long failed =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    if (failed == 0)
        return 1;
    if (failed > 0)
        return err_set(e, ERR_IO, "seccomp: thread %ld has a filter of its own", failed);
    return errno == ENOSYS || errno == EINVAL ? 0 : err_set_errno(e, errno, "seccomp");
}

int sandbox_enter(const sandbox *s, char report[SANDBOX_REPORT_BYTES], err *e)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return err_set_errno(e, errno, "no-new-privileges");
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (enter_limits(s, e) != 0)
        return -1;
    long landlock = enter_landlock(s, e);
    if (landlock < 0)
        return -1;
    if (landlock == 0 && s->files_must)
        return err_set(e, ERR_UNSUPPORTED,
                       "this kernel has no Landlock, which keeps code from files");
    int seccomp = enter_seccomp(s, e);
    if (seccomp < 0)
        return -1;
    note_inside();
    snprintf(report, SANDBOX_REPORT_BYTES, "limits, no new privileges, %s%ld, %s",
             landlock ? "Landlock " : "no Landlock in this kernel: ", landlock,
             seccomp ? "seccomp" : "no seccomp in this kernel");
    return 0;
}

static bool listed(const int *keep, size_t count, int fd)
{
    for (size_t i = 0; i < count; i++)
        if (keep[i] == fd)
            return true;
    return false;
}

void sandbox_close_others(const int *keep, size_t count)
{
    int last = 2;
    for (size_t i = 0; i < count; i++)
        last = keep[i] > last ? keep[i] : last;
    for (int fd = 3; fd < last; fd++)
        if (!listed(keep, count, fd))
            close(fd);
    syscall(SYS_close_range, (unsigned)last + 1, ~0U, 0);
}
