/* leader.c: see leader.h. */
#include "leader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/log.h"

struct leader {
    kube_lease *lease; /* the thread's own */
    void (*won)(void *context);
    void *context;
    atomic_bool had;          /* this controller has led once */
    _Atomic int64_t until_ms; /* it leads until then; INT64_MIN: another has held the lease since */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping;
    char where[KUBE_LEASE_ADDRESS_BYTES];
};

bool leader_is_us(const leader *l)
{
    return clock_monotonic_ms() < atomic_load(&l->until_ms);
}

bool leader_lost(const leader *l)
{
    return atomic_load(&l->had) &&
           clock_monotonic_ms() >= atomic_load(&l->until_ms) + LEADER_HOLDS_MS;
}

bool leader_where(leader *l, char out[KUBE_LEASE_ADDRESS_BYTES])
{
    pthread_mutex_lock(&l->lock);
    memcpy(out, l->where, KUBE_LEASE_ADDRESS_BYTES);
    pthread_mutex_unlock(&l->lock);
    return out[0] != '\0';
}

static void look(leader *l, int64_t now)
{
    err e = ERR_INIT;
    if (leader_lost(l))
        return; /* lost for good: the process ends */
    int leads = atomic_load(&l->had) ? kube_lease_renew(l->lease, now, &e)
                                     : kube_lease_try(l->lease, now, &e);
    if (leads < 0 && e.code != ERR_CANCELLED)
        log_warn("who leads: %s", e.message);
    if (leads > 0)
        atomic_store(&l->until_ms, now + KUBE_LEASE_LOST_MS);
    else if (leads == 0)
        atomic_store(&l->until_ms, INT64_MIN);
    pthread_mutex_lock(&l->lock);
    const char *where = kube_lease_leader(l->lease);
    if (*where && strcmp(where, l->where) != 0)
        log_info("the controller at %s leads", where);
    snprintf(l->where, sizeof l->where, "%s", where);
    pthread_mutex_unlock(&l->lock);
    if (leads > 0 && !atomic_exchange(&l->had, true))
        l->won(l->context);
}

/* Waits for the next look; false: the thread is to end. */
static bool rest(leader *l, int64_t deadline)
{
    pthread_mutex_lock(&l->lock);
    while (!l->stopping && clock_cond_wait(&l->changed, &l->lock, deadline))
        ;
    bool more = !l->stopping;
    pthread_mutex_unlock(&l->lock);
    return more;
}

static void *run(void *arg)
{
    leader *l = arg;
    int64_t now;
    do
        look(l, now = clock_monotonic_ms());
    while (rest(l, kube_lease_next_ms(l->lease, now)));
    return NULL;
}

int leader_start(const kube_config *access, const char *name, const char *me, const char *address,
                 void (*won)(void *context), void *context, leader **out, err *e)
{
    leader *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "no memory for the lease");
    l->won = won;
    l->context = context;
    atomic_store(&l->until_ms, INT64_MIN);
    if (kube_lease_open(access, name, me, address, &l->lease, e)) {
        free(l);
        return -1;
    }
    pthread_mutex_init(&l->lock, NULL);
    clock_cond_init(&l->changed);
    if (pthread_create(&l->thread, NULL, run, l)) {
        kube_lease_close(l->lease, false);
        free(l);
        return err_set(e, ERR_NOMEM, "no thread for the lease");
    }
    *out = l;
    return 0;
}

void leader_release(leader *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    kube_lease_close(l->lease, leader_is_us(l));
    l->lease = NULL;
}

void leader_stop(leader *l)
{
    if (!l)
        return;
    leader_release(l);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
