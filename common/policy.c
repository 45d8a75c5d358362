/* policy.c: see policy.h. */
#include "policy.h"

#define GROW_BELOW 1.05
#define SHRINK_FROM 1.2

int policy_elastic(int parallelism, double seconds, double last_seconds, int ceiling)
{
    int next = parallelism;
    if (last_seconds <= 0 || seconds <= GROW_BELOW * last_seconds)
        next = parallelism + 1;
    else if (seconds >= SHRINK_FROM * last_seconds)
        next = parallelism - 1;
    if (next > ceiling)
        next = ceiling;
    return next < 1 ? 1 : next;
}
