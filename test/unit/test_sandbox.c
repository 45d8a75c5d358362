/* test_sandbox.c: what the walls hold back, and what they say when the kernel does not take them.
 * Of code in a function's process it is test_function_member.c's. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include "common/base/cleanup.h"
#include "function-runtime/sandbox/sandbox.h"
#include "test.h"

enum { NO_FILTERS = 40, ENTERED, REFUSED, NO_LANDLOCK };

/* The kernel takes so many instructions of filters and no more. */
static void fill_with_filters(void)
{
    static struct sock_filter all[BPF_MAXINSNS];
    for (size_t i = 0; i < BPF_MAXINSNS; i++)
        all[i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    for (unsigned short len = BPF_MAXINSNS; len > 0; len /= 2) {
        struct sock_fprog program = {len, all};
        while (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0)
            ;
    }
}

TEST(without_its_filter_nothing_runs)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char report[SANDBOX_REPORT_BYTES];
        err e = ERR_INIT;
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(uint32_t){SECCOMP_RET_ERRNO}) != 0)
            _exit(NO_FILTERS); /* this kernel has none */
        fill_with_filters();
        _exit(sandbox_enter(&(sandbox){0}, report, &e) == 0 ? ENTERED : REFUSED);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_FILTERS)
        test_skip("the kernel has no filters");
    CHECK_INT(WEXITSTATUS(status), REFUSED);
}

/* Which of these calls on another process was let through; -1: the one on itself was not. */
static int slow_down(pid_t other)
{
    cpu_set_t all;
    struct sched_param usual = {0};
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = sizeof attr};
    unsigned long nodes = 1;
    if (sched_getaffinity(0, sizeof all, &all) != 0 ||
        sched_setaffinity(0, sizeof all, &all) != 0 ||
        sched_setaffinity(getpid(), sizeof all, &all) != 0)
        return -1;
    const struct {
        long number, args[6];
    } calls[] = {
        {SYS_setpriority, {PRIO_PROCESS, other, 0}},
        {SYS_sched_setaffinity, {other, sizeof all, (long)&all}},
        {SYS_sched_setscheduler, {other, SCHED_OTHER, (long)&usual}},
        {SYS_sched_setparam, {other, (long)&usual}},
        {SYS_sched_setattr, {other, (long)&attr, 0}},
        {SYS_ioprio_set, {1 /* a process */, other, 0}},
        {SYS_migrate_pages, {other, 8 * sizeof nodes, (long)&nodes, (long)&nodes}},
        {SYS_move_pages, {other, 0, 0, 0, 0, 0}},
        /* as real-time it would slow down all */
        {SYS_sched_setscheduler, {0, SCHED_OTHER, (long)&usual}},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const long *a = calls[i].args;
        if (syscall(calls[i].number, a[0], a[1], a[2], a[3], a[4], a[5]) == 0 || errno != EPERM)
            return (int)i + 1;
    }
    return 0;
}

/* What `tried` gives behind the walls, where it may not do anything to `other`. */
static int behind(const sandbox *walls, int (*tried)(pid_t other))
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char report[SANDBOX_REPORT_BYTES];
        err e = ERR_INIT;
        if (sandbox_enter(walls, report, &e) != 0)
            _exit(REFUSED);
        if (strstr(report, "no seccomp"))
            _exit(NO_FILTERS);
        _exit(tried(getppid()));
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_FILTERS)
        test_skip("the kernel has no filters");
    return WEXITSTATUS(status);
}

TEST(no_other_process_is_slowed_down)
{
    CHECK_INT(behind(&(sandbox){.open_files = 64}, slow_down), 0);
}

/* As a GPU's: its driver opens it again for each piece of memory that the processor sees too. */
TEST(a_device_that_is_named_can_be_opened_again)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char report[SANDBOX_REPORT_BYTES];
        err e = ERR_INIT;
        sandbox s = {.write_folders = {"/dev/null"}, .open_files = 64, .file_bytes = 1};
        if (sandbox_enter(&s, report, &e) != 0)
            _exit(REFUSED);
        if (strstr(report, "no Landlock"))
            _exit(NO_LANDLOCK);
        _exit(open("/dev/null", O_RDWR) >= 0 && open("/dev/zero", O_RDWR) < 0 ? ENTERED : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_LANDLOCK)
        test_skip("the kernel has no Landlock");
    CHECK_INT(WEXITSTATUS(status), ENTERED);
}

/* A descriptor's owner gets a signal of the asker's choice when there is something to read: from
 * whichever thread, and past what is refused of kill. Which of these was let through; -1: one that
 * any program needs was not. */
