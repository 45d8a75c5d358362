/* conv_tile_impl.h: forward convolution tiles for one vector width. Included twice by
 * kernels_impl.h, with VT (vector type), VW (its floats) and T(name) (name with the width) set.
 *
 * A tile is a few output pixels of VW filters: one accumulator a pixel, weights loaded once for all
 * of them, input pixels broadcast from memory. `step` floats lie between two output pixels' inputs;
 * as a constant it becomes an address displacement, which is why the common strides have their own
 * copies. */

/* rows x px accumulators over the whole kernel window. */
INLINE void T(tile_sum)(const conv_geom *g, const float *x, const float *w, const float *b,
                        const int rows, const int px, const size_t step, VT acc[2][14])
{
    VT bias = T(load)(b);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < px; p++)
            acc[r][p] = bias;
    /* Without pad channels a kernel row is one run. */
    const bool whole = g->c == g->cs && g->dw == 1;
    const int c = whole ? g->kw * g->c : g->c, kw = whole ? 1 : g->kw;
    for (int i = 0; i < g->kh; i++) {
        for (int j = 0; j < kw; j++) {
            const float *x0 = x + (size_t)(i * g->dh) * g->x_row + (size_t)(j * g->dw * g->cs);
            const float *x1 = x0 + (size_t)g->sh * g->x_row;
            for (int q = 0; q < c; q++, x0++, x1++, w += VW) {
                OPAQUE(x0);
                OPAQUE(x1);
                VT wv = T(load)(w);
                UNROLL for (int p = 0; p < px; p++)
                    acc[0][p] += wv * x0[(size_t)p * step];
                if (rows == 2) {
                    UNROLL for (int p = 0; p < px; p++)
                        acc[1][p] += wv * x1[(size_t)p * step];
                }
            }
        }
    }
}

INLINE void T(tile_pool)(const conv_geom *g, const float *x, const float *w, const float *b,
                         float *y, uint8_t *arg, const int px, const size_t step)
{
    VT acc[2][14];
    T(tile_sum)(g, x, w, b, 2, px, step, acc);
    VT one = (VT)((TI){0} + 1), two = (VT)((TI){0} + 2), three = (VT)((TI){0} + 3);
    UNROLL for (int p = 0; p < px; p += 2) {
        VT v0 = acc[0][p], v1 = acc[0][p + 1], v2 = acc[1][p], v3 = acc[1][p + 1];
        VT up = T(gt)(v1, v0, v1, v0), down = T(gt)(v3, v2, v3, v2);
        VT m = T(gt)(down, up, down, up);
        VT which = T(gt)(down, up, T(gt)(v3, v2, three, two), T(gt)(v1, v0, one, (VT){0}));
        T(store)(y + (size_t)(p / 2 * g->ks), T(relu)(m));
        if (arg)
            *(TBU *)(arg + (size_t)(p / 2 * g->ks)) = T(bytes)((TI)which);
    }
}

INLINE void T(tile_dense)(const conv_geom *g, const float *x, const float *w, const float *b,
                          float *y, const int px, const size_t step)
{
    VT acc[2][14];
    T(tile_sum)(g, x, w, b, 1, px, step, acc);
    UNROLL for (int p = 0; p < px; p++)
        T(store)(y + (size_t)p * g->y_step, g->relu ? T(relu)(acc[0][p]) : acc[0][p]);
}

typedef void T(pool_fn)(const conv_geom *, const float *, const float *, const float *, float *,
                        uint8_t *);
typedef void T(dense_fn)(const conv_geom *, const float *, const float *, const float *, float *);

/* The copies: `name` makes one for a number of pixels and a step, named after both. */
#define POOL_COPY(PX, STEP)                                                                        \
    static void T(pool_##PX##_##STEP)(const conv_geom *g, const float *x, const float *w,          \
                                      const float *b, float *y, uint8_t *arg)                      \
    {                                                                                              \
        size_t step = STEP ? STEP : (size_t)(g->sw * g->cs);                                       \
        T(tile_pool)(g, x, w, b, y, arg, PX, step);                                                \
    }
