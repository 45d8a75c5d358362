/* store_watch.c: see store_watch.h. */
#include "store_watch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "leading.h"

enum { USERS_EVERY_MS = 60000 }; /* while the database makes none */

struct store_watch {
    controller *controller;
    void (*back)(job_manager *o); /* the store answers again */
    store *probe; /* with little patience; NULL: not open, or not needed */
    pthread_t thread;
    bool threaded;
    int64_t users_ms; /* when to try next whether users can be made; the thread's */
    atomic_bool started;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool up, ending;
    bool failed; /* a write of the job manager failed, and the store has not answered since */
    char why[ERR_MESSAGE_BYTES];
};

bool store_watch_is_far(const store_watch *w)
{
    return strncmp(w->controller->config.store_locator, "mongodb", 7) == 0;
}

store_watch *store_watch_new(controller *c, void (*back)(job_manager *o))
{
    store_watch *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->controller = c;
    w->back = back;
    snprintf(w->why, sizeof w->why, "the controller is starting");
    pthread_mutex_init(&w->lock, NULL);
    clock_cond_init(&w->changed);
    return w;
}

/* What goes before one more option. Before the first option there must be a slash behind the hosts,
 * even without a database's name. */
static const char *separator(const char *locator)
{
    const char *hosts = strstr(locator, "://");
    if (strchr(locator, '?'))
        return "&";
    return hosts && !strchr(hosts + 3, '/') ? "/?" : "?";
}

/* Opens the locator with less patience: of repeated options the last one counts. */
static int open_probe(store_watch *w, err *e)
{
    char text[STORE_LOCATOR_BYTES];
    const char *locator = w->controller->config.store_locator;
    int len = snprintf(text, sizeof text, "%s%skubeml.patience_ms=%d&serverSelectionTimeoutMS=2500",
                       locator, separator(locator), STORE_WATCH_PATIENCE_MS);
    if (len >= (int)sizeof text)
        return err_set(e, ERR_LIMIT, "the store's locator is too long");
    w->probe = store_open(text, e);
    explicit_bzero(text, sizeof text);
    return w->probe ? 0 : -1;
}

static int ask(store_watch *w, err *e)
{
    if (!store_watch_is_far(w))
        return w->controller->store ? store_ping(w->controller->store, e) : 0;
    return w->probe ? store_ping(w->probe, e) : open_probe(w, e);
}

/* Keeps the store's state; true where it is news, at least to the job manager. */
static bool keep(store_watch *w, int status, const err *why)
{
    pthread_mutex_lock(&w->lock);
    bool up = status == 0 || !store_watch_is_far(w);
    bool news = w->up != up || (status == 0 && w->failed);
    w->up = up;
    if (status == 0)
        w->failed = false;
    snprintf(w->why, sizeof w->why, "the database does not answer: %.*s", (int)sizeof w->why - 40,
             why->message);
    pthread_mutex_unlock(&w->lock);
    return news;
}

int store_watch_try(store_watch *w, err *e)
{
    err why = ERR_INIT;
    int status = ask(w, &why);
    if (status)
        keep(w, status, &why);
    if (status)
        *e = why;
    return status;
}

/* Waits until it is time to ask; needs the lock. */
static void await_turn(store_watch *w)
{
    while (!w->ending && !store_watch_is_far(w) && !w->failed)
        pthread_cond_wait(&w->changed, &w->lock);
    int64_t next = clock_deadline_ms(STORE_WATCH_EVERY_MS);
    while (!w->ending && clock_cond_wait(&w->changed, &w->lock, next))
        ;
}

/* Checks whether the database makes users, which each job gets. A database that does not, as
 * MongoDB Atlas, fails each job: the log says so before the first job. */
static void try_users(store_watch *w)
{
    controller *c = w->controller;
    char locator[STORE_LOCATOR_BYTES];
    err e = ERR_INIT;
    int status = store_locator(c->store, STORE_USE_READ, locator, &e);
    if (status == 0)
        store_revoke(c->store, locator, NULL); /* a user that stays is revoked at the next start */
    explicit_bzero(locator, sizeof locator);
    if (status && err_retry_may_help(e.code))
        return;
    w->users_ms = status ? clock_deadline_ms(USERS_EVERY_MS) : INT64_MAX;
    if (atomic_exchange(&c->no_users, status != 0) != (status != 0) && status)
        log_error("the database lets no users be made for jobs, which fail for it: %s", e.message);
}

static void *watch(void *arg)
{
    store_watch *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->ending) {
        await_turn(w);
        if (w->ending)
            break;
        pthread_mutex_unlock(&w->lock);
        err why = ERR_INIT;
        int status = ask(w, &why);
        bool news = keep(w, status, &why);
        if (news && status == 0 && controller_leads(w->controller))
            w->back(w->controller->job_manager);
        if (status == 0 && w->probe && controller_leads(w->controller) &&
            clock_left_ms(w->users_ms) == 0)
            try_users(w);
        if (news && status)
            log_error("the store does not answer: %s", why.message);
        else if (news && store_watch_writable(w, NULL)) /* the store may still take no records */
            log_info("the store answers again");
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void store_watch_opened(store_watch *w)
{
    pthread_mutex_lock(&w->lock);
    w->up = true;
    pthread_mutex_unlock(&w->lock);
}

int store_watch_start(store_watch *w, err *e)
{
    store_watch_opened(w);
    atomic_store(&w->started, true);
    if (pthread_create(&w->thread, NULL, watch, w))
        return err_set(e, ERR_NOMEM, "no thread to watch the store");
    w->threaded = true;
    return 0;
}

bool store_watch_up(store_watch *w, err *why)
{
    pthread_mutex_lock(&w->lock);
    bool up = w->up && atomic_load(&w->started);
    if (!up && why)
        err_set(why, ERR_UNAVAILABLE, "%s", w->why);
    pthread_mutex_unlock(&w->lock);
    return up;
}

bool store_watch_writable(store_watch *w, err *why)
{
    pthread_mutex_lock(&w->lock);
    bool writable = w->up && !w->failed;
    if (!writable && why)
        err_set(why, ERR_UNAVAILABLE, "%s", w->why);
    pthread_mutex_unlock(&w->lock);
    return writable;
}

void store_watch_failed(store_watch *w, const err *why)
{
    pthread_mutex_lock(&w->lock);
    w->failed = true;
    if (w->up)
        snprintf(w->why, sizeof w->why, "%s", why->message);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

bool store_watch_started(const store_watch *w)
{
    return atomic_load(&w->started);
}

void store_watch_stop(store_watch *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->threaded)
        pthread_join(w->thread, NULL);
    w->threaded = false;
}

void store_watch_free(store_watch *w)
{
    if (!w)
        return;
    store_close(w->probe);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
