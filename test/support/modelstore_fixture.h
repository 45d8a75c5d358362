/* modelstore_fixture.h: a model store to test: the fake, or a real redis-server of the test's own.
 * For test_modelstore.c, test_module.c and the round benchmark. */
#ifndef KUBEML_MODELSTORE_FIXTURE_H
#define KUBEML_MODELSTORE_FIXTURE_H

#include "common/modelstore/modelstore.h"
#include "common/modelstore/redis_link.h"
#include "common/modelstore/shm.h"
#include "ps/redis/redis_server.h"

typedef struct fixture {
    redis_server *server; /* NULL: the fake */
    modelstore_access owner_access, member_access;
    modelstore *owner;
    layout layout;
} fixture;

/* `carrier` "shm", "socket" (Unix socket) or "tcp". Skips the test where redis-server is missing.
 */
void fixture_init(fixture *f, const char *kind, const char *tensor_path, uint64_t floats);
void fixture_free(fixture *f);
modelstore *fixture_member(const fixture *f); /* opened, not attached */
void fixture_layout(uint64_t floats, layout *out);
const char *fixture_module(void); /* path of kubeml-redis.so of this build */
int64_t fixture_deadline(void);   /* 10 s from now */
/* A connection as Redis's own user. */
redis_link *fixture_redis(const char *address, const char *password);
/* Calls the command that the text is when it is divided at its spaces. As redis_link_call. */
int fixture_call(redis_link *l, const char *text, redisReply **out, err *e);
void fixture_limit_memory(redis_server *server, const char *bytes); /* "0": no limit */
/* The name of the job's segment in the test's folder; fails where there is not exactly one. */
void fixture_segment(const char *job, char name[SHM_NAME_BYTES]);

block fixture_block(block_shape s); /* zeros; lives as long as the test */
/* Numbers that depend on seed and index alone. */
void fixture_fill(block_shape s, block b, uint64_t seed);

#endif
