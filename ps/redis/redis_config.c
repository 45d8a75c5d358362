/* redis_config.c: see redis_config.h. */
#include "redis_config.h"

#include <errno.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/modelstore/redis_link.h"
#include "common/modelstore/redis_program.h"

enum { SOCKET_PATH_MAX = 100, WORDS_MAX = REDIS_USER_BYTES / 2 + 1 };

/* ---- configuration -------------------------------------------------------------------------- */

/* Texts that stand in quotes in the configuration. */
static int copy_plain(char *out, const char *in, const char *what, err *e)
{
    size_t len = in ? strlen(in) : 0;
    if (len >= REDIS_SERVER_PATH_BYTES)
        return err_set(e, ERR_LIMIT, "redis: %s is too long", what);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)in[i] < ' ' || in[i] == '"' || in[i] == '\\')
            return err_set(e, ERR_INVALID, "redis: %s holds a quote or a control character", what);
    memcpy(out, in ? in : "", len + 1);
    return 0;
}

int redis_server_password_new(char out[REDIS_SERVER_PASSWORD_BYTES], err *e)
{
    unsigned char random[32];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return err_set_errno(e, errno, "getrandom");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(out + 2 * i, 3, "%02x", random[i]);
    return 0;
}

int redis_config_set(redis_config *r, const redis_server_spec *s, err *e)
{
    if (copy_plain(r->program, s->program ? s->program : REDIS_PROGRAM, "the program", e) ||
        copy_plain(r->folder, s->folder, "the folder", e) ||
        copy_plain(r->module, s->module, "the module", e) ||
        copy_plain(r->segment_dir, s->segment_dir, "the segment folder", e) ||
        copy_plain(r->listen, s->listen, "the address", e))
        return -1;
    if (!r->folder[0] || strlen(r->folder) > SOCKET_PATH_MAX - strlen("/redis.sock"))
        return err_set(e, ERR_INVALID, "redis: the folder %s is no path for a socket", r->folder);
    snprintf(r->address, sizeof r->address, "unix:%.200s/redis.sock", r->folder);
    r->memory_bytes = s->memory_bytes;
    r->merge_threads = s->merge_threads;
    return 0;
}

static bool is_another(const char *host, size_t len)
{
    static const char *const own[] = {"127.0.0.1", "localhost", "0.0.0.0", "*", "::", "::1", "::*"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strlen(own[i]) == len && memcmp(own[i], host, len) == 0)
            return false;
    return true;
}

/* Beside an address of the network also on the loopback: that is where a port-forward comes in. */
static int write_listen(const redis_config *r, buf *b, err *e)
{
    const char *colon = strrchr(r->listen, ':');
    if (!r->listen[0])
        return buf_printf(b, e, "port 0\n");
    if (!colon || colon == r->listen)
        return err_set(e, ERR_INVALID, "redis: \"%s\" is not host:port", r->listen);
    return buf_printf(b, e, "bind \"%.*s\"%s\nport \"%s\"\n", (int)(colon - r->listen), r->listen,
                      is_another(r->listen, (size_t)(colon - r->listen)) ? " 127.0.0.1" : "",
                      colon + 1);
}

int redis_config_write(const redis_config *r, buf *b, err *e)
{
    if (write_listen(r, b, e) ||
        buf_printf(b, e,
                   "unixsocket \"%s\"\nunixsocketperm 600\ndir \"%s\"\nlogfile \"\"\n"
                   "daemonize no\nsave \"\"\nappendonly no\nalways-show-logo no\n"
                   "requirepass %s\nmaxmemory %llu\nmaxmemory-policy noeviction\n",
                   r->address + strlen("unix:"), r->folder, r->password,
                   (unsigned long long)r->memory_bytes))
        return -1;
    if (r->module[0] &&
        buf_printf(b, e, "loadmodule \"%s\" threads %d segment-dir \"%s\"\n", r->module,
                   r->merge_threads, r->segment_dir[0] ? r->segment_dir : "/dev/shm"))
        return -1;
    return r->user[0] ? buf_printf(b, e, "user %s\n", r->user) : 0;
}

/* ---- the functions' user ------------------------------------------------------------------- */

static bool name_ok(const char *name)
{
    size_t len = name ? strlen(name) : 0;
    if (len == 0 || len > 63)
        return false;
    for (size_t i = 0; i < len; i++)
        if (!(((name[i] | 32) >= 'a' && (name[i] | 32) <= 'z') ||
              (name[i] >= '0' && name[i] <= '9') || name[i] == '-' || name[i] == '_'))
            return false;
    return true;
}

/* The rules, as of ACL SETUSER. Where the module merges all of it is one key, and the module
 * decides; else reference and state can be read, and only what is published can be written. */
static void user_rules(redis_config *r, const char *user, const char *password, const char *job,
                       bool module)
{
    unsigned char sum[SHA256_DIGEST_LENGTH];
    char hex[2 * SHA256_DIGEST_LENGTH + 1];
    SHA256((const unsigned char *)password, strlen(password), sum);
    for (size_t i = 0; i < sizeof sum; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    int len =
        snprintf(r->user, sizeof r->user, "%s reset on #%s resetchannels -@all +ping ", user, hex);
    char *rest = r->user + len;
    size_t room = sizeof r->user - (size_t)len;
    if (module)
        snprintf(rest, room,
                 "+kubeml.version +kubeml.write +kubeml.publish +kubeml.status +kubeml.read "
                 "+kubeml.layout ~kubeml:{%s}:model",
                 job);
    else
        snprintf(rest, room,
                 "+get +set +mget +del +watch +unwatch +multi +exec +discard "
                 "%%R~kubeml:{%s}:state %%R~kubeml:{%s}:layout %%R~kubeml:{%s}:ref:* "
                 "%%RW~kubeml:{%s}:pub:*",
                 job, job, job, job);
}

int redis_config_user(redis_config *r, const char *user, const char *password, const char *job,
                      bool module, err *e)
{
    if (!name_ok(user) || !name_ok(job))
        return err_set(e, ERR_INVALID, "redis: \"%.60s\" or \"%.60s\" is no name for a user or job",
                       user, job);
    user_rules(r, user, password, job, module);
    return 0;
}

/* ---- a running server ------------------------------------------------------------------------ */

/* Logs in as the default user and calls it with the words of `rules`, which are cut up. */
static int call_once(const redis_config *r, const char *name, char *rules, int64_t deadline_ms,
                     err *e)
{
    const char *words[WORDS_MAX] = {name};
    int count = 1;
    redis_link *l;
    cleanup_command redis_command c = {NULL, 0};
    for (char *word, *rest = rules; count < WORDS_MAX && (word = strsep(&rest, " "));)
        if (word[0])
            words[count++] = word;
    if (redis_command_words(&c, count, words, NULL, e) ||
        redis_link_dial(r->address, "default", r->password, deadline_ms, &l, e))
        return -1;
    int rc = redis_link_call(l, &c, NULL, deadline_ms, e);
    redis_link_close(l);
    return rc;
}

int redis_config_ping(const redis_config *r, int64_t deadline_ms, err *e)
{
    char none[] = "";
    return call_once(r, "PING", none, deadline_ms, e);
}

int redis_config_tell_user(const redis_config *r, int64_t deadline_ms, err *e)
{
    char words[REDIS_USER_BYTES + 16];
    if (!r->user[0])
        return 0;
    snprintf(words, sizeof words, "SETUSER %s", r->user);
    return call_once(r, "ACL", words, deadline_ms, e);
}