static int own_by_another(pid_t other)
{
    int ends[2];
    const int nobody = 0;
    struct f_owner_ex owner = {F_OWNER_PID, other};
    if (pipe(ends) != 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0 ||
        ioctl(ends[0], FIONREAD, &(int){0}) != 0)
        return -1;
    const long calls[][4] = {
        {SYS_fcntl, ends[0], F_SETOWN, other},
        {SYS_fcntl, ends[0], F_SETOWN, -other}, /* a group */
        {SYS_fcntl, ends[0], F_SETOWN_EX, (long)&owner},
        {SYS_fcntl, ends[0], F_SETSIG, SIGKILL},
        {SYS_ioctl, ends[0], FIOSETOWN, (long)&nobody},
        {SYS_ioctl, ends[0], SIOCSPGRP, (long)&nobody},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (syscall(calls[i][0], calls[i][1], calls[i][2], calls[i][3]) == 0 || errno != EPERM)
            return (int)i + 1;
    return 0;
}

TEST(no_descriptor_signals_another_process)
{
    CHECK_INT(behind(&(sandbox){.open_files = 64}, own_by_another), 0);
}

/* Which of these was let through. What was made before the walls may not be used behind them: it
 * may be another's. */
static int share(pid_t other)
{
    struct mq_attr small = {.mq_maxmsg = 1, .mq_msgsize = 8};
    struct sembuf up = {.sem_op = 1};
    struct {
        long type;
        char text[8];
    } message = {1, "hello"};
    (void)other;
    const long calls[][6] = {
        {SYS_shmget, IPC_PRIVATE, 4096, IPC_CREAT | 0600},
        {SYS_shmat, 0, 0, 0},
        {SYS_shmctl, 0, IPC_RMID, 0},
        {SYS_semget, IPC_PRIVATE, 1, IPC_CREAT | 0600},
        {SYS_semop, 0, (long)&up, 1},
        {SYS_semtimedop, 0, (long)&up, 1, 0},
        {SYS_semctl, 0, 0, IPC_RMID},
        {SYS_msgget, IPC_PRIVATE, IPC_CREAT | 0600},
        {SYS_msgsnd, 0, (long)&message, sizeof message.text, IPC_NOWAIT},
        {SYS_msgrcv, 0, (long)&message, sizeof message.text, 0, IPC_NOWAIT},
        {SYS_msgctl, 0, IPC_RMID, 0},
        {SYS_mq_open, (long)"kubeml-test", O_CREAT | O_RDWR, 0600, (long)&small},
        {SYS_mq_unlink, (long)"kubeml-test"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const long *a = calls[i];
        if (syscall(a[0], a[1], a[2], a[3], a[4], a[5]) >= 0 || errno != EPERM)
            return (int)i + 1;
    }
    return 0;
}

TEST(nothing_is_shared_by_system_v_or_queues)
{
    CHECK_INT(behind(&(sandbox){.open_files = 64}, share), 0);
}

/* Which of these was let through: the names of what others make in a folder are told by them. */
static int watch(pid_t other)
{
    const long folder = (long)test_tmp(), here = AT_FDCWD;
    char handle[8] = {0}; /* struct file_handle, of no bytes */
    (void)other;
    const long calls[][6] = {
#if defined(__x86_64__)
        {SYS_inotify_init},
#endif
        {SYS_inotify_init1, IN_CLOEXEC},
        {SYS_inotify_add_watch, 0, folder, IN_CREATE},
        {SYS_fanotify_init, FAN_CLASS_NOTIF | FAN_REPORT_DFID_NAME, O_RDONLY},
        {SYS_fanotify_mark, 0, FAN_MARK_ADD, FAN_CREATE, here, folder},
        {SYS_open_by_handle_at, here, (long)handle, O_RDONLY},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const long *a = calls[i];
        if (syscall(a[0], a[1], a[2], a[3], a[4], a[5]) >= 0 || errno != EPERM)
            return (int)i + 1;
    }
    return 0;
}

TEST(no_folder_is_watched)
{
    CHECK_INT(behind(&(sandbox){.open_files = 64}, watch), 0);
}

/* Which kinds of socket there are: 1 Unix, 2 a pair (one of datagrams can be connected anew), 4
 * TCP, 8 an io_uring, which would make any. */
static int sockets(pid_t other)
{
    int ends[2], kinds = 0;
    char parameters[120] = {0}; /* struct io_uring_params */
    (void)other;
    if (socket(AF_UNIX, SOCK_STREAM, 0) >= 0 || errno != EPERM)
        kinds |= 1;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0 || errno != EPERM)
        kinds |= 2;
    if (socket(AF_INET, SOCK_STREAM, 0) >= 0)
        kinds |= 4;
    if (syscall(SYS_io_uring_setup, 1, parameters) >= 0 || errno != EPERM)
        kinds |= 8;
    return kinds;
}

TEST(a_unix_socket_is_made_where_one_is_needed_alone)
{
    CHECK_INT(behind(&(sandbox){.open_files = 64}, sockets), 4);
    CHECK_INT(behind(&(sandbox){.open_files = 64, .unix_sockets = true}, sockets), 1 + 2 + 4);
}

/* Whoever has no Landlock that keeps abstract sockets. */
static bool no_scopes(void)
{
    return syscall(444, NULL, 0, 1) < 6; /* landlock_create_ruleset: its version */
}

/* Of another process, as CUDA has for those that open its memory. */
static struct sockaddr_un abstract_socket;

static int reaches_abstract(pid_t other)
{
    (void)other;
    const struct sockaddr *at = (const struct sockaddr *)&abstract_socket;
    if (connect(socket(AF_UNIX, SOCK_STREAM, 0), at, sizeof abstract_socket) == 0)
        return 1;
    return errno == EPERM ? 2 : 0;
}

TEST(an_abstract_socket_is_reached_where_a_library_listens_alone)
{
    struct sockaddr_un *at = &abstract_socket;
    cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (no_scopes())
        test_skip("the kernel's Landlock does not tell abstract sockets");
    at->sun_family = AF_UNIX;
    snprintf(at->sun_path + 1, sizeof at->sun_path - 1, "kubeml-test-%d", (int)getpid());
    CHECK(bind(fd, (struct sockaddr *)at, sizeof *at) == 0 && listen(fd, 8) == 0);
    sandbox walls = {.open_files = 64, .unix_sockets = true};
    CHECK_INT(behind(&walls, reaches_abstract), 2);
    walls.listens = true;
    CHECK_INT(behind(&walls, reaches_abstract), 1);
}

/* ---- the internet ---------------------------------------------------------------------------- */

/* A listener of the loopback that the walls name, and one that they do not. */
static struct sockaddr_in named, other_port;

static struct sockaddr_in listener(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 && listen(fd, 8) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    return at;
}

/* Whether what a program may do is refused; whoever has no IPv6 has none here. */
static bool ordinary_is_refused(void)
{
    const int kinds[][3] = {
        {AF_INET, SOCK_STREAM, 0},
        {AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP},
        {AF_INET6, SOCK_STREAM, 0},
        {AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0},
        {AF_INET, SOCK_DGRAM, IPPROTO_UDP},
        {AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (socket(kinds[i][0], kinds[i][1], kinds[i][2]) < 0 && errno == EPERM)
            return true;
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
           connect(fd, (struct sockaddr *)&named, sizeof named) != 0 ||
           send(fd, "a", 1, MSG_NOSIGNAL) != 1;
}

/* Which of these kinds of socket is made: most reach a listener of TCP, or past the machine. */
static int odd_sockets(pid_t other)
{
    enum { SMC_FAMILY = 43, SMC = 256, MPTCP = 262 };
    const int kinds[][3] = {
        {AF_INET, SOCK_STREAM, MPTCP},
        {AF_INET6, SOCK_STREAM, MPTCP},
        {AF_INET, SOCK_STREAM | SOCK_CLOEXEC, MPTCP},
        {AF_INET, SOCK_STREAM, SMC},
        {AF_INET, SOCK_STREAM, IPPROTO_SCTP},
        {SMC_FAMILY, SOCK_STREAM, 0},
        {AF_INET, SOCK_RAW, IPPROTO_TCP},
        {AF_INET, SOCK_SEQPACKET, 0},
        {AF_INET, SOCK_DGRAM, IPPROTO_ICMP},
        {AF_VSOCK, SOCK_STREAM, 0},
        {AF_PACKET, SOCK_DGRAM, 0},
        {AF_ALG, SOCK_SEQPACKET, 0},
        {AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG},
    };
    (void)other;
    if (ordinary_is_refused())
        return -1;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (socket(kinds[i][0], kinds[i][1], kinds[i][2]) >= 0 || errno != EPERM)
            return (int)i + 1;
    return 0;
}

/* Which of these ways led to the port that is not named. */
static int reach(pid_t other)
{
    struct iovec text = {(char[]){"a"}, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_name = &other_port,
                                          .msg_namelen = sizeof other_port,
                                          .msg_iov = &text,
                                          .msg_iovlen = 1}};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    const long calls[][7] = {
        {SYS_sendto, fd, (long)text.iov_base, 1, MSG_FASTOPEN | MSG_NOSIGNAL, (long)&other_port,
         sizeof other_port},
        {SYS_sendmsg, fd, (long)&message.msg_hdr, MSG_FASTOPEN},
        {SYS_sendmmsg, fd, (long)&message, 1, MSG_FASTOPEN},
        {SYS_setsockopt, fd, IPPROTO_TCP, TCP_ULP, (long)"smc", 3},
        {SYS_listen, fd, 1},
    };
    (void)other;
    if (ordinary_is_refused())
        return -1;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const long *a = calls[i];
        if (syscall(a[0], a[1], a[2], a[3], a[4], a[5], a[6]) >= 0 || errno != EPERM)
            return (int)i + 1;
    }
    if (syscall(444, NULL, 0, 1) < 4) /* landlock_create_ruleset: its version */
        return 0;
    if (connect(fd, (struct sockaddr *)&other_port, sizeof other_port) == 0 || errno != EACCES)
        return 20;
    /* It only sends later: Landlock is asked now. */
    setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&other_port, sizeof other_port) == 0 || errno != EACCES)
        return 21;
    return 0;
}

