/* gemm_impl.h: matrix products. Included by kernels_impl.h, and by kernels_avx512_bf16.c, where
 * elements are words of two bf16. GEMM_T is an element of a and b, GEMM_LOAD loads a vector of b,
 * GEMM_ADD(acc, s, v) computes acc + s * v.
 *
 * The inner tile keeps MR rows x NV vectors of c in registers; a is broadcast from memory with any
 * two strides, so that weights are used where they lie, in both directions, without packing. */

INLINE void T(gemm_tile)(int k, const GEMM_T *a, size_t am, size_t ak, const GEMM_T *b, size_t ldb,
                         const float *bias, bool relu, const float *add, size_t lda, float *c,
                         size_t ldc, const int mr, const int nv)
{
    VT acc[12][4];
    UNROLL for (int i = 0; i < mr; i++) {
        VT start = T(all)(bias ? bias[i] : 0.0f);
        UNROLL for (int v = 0; v < nv; v++)
            acc[i][v] = start;
    }
    const GEMM_T *a0 = a, *a1 = a + 4 * am, *a2 = a + 8 * am;
    const size_t m3 = 3 * am;
    for (int q = 0; q < k; q++, b += ldb, a0 += ak, a1 += ak, a2 += ak) {
        GEMM_V bv[4];
        UNROLL for (int v = 0; v < nv; v++)
            bv[v] = GEMM_LOAD(b + (size_t)v * VW);
        UNROLL for (int i = 0; i < mr; i++) {
            const GEMM_T *base = i < 4 ? a0 : i < 8 ? a1 : a2;
            GEMM_T s = i % 4 == 0   ? base[0]
                      : i % 4 == 1 ? base[am]
                      : i % 4 == 2 ? base[2 * am]
                                   : base[m3];
            UNROLL for (int v = 0; v < nv; v++)
                GEMM_ADD(acc[i][v], s, bv[v]);
        }
    }
    UNROLL for (int i = 0; i < mr; i++) {
        UNROLL for (int v = 0; v < nv; v++) {
            float *to = c + (size_t)i * ldc + (size_t)v * VW;
            VT r = add ? acc[i][v] + T(load)(add + (size_t)i * lda + (size_t)v * VW) : acc[i][v];
            T(store)(to, relu ? T(relu)(r) : r);
        }
    }
}

typedef void T(gemm_fn)(int, const GEMM_T *, size_t, size_t, const GEMM_T *, size_t, const float *,
                        bool, const float *, size_t, float *, size_t);
#define GEMM(MR, NV)                                                                               \
    static void T(gemm_##MR##_##NV)(int k, const GEMM_T *a, size_t am, size_t ak, const GEMM_T *b, \
                                    size_t ldb, const float *bias, bool relu, const float *add,    \
                                    size_t lda, float *c, size_t ldc)                              \
    {                                                                                              \
        T(gemm_tile)(k, a, am, ak, b, ldb, bias, relu, add, lda, c, ldc, MR, NV);                  \
    }
#if TILE_PIXELS >= 14
enum { T(GEMM_ROWS) = 12, T(GEMM_VECTORS) = 2 };
GEMM(12, 2) GEMM(8, 2) GEMM(4, 2) GEMM(2, 2) GEMM(1, 2)
GEMM(12, 1) GEMM(8, 1) GEMM(4, 1) GEMM(2, 1) GEMM(1, 1)
static const struct {
    int mr;
    T(gemm_fn) *fn[2];
} T(gemm_copies)[] = {
    {12, {T(gemm_12_1), T(gemm_12_2)}}, {8, {T(gemm_8_1), T(gemm_8_2)}},
    {4, {T(gemm_4_1), T(gemm_4_2)}},    {2, {T(gemm_2_1), T(gemm_2_2)}},
    {1, {T(gemm_1_1), T(gemm_1_2)}},
};
#else
#if TILE_PIXELS >= 6
enum { T(GEMM_ROWS) = 6, T(GEMM_VECTORS) = 2 };
GEMM(6, 2) GEMM(6, 1)
#else
enum { T(GEMM_ROWS) = 4, T(GEMM_VECTORS) = 2 };
#endif
GEMM(4, 2) GEMM(2, 2) GEMM(1, 2) GEMM(4, 1) GEMM(2, 1) GEMM(1, 1)
static const struct {
    int mr;
    T(gemm_fn) *fn[2];
} T(gemm_copies)[] = {
#if TILE_PIXELS >= 6
    {6, {T(gemm_6_1), T(gemm_6_2)}},
#endif
    {4, {T(gemm_4_1), T(gemm_4_2)}},
    {2, {T(gemm_2_1), T(gemm_2_2)}},
    {1, {T(gemm_1_1), T(gemm_1_2)}},
};
#endif

/* The index of the tile for the first of `left` rows. Where there are tiles of six rows, eight rows
 * are four and four, not six and two, because a tile of few rows waits for its own sums. */
static int T(gemm_first)(int left)
{
    int t = 0, most = T(GEMM_ROWS) == 6 && (left == 8 || left == 9) ? 4 : left;
    while (T(gemm_copies)[t].mr > most)
        t++;
    return t;
}

/* Computes nv vectors of columns, all rows. */
static void T(gemm_panel)(int m, int k, const GEMM_T *a, size_t am, size_t ak, const GEMM_T *b,
                          size_t ldb, const float *bias, bool relu, const float *add, size_t lda,
                          float *c, size_t ldc, int nv, bool far)
{
    for (int i = 0, t = 0; i < m; i += T(gemm_copies)[t].mr) {
        t = T(gemm_first)(m - i);
        int next = i + T(gemm_copies)[t].mr;
        for (int j = next; far && j < next + T(GEMM_ROWS); j++)
            prefetch_to_write(c + (size_t)j * ldc, (size_t)(nv * VW) * sizeof *c);
        T(gemm_copies)
        [t].fn[nv - 1](k, a + (size_t)i * am, am, ak, b, ldb, bias ? bias + i : NULL, relu,
                       add ? add + (size_t)i * lda : NULL, lda, c + (size_t)i * ldc, ldc);
    }
}

#undef GEMM
