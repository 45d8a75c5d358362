/* cpu_denormals.h: how a thread computes with denormal floats, those under 2^-126.
 *
 * x86 computes with them in microcode, some hundred times slower than with others, and training
 * makes them: momentum of a unit that is dead shrinks by a factor each step and, rounded, never
 * gets past the smallest ones. So the backend's threads take them, and give them, as zeros. Other
 * CPUs compute with them as fast as with any; there this does nothing. */
#ifndef KUBEML_CPU_DENORMALS_H
#define KUBEML_CPU_DENORMALS_H

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { FLUSH_RESULTS = 0x8000, FLUSH_OPERANDS = 0x0040 }; /* of MXCSR */

/* From now on this thread does so; returns what flush_end sets back. */
static inline unsigned flush_begin(void)
{
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_RESULTS | FLUSH_OPERANDS);
    return before;
}

static inline void flush_end(unsigned before)
{
    _mm_setcsr(before);
}
#else
static inline unsigned flush_begin(void)
{
    return 0;
}

static inline void flush_end(unsigned before)
{
    (void)before;
}
#endif

#endif
