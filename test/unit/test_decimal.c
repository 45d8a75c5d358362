/* test_decimal.c */
#include "common/base/decimal.h"
#include "common/base/rng.h"
#include "test.h"

TEST(numbers_are_as_short_as_they_can_be)
{
    char text[DECIMAL_BYTES];
    CHECK_STR(decimal_text(95.97, text), "95.97");
    CHECK_STR(decimal_text(0.1, text), "0.1");
    CHECK_STR(decimal_text(0.1 + 0.2, text), "0.30000000000000004");
    CHECK_STR(decimal_text(60000, text), "60000");
    CHECK_STR(decimal_text(123456789, text), "123456789");
    CHECK_STR(decimal_text(-0.0, text), "-0");
    CHECK_STR(decimal_text(5e-324, text), "4.94066e-324");
    CHECK_STR(decimal_text(1.7976931348623157e308, text), "1.7976931348623157e+308");
}

TEST(every_number_is_read_back)
{
    char text[DECIMAL_BYTES];
    rng r;
    rng_init(&r, 5, RNG_TEST, 0, 0);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = rng_u64(&r);
        double number;
        memcpy(&number, &bits, sizeof number);
        if (isfinite(number))
            CHECK(strtod(decimal_text(number, text), NULL) == number);
    }
}
