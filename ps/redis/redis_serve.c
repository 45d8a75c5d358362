/* redis_serve.c: see redis_serve.h. */
#include "redis_serve.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/fs.h"
#include "redis_config.h"

int redis_serve_password(const char *folder, bool draw, char out[REDIS_SERVER_PASSWORD_BYTES],
                         err *e)
{
    char path[REDIS_SERVER_PATH_BYTES];
    cleanup_buf buf text;
    size_t len = REDIS_SERVER_PASSWORD_BYTES - 1;
    buf_init(&text, REDIS_SERVER_PASSWORD_BYTES);
    snprintf(path, sizeof path, "%.230s/password", folder);
    if (draw && !fs_exists(path))
        return redis_server_password_new(out, e) || fs_write_file(path, out, len, 0600, e) ? -1 : 0;
    if (fs_read_file(path, &text, e))
        return -1;
    if (text.len != len)
        return err_set(e, ERR_CORRUPT, "%.200s holds no password", path);
    memcpy(out, text.bytes, len);
    out[len] = '\0';
    explicit_bzero(text.bytes, text.len);
    return 0;
}

int redis_serve_keep_user(const char *folder, const char *rules, err *e)
{
    char path[REDIS_SERVER_PATH_BYTES];
    snprintf(path, sizeof path, "%.230s/user", folder);
    return fs_write_file(path, rules, strlen(rules), 0600, e);
}

static int read_user(redis_config *c, err *e)
{
    char path[REDIS_SERVER_PATH_BYTES];
    cleanup_buf buf text;
    snprintf(path, sizeof path, "%.230s/user", c->folder);
    buf_init(&text, sizeof c->user - 1);
    if (!fs_exists(path))
        return 0;
    if (fs_read_file(path, &text, e))
        return -1;
    memcpy(c->user, text.bytes, text.len);
    c->user[text.len] = '\0';
    return 0;
}

/* The configuration goes in through standard input, which argv and files do not show. */
static int feed(const redis_config *c, err *e)
{
    cleanup_buf buf text;
    buf_init(&text, REDIS_CONFIG_BYTES_MAX);
    if (redis_config_write(c, &text, e))
        return -1;
    int fd = memfd_create("redis.conf", 0);
    if (fd < 0)
        return err_set_errno(e, errno, "redis: memfd");
    if (fs_write_all(fd, text.bytes, text.len, "redis.conf", e))
        return -1;
    if (lseek(fd, 0, SEEK_SET) < 0 || dup2(fd, STDIN_FILENO) < 0)
        return err_set_errno(e, errno, "redis: standard input");
    close(fd);
    return 0;
}

int redis_serve_ping(const char *folder, int64_t deadline_ms, err *e)
{
    redis_config c = {0};
    const redis_server_spec spec = {.folder = folder};
    int status =
        redis_config_set(&c, &spec, e) || redis_serve_password(folder, false, c.password, e)
            ? -1
            : redis_config_ping(&c, deadline_ms, e);
    explicit_bzero(&c, sizeof c);
    return status;
}

uint64_t redis_serve_memory(const char *told, const char *limit)
{
    uint64_t bytes;
    if (!told || sscanf(told, "%" SCNu64, &bytes) != 1) {
        cleanup_fclose FILE *f = fopen(limit, "re");
        if (!f || fscanf(f, "%" SCNu64, &bytes) != 1) /* "max": none */
            return 0;
    }
    return bytes / 10 * 9;
}

int redis_serve(const redis_server_spec *spec, err *e)
{
    redis_config c = {0};
    if (redis_config_set(&c, spec, e))
        return -1;
    if (mkdir(c.folder, 0700) != 0 && errno != EEXIST)
        return err_set_errno(e, errno, "redis: folder %s", c.folder);
    unlink(c.address + strlen("unix:"));
    if (redis_serve_password(c.folder, true, c.password, e) || read_user(&c, e) ||
        feed(&c, e))
        return -1;
    execlp(c.program, "redis-server", "-", (char *)NULL);
    return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", c.program,
                   strerror(errno));
}
