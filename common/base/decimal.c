/* decimal.c: see decimal.h. */
#include "decimal.h"

#include <stdio.h>
#include <stdlib.h>

/* 17 digits distinguish every double from its neighbours; most need far fewer. */
const char *decimal_text(double number, char out[DECIMAL_BYTES])
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, DECIMAL_BYTES, "%.*g", digits, number);
        if (strtod(out, NULL) == number)
            break;
    }
    return out;
}
