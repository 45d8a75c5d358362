/* merge.cu: averaging models on the device, sums that tell them apart, and QSGD; see
 * cuda_kernels.h. */
#include "device.cuh"

typedef struct merge_list {
    int n;
    double weight[CUDA_MERGE_MAX];
    const void *in[CUDA_MERGE_MAX];
} merge_list;

/* As merge_floats_generic: every product and sum rounded, in order, no fused multiply-add. */
static __global__ void merge(merge_list list, size_t count, float *out, int32_t *finite)
{
    FOR_EACH(i, count)
    {
        double sum = __dmul_rn(list.weight[0], (double)((const float *)list.in[0])[i]);
        for (int k = 1; k < list.n; k++)
            sum = __dadd_rn(sum, __dmul_rn(list.weight[k], (double)((const float *)list.in[k])[i]));
        float rounded = (float)sum;
        out[i] = rounded;
        if (!isfinite(rounded))
            atomicAnd(finite, 0);
    }
}

void cuda_merge(void *stream, int n, const float *const *in, const double *weight, size_t count,
                float *out, int32_t *finite)
{
    merge_list list = {};
    list.n = n;
    for (int k = 0; k < n; k++) {
        list.in[k] = in[k];
        list.weight[k] = weight[k];
    }
    LAUNCH(merge, blocks_for(count), THREADS, stream, list, count, out, finite);
}

static __global__ void merge_counters(merge_list list, size_t count, int64_t *out)
{
    FOR_EACH(i, count)
    {
        int64_t largest = ((const int64_t *)list.in[0])[i];
        for (int k = 1; k < list.n; k++) {
            int64_t x = ((const int64_t *)list.in[k])[i];
            largest = x > largest ? x : largest;
        }
        out[i] = largest;
    }
}

void cuda_merge_counters(void *stream, int n, const int64_t *const *in, size_t count, int64_t *out)
{
    merge_list list = {};
    list.n = n;
    for (int k = 0; k < n; k++)
        list.in[k] = in[k];
    LAUNCH(merge_counters, blocks_for(count), THREADS, stream, list, count, out);
}

/* ---- sums of words --------------------------------------------------------------------------- */

/* A thread loads some words before it uses the first. */
enum { SUM_THREADS = 128, SUM_BLOCKS_MAX = 1024, WORDS_AT_ONCE = 8 };

/* The last steps of splitmix64 (Steele et al. 2014): a bijection. */
static __device__ __forceinline__ uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static __global__ void sum_words(uint64_t first, size_t count, const uint32_t *words,
                                 unsigned long long *sum)
{
    __shared__ uint64_t part[SUM_THREADS];
    int t = (int)threadIdx.x;
    uint64_t own = 0;
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + t; i < count; i += WORDS_AT_ONCE * step) {
        uint32_t word[WORDS_AT_ONCE];
        for (int j = 0; j < WORDS_AT_ONCE; j++)
            word[j] = i + j * step < count ? words[i + j * step] : 0;
        for (int j = 0; j < WORDS_AT_ONCE; j++)
            if (i + j * step < count)
                own += mixed((first + i + j * step) * 0x9E3779B97F4A7C15u + word[j]);
    }
    part[t] = own;
    __syncthreads();
    for (int half = SUM_THREADS / 2; half; half /= 2) {
        if (t < half)
            part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0)
        atomicAdd(sum, (unsigned long long)part[0]);
}

void cuda_sum_words(void *stream, uint32_t block, size_t count, const void *words, uint64_t *sum)
{
    size_t blocks = (count + SUM_THREADS - 1) / SUM_THREADS, most = SUM_BLOCKS_MAX;
    if (count)
        LAUNCH_BLOCK(sum_words, (unsigned)(blocks < most ? blocks : most), SUM_THREADS, stream,
                     (uint64_t)block << 40, count, (const uint32_t *)words,
                     (unsigned long long *)sum);
}

/* ---- QSGD ------------------------------------------------------------------------------------ */

enum { BUCKET_THREADS = 128, EACH = QSGD_BUCKET / BUCKET_THREADS };

/* A block a bucket. Thread t takes elements 4t .. 4t+3: one draw serves them all. */
static __global__ void quantise(uint64_t seed, uint32_t round, size_t count, const float *x,
                                int8_t *q, float *norms)
{
    __shared__ float squares[BUCKET_THREADS];
    size_t first = (size_t)blockIdx.x * QSGD_BUCKET + threadIdx.x * EACH;
    int t = (int)threadIdx.x;
    float value[EACH], sum = 0;
    for (int j = 0; j < EACH; j++) {
        value[j] = first + (size_t)j < count ? x[first + (size_t)j] : 0.0f;
        sum = __fadd_rn(sum, __fmul_rn(value[j], value[j]));
    }
    squares[t] = sum;
    __syncthreads();
    for (int half = BUCKET_THREADS / 2; half; half /= 2) {
        if (t < half)
            squares[t] += squares[t + half];
        __syncthreads();
    }
    float norm = sqrtf(squares[0]);
    uint32_t word[4];
    draw(seed, QSGD_USE, round, first / EACH, 0, word);
    for (int j = 0; j < EACH; j++) {
        if (first + (size_t)j >= count)
            continue;
        float level = norm > 0 ? __fmul_rn(fabsf(value[j]) / norm, QSGD_LEVELS) : 0.0f;
        float low = floorf(level), chance = __fmul_rn((float)(word[j] >> 8), 1.0f / 16777216);
        int up = chance < level - low ? 1 : 0;
        int steps = min((int)low + up, QSGD_LEVELS);
        q[first + (size_t)j] = (int8_t)(value[j] < 0 ? -steps : steps);
    }
    if (t == 0)
        norms[blockIdx.x] = norm;
}

void cuda_quantise(void *stream, uint64_t seed, uint32_t round, size_t count, const float *x,
                   int8_t *q, float *norms)
{
    LAUNCH_BLOCK(quantise, (unsigned)((count + QSGD_BUCKET - 1) / QSGD_BUCKET), BUCKET_THREADS,
                 stream, seed, round, count, x, q, norms);
}

static __global__ void dequantise(size_t count, const int8_t *q, const float *norms, float *y,
                                  bool add)
{
    FOR_EACH(i, count)
    put_or_add(&y[i], __fmul_rn(norms[i / QSGD_BUCKET], (float)q[i] / QSGD_LEVELS), add);
}

void cuda_dequantise(void *stream, size_t count, const int8_t *q, const float *norms, float *y,
                     bool add)
{
    LAUNCH(dequantise, blocks_for(count), THREADS, stream, count, q, norms, y, add);
}
