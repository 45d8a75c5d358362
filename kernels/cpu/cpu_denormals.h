/* cpu_denormals.h: how a thread computes with denormal floats, which are below 2^-126.
 *
 * x86 computes with denormals in microcode, some hundred times slower than with other floats, and
 * training makes them: the momentum of a dead unit shrinks by a factor each step and, rounded,
 * never gets below the smallest denormals. So the backend's threads read denormals as zeros and
 * round results to zero. Other CPUs lose no time with denormals; there these functions do
 * nothing. */
#ifndef KUBEML_CPU_DENORMALS_H
#define KUBEML_CPU_DENORMALS_H

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { FLUSH_RESULTS = 0x8000, FLUSH_OPERANDS = 0x0040 }; /* of MXCSR */

/* Flushes this thread's denormals from now on; returns what flush_end restores. */
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
