/* redis_serve.h: redis-server as a container of its own beside kubeml-ps.
 *
 * The two containers share one folder, in memory where the cluster gives such: the Unix socket lies
 * there, and the default user's password, which the first start draws and later ones keep, so that
 * kubeml-ps gets in again after the cluster has started the container anew. The rules of the
 * functions' user (with the hash of their password) lie there too: a server that is back knows them
 * before anybody dials. Only the pod's own containers see that folder. */
#ifndef KUBEML_REDIS_SERVE_H
#define KUBEML_REDIS_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "redis_server.h"

/* Becomes the redis-server of `spec` (its folder, listen, module, segment_dir, memory_bytes);
 * returns on errors alone. */
int redis_serve(const redis_server_spec *spec, err *e);
/* Whether the redis-server of `folder` answers. ERR_TIMEOUT, ERR_UNAVAILABLE, ERR_NOT_FOUND. */
int redis_serve_ping(const char *folder, int64_t deadline_ms, err *e);
/* What of a container's memory Redis may take: nine tenths, the rest is what it does not count. 0
 * where there is no limit. `told`: its bytes as a text, or NULL, which says nothing; then the file
 * `limit` does, its cgroup's memory.max, which there is under version 2 alone. */
uint64_t redis_serve_memory(const char *told, const char *limit);
/* The password of `folder`; drawn where there is none and `draw` says so. ERR_NOT_FOUND. */
int redis_serve_password(const char *folder, bool draw, char out[REDIS_SERVER_PASSWORD_BYTES],
                         err *e);

/* Keeps the rules of the functions' user for the next start. */
int redis_serve_keep_user(const char *folder, const char *rules, err *e);

#endif
