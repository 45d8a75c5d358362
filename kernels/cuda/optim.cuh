/* optim.cuh: a parameter's step. optim.cu uses it, and kernels that make a whole gradient: there
 * the parameter can take its step at once, when nothing reads it any more. kernels/optim.h has the
 * formulas. */
#ifndef KUBEML_OPTIM_CUH
#define KUBEML_OPTIM_CUH

#include "device.cuh"

/* The step's numbers, once a thread; undefined where there is no step. */
static __device__ __forceinline__ step_args numbers_of(const optim_block &b)
{
    return b.w ? *b.a : step_args();
}

/* EACH parameters side by side, with the optimizer's slots: SGD's momentum, or Adam's two. */
template <int EACH> struct parameters {
    pack<float, EACH> w, first, second;
};

template <int EACH>
static __device__ __forceinline__ parameters<EACH> take_parameters(const optim_block &b, size_t i)
{
    parameters<EACH> p = {};
    p.w = take<EACH>((const float *)b.w, i);
    if (b.o.adam || b.o.has_momentum)
        p.first = take<EACH>((const float *)b.state, i);
    if (b.o.adam)
        p.second = take<EACH>((const float *)b.state + b.count, i);
    return p;
}

template <int EACH>
static __device__ __forceinline__ void give_parameters(const optim_block &b, size_t i,
                                                       const parameters<EACH> &p)
{
    store(b.w, i, p.w);
    if (b.o.adam || b.o.has_momentum)
        store(b.state, i, p.first);
    if (b.o.adam)
        store(b.state + b.count, i, p.second);
    if (b.w16)
        give((bf16 *)b.w16, i, p.w, false);
}

/* The host's bits, and the same in every kernel that has this step: each product and sum is rounded
 * by itself. The compiler by itself fuses some of them, and not everywhere the same. */
static __device__ __forceinline__ void step_of(const optim_args &o, const step_args &now, float g,
                                               float *at, float *first, float *second)
{
    float w = *at, d = __fadd_rn(g, __fmul_rn(o.decay, w));
    if (o.adam) {
        float mean = __fadd_rn(*first, __fmul_rn(o.fresh1, __fadd_rn(d, -*first)));
        float square = __fadd_rn(__fmul_rn(o.beta2, *second), __fmul_rn(__fmul_rn(o.fresh2, d), d));
        *first = mean;
        *second = square;
        float scale = __fadd_rn(sqrtf(square) / now.root2, o.eps);
        *at = __fadd_rn(__fmul_rn(w, now.shrink), -(__fmul_rn(now.rate, mean) / scale));
        return;
    }
    if (o.has_momentum) {
        float moved = __fadd_rn(__fmul_rn(now.kept, *first), __fmul_rn(now.fresh, d));
        *first = moved;
        d = o.nesterov ? __fadd_rn(d, __fmul_rn(o.momentum, moved)) : moved;
    }
    *at = __fadd_rn(w, -__fmul_rn(now.lr, d));
}

/* The step of parameters from i on, which were loaded before: where gradients are sums, these loads
 * need not wait for them. */
template <int EACH>
static __device__ __forceinline__ void step_from(const optim_block &b, const step_args &now,
                                                 size_t i, const pack<float, EACH> &g,
                                                 parameters<EACH> p)
{
    UNROLL
    for (int j = 0; j < EACH; j++)
        step_of(b.o, now, g.at[j], &p.w.at[j], &p.first.at[j], &p.second.at[j]);
    give_parameters(b, i, p);
}

static __device__ __forceinline__ void take_step(const optim_block &b, const step_args &now,
                                                 size_t i, float g)
{
    pack<float, 1> one = {{g}};
    step_from(b, now, i, one, take_parameters<1>(b, i));
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