TEST(of_the_internet_there_is_the_named_port)
{
    named = listener(), other_port = listener();
    sandbox walls = {.open_files = 64, .tcp_ports = {ntohs(named.sin_port)}};
    CHECK_INT(behind(&walls, odd_sockets), 0);
    CHECK_INT(behind(&walls, reach), 0);
}

static int waits(pid_t other)
{
    (void)other;
    return listen(socket(AF_INET, SOCK_STREAM, 0), 1) == 0;
}

TEST(connections_are_waited_for_where_a_library_does)
{
    CHECK_INT(behind(&(sandbox){.open_files = 64, .listens = true}, waits), 1);
}

/* ---- what files are -------------------------------------------------------------------------- */

static char file[256];
static int file_fd; /* for reading, from before the walls */

/* Which of these was let through; -1: the length of a file of its own was not. */
static int change_a_file(pid_t other)
{
    const struct timespec epoch[2] = {{0}};
    struct fsxattr attributes = {0};
    const uint64_t attribute[2] = {(uintptr_t) "a", 1}, file_attributes[3] = {0};
    const int none = 0, here = AT_FDCWD;
    enum { FCHMODAT2 = 452, SETXATTRAT = 463, REMOVEXATTRAT = 466, FILE_SETATTR = 469 };
    const long uid = getuid(), gid = getgid();
    const long path = (long)file, fd = file_fd, name = (long)"user.kubeml", empty = (long)"";
    const long calls[][6] = {
#if defined(__x86_64__)
        {SYS_chmod, path, 0},
        {SYS_chown, path, uid, gid},
        {SYS_lchown, path, uid, gid},
        {SYS_utime, path, (long)&(struct utimbuf){0}},
        {SYS_utimes, path, (long)&(struct timeval[2]){{0}}},
        {SYS_futimesat, here, path, (long)&(struct timeval[2]){{0}}},
#endif
        {SYS_fchmod, fd, 0},
        {SYS_fchmodat, here, path, 0},
        {FCHMODAT2, fd, empty, 0, AT_EMPTY_PATH},
        {SYS_fchown, fd, uid, gid},
        {SYS_fchownat, here, path, uid, gid, 0},
        {SYS_utimensat, here, path, (long)epoch, 0},
        {SYS_utimensat, fd, 0, (long)epoch, 0},
        {SYS_setxattr, path, name, (long)"a", 1, 0},
        {SYS_lsetxattr, path, name, (long)"a", 1, 0},
        {SYS_fsetxattr, fd, name, (long)"a", 1, 0},
        {SETXATTRAT, here, path, 0, name, (long)attribute},
        {SYS_removexattr, path, name},
        {SYS_lremovexattr, path, name},
        {SYS_fremovexattr, fd, name},
        {REMOVEXATTRAT, here, path, 0, name},
        {FILE_SETATTR, here, path, (long)file_attributes, sizeof file_attributes, 0},
        {SYS_truncate, path, 0},
        {SYS_ioctl, fd, FS_IOC_SETFLAGS, (long)&none},
        {SYS_ioctl, fd, FS_IOC_FSSETXATTR, (long)&attributes},
    };
    (void)other;
    int own = memfd_create("own", MFD_CLOEXEC);
    if (own < 0 || ftruncate(own, 4096) != 0)
        return -1;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const long *a = calls[i];
        if (syscall(a[0], a[1], a[2], a[3], a[4], a[5], sizeof attribute) >= 0 || errno != EPERM)
            return (int)i + 1;
    }
    return 0;
}

TEST(what_a_file_is_stays)
{
    struct stat was, is;
    snprintf(file, sizeof file, "%s/file", test_tmp());
    int fd = open(file, O_CREAT | O_WRONLY, 0640);
    CHECK(fd >= 0 && write(fd, "bytes", 5) == 5 && close(fd) == 0);
    file_fd = open(file, O_RDONLY);
    CHECK(file_fd >= 0 && fstat(file_fd, &was) == 0);
    CHECK_INT(behind(&(sandbox){.open_files = 64}, change_a_file), 0);
    CHECK(stat(file, &is) == 0);
    CHECK_INT(is.st_mode, was.st_mode);
    CHECK_INT(is.st_size, was.st_size);
    CHECK_INT(is.st_mtime, was.st_mtime);
}