#define DENSE_COPY(PX, STEP)                                                                       \
    static void T(dense_##PX##_##STEP)(const conv_geom *g, const float *x, const float *w,         \
                                       const float *b, float *y)                                   \
    {                                                                                              \
        size_t step = STEP ? STEP : (size_t)(g->sw * g->cs);                                       \
        T(tile_dense)(g, x, w, b, y, PX, step);                                                    \
    }
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
STEPS(DENSE_COPY, 1)
STEPS(DENSE_COPY, 2)
STEPS(DENSE_COPY, 4)
STEPS(DENSE_COPY, 8)
#if TILE_PIXELS >= 6
STEPS(POOL_COPY, 6)
#endif
#if TILE_PIXELS >= 14
STEPS(POOL_COPY, 8)
STEPS(POOL_COPY, 10)
STEPS(POOL_COPY, 12)
STEPS(POOL_COPY, 14)
STEPS(DENSE_COPY, 14)
#endif

static const struct {
    int px;
    T(pool_fn) *fn[8];
} T(pool_copies)[] = {
#if TILE_PIXELS >= 14
    {14, STEP_NAMES(pool, 14)}, {12, STEP_NAMES(pool, 12)}, {10, STEP_NAMES(pool, 10)},
    {8, STEP_NAMES(pool, 8)},
#endif
#if TILE_PIXELS >= 6
    {6, STEP_NAMES(pool, 6)},
#endif
    {4, STEP_NAMES(pool, 4)},   {2, STEP_NAMES(pool, 2)},
};
static const struct {
    int px;
    T(dense_fn) *fn[8];
} T(dense_copies)[] = {
#if TILE_PIXELS >= 14
    {14, STEP_NAMES(dense, 14)},
#endif
    {8, STEP_NAMES(dense, 8)},   {4, STEP_NAMES(dense, 4)},
    {2, STEP_NAMES(dense, 2)},   {1, STEP_NAMES(dense, 1)},
};

/* One block of VW filters over the sample. Tiles of equal width where that is possible: 28 = 14 +
 * 14. */
static void T(conv_pool_block)(const conv_geom *g, const float *x, const float *w, const float *b,
                               float *y, uint8_t *arg)
{
    int s = step_index((size_t)(g->sw * g->cs)), width = g->ow / 2 * 2;
    int count = (width + TILE_PIXELS - 1) / TILE_PIXELS;
    int want = count ? (width / 2 + count - 1) / count * 2 : 2;
    size_t arg_row = (size_t)(g->ow / 2 * g->ks);
    for (int row = 0; row + 1 < g->oh; row += 2) {
        const float *xr = x + (size_t)row * g->x_row;
        float *yr = y + (size_t)(row / 2) * g->y_row;
        uint8_t *ar = arg ? arg + (size_t)(row / 2) * arg_row : NULL;
        for (int done = 0, t = 0; done < width; done += T(pool_copies)[t].px) {
            for (t = 0; T(pool_copies)[t].px > want || T(pool_copies)[t].px > width - done;)
                t++;
            size_t to = (size_t)(done / 2 * g->ks);
            T(pool_copies)
            [t].fn[s](g, xr + (size_t)(done * g->cs), w, b, yr + to, ar ? ar + to : NULL);
        }
    }
}

static void T(conv_block)(const conv_geom *g, const float *x, const float *w, const float *b,
                          float *y)
{
    int s = step_index((size_t)(g->sw * g->cs));
    for (int row = 0; row < g->oh; row++) {
        const float *xr = x + (size_t)(row * g->sh) * g->x_row;
        float *yr = y + (size_t)row * g->y_row;
        for (int done = 0, t = 0; done < g->ow; done += T(dense_copies)[t].px) {
            for (t = 0; T(dense_copies)[t].px > g->ow - done;)
                t++;
            T(dense_copies)[t].fn[s](g, xr + (size_t)(done * g->sw * g->cs), w, b,
                                     yr + (size_t)done * g->y_step);
        }
    }
}

#undef POOL_COPY
#undef DENSE_COPY
#undef STEPS
#undef STEP_NAMES
