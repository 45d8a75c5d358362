#if defined(__x86_64__)
/* kernels_avx2.c: the CPU kernels for avx2. */
#define KERNELS_NAME  "avx2"
#define KERNELS_TABLE cpu_kernels_avx2
#define KERNELS_WIDE  0
#define TILE_PIXELS   6
#define MAX_ACC       12
#define KERNELS_NARROW 0
#include "kernels_impl.h"
#endif
