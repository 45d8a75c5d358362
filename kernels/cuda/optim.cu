/* optim.cu: the optimizers over the one parameter block, as one kernel; see cuda_kernels.h. */
#include "optim.cuh"

static __global__ void optimize(optim_block b)
{
    const step_args now = numbers_of(b);
    FOR_EACH(i, b.count)
    take_step(b, now, i, b.g[i]);
}

void cuda_optim(void *stream, const optim_block *b)
{
    optim_block all = *b;
    LAUNCH(optimize, blocks_for(all.count), THREADS, stream, all);
}
