/* input.cu: from a batch as the host gives it to the network's input; see cuda_kernels.h. */
#include "cuda/device.cuh"

/* ---- bytes or floats, NCHW, to NHWC ---------------------------------------------------------- */

template <class T>
static __global__ void input(const step_args *a, const void *raw, const float *scale_shift, int cap,
                             int C, int HW, T *y)
{
    size_t sample = (size_t)C * (size_t)HW;
    FOR_EACH(i, (size_t)cap * sample)
    {
        divided channel = divide(i, C), pixel = divide(channel.times, HW);
        int c = (int)channel.rest;
        float value = 0;
        if ((int)pixel.times < a->n) {
            size_t at = pixel.times * sample + (size_t)c * (size_t)HW + pixel.rest;
            value = a->uint8 ? (float)((const uint8_t *)raw)[at] : ((const float *)raw)[at];
            value = value * scale_shift[c] + scale_shift[C + c];
        }
        put(&y[i], value);
    }
}

void cuda_input(void *stream, const step_args *a, const void *raw, const float *scale_shift,
                int cap, int C, int HW, element t, void *y)
{
    size_t count = (size_t)cap * (size_t)C * (size_t)HW;
    BY_ELEMENT(t, LAUNCH(input<T>, blocks_for(count), THREADS, stream, a, raw, scale_shift, cap, C,
                         HW, (T *)y));
}

/* ---- a share that lies on the device --------------------------------------------------------- */

enum { USE_AUGMENT = 5 }; /* RNG_AUGMENT */

static __device__ int below(uint32_t bits, int n)
{
    return (int)(((uint64_t)bits * (uint64_t)n) >> 32);
}

/* How a sample is flipped and shifted. */
struct motion {
    bool mirror;
    int dy, dx;
};

/* This thread's values of a row, to place i. T is a type of their size: only bits move. */
template <class T>
static __device__ void move_row(augmentation g, motion m, const void *share, size_t row,
                                void *batch, size_t i)
{
    int size = g.c * g.h * g.w;
    const T *from = (const T *)share + row * (size_t)size;
    T *to = (T *)batch + i * (size_t)size;
    for (int j = (int)(blockIdx.y * blockDim.x + threadIdx.x); j < size;
         j += (int)(gridDim.y * blockDim.x)) {
        int x = j % g.w, y = j / g.w % g.h, c = j / (g.w * g.h);
        int from_x = (m.mirror ? g.w - 1 - x : x) + m.dx, from_y = y + m.dy;
        bool inside = from_x >= 0 && from_x < g.w && from_y >= 0 && from_y < g.h;
        to[j] = inside ? from[(c * g.h + from_y) * g.w + from_x] : (T)0;
    }
}

/* Some blocks a sample: every thread draws the same numbers for it, and moves few of its values,
 * because it waits for each. */
enum { VALUES_EACH = 4, SHARES_MAX = 64 };

static __global__ void gather(const step_args *a, augmentation g, int outputs, cuda_rows share,
                              const uint32_t *order, cuda_rows batch)
{
    int i = (int)blockIdx.x;
    if (i >= a->n)
        return;
    uint32_t row = order[a->row + i], word[4];
    uint64_t key = share.keys[row];
    draw(g.seed, USE_AUGMENT, a->epoch, key, 0, word);
    motion m;
    m.mirror = g.flip && (word[0] & 1);
    m.dy = g.crop ? below(word[1], 2 * g.crop + 1) - g.crop : 0;
    m.dx = g.crop ? below(word[2], 2 * g.crop + 1) - g.crop : 0;
    if (a->uint8)
        move_row<uint8_t>(g, m, share.x, row, batch.x, (size_t)i);
    else
        move_row<uint32_t>(g, m, share.x, row, batch.x, (size_t)i);
    if (blockIdx.y > 0)
        return;
    for (int j = (int)threadIdx.x; j < outputs; j += (int)blockDim.x)
        batch.targets[(size_t)i * (size_t)outputs + (size_t)j] =
            share.targets[(size_t)row * (size_t)outputs + (size_t)j];
    if (threadIdx.x == 0) {
        if (outputs == 0)
            batch.labels[i] = share.labels[row];
        batch.keys[i] = key;
    }
}

void cuda_gather(void *stream, const step_args *a, augmentation g, int cap, int outputs,
                 cuda_rows share, const uint32_t *order, cuda_rows batch)
{
    int shares = (g.c * g.h * g.w - 1) / (VALUES_EACH * THREADS) + 1;
    dim3 grid((unsigned)cap, (unsigned)(shares < SHARES_MAX ? shares : SHARES_MAX));
    LAUNCH(gather, grid, THREADS, stream, a, g, outputs, share, order, batch);
}

static __global__ void next_step(step_args *a, const step_args *steps, int64_t *number)
{
    if (threadIdx.x == 0)
        *a = steps[(*number)++];
}

void cuda_next_step(void *stream, step_args *a, const step_args *steps, int64_t *number)
{
    LAUNCH(next_step, 1, 1, stream, a, steps, number);
}

static __global__ void add_result(const step_result *one, step_result *total)
{
    if (threadIdx.x == 0) {
        total->loss_sum += one->loss_sum;
        total->correct += one->correct;
    }
}

void cuda_add_result(void *stream, const step_result *one, step_result *total)
{
    LAUNCH(add_result, 1, 1, stream, one, total);
}
