#if defined(__x86_64__)
/* kernels_avx512.c: the CPU kernels for avx512. */
#define KERNELS_NAME  "avx512"
#define KERNELS_TABLE cpu_kernels_avx512
#define KERNELS_WIDE  1
#define TILE_PIXELS   14
#define MAX_ACC       28
#define KERNELS_NARROW 0
#include "kernels_impl.h"
#endif
