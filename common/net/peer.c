/* peer.c: see peer.h. */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/cleanup.h"

typedef struct end {
    int family;
    uint16_t port; /* port and address in network byte order */
    uint32_t address[4];
} end;

static bool end_of(int (*name)(int, struct sockaddr *, socklen_t *), int fd, end *out)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    if (name(fd, (struct sockaddr *)&at, &len) != 0)
        return false;
    *out = (end){.family = at.ss_family};
    if (at.ss_family == AF_INET) {
        out->port = ((struct sockaddr_in *)&at)->sin_port;
        out->address[0] = ((struct sockaddr_in *)&at)->sin_addr.s_addr;
    } else if (at.ss_family == AF_INET6) {
        out->port = ((struct sockaddr_in6 *)&at)->sin6_port;
        memcpy(out->address, &((struct sockaddr_in6 *)&at)->sin6_addr, sizeof out->address);
    }
    return at.ss_family == AF_INET || at.ss_family == AF_INET6;
}

/* Looks up the socket from exactly `own` to `other`, or the socket that listens at `own`: 1, 0
 * where there is no such socket, or -1. */
static int look_up(const end *own, const end *other, struct inet_diag_msg *out)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 asked;
    } question = {.head = {.nlmsg_len = sizeof question,
                           .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                           .nlmsg_flags = NLM_F_REQUEST},
                  .asked = {.sdiag_family = (uint8_t)own->family,
                            .sdiag_protocol = IPPROTO_TCP,
                            .idiag_states = UINT32_MAX,
                            .id = {.idiag_sport = own->port,
                                   .idiag_dport = other->port,
                                   .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
    memcpy(question.asked.id.idiag_src, own->address, sizeof own->address);
    memcpy(question.asked.id.idiag_dst, other->address, sizeof other->address);
    _Alignas(struct nlmsghdr) char reply[1024];
    const struct nlmsghdr *head = (const struct nlmsghdr *)reply;
    cleanup_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0 || send(fd, &question, sizeof question, 0) != (ssize_t)sizeof question)
        return -1;
    ssize_t n = recv(fd, reply, sizeof reply, MSG_DONTWAIT); /* send has queued the reply */
    if (n >= (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)) && head->nlmsg_type == NLMSG_ERROR)
        return ((const struct nlmsgerr *)NLMSG_DATA(head))->error == -ENOENT ? 0 : -1;
    if (n < (ssize_t)NLMSG_LENGTH(sizeof *out) || head->nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return -1;
    memcpy(out, NLMSG_DATA(head), sizeof *out);
    return 1;
}

bool peer_is_told(int listen_fd)
{
    end own, none = {0};
    struct inet_diag_msg told;
    return end_of(getsockname, listen_fd, &own) && look_up(&own, &none, &told) > 0;
}

int peer_user(int fd, uid_t *user)
{
    end own, other;
    struct inet_diag_msg told;
    if (!end_of(getpeername, fd, &other) || !end_of(getsockname, fd, &own))
        return 0;
    int found = look_up(&other, &own, &told);
    if (found <= 0)
        return found;
    /* The kernel reports root as the user of a socket that no process holds any more. */
    if (told.idiag_inode == 0 || told.id.idiag_dport != own.port)
        return 0;
    *user = told.idiag_uid;
    return 1;
}
