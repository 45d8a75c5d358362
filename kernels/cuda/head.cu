/* head.cu: the linear layers at a small model's end, their ReLUs and the loss as one kernel, with
 * what flows back through them, and the gradients of all their parameters as another; see
 * cuda_kernels.h.
 *
 * A block computes a sample, whose values lie in shared memory, layer after layer, and reads all
 * weights once forward and once backward. A thread computes little: the time is that of the loads
 * that wait for each other. A thread therefore loads TILE times four weights at once. It loads its
 * first weights of a layer before the barrier that the layer's values are behind.
 *
 * The first kernel leaves what the parameters' gradients need of a sample in the layers' tensors.
 * The second kernel sums it over the samples, in order. That kernel reads no parameter of another
 * thread, so that a parameter can take its step there. */
#include "loss.cuh"
#include "optim.cuh"

/* Static shared memory is 48 KiB. It is the same memory as the multiprocessor's cache: the less is
 * taken here, the more of the weights stay in the cache until they are read backward. A block reads
 * all weights, so they are to stay in a GPU's cache. */
enum { HEAD_FLOATS = 5120, HEAD_WEIGHTS = 1 << 18 };
enum { HEAD_THREADS = 512, WARPS = HEAD_THREADS / LANES };
/* Loads of four weights that a thread waits for at once; columns of a row that a warp reads so. */
enum { TILE = 8, FOUR = 4, WARP_COLUMNS = FOUR * LANES };

/* A layer's values in shared memory: zeros follow up to a whole tile. */
static __device__ __host__ __forceinline__ int padded(int values)
{
    return (values + TILE - 1) / TILE * TILE;
}

bool cuda_head_fits(const head_shape *h)
{
    int64_t floats = (int64_t)h->layer[0].c + TILE, weights = 0;
    for (int i = 0; i < h->layers; i++) {
        int64_t k = h->layer[i].k, copies = i == h->layers - 1 ? 2 : 1; /* logits and gradient */
        floats += copies * (k + TILE);
        weights += h->layer[i].c * k;
    }
    return floats <= HEAD_FLOATS && weights <= HEAD_WEIGHTS;
}

/* A layer, and how a block goes over it. Backward, a thread has four columns of a slice of the
 * rows; `groups` of four columns at once. */
struct head_stage : head_layer {
    int groups, slices, rows;
    int inverse; /* of `groups` */
};

/* There are so few threads that this is exact: (thread * inverse) >> INVERSE_BITS is thread /
 * groups. */
enum { INVERSE_BITS = 20 };

struct head_stages {
    int layers;
    head_stage layer[HEAD_LAYERS_MAX];
};

static head_stages stages_of(const head_shape *h)
{
    head_stages stages = {};
    stages.layers = h->layers;
    for (int i = 0; i < h->layers; i++) {
        const head_layer *l = &h->layer[i];
        int groups = (l->c + FOUR - 1) / FOUR, tiles = padded(l->k) / TILE;
        groups = groups < HEAD_THREADS ? groups : HEAD_THREADS;
        int most = HEAD_THREADS / groups, each = (tiles + most - 1) / most;
        head_stage *s = &stages.layer[i];
        *(head_layer *)s = *l;
        s->groups = groups;
        s->slices = (tiles + each - 1) / each;
        s->rows = each * TILE;
        s->inverse = ((1 << INVERSE_BITS) + groups - 1) / groups;
    }
    return stages;
}

/* The value as it is when it is read back from a T. */
template <class T> static __device__ __forceinline__ float rounded(float x)
{
    T stored;
    put(&stored, x);
    return to_float(stored);
}

template <class T> struct head_tile {
    pack<T, FOUR> w[TILE];
    float bias;
};

/* Four weights of a row from `column` on; past the row's end, its last weight again. */
template <int EACH, class T>
static __device__ __forceinline__ pack<T, FOUR> four_of(const T *row, int column, int columns)
{
    pack<T, FOUR> four;
    if (EACH == FOUR) {
        four = take<FOUR>(row, (size_t)column);
    } else {
        UNROLL
        for (int e = 0; e < FOUR; e++)
            four.at[e] = row[min(column + e, columns - 1)];
    }
    return four;
}

/* Four weights of each of TILE rows from (row, column) on, where there is such a column; past the
 * last row, that row again. Repeated weights are multiplied by zero, or nothing uses the result. */
template <int EACH, class T>
static __device__ __forceinline__ void take_tile(const head_layer &l, int row, int column,
                                                 head_tile<T> *t)
{
    if (column >= l.c)
        return;
    UNROLL
    for (int j = 0; j < TILE; j++)
        t->w[j] = four_of<EACH>((const T *)l.w + min(row + j, l.k - 1) * l.c, column, l.c);
}

