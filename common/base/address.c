/* address.c: see address.h.
 *
 * A pod's packets are dropped until every node has the network policy that admits them, some tens
 * of milliseconds after the pod got its label. The kernel repeats a connection's first packet only
 * after a whole second; a new connection sends its first packet at once. So the first tries are
 * short, and each try is twice as long as the last, for distant hosts. */
#include "address.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "cleanup.h"
#include "clock.h"

enum { FIRST_TRY_MS = 150, BACKLOG_PAUSE_MS = 5 };

int address_unix(const char *path, struct sockaddr_un *to, err *e)
{
    *to = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof to->sun_path)
        return err_set(e, ERR_LIMIT, "socket path over %zu bytes: %s", sizeof to->sun_path - 1,
                       path);
    memcpy(to->sun_path, path, strlen(path) + 1);
    return 0;
}

int address_tcp(const char *host_port, bool passive, struct addrinfo **out, err *e)
{
    char host[ADDRESS_BYTES];
    const char *colon = strrchr(host_port, ':');
    if (!colon || !colon[1] || (size_t)(colon - host_port) >= sizeof host)
        return err_set(e, ERR_INVALID, "not host:port: %s", host_port);
    size_t len = (size_t)(colon - host_port);
    memcpy(host, host_port, len);
    host[len] = '\0';
    char *name = host;
    if (len > 1 && host[0] == '[' && host[len - 1] == ']') {
        host[len - 1] = '\0';
        name++;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0};
    int status = getaddrinfo(*name ? name : NULL, colon + 1, &hints, out);
    if (status)
        return err_set(e, ERR_UNAVAILABLE, "%s: %s", host_port, gai_strerror(status));
    return 0;
}

/* The result of a connection that poll reports as finished: 0 or errno. */
static int outcome(int fd)
{
    int status = 0;
    socklen_t len = sizeof status;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &status, &len) ? errno : status;
}

/* Waits until the connection is made. 0, or errno: ETIMEDOUT at the deadline. */
static int established(int fd, int64_t deadline_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int ready;
    while ((ready = poll(&p, 1, clock_left_ms(deadline_ms))) <= 0) {
        if (ready < 0 && errno != EINTR)
            return errno;
        if (clock_left_ms(deadline_ms) == 0)
            return ETIMEDOUT;
    }
    return outcome(fd);
}

/* Begins a connection. 0 or EINPROGRESS with a socket in *out, or errno. EAGAIN means a Unix socket
 * with a full backlog: no connection has begun, and no event reports when there is room. */
static int begin(const struct sockaddr *to, socklen_t len, int *out)
{
    cleanup_close int fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    int status = connect(fd, to, len) == 0 ? 0 : errno;
    if (status == 0 || status == EINPROGRESS)
        *out = steal_fd(fd);
    return status;
}

/* Makes one connection. 0 or errno, EAGAIN as above. */
static int try_once(const struct sockaddr *to, socklen_t len, int64_t deadline_ms, int *out)
{
    cleanup_close int fd = -1;
    int status = begin(to, len, &fd);
    if (status == EINPROGRESS)
        status = established(fd, deadline_ms);
    if (status == 0)
        *out = steal_fd(fd);
    return status;
}

static int failed(int status, err *e)
{
    if (status == ENOENT)
        return err_set(e, ERR_UNAVAILABLE, "nobody listens");
    if (status == EAGAIN)
        return err_set(e, ERR_TIMEOUT, "who listens takes no more connections");
    if (status == ETIMEDOUT)
        return err_set(e, ERR_TIMEOUT, "no answer by the deadline");
    err_set_errno(e, status, "connect");
    if (e)
        e->code = ERR_UNAVAILABLE; /* for every errno: to dial again may help */
    return -1;
}

static int dial_unix(const char *path, int64_t deadline_ms, err *e)
{
    struct sockaddr_un to;
    int fd = -1, status;
    if (address_unix(path, &to, e))
        return -1;
    while ((status = try_once((struct sockaddr *)&to, sizeof to, deadline_ms, &fd)) == EAGAIN &&
           clock_left_ms(deadline_ms) > 0)
        poll(NULL, 0, BACKLOG_PAUSE_MS);
    return status ? failed(status, e) : fd;
}

static int dial_tcp(const char *host_port, int64_t deadline_ms, err *e)
{
    struct addrinfo *to;
    int fd = -1, status = ETIMEDOUT;
    if (address_tcp(host_port, false, &to, e))
        return -1;
    for (int try_ms = FIRST_TRY_MS; status == ETIMEDOUT; try_ms *= 2) {
        int64_t end_ms = clock_deadline_ms(try_ms);
        bool last = end_ms >= deadline_ms || try_ms > INT32_MAX / 4;
        status = try_once(to->ai_addr, to->ai_addrlen, last ? deadline_ms : end_ms, &fd);
        if (last)
            break;
    }
    freeaddrinfo(to);
    return status ? failed(status, e) : fd;
}

int address_dial(const char *address, int64_t deadline_ms, err *e)
{
    if (strncmp(address, "unix:", 5) == 0)
        return dial_unix(address + 5, deadline_ms, e);
    if (strncmp(address, "tcp:", 4) == 0)
        return dial_tcp(address + 4, deadline_ms, e);
    return err_set(e, ERR_INVALID, "an address begins with unix: or tcp:, not %s", address);
}

static int begin_unix(const char *path, int *fd, int *status, err *e)
{
    struct sockaddr_un to;
    if (address_unix(path, &to, e))
        return -1;
    *status = begin((struct sockaddr *)&to, sizeof to, fd);
    return 0;
}

static int begin_tcp(const char *host_port, int *fd, int *status, err *e)
{
    struct addrinfo *to;
    if (address_tcp(host_port, false, &to, e))
        return -1;
    *status = begin(to->ai_addr, to->ai_addrlen, fd);
    freeaddrinfo(to);
    return 0;
}

int address_dial_begin(const char *address, err *e)
{
    int fd = -1, status = 0;
    if (strncmp(address, "unix:", 5) == 0 ? begin_unix(address + 5, &fd, &status, e)
        : strncmp(address, "tcp:", 4) == 0
            ? begin_tcp(address + 4, &fd, &status, e)
            : err_set(e, ERR_INVALID, "an address begins with unix: or tcp:, not %s", address))
        return -1;
    return fd < 0 ? failed(status, e) : fd;
}

int address_dialled(int fd, err *e)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int ready = poll(&p, 1, 0);
    if (ready == 0 || (ready < 0 && errno == EINTR))
        return 0;
    int status = ready < 0 ? errno : outcome(fd);
    return status ? failed(status, e) : 1;
}
