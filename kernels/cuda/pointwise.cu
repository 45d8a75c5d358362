/* pointwise.cu: what maps element to element; see cuda_kernels.h. */
#include "device.cuh"

/* ---- activations ----------------------------------------------------------------------------- */

static __device__ float clamped(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x; /* NaN stays NaN */
}

static __device__ float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

static __device__ float activate(int kind, float slope, float x)
{
    switch (kind) {
    case CUDA_RELU:
        return x < 0 ? 0 : x;
    case CUDA_RELU6:
        return clamped(x, 0, 6);
    case CUDA_LEAKY_RELU:
        return x > 0 ? x : slope * x;
    case CUDA_HARDSIGMOID:
        return clamped(x + 3, 0, 6) / 6;
    case CUDA_HARDSWISH:
        return x * clamped(x + 3, 0, 6) / 6;
    case CUDA_SIGMOID:
        return sigmoid(x);
    case CUDA_TANH:
        return tanhf(x);
    case CUDA_GELU:
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    default: /* CUDA_SILU */
        return x * sigmoid(x);
    }
}

/* df/dx; at the kinks as the reference. */
static __device__ float derivative(int kind, float slope, float x)
{
    float s;
    switch (kind) {
    case CUDA_RELU:
        return x > 0 ? 1.0f : 0.0f;
    case CUDA_RELU6:
        return x > 0 && x < 6 ? 1.0f : 0.0f;
    case CUDA_LEAKY_RELU:
        return x > 0 ? 1.0f : slope;
    case CUDA_HARDSIGMOID:
        return x > -3 && x < 3 ? 1.0f / 6 : 0.0f;
    case CUDA_HARDSWISH:
        return x <= -3 ? 0.0f : x < 3 ? x / 3 + 0.5f : 1.0f;
    case CUDA_SIGMOID:
        s = sigmoid(x);
        return s * (1 - s);
    case CUDA_TANH:
        s = tanhf(x);
        return 1 - s * s;
    case CUDA_GELU:
        return 0.5f * (1 + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
    default: /* CUDA_SILU */
        s = sigmoid(x);
        return s * (1 + x * (1 - s));
    }
}

template <int EACH, class T>
static __global__ void activation_forward(int kind, float slope, size_t count, const T *x, T *y)
{
    FOR_EACH(k, count / EACH)
    {
        pack<T, EACH> in = take<EACH>(x, k * EACH);
        pack<float, EACH> out;
        for (int j = 0; j < EACH; j++)
            out.at[j] = activate(kind, slope, to_float(in.at[j]));
        give<EACH>(y, k * EACH, out, false);
    }
}

void cuda_activation_forward(void *stream, element t, int kind, float slope, size_t count,
                             const void *x, void *y)
{
    bool fours = in_fours(count, element_bytes(t), (uintptr_t)x | (uintptr_t)y);
    BY_ELEMENT(t,
               BY_FOURS(fours, LAUNCH((activation_forward<EACH, T>), blocks_for(count / EACH),
                                      THREADS, stream, kind, slope, count, (const T *)x, (T *)y)));
}

template <int EACH, class T>
static __global__ void activation_backward(int kind, float slope, size_t count, const T *x,
                                           const T *dy, T *dx, bool add)
{
    FOR_EACH(k, count / EACH)
    {
        pack<T, EACH> in = take<EACH>(x, k * EACH), sent = take<EACH>(dy, k * EACH);
        pack<float, EACH> out;
        for (int j = 0; j < EACH; j++)
            out.at[j] = to_float(sent.at[j]) * derivative(kind, slope, to_float(in.at[j]));
        give<EACH>(dx, k * EACH, out, add);
    }
}

void cuda_activation_backward(void *stream, element t, int kind, float slope, size_t count,
                              const void *x, const void *dy, void *dx, bool add)
{
    bool fours = in_fours(count, element_bytes(t), (uintptr_t)x | (uintptr_t)dy | (uintptr_t)dx);
    BY_ELEMENT(t, BY_FOURS(fours, LAUNCH((activation_backward<EACH, T>), blocks_for(count / EACH),
                                         THREADS, stream, kind, slope, count, (const T *)x,
                                         (const T *)dy, (T *)dx, add)));
}

/* Values that the ReLU let through are not written. */
template <int EACH, class T> static __global__ void relu_mask(size_t count, const T *y, T *dy)
{
    FOR_EACH(k, count / EACH)
    {
        pack<T, EACH> out = take<EACH>(y, k * EACH);
        for (int j = 0; j < EACH; j++)
            if (!(to_float(out.at[j]) > 0))
                put(&dy[k * EACH + (size_t)j], 0.0f);
    }
}

void cuda_relu_mask(void *stream, element t, size_t count, const void *y, void *dy)
{
    bool fours = in_fours(count, element_bytes(t), (uintptr_t)y);
    BY_ELEMENT(t, BY_FOURS(fours, LAUNCH((relu_mask<EACH, T>), blocks_for(count / EACH), THREADS,
                                         stream, count, (const T *)y, (T *)dy)));
}

/* ---- sums and products of two ---------------------------------------------------------------- */

/* Where element i of (cap, HW, C) finds its value of a (cap, C) tensor. */
static __device__ size_t shared_at(size_t i, int C, int HW)
{
    divided channel = divide(i, C);
    return (size_t)divide(channel.times, HW).times * (size_t)C + channel.rest;
}

template <int EACH, class T>
static __global__ void pair_forward(bool multiply, bool relu, bool broadcast, size_t count, int C,
                                    int HW, const T *a, const T *b, T *y)
{
    FOR_EACH(k, count / EACH)
    {
        size_t i = k * EACH;
        pack<T, EACH> left = take<EACH>(a, i),
                      right = take<EACH>(b, broadcast ? shared_at(i, C, HW) : i);
        pack<float, EACH> out;
        for (int j = 0; j < EACH; j++) {
            float x = to_float(left.at[j]), z = to_float(right.at[j]);
            float value = multiply ? x * z : x + z;
            out.at[j] = relu && value < 0 ? 0.0f : value;
        }
        give<EACH>(y, i, out, false);
    }
}

/* Whether values go by fours. In a (cap, C) tensor, four values lie side by side where they are of
 * four channels. */
static bool pair_in_fours(size_t count, element t, bool broadcast, int C, uintptr_t addresses)
{
    return in_fours(broadcast ? (size_t)C : count, element_bytes(t), addresses);
}

void cuda_pair_forward(void *stream, element t, bool multiply, bool relu, bool broadcast, int cap,
                       int C, int HW, const void *a, const void *b, void *y)
{
    size_t count = (size_t)cap * (size_t)C * (size_t)HW;
    bool fours = pair_in_fours(count, t, broadcast, C, (uintptr_t)a | (uintptr_t)b | (uintptr_t)y);
    BY_ELEMENT(t, BY_FOURS(fours, LAUNCH((pair_forward<EACH, T>), blocks_for(count / EACH), THREADS,
                                         stream, multiply, relu, broadcast, count, C, HW,
                                         (const T *)a, (const T *)b, (T *)y)));
}

template <int EACH, class T>
static __global__ void pair_backward(bool multiply, bool broadcast, size_t count, int C, int HW,
                                     const T *other, const T *dy, T *dx, bool add)
{
    FOR_EACH(k, count / EACH)
    {
        size_t i = k * EACH;
        pack<T, EACH> sent = take<EACH>(dy, i), factor = sent;
        if (multiply)
            factor = take<EACH>(other, broadcast ? shared_at(i, C, HW) : i);
        pack<float, EACH> out;
        for (int j = 0; j < EACH; j++) {
            float value = to_float(sent.at[j]);
            out.at[j] = multiply ? value * to_float(factor.at[j]) : value;
        }
        give<EACH>(dx, i, out, add);
    }
}

void cuda_pair_backward(void *stream, element t, bool multiply, bool other_broadcast, int cap,
                        int C, int HW, const void *other, const void *dy, void *dx, bool add)
{
    size_t count = (size_t)cap * (size_t)C * (size_t)HW;
    bool fours = pair_in_fours(count, t, other_broadcast, C,
                               (uintptr_t)other | (uintptr_t)dy | (uintptr_t)dx);
    BY_ELEMENT(t, BY_FOURS(fours, LAUNCH((pair_backward<EACH, T>), blocks_for(count / EACH),
                                         THREADS, stream, multiply, other_broadcast, count, C, HW,
                                         (const T *)other, (const T *)dy, (T *)dx, add)));
}

/* A thread a channel and sample: neighbours read neighbouring channels. */
template <class T>
static __global__ void pair_backward_shared(bool multiply, size_t count, int C, int HW, const T *a,
                                            const T *dy, T *db, bool add)
{
    FOR_EACH(i, count)
    {
        divided channel = divide(i, C);
        size_t first = (size_t)channel.times * (size_t)C * (size_t)HW + channel.rest;
        float sum = 0;
        for (int j = 0; j < HW; j++) {
            size_t at = first + (size_t)j * (size_t)C;
            sum += multiply ? to_float(dy[at]) * to_float(a[at]) : to_float(dy[at]);
        }
        put_or_add(&db[i], sum, add);
    }
}

void cuda_pair_backward_broadcast(void *stream, element t, bool multiply, int cap, int C, int HW,
                                  const void *a, const void *dy, void *db, bool add)
{
    size_t count = (size_t)cap * (size_t)C;
    BY_ELEMENT(t, LAUNCH(pair_backward_shared<T>, blocks_for(count), THREADS, stream, multiply,
                         count, C, HW, (const T *)a, (const T *)dy, (T *)db, add));
}

/* ---- parts of concat and channel padding ----------------------------------------------------- */

template <class T>
static __global__ void part_forward(size_t count, int part, int C, int at, const T *x, T *y)
{
    FOR_EACH(i, count)
    {
        divided row = divide(i, part);
        y[(size_t)row.times * (size_t)C + (size_t)at + row.rest] = x[i];
    }
}

void cuda_part_forward(void *stream, element t, size_t rows, int part, int C, int at, const void *x,
                       void *y)
{
    size_t count = rows * (size_t)part;
    BY_ELEMENT(t, LAUNCH(part_forward<T>, blocks_for(count), THREADS, stream, count, part, C, at,
                         (const T *)x, (T *)y));
}

template <class T>
static __global__ void part_backward(size_t count, int part, int C, int at, const T *dy, T *dx,
                                     bool add)
{
    FOR_EACH(i, count)
    {
        divided row = divide(i, part);
        put_or_add(&dx[i], to_float(dy[(size_t)row.times * (size_t)C + (size_t)at + row.rest]),
                   add);
    }
}

void cuda_part_backward(void *stream, element t, size_t rows, int part, int C, int at,
                        const void *dy, void *dx, bool add)
{
    size_t count = rows * (size_t)part;
    BY_ELEMENT(t, LAUNCH(part_backward<T>, blocks_for(count), THREADS, stream, count, part, C, at,
                         (const T *)dy, (T *)dx, add));
}

/* ---- dropout --------------------------------------------------------------------------------- */

enum { USE_DROPOUT = 6 }; /* RNG_DROPOUT */

template <class T>
static __global__ void dropout(const step_args *a, const uint64_t *keys, uint32_t drop_below,
                               float scale, uint32_t layer, size_t count, int C, int HW, const T *x,
                               T *y, bool add)
{
    FOR_EACH(i, count)
    {
        divided channel = divide(i, C), pixel = divide(channel.times, HW);
        float value = 0;
        if ((int)pixel.times < a->n) {
            uint32_t j = channel.rest * (uint32_t)HW + pixel.rest, word[4];
            draw(a->seed, USE_DROPOUT, a->epoch, keys[pixel.times], layer << 24 | j / 4, word);
            value = word[j % 4] >= drop_below ? to_float(x[i]) * scale : 0.0f;
        }
        put_or_add(&y[i], value, add);
    }
}

void cuda_dropout(void *stream, element t, const step_args *a, const uint64_t *keys, double p,
                  uint32_t layer, int cap, int C, int HW, const void *x, void *y, bool add)
{
    size_t count = (size_t)cap * (size_t)C * (size_t)HW;
    uint32_t drop_below = (uint32_t)(p * 4294967296.0);
    float scale = (float)(1 / (1 - p));
    BY_ELEMENT(t, LAUNCH(dropout<T>, blocks_for(count), THREADS, stream, a, keys, drop_below, scale,
                         layer, count, C, HW, (const T *)x, (T *)y, add));
}

/* ---- layouts and types ----------------------------------------------------------------------- */

enum { TILE = 32, TILE_ROWS = 8 };

/* A tile goes through shared memory so that both sides move whole lines; an extra column keeps the
 * banks apart. A block has one tile; `across` tiles lie side by side. */
template <class T>
static __global__ void transpose(int rows, int columns, int across, const T *x, T *y, bool add)
{
    __shared__ float tile[TILE][TILE + 1];
    size_t plane = (size_t)blockIdx.y * (size_t)rows * (size_t)columns;
    int left = (int)blockIdx.x % across * TILE, top = (int)blockIdx.x / across * TILE;
    int column = left + (int)threadIdx.x, row = top + (int)threadIdx.y;
    for (int j = 0; j < TILE; j += TILE_ROWS)
        if (column < columns && row + j < rows)
            tile[threadIdx.y + j][threadIdx.x] =
                to_float(x[plane + (size_t)(row + j) * (size_t)columns + (size_t)column]);
    __syncthreads();
    column = top + (int)threadIdx.x;
    row = left + (int)threadIdx.y;
    for (int j = 0; j < TILE; j += TILE_ROWS)
        if (column < rows && row + j < columns)
            put_or_add(&y[plane + (size_t)(row + j) * (size_t)rows + (size_t)column],
                       tile[threadIdx.x][threadIdx.y + j], add);
}

/* Planes beyond what a grid holds go into further launches. */
void cuda_transpose(void *stream, element t, int N, int rows, int columns, const void *x, void *y,
                    bool add)
{
    enum { AT_ONCE = 32768 };
    size_t plane = (size_t)rows * (size_t)columns * element_bytes(t);
    int across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
    for (int first = 0; first < N; first += AT_ONCE) {
        dim3 grid((unsigned)across * (unsigned)down,
                  (unsigned)(N - first < AT_ONCE ? N - first : AT_ONCE));
        const char *from = (const char *)x + (size_t)first * plane;
        char *to = (char *)y + (size_t)first * plane;
        BY_ELEMENT(t, LAUNCH_BLOCK(transpose<T>, grid, dim3(TILE, TILE_ROWS), stream, rows, columns,
                                   across, (const T *)from, (T *)to, add));
    }
}

template <class T> static __global__ void copy(size_t count, const T *x, T *y, bool add)
{
    FOR_EACH(i, count)
    put_or_add(&y[i], to_float(x[i]), add);
}

void cuda_copy(void *stream, element t, size_t count, const void *x, void *y, bool add)
{
    BY_ELEMENT(t, LAUNCH(copy<T>, blocks_for(count), THREADS, stream, count, (const T *)x, (T *)y,
                         add));
}

template <class From, class To>
static __global__ void convert(size_t count, const From *x, To *y, bool add)
{
    FOR_EACH(i, count)
    put_or_add(&y[i], to_float(x[i]), add);
}

void cuda_to_bf16(void *stream, size_t count, const float *x, void *y)
{
    LAUNCH((convert<float, bf16>), blocks_for(count), THREADS, stream, count, x, (bf16 *)y, false);
}

void cuda_from_bf16(void *stream, size_t count, const void *x, float *y, bool add)
{
    LAUNCH((convert<bf16, float>), blocks_for(count), THREADS, stream, count, (const bf16 *)x, y,
           add);
}

void cuda_to_float(void *stream, element t, size_t count, const void *x, float *y)
{
    if (t == ELEMENT_BF16)
        cuda_from_bf16(stream, count, x, y, false);
    else
        cuda_copy(stream, t, count, x, y, false);
}
