/* optim.cuh: a parameter's step; optim.cu's, and of the kernels that make gradients of which nobody
 * else has a part: there the parameter can take its step at once, when nothing reads it any more.
 * kernels/optim.h has the formulas. */
#ifndef KUBEML_OPTIM_CUH
#define KUBEML_OPTIM_CUH

#include "cuda/device.cuh"

/* The step's numbers, once a thread; anything where there is no step. */
static __device__ __forceinline__ step_args numbers_of(const optim_block &b)
{
    return b.w ? *b.a : step_args();
}

/* The host's bits, and the same in every kernel that this is a part of: each product and sum is
 * rounded by itself. Left to the compiler, it fuses some of them, and not everywhere the same. */
static __device__ __forceinline__ void take_step(const optim_block &b, const step_args &now,
                                                 size_t i, float g)
{
    const optim_args &o = b.o;
    float w = b.w[i], d = __fadd_rn(g, __fmul_rn(o.decay, w));
    if (o.adam) {
        float *m = b.state, *v = b.state + b.count;
        float mean = __fadd_rn(m[i], __fmul_rn(o.fresh1, __fadd_rn(d, -m[i])));
        float square = __fadd_rn(__fmul_rn(o.beta2, v[i]), __fmul_rn(__fmul_rn(o.fresh2, d), d));
        m[i] = mean;
        v[i] = square;
        float scale = __fadd_rn(sqrtf(square) / now.root2, o.eps);
        w = __fadd_rn(__fmul_rn(w, now.shrink), -(__fmul_rn(now.rate, mean) / scale));
    } else {
        if (o.has_momentum) {
            float moved = __fadd_rn(__fmul_rn(now.kept, b.state[i]), __fmul_rn(now.fresh, d));
            b.state[i] = moved;
            d = o.nesterov ? __fadd_rn(d, __fmul_rn(o.momentum, moved)) : moved;
        }
        w = __fadd_rn(w, -__fmul_rn(now.lr, d));
    }
    b.w[i] = w;
    if (b.w16)
        put((bf16 *)b.w16 + i, w);
}

/* A gradient's place is its parameter's in the block. */
static __device__ __forceinline__ void put_gradient(const optim_block &b, const step_args &now,
                                                    float *at, float g)
{
    *at = g;
    if (b.w)
        take_step(b, now, (size_t)(at - b.g), g);
}

#endif