/* sum + a . b, from the first to the last */
template <class T>
static __device__ __forceinline__ float add_product(float sum, const pack<float, FOUR> &a,
                                                    const pack<T, FOUR> &b)
{
    UNROLL
    for (int e = 0; e < FOUR; e++)
        sum += a.at[e] * to_float(b.at[e]);
    return sum;
}

/* *sum += d * w */
template <int EACH, class T>
static __device__ __forceinline__ void add_scaled(pack<float, EACH> *sum, float d,
                                                  const pack<T, EACH> &w)
{
    UNROLL
    for (int e = 0; e < EACH; e++)
        sum->at[e] += d * to_float(w.at[e]);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* A lane keeps half of its sums, and gives the others to the lane that keeps that half. */
template <int HALF> static __device__ __forceinline__ void halve(float (&sum)[TILE])
{
    bool upper = threadIdx.x & (HALF * 4);
    UNROLL
    for (int j = 0; j < HALF; j++) {
        float mine = upper ? sum[j + HALF] : sum[j], other = upper ? sum[j] : sum[j + HALF];
        sum[j] = mine + __shfl_xor_sync(ALL_LANES, other, HALF * 4);
    }
}

/* The totals of eight sums over a warp's lanes: lane i gets that of sum i / 4. */
static __device__ __forceinline__ float lanes_totals(float (&sum)[TILE])
{
    static_assert(TILE == 8 && LANES == 32, "three halves, and four lanes for each sum");
    halve<4>(sum);
    halve<2>(sum);
    halve<1>(sum);
    sum[0] += __shfl_xor_sync(ALL_LANES, sum[0], 2);
    return sum[0] + __shfl_xor_sync(ALL_LANES, sum[0], 1);
}

/* The output of this lane, of a warp's outputs from `row` on. */
static __device__ __forceinline__ int output_of_lane(int row)
{
    return row + (int)threadIdx.x % LANES / (LANES / TILE);
}

static __device__ __forceinline__ float bias_of(const head_layer &l, int k)
{
    return l.bias && k < l.k ? l.bias[k] : 0.0f;
}

/* Loads what a warp needs first of a layer. */
template <int EACH, class T>
static __device__ __forceinline__ void begin_forward(const head_layer &l, head_tile<T> *t)
{
    int row = (int)threadIdx.x / LANES * TILE;
    if (row >= l.k)
        return;
    take_tile<EACH>(l, row, (int)threadIdx.x % LANES * FOUR, t);
    t->bias = bias_of(l, output_of_lane(row));
}

/* A warp has TILE outputs at once, a lane four columns of them. */
template <int EACH, class T>
static __device__ __forceinline__ void head_forward(const head_layer &l, int n, const float *x,
                                                    float *y, head_tile<T> *t)
{
    int lane = (int)threadIdx.x % LANES, begin = (int)threadIdx.x / LANES * TILE;
    for (int row = begin; row < l.k; row += WARPS * TILE) {
        float sum[TILE] = {};
        int k = output_of_lane(row);
        if (row != begin)
            t->bias = bias_of(l, k);
        for (int column = lane * FOUR; column < l.c; column += WARP_COLUMNS) {
            if (row != begin || column >= WARP_COLUMNS)
                take_tile<EACH>(l, row, column, t);
            pack<float, FOUR> values = take<FOUR>(x, (size_t)column);
            UNROLL
            for (int j = 0; j < TILE; j++)
                sum[j] = add_product(sum[j], values, t->w[j]);
        }
        float total = lanes_totals(sum) + t->bias;
        total = l.relu && total < 0 ? 0.0f : total;
        if (lane % (LANES / TILE) == 0) {
            if (k < l.k)
                put((T *)l.y + (size_t)n * (size_t)l.k + (size_t)k, total);
            y[k] = k < l.k ? rounded<T>(total) : 0.0f;
        }
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

static __device__ __forceinline__ int slice_of_thread(const head_stage &l)
{
    return ((int)threadIdx.x * l.inverse) >> INVERSE_BITS;
}

/* Loads what a thread needs first of a layer. */
template <int EACH, class T>
static __device__ __forceinline__ void begin_backward(const head_stage &l, head_tile<T> *t)
{
    int slice = slice_of_thread(l), group = (int)threadIdx.x - slice * l.groups;
    if (slice < l.slices)
        take_tile<EACH>(l, slice * l.rows, group * FOUR, t);
}

/* The first of each slice, in order. */
static __device__ __forceinline__ float sum_of_parts(const float *parts, int slices, int columns)
{
    float sum = 0;
    for (int s = 0; s < slices; s += TILE) {
        float part[TILE];
        UNROLL
        for (int j = 0; j < TILE; j++)
            part[j] = s + j < slices ? parts[(s + j) * columns] : 0.0f;
        UNROLL
        for (int j = 0; j < TILE; j++)
            sum += part[j];
    }
    return sum;
}

/* Computes dx of layer i from dy, in place of its x, as the ReLU before it lets dx through. The
 * parameters' gradients read dx: `out` is its tensor, or the dx of the whole head. `parts`: the
 * sums of the slices. */
template <int EACH, class T>
static __device__ __forceinline__ void head_backward(const head_stages &h, int i, float *x,
                                                     const float *dy, T *out, bool next,
                                                     float *parts, head_tile<T> *t)
{
    const head_stage &l = h.layer[i];
    const int slice = slice_of_thread(l), group = (int)threadIdx.x - slice * l.groups,
              columns = l.groups * FOUR, begin = slice * l.rows, end = min(begin + l.rows, l.k);
    const bool relu = i > 0 && h.layer[i - 1].relu;
    for (int first = 0; first < l.c; first += columns) {
        pack<float, FOUR> sum = {};
        for (int row = begin; row < end; row += TILE) {
            if (first || row != begin)
                take_tile<EACH>(l, row, first + group * FOUR, t);
            pack<float, FOUR> d = {};
            UNROLL
            for (int j = 0; j < TILE; j++) {
                if (j % FOUR == 0)
                    d = take<FOUR>(dy, (size_t)(row + j));
                add_scaled(&sum, d.at[j % FOUR], t->w[j]);
            }
        }
        if (slice < l.slices)
            store(parts, (size_t)(slice * columns + group * FOUR), sum);
        if (next && first + columns >= l.c)
            begin_backward<EACH>(h.layer[i - 1], t);
        __syncthreads();
        for (int c = (int)threadIdx.x; c < min(columns, l.c - first); c += HEAD_THREADS) {
            float total = rounded<T>(sum_of_parts(parts + c, l.slices, columns));
            total = relu && !(x[first + c] > 0) ? 0.0f : total;
            put(&out[first + c], total);
            x[first + c] = total;
        }
        __syncthreads();
    }
}

/* ---- a sample -------------------------------------------------------------------------------- */

/* The logits' gradient as it is stored, and as a ReLU behind the last layer lets it through, by one
 * warp; zeros follow. */
template <class T>
static __device__ __forceinline__ void last_gradient(const head_stage &l, int n, const answer &is,
                                                     const row_sums &sums, const float *y,
                                                     float *dy)
{
    cross_entropy_gradient(sums, is, l.k, y, dy);
    ROLLED
    for (int k = (int)threadIdx.x % LANES; k < padded(l.k); k += LANES) {
        float d = k < l.k ? rounded<T>(dy[k]) : 0.0f;
        d = l.relu && !(y[k] > 0) ? 0.0f : d;
        if (k < l.k)
            put((T *)l.dy + (size_t)n * (size_t)l.k + (size_t)k, d);
        dy[k] = d;
    }
}

/* Takes half of a multiprocessor's registers, so that another model's kernels run beside it. */
template <class T, int EACH>
static __global__ void __launch_bounds__(HEAD_THREADS, EACH == FOUR ? 2 : 1)
    head(const step_args *a, head_stages h, const T *x, const int32_t *labels, bool training, T *dx,
         step_result *per_row)
{
    __shared__ pack<float, FOUR> room[HEAD_FLOATS / FOUR], parts[HEAD_THREADS];
    __shared__ answer is;
    float *value = room[0].at;
    const int n = (int)blockIdx.x, c = h.layer[0].c, last = h.layers - 1,
              warp = (int)threadIdx.x / LANES;
    int i = (int)threadIdx.x, at = 0;
    x += (size_t)n * (size_t)c;
    float first = i < c ? to_float(x[i]) : 0.0f;
    answer wanted = {};
    if (threadIdx.x == 0)
        wanted = answer_of(a, n, labels);
    head_tile<T> tile;
    tile.bias = 0;
    begin_forward<EACH>(h.layer[0], &tile);
    if (threadIdx.x == 0)
        is = wanted;
    if (i < padded(c))
        value[i] = first;
    UNROLL_BY_4
    for (i += HEAD_THREADS; i < padded(c); i += HEAD_THREADS)
        value[i] = i < c ? to_float(x[i]) : 0.0f;
    __syncthreads();
    for (i = 0; i <= last; i++) {
        const head_stage &l = h.layer[i];
        int to = at + padded(l.c);
        head_forward<EACH>(l, n, value + at, value + to, &tile);
        at = to;
        if (i < last)
            begin_forward<EACH>(h.layer[i + 1], &tile);
        else if (training)
            begin_backward<EACH>(h.layer[last], &tile);
        __syncthreads();
    }
    const head_stage &end = h.layer[last];
    float *logits = value + at, *dy = logits + padded(end.k);
    if (warp < 2) { /* nothing waits for the result, so that another warp computes it */
        const row_sums sums = sums_of_row(end.k, logits);
        if (warp)
            cross_entropy_result(sums, is, end.k, logits, &per_row[n]);
        else if (training)
            last_gradient<T>(end, n, is, sums, logits, dy);
    }
    if (!training)
        return;
    __syncthreads();
    for (i = last; i > 0 || (i == 0 && dx); i--) {
        const head_stage &l = h.layer[i];
        T *out = i ? (T *)h.layer[i - 1].dy : dx;
        at -= padded(l.c);
        head_backward<EACH>(h, i, value + at, dy, out + (size_t)n * (size_t)l.c, i > 1 || (i && dx),
                            parts[0].at, &tile);
        dy = value + at;
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* SAMPLES are loaded at once; past the last sample, that one again, with a gradient of zero.
 * GRADIENT_BLOCKS: where the compiler may choose how many blocks a multiprocessor holds, it saves
 * registers for more blocks, and each load waits for the one before. */
enum { SAMPLES = 8, GRADIENT_BLOCKS = 3 };

/* dy (cap, k) at one output, of samples from n on. */
template <class T>
static __device__ __forceinline__ void take_gradients(int cap, int n, const T *dy, int k,
                                                      float (&d)[SAMPLES])
{
    T stored[SAMPLES];
    UNROLL
    for (int j = 0; j < SAMPLES; j++)
        stored[j] = dy[min(n + j, cap - 1) * k];
    UNROLL
    for (int j = 0; j < SAMPLES; j++)
        d[j] = n + j < cap ? to_float(stored[j]) : 0.0f;
}

/* sum over the samples of dy at one output times x (cap, c) at EACH columns. */
template <int EACH, class T>
static __device__ __forceinline__ pack<float, EACH> products(int cap, const T *dy, int k,
                                                             const T *x, int c)
{
    pack<float, EACH> sum = {};
    ROLLED
    for (int n = 0; n < cap; n += SAMPLES) {
        float d[SAMPLES];
        pack<T, EACH> values[SAMPLES];
        UNROLL
        for (int j = 0; j < SAMPLES; j++)
            values[j] = take<EACH>(x, (size_t)(min(n + j, cap - 1) * c));
        take_gradients(cap, n, dy, k, d);
        UNROLL
        for (int j = 0; j < SAMPLES; j++)
            add_scaled(&sum, d[j], values[j]);
    }
    return sum;
}

/* sum over the samples of dy at one output */
template <class T> static __device__ __forceinline__ float column_sum(int cap, const T *dy, int k)
{
    float sum = 0;
    ROLLED
    for (int n = 0; n < cap; n += SAMPLES) {
        float d[SAMPLES];
        take_gradients(cap, n, dy, k, d);
        UNROLL
        for (int j = 0; j < SAMPLES; j++)
            sum += d[j];
    }
    return sum;
}

/* Threads for a layer's weights, each EACH of them; one more for each bias. */
template <int EACH>
static __device__ __host__ __forceinline__ int weight_threads(const head_layer &l)
{
    return l.k * (l.c / EACH);
}

static __device__ __host__ __forceinline__ int bias_threads(const head_layer &l)
{
    return l.db ? l.k : 0;
}

/* Gradients of the weights from i on, and the step of these weights, which are loaded before the
 * sums. */
template <int EACH, class T>
static __device__ __forceinline__ void weight_gradients(const head_layer &l, int cap, const T *x,
                                                        int i, const optim_block &update,
                                                        const step_args &now)
{
    divided row = divide((size_t)i, l.c / EACH);
    float *to = l.dw + (size_t)i * EACH;
    size_t at = update.w ? (size_t)(to - update.g) : 0;
    parameters<EACH> p = {};
    if (update.w)
        p = take_parameters<EACH>(update, at);
    pack<float, EACH> sum =
        products<EACH>(cap, (const T *)l.dy + row.times, l.k, x + (size_t)row.rest * EACH, l.c);
    store(to, 0, sum);
    if (update.w)
        step_from(update, now, at, sum, p);
}

/* Adds up the losses: little work beside that of a thread for its parameters. */
static __device__ void add_in_order(int cap, const step_result *per_row, step_result *total)
{
    step_result sum = {0, 0};
    ROLLED
    for (int n = 0; n < cap; n += SAMPLES) {
        step_result row[SAMPLES];
        UNROLL
        for (int j = 0; j < SAMPLES; j++) {
            row[j] = {0, 0};
            if (n + j < cap)
                row[j] = per_row[n + j];
        }
        UNROLL
        for (int j = 0; j < SAMPLES; j++) {
            sum.loss_sum += row[j].loss_sum;
            sum.correct += row[j].correct;
        }
    }
    *total = sum;
}

/* A thread has EACH weights or a bias, of `count` in all. One more block adds up the losses. */
template <class T, int EACH>
static __global__ void __launch_bounds__(THREADS, GRADIENT_BLOCKS)
    head_gradients(head_shape h, int cap, const T *x, int count, const step_result *per_row,
                   step_result *total, optim_block update)
{
    if (blockIdx.x == gridDim.x - 1) {
        if (threadIdx.x == 0)
            add_in_order(cap, per_row, total);
        return;
    }
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= count)
        return;
    const step_args now = numbers_of(update);
    int layer = 0;
    while (i >= weight_threads<EACH>(h.layer[layer]) + bias_threads(h.layer[layer])) {
        i -= weight_threads<EACH>(h.layer[layer]) + bias_threads(h.layer[layer]);
        layer++;
    }
    const head_layer &l = h.layer[layer];
    int weights = weight_threads<EACH>(l);
    if (i < weights)
        weight_gradients<EACH>(l, cap, layer ? (const T *)h.layer[layer - 1].y : x, i, update, now);
    else
        put_gradient(update, now, &l.db[i - weights],
                     column_sum(cap, (const T *)l.dy + (i - weights), l.k));
}

void cuda_head(void *stream, element t, const step_args *a, int cap, const head_shape *h,
               const void *x, const int32_t *labels, bool training, void *dx, step_result *per_row,
               step_result *sum)
{
    head_stages stages = stages_of(h);
    bool fours = true;
    for (int i = 0; i < h->layers; i++)
        fours =
            fours && in_fours((size_t)h->layer[i].c, element_bytes(t), (uintptr_t)h->layer[i].w);
    BY_ELEMENT(
        t, BY_FOURS(fours, LAUNCH_BLOCK((head<T, EACH>), (unsigned)cap, HEAD_THREADS, stream, a,
                                        stages, (const T *)x, labels, training, (T *)dx, per_row)));
    if (!training)
        cuda_add_rows(stream, cap, per_row, sum);
}

/* Whether four columns' x and four parameters are one load each. */
static bool gradients_in_fours(element t, const head_shape *h, const void *x,
                               const optim_block *update)
{
    bool fours = true;
    for (int i = 0; i < h->layers; i++) {
        const head_layer *l = &h->layer[i];
        fours = fours && in_fours((size_t)l->c, element_bytes(t), (uintptr_t)x) &&
                in_fours((size_t)l->c, sizeof(float), (uintptr_t)l->dw);
        x = l->y;
    }
    if (!fours || !update)
        return fours;
    /* a gradient's place is its parameter's */
    return in_fours(update->count, sizeof(float),
                    (uintptr_t)update->g | (uintptr_t)update->w | (uintptr_t)update->state) &&
           in_fours(update->count, sizeof(bf16), (uintptr_t)update->w16);
}

template <class T, int EACH>
static void launch_gradients(void *stream, int cap, const head_shape &h, const T *x,
                             const step_result *per_row, step_result *sum,
                             const optim_block &update)
{
    int count = 0;
    for (int i = 0; i < h.layers; i++)
        count += weight_threads<EACH>(h.layer[i]) + bias_threads(h.layer[i]);
    unsigned blocks = (unsigned)((count + THREADS - 1) / THREADS);
    LAUNCH((head_gradients<T, EACH>), blocks + 1, THREADS, stream, h, cap, x, count, per_row, sum,
           update);
}

void cuda_head_gradients(void *stream, element t, int cap, const head_shape *h, const void *x,
                         const step_result *per_row, step_result *sum, const optim_block *update)
{
    optim_block block = update ? *update : optim_block();
    bool fours = gradients_in_fours(t, h, x, update);
    BY_ELEMENT(t, BY_FOURS(fours, (launch_gradients<T, EACH>(stream, cap, *h, (const T *)x, per_row,
                                                             sum, block))));
}
