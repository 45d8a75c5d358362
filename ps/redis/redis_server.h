/* redis_server.h: one redis-server of a kubeml-ps's own: started, watched, stopped.
 *
 * It listens on a Unix socket in a folder of its own (and on TCP when asked to), never on a default
 * port. Its configuration goes in through standard input, so that the password stands neither in
 * argv nor in a file. Nothing is persisted: kubeml-ps holds the checkpoints. It ends when kubeml-ps
 * dies (parent-death signal) unless told otherwise.
 *
 * In a pod it is a container of its own instead (redis_serve.h), which the cluster starts and
 * starts again: kubeml-ps joins it, and sees its end on a connection that is kept for that. */
#ifndef KUBEML_REDIS_SERVER_H
#define KUBEML_REDIS_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/err.h"

enum { REDIS_SERVER_PATH_BYTES = 256, REDIS_SERVER_PASSWORD_BYTES = 65 };

typedef struct redis_server redis_server;

typedef struct redis_server_spec {
    const char *program;          /* NULL: redis-server in PATH */
    const char *folder;           /* made 0700 when missing; socket and log go here */
    const char *module;           /* path of kubeml-redis.so, NULL: none */
    const char *segment_dir;      /* where the module may open segments, NULL: /dev/shm */
    const char *listen;           /* also on TCP: "host:port", NULL: no */
    uint64_t memory_bytes;        /* maxmemory, 0: no limit; noeviction */
    uint64_t address_space_bytes; /* RLIMIT_AS, 0: none */
    int merge_threads;            /* in the module, 0: what pays */
    bool outlive;                 /* goes on when the starter dies */
} redis_server_spec;

/* Starts and waits until it answers. ERR_NOT_FOUND: no redis-server installed; ERR_CRASHED with the
 * log's last line; ERR_TIMEOUT (it is killed). The password of the default user is drawn by the
 * kernel's random source. */
int redis_server_start(const redis_server_spec *spec, int64_t deadline_ms, redis_server **out,
                       err *e);
/* One that runs as another container, in spec's folder; waits until it answers. ERR_TIMEOUT. */
int redis_server_join(const redis_server_spec *spec, int64_t deadline_ms, redis_server **out,
                      err *e);
/* The same server again, empty, after it died or was stopped: same folder, passwords and users. */
int redis_server_restart(redis_server *r, int64_t deadline_ms, err *e);
/* Whether it answers; ERR_TIMEOUT. */
int redis_server_ping(const redis_server *r, int64_t deadline_ms, err *e);
/* Creates (or changes) the user that a job's functions log in as: only that job's keys, and of them
 * only what publishing and fetching needs, by the module's commands where it merges (`module`).
 * Kept over a restart (one job a server). */
int redis_server_user(redis_server *r, const char *user, const char *password, const char *job,
                      bool module, int64_t deadline_ms, err *e);

const char *redis_server_address(const redis_server *r);  /* "unix:/path" */
const char *redis_server_password(const redis_server *r); /* of user "default" */
/* -1 when it does not run, or is joined */
pid_t redis_server_pid(const redis_server *r);
int redis_server_death_fd(const redis_server *r);         /* polls readable when it died */
bool redis_server_alive(redis_server *r);
/* One that does not answer; its end is seen as any other. Not of another container's. */
void redis_server_kill(const redis_server *r);
/* After its death: how it ended and the log's last line. */
void redis_server_epitaph(redis_server *r, char *out, size_t out_bytes);
/* Ends it (SIGTERM, after 2 s SIGKILL), removes the socket and frees the handle. NULL is fine. */
void redis_server_stop(redis_server *r);

/* 32 random bytes as 64 hex digits, from getrandom. */
int redis_server_password_new(char out[REDIS_SERVER_PASSWORD_BYTES], err *e);

#endif
