/* cpu_isa.c: chooses the table of kernels for this machine. */
#include "cpu_kernels16.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

static const cpu_kernels *fastest(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (has_avx512())
        return &cpu_kernels_avx512;
    if (has_avx2())
        return &cpu_kernels_avx2;
#endif
    return &cpu_kernels_generic;
}

const cpu_kernels *cpu_kernels_pick(const char **why)
{
    const char *name = getenv("KUBEML_CPU");
    *why = NULL;
    if (!name || !*name || strcmp(name, "auto") == 0)
        return fastest();
    if (strcmp(name, "generic") == 0)
        return &cpu_kernels_generic;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (strcmp(name, "avx512") == 0) {
        *why = "this CPU has no AVX-512 F, BW, DQ and VL";
        return has_avx512() ? (*why = NULL, &cpu_kernels_avx512) : NULL;
    }
    if (strcmp(name, "avx2") == 0) {
        *why = "this CPU has no AVX2 and FMA";
        return has_avx2() ? (*why = NULL, &cpu_kernels_avx2) : NULL;
    }
#endif
    *why = "KUBEML_CPU is none of avx512, avx2, generic that this build has";
    return NULL;
}

const cpu_kernels16 *cpu_kernels16_pick(const char **why)
{
    const cpu_kernels *k = cpu_kernels_pick(why);
    if (!k)
        return NULL;
#if defined(__x86_64__)
    if (k == &cpu_kernels_avx512 && __builtin_cpu_supports("avx512bf16"))
        return &cpu_kernels16_avx512;
    *why = k == &cpu_kernels_avx512
               ? "this CPU has no AVX512-BF16"
               : "bf16 needs AVX512-BF16, which this CPU lacks or KUBEML_CPU leaves out";
#else
    *why = "bf16 needs AVX512-BF16";
#endif
    return NULL;
}
