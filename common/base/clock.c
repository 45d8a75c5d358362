/* clock.c: see clock.h. */
#include "clock.h"

#include <stdio.h>
#include <time.h>

int64_t clock_monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t clock_monotonic_ms(void)
{
    return clock_monotonic_ns() / 1000000;
}

int64_t clock_wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t clock_deadline_ms(int64_t timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : clock_monotonic_ms() + timeout_ms;
}

int clock_left_ms(int64_t deadline_ms)
{
    if (deadline_ms == INT64_MAX)
        return 3600 * 1000;
    int64_t left = deadline_ms - clock_monotonic_ms();
    if (left < 0)
        return 0;
    return left > 3600 * 1000 ? 3600 * 1000 : (int)left;
}

void clock_cond_init(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool clock_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t deadline_ms)
{
    if (deadline_ms == INT64_MAX)
        return pthread_cond_wait(condition, lock) == 0;
    struct timespec until = {deadline_ms / 1000, deadline_ms % 1000 * 1000000};
    return pthread_cond_timedwait(condition, lock, &until) == 0;
}

void clock_rfc3339(int64_t wall_ms, char *out)
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    char date[24];
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out, 25, "%.19s.%03uZ", date, (unsigned)(wall_ms % 1000) % 1000u);
}
