/* fuzz.h: a parser's fuzz target, in two uses.
 *
 *     FUZZ(npy) { ... `bytes` and `len` are the input ...; return 0; }
 *
 * Built by `make fuzz` it is a libFuzzer program over corpus/npy; included in test/unit/test_fuzz.c
 * it is the function fuzz_npy, which is run over that corpus and variations of it by every `make
 * check`. */
#ifndef KUBEML_FUZZ_H
#define KUBEML_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef KUBEML_FUZZ
#define FUZZ(name)                                                                                 \
    int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);                                  \
    int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
#else
#define FUZZ(name) static int fuzz_##name(const uint8_t *bytes, size_t len)
#endif

/* What must hold; stays on in every build. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

#endif
