/* store_id.c: random ids for uploads and users. See store_driver.h. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/random.h>

#include "store_driver.h"

void store_new_id(char out[STORE_ID_BYTES])
{
    /* The system's randomness, not rng.h, whose numbers a job can repeat: an id must not repeat. */
    uint64_t bits;
    while (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        assert(errno == EINTR);
    snprintf(out, STORE_ID_BYTES, "%016llx", (unsigned long long)bits);
}
