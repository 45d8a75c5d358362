/* fuzz_layout.c: a model's layout from a function. */
#include "common/modelstore/layout.h"
#include "fuzz.h"

FUZZ(layout)
{
    layout l, again, cut;
    err e = ERR_INIT;
    if (layout_parse_text((const char *)bytes, len, &l, &e))
        return 0;
    uint64_t next = 0;
    for (size_t i = 0; i < l.count; i++)
        next += l.entries[i].kind == LAYOUT_COUNTER ? 0 : l.entries[i].count;
    FUZZ_CHECK(next == l.shape.floats && l.weights <= l.shape.floats);
    FUZZ_CHECK(layout_parse_text(l.text, strlen(l.text), &again, &e) == 0);
    FUZZ_CHECK(again.digest == l.digest);
    if (layout_without_state(&l, &cut, &e) == 0) {
        FUZZ_CHECK(cut.shape.floats == l.weights);
        layout_free(&cut);
    }
    layout_free(&again);
    layout_free(&l);
    return 0;
}
