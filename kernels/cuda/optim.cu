/* optim.cu: the optimizers over the one parameter block, a kernel each; kernels/optim.h has the
 * formulas. */
#include "cuda/device.cuh"

static __global__ void sgd(const step_args *a, optim_args o, size_t n, float *w, const float *g,
                           float *b)
{
    float lr = a->lr, kept = a->kept, fresh = a->fresh;
    FOR_EACH(i, n)
    {
        float d = g[i] + o.decay * w[i];
        if (o.has_momentum) {
            float moved = kept * b[i] + fresh * d;
            b[i] = moved;
            d = o.nesterov ? d + o.momentum * moved : moved;
        }
        w[i] -= lr * d;
    }
}

static __global__ void adam(const step_args *a, optim_args o, size_t n, float *w, const float *g,
                            float *m, float *v)
{
    float rate = a->rate, root2 = a->root2, shrink = a->shrink;
    FOR_EACH(i, n)
    {
        float d = g[i] + o.decay * w[i];
        float mean = m[i] + o.fresh1 * (d - m[i]);
        float square = o.beta2 * v[i] + o.fresh2 * d * d;
        m[i] = mean;
        v[i] = square;
        w[i] = w[i] * shrink - rate * mean / (sqrtf(square) / root2 + o.eps);
    }
}

void cuda_optim(void *stream, const step_args *a, optim_args o, size_t n, float *w, const float *g,
                float *state, size_t stride)
{
    if (o.adam)
        LAUNCH(adam, blocks_for(n), THREADS, stream, a, o, n, w, g, state, state + stride);
    else
        LAUNCH(sgd, blocks_for(n), THREADS, stream, a, o, n, w, g, state);
}
