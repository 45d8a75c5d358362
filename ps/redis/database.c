/* database.c: see database.h. */
#include "database.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/modelstore/shm.h"
#include "redis_server.h"

struct database {
    database_config config;
    redis_server *server;
    char shm_dir[MODELSTORE_PATH_BYTES]; /* what the server was started with */
};

static int start(database *d, const char *shm_dir, err *e)
{
    snprintf(d->shm_dir, sizeof d->shm_dir, "%s", shm_dir);
    const redis_server_spec spec = {.program = d->config.program,
                                    .folder = d->config.folder,
                                    .module = d->config.module,
                                    .segment_dir = d->shm_dir,
                                    .listen = d->config.listen};
    int64_t deadline = clock_deadline_ms(DATABASE_START_MS);
    return d->config.joined ? redis_server_join(&spec, deadline, &d->server, e)
                            : redis_server_start(&spec, deadline, &d->server, e);
}

database *database_start(const database_config *config, err *e)
{
    database *d = calloc(1, sizeof *d);
    if (!d) {
        err_set(e, ERR_NOMEM, "no memory for the database");
        return NULL;
    }
    d->config = *config;
    if (start(d, config->shm_dir, e))
        d->server = NULL;
    return d;
}

void database_stop(database *d)
{
    if (!d)
        return;
    redis_server_stop(d->server);
    free(d);
}

int database_death_fd(const database *d)
{
    return d->server ? redis_server_death_fd(d->server) : -1;
}

void database_epitaph(database *d, char *out, size_t bytes)
{
    out[0] = '\0';
    if (d->server)
        redis_server_epitaph(d->server, out, bytes);
}

pid_t database_pid(const database *d)
{
    return d->server ? redis_server_pid(d->server) : -1;
}

void database_kill(const database *d)
{
    if (d->server)
        redis_server_kill(d->server);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void fill_access(const database *d, const database_task *t, modelstore_access *a,
                        const char *user, const char *password)
{
    memset(a, 0, sizeof *a);
    snprintf(a->kind, sizeof a->kind, "%s", t->kind_name);
    if (d->config.listen && d->config.socket)
        snprintf(a->address, sizeof a->address, "tcp:%s", d->config.listen);
    else
        snprintf(a->address, sizeof a->address, "%s", redis_server_address(d->server));
    snprintf(a->user, sizeof a->user, "%s", user);
    snprintf(a->password, sizeof a->password, "%s", password);
    snprintf(a->job, sizeof a->job, "%s", t->job);
    snprintf(a->tensor_path, sizeof a->tensor_path, "%s", d->config.socket ? "socket" : "shm");
    snprintf(a->segment_dir, sizeof a->segment_dir, "%.*s", (int)sizeof a->segment_dir - 1,
             t->shm_dir);
}

static int prepare(database *d, database_task *t, err *e)
{
    /* Another container's has its folder for good; over sockets nobody looks there. */
    bool other = !d->config.joined && strcmp(d->shm_dir, t->shm_dir) != 0;
    if (d->server && (other || !redis_server_alive(d->server))) {
        redis_server_stop(d->server);
        d->server = NULL;
    }
    if (!d->server && start(d, t->shm_dir, e))
        return -1;
    int left = shm_sweep(t->shm_dir, t->job);
    if (left > 0)
        log_info("removed %d segments that an earlier kubeml-ps left", left);
    char password[REDIS_SERVER_PASSWORD_BYTES];
    if (redis_server_password_new(password, e) ||
        redis_server_user(d->server, "function", password, t->job,
                          strcmp(t->kind_name, "database") == 0,
                          clock_deadline_ms(DATABASE_START_MS), e))
        return -1;
    fill_access(d, t, &t->member, "function", password);
    fill_access(d, t, &t->owner, "default", redis_server_password(d->server));
    snprintf(t->owner.address, sizeof t->owner.address, "%s", redis_server_address(d->server));
    explicit_bzero(password, sizeof password);
    return 0;
}

static void run(work *w)
{
    database_task *t = (database_task *)w;
    if (t->kind == DATABASE_PREPARE)
        failpoint("prepares");
    err_clear(&t->e);
    switch (t->kind) {
    case DATABASE_PREPARE: t->status = prepare(t->database, t, &t->e); break;
    case DATABASE_REVIVE:
        t->status =
            redis_server_restart(t->database->server, clock_deadline_ms(DATABASE_START_MS), &t->e);
        break;
    case DATABASE_PING:
        t->status =
            redis_server_ping(t->database->server, clock_deadline_ms(DATABASE_PING_MS), &t->e);
    }
}

database_task *database_task_new(database *d, database_task_kind kind)
{
    database_task *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->work.run = run;
    t->kind = kind;
    t->database = d;
    return t;
}

void database_task_drop(work *w)
{
    database_task *t = (database_task *)w;
    if (!t)
        return;
    explicit_bzero(&t->owner, sizeof t->owner);
    explicit_bzero(&t->member, sizeof t->member);
    free(t);
}
