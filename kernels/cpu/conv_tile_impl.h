/* conv_tile_impl.h: forward convolution tiles for one vector width. Included twice by
 * kernels_impl.h, with VT (vector type), VW (its floats) and T(name) (name with the width) set.
 *
 * A tile is a few output pixels of VW filters: one accumulator a pixel, weights loaded once for all
 * of them, input pixels broadcast from memory. Where possible a tile has two blocks of VW filters,
 * so that a pixel is broadcast for both, or else two rows of pixels, so that a weight is loaded for
 * both. `step` floats lie between two output pixels' inputs; as a constant, `step` becomes an
 * address displacement, which is why the common strides have their own copies. */

/* The second half of a tile: another row, or another block of filters. */
#ifndef KUBEML_CONV_TILE
#define KUBEML_CONV_TILE
enum { OF_ROWS = 1, OF_FILTERS = 2 };
#endif

/* Sums px accumulators over the whole kernel window, and as many of the next row (OF_ROWS), or of
 * the next VW filters, whose weights follow (OF_FILTERS). `two` 0: neither. */
INLINE void T(tile_sum)(const conv_geom *g, const float *x, const float *w, const float *b,
                        const int two, const int px, const size_t step, VT acc[2][14])
{
    VT bias = T(load)(b), beside = two == OF_FILTERS ? T(load)(b + VW) : bias;
    UNROLL for (int p = 0; p < px; p++)
        acc[0][p] = bias, acc[1][p] = beside;
    /* Without pad channels a kernel row is one run. */
    const bool whole = g->c == g->cs && g->dw == 1;
    const int c = whole ? g->kw * g->c : g->c, kw = whole ? 1 : g->kw;
    const float *w1 = w + (size_t)(g->kh * g->kw) * (size_t)g->c * VW;
    const size_t down = (size_t)g->dh * g->x_row, right = (size_t)(g->dw * g->cs),
                 next = (size_t)g->sh * g->x_row;
    for (int i = 0; i < g->kh; i++, x += down) {
        const float *tap = x;
        for (int j = 0; j < kw; j++, tap += right) {
            const float *x0 = tap, *x1 = tap + next;
            for (int q = 0; q < c; q++, x0++, x1++, w += VW, w1 += VW) {
                OPAQUE(x0);
                OPAQUE(x1);
                VT wv = T(load)(w);
                if (two == OF_FILTERS) {
                    VT vv = T(load)(w1);
                    UNROLL for (int p = 0; p < px; p++) {
                        VT pixel = T(all)(x0[(size_t)p * step]);
                        acc[0][p] += wv * pixel;
                        acc[1][p] += vv * pixel;
                    }
                    continue;
                }
                UNROLL for (int p = 0; p < px; p++) acc[0][p] += wv * T(all)(x0[(size_t)p * step]);
                if (two == OF_ROWS) {
                    UNROLL for (int p = 0; p < px; p++) acc[1][p] +=
                        wv * T(all)(x1[(size_t)p * step]);
                }
            }
        }
    }
}

/* y = relu(the largest of the four); arg: the place of the first largest, 0 to 3. */
INLINE void T(max_cell)(VT v0, VT v1, VT v2, VT v3, float *y, uint8_t *arg)
{
    VT up = T(max)(v1, v0), down = T(max)(v3, v2);
    T(store)(y, T(relu)(T(max)(down, up)));
    if (arg)
        *(TBU *)arg = T(bytes)(T(which)(v0, v1, v2, v3, up, down));
}

INLINE void T(tile_pool)(const conv_geom *g, const float *x, const float *w, const float *b,
                         float *y, uint8_t *arg, const int px, const size_t step)
{
    VT acc[2][14];
    T(tile_sum)(g, x, w, b, OF_ROWS, px, step, acc);
    UNROLL for (int p = 0; p < px; p += 2) {
        size_t to = (size_t)(p / 2 * g->ks);
        T(max_cell)
        (acc[0][p], acc[0][p + 1], acc[1][p], acc[1][p + 1], y + to, arg ? arg + to : NULL);
    }
}

INLINE void T(tile_dense)(const conv_geom *g, const float *x, const float *w, const float *b,
                          float *y, const int two, const int px, const size_t step)
{
    VT acc[2][14];
    T(tile_sum)(g, x, w, b, two, px, step, acc);
    UNROLL for (int p = 0; p < px; p++)
        T(store)(y + (size_t)p * g->y_step, g->relu ? T(relu)(acc[0][p]) : acc[0][p]);
    y += two == OF_ROWS ? g->y_row : VW;
    UNROLL for (int p = 0; two && p < px; p++)
        T(store)(y + (size_t)p * g->y_step, g->relu ? T(relu)(acc[1][p]) : acc[1][p]);
}

