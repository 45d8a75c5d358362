/* pool.cu: pooling over NHWC; see cuda_kernels.h. Backward gathers: a thread an input element adds
 * what every window that holds it sends, in row-major order, so that nothing is atomic. */
#include "device.cuh"

typedef struct span {
    int from, to, counted;
} span;

static __device__ span window_span(int p, int kernel, int stride, int pad, int extent,
                                   int count_pad)
{
    span v;
    v.from = p * stride - pad;
    v.to = min(v.from + kernel, extent + pad);
    v.counted = v.to - v.from;
    v.from = max(v.from, 0);
    v.to = min(v.to, extent);
    if (!count_pad)
        v.counted = v.to - v.from;
    return v;
}

/* [floor(p*H/P), ceil((p+1)*H/P)). The usual single output needs no 64-bit divisions. */
static __device__ span adaptive_span(int p, int extent, int out)
{
    span v;
    v.from = out == 1 ? 0 : (int)((int64_t)p * extent / out);
    v.to = out == 1 ? extent : (int)(((int64_t)(p + 1) * extent + out - 1) / out);
    v.counted = v.to - v.from;
    return v;
}

static __device__ span rows_of(const pool_shape &s, int p)
{
    if (s.adaptive)
        return adaptive_span(p, s.h, s.p);
    return window_span(p, s.kernel_h, s.stride_h, s.pad_h, s.h, s.count_pad);
}

static __device__ span columns_of(const pool_shape &s, int q)
{
    if (s.adaptive)
        return adaptive_span(q, s.w, s.q);
    return window_span(q, s.kernel_w, s.stride_w, s.pad_w, s.w, s.count_pad);
}

/* The output positions [from, to) whose windows may hold input position h. */
static __device__ span readers(int h, int kernel, int stride, int pad, int extent, int out,
                               int adaptive)
{
    span v;
    if (adaptive && out == 1) {
        v.from = 0;
        v.to = 1;
    } else if (adaptive) {
        v.from = (int)((int64_t)h * out / extent);
        v.to = (int)(((int64_t)(h + 1) * out + extent - 1) / extent);
    } else {
        int first = h + pad - kernel + 1;
        v.from = first <= 0 ? 0 : (first + stride - 1) / stride;
        v.to = (h + pad) / stride + 1;
    }
    v.to = min(v.to, out);
    v.counted = 0;
    return v;
}

typedef struct cell {
    int n, c, h, w;
} cell;

static __device__ cell cell_of(size_t i, int C, int H, int W)
{
    divided channel = divide(i, C), column = divide(channel.times, W),
            row = divide(column.times, H);
    cell at;
    at.c = (int)channel.rest;
    at.w = (int)column.rest;
    at.h = (int)row.rest;
    at.n = (int)row.times;
    return at;
}

static __device__ size_t offset(int n, int h, int w, int c, int H, int W, int C)
{
    return (((size_t)n * (size_t)H + (size_t)h) * (size_t)W + (size_t)w) * (size_t)C + (size_t)c;
}

static inline size_t inputs(pool_shape s)
{
    return (size_t)s.n * (size_t)s.c * (size_t)s.h * (size_t)s.w;
}

static inline size_t outputs(pool_shape s)
{
    return (size_t)s.n * (size_t)s.c * (size_t)s.p * (size_t)s.q;
}

/* ---- maximum --------------------------------------------------------------------------------- */

/* As the reference: the first of equals wins, a NaN wins over what came before it. */
template <class T>
static __global__ void max_forward(pool_shape s, size_t count, const T *x, uint16_t *winner, T *y)
{
    FOR_EACH(i, count)
    {
        cell o = cell_of(i, s.c, s.p, s.q);
        span v = rows_of(s, o.h), u = columns_of(s, o.w);
        int best_h = v.from, best_w = u.from;
        float best = to_float(x[offset(o.n, v.from, u.from, o.c, s.h, s.w, s.c)]);
        for (int h = v.from; h < v.to; h++)
            for (int w = u.from; w < u.to; w++) {
                float value = to_float(x[offset(o.n, h, w, o.c, s.h, s.w, s.c)]);
                if (value > best || isnan(value)) {
                    best = value;
                    best_h = h;
                    best_w = w;
                }
            }
        put(&y[i], best);
        if (winner)
            winner[i] = (uint16_t)((best_h - (o.h * s.stride_h - s.pad_h)) * s.kernel_w + best_w -
                                   (o.w * s.stride_w - s.pad_w));
    }
}

