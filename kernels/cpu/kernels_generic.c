/* kernels_generic.c: the CPU kernels for generic. */
#define KERNELS_NAME  "generic"
#define KERNELS_TABLE cpu_kernels_generic
#define KERNELS_WIDE  0
#define TILE_PIXELS   4
#define MAX_ACC       6
#define KERNELS_NARROW 1
#include "kernels_impl.h"
