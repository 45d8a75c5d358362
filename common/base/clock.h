/* clock.h: time as the programs see it. Deadlines are absolute and monotonic, so that a step of the
 * wall clock moves no deadline; the wall clock only labels texts for people. */
#ifndef KUBEML_CLOCK_H
#define KUBEML_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

int64_t clock_monotonic_ns(void);
int64_t clock_monotonic_ms(void);
int64_t clock_wall_ms(void); /* since 1970, UTC */

/* The deadline `timeout_ms` from now, in clock_monotonic_ms; negative: never (INT64_MAX). */
int64_t clock_deadline_ms(int64_t timeout_ms);
/* Milliseconds left until `deadline_ms`, for poll(2): 0 when it has passed, at most 1 hour. */
int clock_left_ms(int64_t deadline_ms);

/* Initialises a condition for clock_cond_wait, which waits until a deadline of this clock. */
void clock_cond_init(pthread_cond_t *condition);
/* Blocks. False: the deadline has passed. True: the condition was signalled, or the thread woke
 * for no reason, as pthread_cond_wait may. */
bool clock_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t deadline_ms);

/* Writes "2006-01-02T15:04:05.678Z" into `out`, which holds at least 25 bytes. */
void clock_rfc3339(int64_t wall_ms, char *out);

#endif
