/* store_id.c: names for what is written to a store and has none yet. See store_driver.h. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/random.h>

#include "store_driver.h"

void store_new_id(char out[STORE_ID_BYTES])
{
    /* Not a draw of the training's chance, which rng.h keeps repeatable: an id must not repeat. */
    uint64_t bits;
    while (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        assert(errno == EINTR);
    snprintf(out, STORE_ID_BYTES, "%016llx", (unsigned long long)bits);
}
