/* input.cu: from a batch as the host gives it to the network's input; see cuda_kernels.h. */
#include "device.cuh"

/* ---- bytes or floats, NCHW, to NHWC ---------------------------------------------------------- */

static __device__ __forceinline__ float standardised(float value, float scale, float shift)
{
    return value * scale + shift;
}

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
            value = standardised(value, scale_shift[c], scale_shift[C + c]);
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

static __device__ __forceinline__ motion motion_of(const augmentation &g, uint32_t epoch,
                                                   uint64_t key)
{
    uint32_t word[4];
    draw(g.seed, USE_AUGMENT, epoch, key, 0, word);
    motion m;
    m.mirror = g.flip && (word[0] & 1);
    m.dy = g.crop ? below(word[1], 2 * g.crop + 1) - g.crop : 0;
    m.dx = g.crop ? below(word[2], 2 * g.crop + 1) - g.crop : 0;
    return m;
}

/* The place of a value in the network's input. */
struct spot {
    int c, y, x;
};

static __device__ __forceinline__ spot spot_of(const augmentation &g, int i)
{
    divided channel = divide((size_t)i, g.c), row = divide(channel.times, g.w);
    spot s;
    s.c = (int)channel.rest;
    s.y = (int)row.times;
    s.x = (int)row.rest;
    return s;
}

/* The value's place in the sample as it lies in the share; below 0: outside of the sample, where
 * zeros are. */
static __device__ __forceinline__ int moved(const augmentation &g, const motion &m, const spot &s)
{
    int x = (m.mirror ? g.w - 1 - s.x : s.x) + m.dx, y = s.y + m.dy;
    bool inside = x >= 0 && x < g.w && y >= 0 && y < g.h;
    return inside ? (s.c * g.h + y) * g.w + x : -1;
}

/* Copies sample i's label or targets, and its key. */
static __device__ void copy_rest(const gathering &g, int i, uint32_t row)
{
    size_t outputs = (size_t)g.outputs;
    if (threadIdx.x == 0) {
        uint64_t key = g.share.keys[row];
        if (outputs == 0)
            g.batch.labels[i] = g.share.labels[row];
        g.batch.keys[i] = key;
    }
    for (size_t j = threadIdx.x; j < outputs; j += blockDim.x)
        g.batch.targets[(size_t)i * outputs + j] = g.share.targets[(size_t)row * outputs + j];
}

/* Between two steps: nothing reads *next before this step has ended, and only then does the loss
 * overwrite *before. */
static __device__ void hand_over(const gathering &g)
{
    const step_args now = *g.a;
    const step_result before = *g.before;
    step_result sum = *g.total;
    if (now.next)
        *g.next = g.list[now.next];
    if (now.first) {
        sum.loss_sum = 0;
        sum.correct = 0;
    } else {
        sum.loss_sum += before.loss_sum;
        sum.correct += before.correct;
    }
    *g.total = sum;
}

/* `parts` blocks a sample and EACH values a thread; one more block does what is done once. A value
 * is several loads that wait for each other (numbers, order, key, sample). All that does not need
 * them is therefore computed first, and a thread's values are loaded side by side. X: the type of a
 * sample's values. */
template <class T, class X, int EACH> static __global__ void gather(gathering g, int parts, T *y)
{
    if (blockIdx.x + 1 == gridDim.x) {
        if (threadIdx.x == 0)
            hand_over(g);
        return;
    }
    const step_args now = *g.a;
    divided at = divide(blockIdx.x, parts);
    int i = (int)at.times, size = g.augment.c * g.augment.h * g.augment.w;
    int first = (int)(at.rest * (unsigned)EACH * blockDim.x + threadIdx.x);
    spot spots[EACH];
    float scale[EACH], shift[EACH];
    X value[EACH];
    UNROLL
    for (int k = 0; k < EACH; k++) {
        spots[k] = spot_of(g.augment, first + k * (int)blockDim.x);
        scale[k] = g.scale_shift[spots[k].c];
        shift[k] = g.scale_shift[g.augment.c + spots[k].c];
        value[k] = 0;
    }
    bool live = i < now.n;
    if (live) {
        uint32_t row = g.order[now.row + i];
        motion m = {false, 0, 0};
        if (g.augment.flip || g.augment.crop)
            m = motion_of(g.augment, now.epoch, g.share.keys[row]);
        const X *from = (const X *)g.share.x + (size_t)row * (size_t)size;
        UNROLL
        for (int k = 0; k < EACH; k++) {
            int place = moved(g.augment, m, spots[k]);
            if (first + k * (int)blockDim.x < size && place >= 0)
                value[k] = from[place];
        }
        if (at.rest == 0)
            copy_rest(g, i, row);
    }
    UNROLL
    for (int k = 0; k < EACH; k++) {
        int to = first + k * (int)blockDim.x;
        if (to < size)
            put(&y[(size_t)i * (size_t)size + (size_t)to],
                live ? standardised((float)value[k], scale[k], shift[k]) : 0.0f);
    }
}

/* Few values are spread over as many threads as there are values: each load is waited for. */
enum { VALUES_FEW = 1 << 18, VALUES_EACH = 4 };

template <class T, class X, int EACH>
static void launch_gather(void *stream, const gathering &g, int cap, T *y)
{
    int size = g.augment.c * g.augment.h * g.augment.w, lanes = 32;
    int wanted = (size - 1) / (EACH * lanes) + 1;
    unsigned threads = (unsigned)(lanes * (wanted < THREADS / lanes ? wanted : THREADS / lanes));
    int parts = (int)((unsigned)(size - 1) / ((unsigned)EACH * threads) + 1);
    gathering all = g;
    LAUNCH((gather<T, X, EACH>), (unsigned)cap * (unsigned)parts + 1, threads, stream, all, parts,
           y);
}

template <class T> static void gather_as(void *stream, const gathering &g, int cap, T *y)
{
    size_t size = (size_t)g.augment.c * (size_t)g.augment.h * (size_t)g.augment.w;
    bool few = (size_t)cap * size <= VALUES_FEW;
    if (g.uint8 && few)
        launch_gather<T, uint8_t, 1>(stream, g, cap, y);
    else if (g.uint8)
        launch_gather<T, uint8_t, VALUES_EACH>(stream, g, cap, y);
    else if (few)
        launch_gather<T, float, 1>(stream, g, cap, y);
    else
        launch_gather<T, float, VALUES_EACH>(stream, g, cap, y);
}

void cuda_gather(void *stream, const gathering *g, int cap, element t, void *y)
{
    BY_ELEMENT(t, gather_as(stream, *g, cap, (T *)y));
}

static __global__ void add_results(const step_result *total, const step_result *last,
                                   step_result *sum)
{
    sum->loss_sum = total->loss_sum + last->loss_sum;
    sum->correct = total->correct + last->correct;
}

void cuda_add_results(void *stream, const step_result *total, const step_result *last,
                      step_result *sum)
{
    LAUNCH(add_results, 1, 1, stream, total, last, sum);
}
