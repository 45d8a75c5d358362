/* fuzz_safetensors.c: what is accepted can be read to its last byte. */
#include "common/formats/safetensors.h"
#include "fuzz.h"

FUZZ(safetensors)
{
    safetensors *s;
    err e = ERR_INIT;
    uint64_t total = 0;
    uint8_t byte;
    if (safetensors_open_memory(bytes, len, &s, &e) != 0) {
        FUZZ_CHECK(e.code != ERR_NONE);
        return 0;
    }
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const safetensor *t = safetensors_at(s, i);
        FUZZ_CHECK(t->offset <= len && t->bytes <= len - t->offset);
        if (t->bytes > 0)
            FUZZ_CHECK(safetensors_read(s, t, t->bytes - 1, &byte, 1, &e) == 0 &&
                       byte == bytes[t->offset + t->bytes - 1]);
        FUZZ_CHECK(safetensors_find(s, t->name) == t);
        total += t->bytes;
    }
    FUZZ_CHECK(total <= len);
    safetensors_close(s);
    return 0;
}
