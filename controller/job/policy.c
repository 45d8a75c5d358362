/* policy.c: see policy.h. */
#include "policy.h"

#define GROW_BELOW 1.05
#define SHRINK_FROM 1.2

int policy_elastic(int parallelism, double seconds, double reference_seconds, int ceiling)
{
    int next = parallelism;
    if (reference_seconds <= 0 || seconds <= GROW_BELOW * reference_seconds)
        next = parallelism + 1;
    else if (seconds >= SHRINK_FROM * reference_seconds)
        next = parallelism - 1;
    if (next > ceiling)
        next = ceiling;
    return next < 1 ? 1 : next;
}

double policy_reference(int parallelism, double seconds, double reference_seconds, int next)
{
    if (next == parallelism)
        return reference_seconds;
    return next > parallelism ? seconds : 0;
}