typedef void T(pool_fn)(const conv_geom *, const float *, const float *, const float *, float *,
                        uint8_t *);
typedef void T(dense_fn)(const conv_geom *, const float *, const float *, const float *, float *);

/* POOL_COPY and DENSE_COPY define copies for a number of pixels and a step, and name them after
 * both. */
#define POOL_COPY(PX, STEP)                                                                        \
    static void T(pool_##PX##_##STEP)(const conv_geom *g, const float *x, const float *w,          \
                                      const float *b, float *y, uint8_t *arg)                      \
    {                                                                                              \
        size_t step = STEP ? STEP : (size_t)(g->sw * g->cs);                                       \
        T(tile_pool)(g, x, w, b, y, arg, PX, step);                                                \
    }
#define DENSE_COPY(NAME, TWO, PX, STEP)                                                            \
    static void T(NAME##_##PX##_##STEP)(const conv_geom *g, const float *x, const float *w,        \
                                        const float *b, float *y)                                  \
    {                                                                                              \
        size_t step = STEP ? STEP : (size_t)(g->sw * g->cs);                                       \
        T(tile_dense)(g, x, w, b, y, TWO, PX, step);                                               \
    }
#define ONE_COPY(PX, STEP)  DENSE_COPY(one, 0, PX, STEP)
#define ROWS_COPY(PX, STEP) DENSE_COPY(rows, OF_ROWS, PX, STEP)
#define PAIR_COPY(PX, STEP) DENSE_COPY(pair, OF_FILTERS, PX, STEP)
#if KERNELS_LEAN
#define STEPS(COPY, PX) COPY(PX, 0)
#define STEP_NAMES(kind, PX)                                                                       \
    {                                                                                              \
        T(kind##_##PX##_0), T(kind##_##PX##_0), T(kind##_##PX##_0), T(kind##_##PX##_0),            \
            T(kind##_##PX##_0), T(kind##_##PX##_0), T(kind##_##PX##_0), T(kind##_##PX##_0)         \
    }
#else
#define STEPS(COPY, PX)                                                                            \
    COPY(PX, 0)                                                                                    \
    COPY(PX, 1) COPY(PX, 3) COPY(PX, 8) COPY(PX, 16) COPY(PX, 24) COPY(PX, 32) COPY(PX, 64)
#define STEP_NAMES(kind, PX)                                                                       \
    {                                                                                              \
        T(kind##_##PX##_0), T(kind##_##PX##_1), T(kind##_##PX##_3), T(kind##_##PX##_8),            \
            T(kind##_##PX##_16), T(kind##_##PX##_24), T(kind##_##PX##_32), T(kind##_##PX##_64)     \
    }
#endif
STEPS(POOL_COPY, 2)
STEPS(POOL_COPY, 4)
/* A narrower vector has one block left over at most: it needs no pairs. */
#define PAIRS (VW == 16 || !KERNELS_WIDE)
#if PAIRS
#define DENSE_COPIES(PX) STEPS(ROWS_COPY, PX) STEPS(PAIR_COPY, PX)
#else
#define DENSE_COPIES(PX) STEPS(ROWS_COPY, PX)
#endif
ONE_COPY(1, 0)
ONE_COPY(2, 0)
ONE_COPY(4, 0)
ONE_COPY(8, 0)
DENSE_COPIES(1)
DENSE_COPIES(2)
DENSE_COPIES(4)
#if TILE_PIXELS >= 6
STEPS(POOL_COPY, 6)
#endif
#if TILE_PIXELS >= 14
STEPS(POOL_COPY, 8)
STEPS(POOL_COPY, 10)
STEPS(POOL_COPY, 12)
STEPS(POOL_COPY, 14)
DENSE_COPIES(8)
DENSE_COPIES(10)
DENSE_COPIES(14)
#elif TILE_PIXELS >= 6
DENSE_COPIES(6)
#endif

typedef struct T(pool_copy) {
    int px;
    T(pool_fn) *fn[8];
} T(pool_copy);
static const T(pool_copy) T(pool_copies)[] = {
#if TILE_PIXELS >= 14
    {14, STEP_NAMES(pool, 14)}, {12, STEP_NAMES(pool, 12)},
    {10, STEP_NAMES(pool, 10)}, {8, STEP_NAMES(pool, 8)},
#endif
#if TILE_PIXELS >= 6
    {6, STEP_NAMES(pool, 6)},
#endif
    {4, STEP_NAMES(pool, 4)},   {2, STEP_NAMES(pool, 2)},
};
typedef struct T(dense_copy) {
    int px;
    T(dense_fn) *fn[8];
} T(dense_copy);
#if TILE_PIXELS >= 14
#define DENSE_NAMES(kind)                                                                          \
    {                                                                                              \
        {14, STEP_NAMES(kind, 14)}, {10, STEP_NAMES(kind, 10)}, {8, STEP_NAMES(kind, 8)},          \
            {4, STEP_NAMES(kind, 4)}, {2, STEP_NAMES(kind, 2)}, {1, STEP_NAMES(kind, 1)},          \
    }
#elif TILE_PIXELS >= 6
#define DENSE_NAMES(kind)                                                                          \
    {                                                                                              \
        {6, STEP_NAMES(kind, 6)}, {4, STEP_NAMES(kind, 4)}, {2, STEP_NAMES(kind, 2)},              \
            {1, STEP_NAMES(kind, 1)},                                                              \
    }
#else
#define DENSE_NAMES(kind)                                                                          \
    {                                                                                              \
        {4, STEP_NAMES(kind, 4)}, {2, STEP_NAMES(kind, 2)}, {1, STEP_NAMES(kind, 1)},              \
    }
#endif
static const T(dense_copy) T(rows_copies)[] = DENSE_NAMES(rows);
static const T(dense_copy) T(one_copies)[] = {
    {8, {T(one_8_0)}}, {4, {T(one_4_0)}}, {2, {T(one_2_0)}}, {1, {T(one_1_0)}}};

/* One block of VW filters over the sample, in tiles of equal width where possible: 28 = 14 + 14. */
static void T(conv_pool_block)(const conv_geom *g, const T(pool_copy) * copies, const float *x,
                               const float *w, const float *b, float *y, uint8_t *arg)
{
    int s = step_index((size_t)(g->sw * g->cs)), width = g->ow / 2 * 2, most = copies[0].px;
    int count = (width + most - 1) / most;
    int want = count ? (width / 2 + count - 1) / count * 2 : 2;
    size_t arg_row = (size_t)(g->ow / 2 * g->ks);
    for (int row = 0; row + 1 < g->oh; row += 2) {
        const float *xr = x + (size_t)row * g->x_row;
        float *yr = y + (size_t)(row / 2) * g->y_row;
        uint8_t *ar = arg ? arg + (size_t)(row / 2) * arg_row : NULL;
        for (int done = 0, t = 0; done < width; done += copies[t].px) {
            for (t = 0; copies[t].px > want || copies[t].px > width - done;)
                t++;
            size_t to = (size_t)(done / 2 * g->ks);
            copies[t].fn[s](g, xr + (size_t)(done * g->cs), w, b, yr + to, ar ? ar + to : NULL);
        }
    }
}

/* The pixels of one row (copies for two rows: of both). A rest of more than one tile and under two
 * is halved, 16 = 8 + 8, because a tile of few pixels waits for its own sums. */
static void T(conv_row)(const conv_geom *g, const T(dense_copy) *copies, int step, const float *x,
                        const float *w, const float *b, float *y)
{
    int most = copies[0].px;
    for (int done = 0, t = 0; done < g->ow; done += copies[t].px) {
        int left = g->ow - done, want = left > most && left < 2 * most ? left / 2 : left;
        for (t = 0; copies[t].px > want;)
            t++;
        copies[t].fn[step](g, x + (size_t)(done * g->sw * g->cs), w, b,
                           y + (size_t)done * g->y_step);
    }
}

#if PAIRS
static const T(dense_copy) T(pair_copies)[] = DENSE_NAMES(pair);

/* Two blocks of VW filters over the sample. */
static void T(conv_pair)(const conv_geom *g, const float *x, const float *w, const float *b,
                         float *y)
{
    int step = step_index((size_t)(g->sw * g->cs));
    for (int row = 0; row < g->oh; row++)
        T(conv_row)(g, T(pair_copies), step, x + (size_t)(row * g->sh) * g->x_row, w, b,
                    y + (size_t)row * g->y_row);
}
#endif

/* One block of VW filters over the sample. */
static void T(conv_block)(const conv_geom *g, const float *x, const float *w, const float *b,
                          float *y)
{
    int step = step_index((size_t)(g->sw * g->cs)), row = 0;
    for (; row + 2 <= g->oh; row += 2)
        T(conv_row)(g, T(rows_copies), step, x + (size_t)(row * g->sh) * g->x_row, w, b,
                    y + (size_t)row * g->y_row);
    if (row < g->oh)
        T(conv_row)(g, T(one_copies), 0, x + (size_t)(row * g->sh) * g->x_row, w, b,
                    y + (size_t)row * g->y_row);
}

#undef POOL_COPY
#undef DENSE_COPY
#undef ONE_COPY
#undef ROWS_COPY
#undef PAIR_COPY
#undef DENSE_COPIES
#undef DENSE_NAMES
#undef PAIRS
#undef STEPS
#undef STEP_NAMES
