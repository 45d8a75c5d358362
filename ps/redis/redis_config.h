/* redis_config.h: what a redis-server of ours is told: where it listens, the module, its users.
 *
 * The same text for a child of kubeml-ps (redis_server.h) and for a container of its own
 * (redis_serve.h). The default user's password and the rules of the functions' user are part of
 * it. */
#ifndef KUBEML_REDIS_CONFIG_H
#define KUBEML_REDIS_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "redis_server.h"

enum { REDIS_CONFIG_BYTES_MAX = 16 << 10, REDIS_USER_BYTES = 1024 };

typedef struct redis_config {
    char program[REDIS_SERVER_PATH_BYTES], folder[REDIS_SERVER_PATH_BYTES];
    char module[REDIS_SERVER_PATH_BYTES], segment_dir[REDIS_SERVER_PATH_BYTES];
    char listen[REDIS_SERVER_PATH_BYTES], address[REDIS_SERVER_PATH_BYTES];
    char password[REDIS_SERVER_PASSWORD_BYTES]; /* "" until it is drawn or read */
    /* the rules of the job's user, "" before there is one */
    char user[REDIS_USER_BYTES];
    uint64_t memory_bytes;
    int merge_threads;
} redis_config;

/* ERR_INVALID, ERR_LIMIT: a text that cannot stand in the configuration, a folder too deep for a
 * socket. The password stays empty. */
int redis_config_set(redis_config *c, const redis_server_spec *s, err *e);
int redis_config_write(const redis_config *c, buf *out, err *e);
/* The rules of the user that a job's functions log in as, by job and password; `module`: it merges.
 * ERR_INVALID. */
int redis_config_user(redis_config *c, const char *user, const char *password, const char *job,
                      bool module, err *e);
/* Tells a running server of that user; nothing where there is none. */
int redis_config_tell_user(const redis_config *c, int64_t deadline_ms, err *e);
int redis_config_ping(const redis_config *c, int64_t deadline_ms, err *e);

#endif