void cuda_max_pool_forward(void *stream, element t, pool_shape s, const void *x, uint16_t *winner,
                           void *y)
{
    size_t count = outputs(s);
    BY_ELEMENT(t, LAUNCH(max_forward<T>, blocks_for(count), THREADS, stream, s, count, (const T *)x,
                         winner, (T *)y));
}

template <class T>
static __global__ void max_backward(pool_shape s, size_t count, const uint16_t *winner, const T *dy,
                                    T *dx, bool add)
{
    FOR_EACH(i, count)
    {
        cell in = cell_of(i, s.c, s.h, s.w);
        span v = readers(in.h, s.kernel_h, s.stride_h, s.pad_h, s.h, s.p, 0);
        span u = readers(in.w, s.kernel_w, s.stride_w, s.pad_w, s.w, s.q, 0);
        float sum = 0;
        for (int p = v.from; p < v.to; p++)
            for (int q = u.from; q < u.to; q++) {
                size_t at = offset(in.n, p, q, in.c, s.p, s.q, s.c);
                int r = in.h - (p * s.stride_h - s.pad_h), c = in.w - (q * s.stride_w - s.pad_w);
                if ((int)winner[at] == r * s.kernel_w + c)
                    sum += to_float(dy[at]);
            }
        put_or_add(&dx[i], sum, add);
    }
}

void cuda_max_pool_backward(void *stream, element t, pool_shape s, const uint16_t *winner,
                            const void *dy, void *dx, bool add)
{
    size_t count = inputs(s);
    BY_ELEMENT(t, LAUNCH(max_backward<T>, blocks_for(count), THREADS, stream, s, count, winner,
                         (const T *)dy, (T *)dx, add));
}

/* ---- average --------------------------------------------------------------------------------- */

template <class T>
static __global__ void avg_forward(pool_shape s, size_t count, const T *x, T *y)
{
    FOR_EACH(i, count)
    {
        cell o = cell_of(i, s.c, s.p, s.q);
        span v = rows_of(s, o.h), u = columns_of(s, o.w);
        float sum = 0;
        for (int h = v.from; h < v.to; h++)
            for (int w = u.from; w < u.to; w++)
                sum += to_float(x[offset(o.n, h, w, o.c, s.h, s.w, s.c)]);
        put(&y[i], sum / (float)(v.counted * u.counted));
    }
}

void cuda_avg_pool_forward(void *stream, element t, pool_shape s, const void *x, void *y)
{
    size_t count = outputs(s);
    BY_ELEMENT(t, LAUNCH(avg_forward<T>, blocks_for(count), THREADS, stream, s, count, (const T *)x,
                         (T *)y));
}

template <class T>
static __global__ void avg_backward(pool_shape s, size_t count, const T *dy, T *dx, bool add)
{
    FOR_EACH(i, count)
    {
        cell in = cell_of(i, s.c, s.h, s.w);
        span v = readers(in.h, s.kernel_h, s.stride_h, s.pad_h, s.h, s.p, s.adaptive);
        span u = readers(in.w, s.kernel_w, s.stride_w, s.pad_w, s.w, s.q, s.adaptive);
        float sum = 0;
        for (int p = v.from; p < v.to; p++) {
            span rows = rows_of(s, p);
            if (in.h < rows.from || in.h >= rows.to)
                continue;
            for (int q = u.from; q < u.to; q++) {
                span columns = columns_of(s, q);
                if (in.w >= columns.from && in.w < columns.to)
                    sum += to_float(dy[offset(in.n, p, q, in.c, s.p, s.q, s.c)]) /
                           (float)(rows.counted * columns.counted);
            }
        }
        put_or_add(&dx[i], sum, add);
    }
}

void cuda_avg_pool_backward(void *stream, element t, pool_shape s, const void *dy, void *dx,
                            bool add)
{
    size_t count = inputs(s);
    BY_ELEMENT(t, LAUNCH(avg_backward<T>, blocks_for(count), THREADS, stream, s, count,
                         (const T *)dy, (T *)dx, add));
}
