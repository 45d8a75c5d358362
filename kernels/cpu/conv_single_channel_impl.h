/* conv_single_channel_impl.h: convolution with 2x2 max pooling of an image of one channel to 8
 * filters, for instruction sets with 16 registers of 8 floats.
 *
 * conv_tile_impl.h's tiles broadcast a pixel for each multiplication, and these processors do no
 * more than two such loads a cycle. Here a kernel row's weights stay in registers, and a pixel is
 * broadcast once for all the results of the row that need it. Included once by kernels_impl.h. Each
 * result is summed in the order of conv_tile_impl.h's tiles, to the same bits. */

/* Pixels of one row: one accumulator each, which together with the weights and a pixel fill the
 * registers. */
enum { SINGLE_CHANNEL_PIXELS = 10 };

INLINE void single_channel_row(const conv_geom *g, const float *x, const float *w, const float *b,
                               v8 *acc, const int kw, const int px)
{
    v8 bias = load8(b);
    UNROLL for (int p = 0; p < px; p++) acc[p] = bias;
    for (int i = 0; i < g->kh; i++, x += g->x_row, w += 8 * kw) {
        v8 tap[5];
        UNROLL for (int j = 0; j < kw; j++) tap[j] = load8(w + 8 * j);
        UNROLL for (int u = 0; u < px + kw - 1; u++)
        {
            v8 pixel = all8(x[u]);
            UNROLL for (int j = 0; j < kw; j++) if (u >= j && u - j < px) acc[u - j] +=
                tap[j] * pixel;
        }
    }
}

INLINE void single_channel_tile(const conv_geom *g, const float *x, const float *w, const float *b,
                                float *y, uint8_t *arg, const int kw, const int px)
{
    v8 up[SINGLE_CHANNEL_PIXELS], low[SINGLE_CHANNEL_PIXELS];
    single_channel_row(g, x, w, b, up, kw, px);
    single_channel_row(g, x + g->x_row, w, b, low, kw, px);
    UNROLL for (int p = 0; p < px; p += 2)
    {
        size_t to = (size_t)(p / 2 * g->ks);
        max_cell8(up[p], up[p + 1], low[p], low[p + 1], y + to, arg ? arg + to : NULL);
    }
}

#define SINGLE_CHANNEL_COPY(KW, PX)                                                                \
    static void single_channel_##KW##_##PX(const conv_geom *g, const float *x, const float *w,     \
                                           const float *b, float *y, uint8_t *arg)                 \
    {                                                                                              \
        single_channel_tile(g, x, w, b, y, arg, KW, PX);                                           \
    }
SINGLE_CHANNEL_COPY(3, 8)
SINGLE_CHANNEL_COPY(3, 10)
SINGLE_CHANNEL_COPY(5, 8)
SINGLE_CHANNEL_COPY(5, 10)
#undef SINGLE_CHANNEL_COPY

/* Fewer than 8 remaining pixels are conv_tile_impl.h's. All copies here have a step of 1. */
#if KERNELS_LEAN
#define SINGLE_CHANNEL_REST                                                                        \
    {4, {[1] = pool_4_08}},                                                                        \
    {                                                                                              \
        2,                                                                                         \
        {                                                                                          \
            [1] = pool_2_08                                                                        \
        }                                                                                          \
    }
#else
#define SINGLE_CHANNEL_REST                                                                        \
    {6, {[1] = pool_6_18}}, {4, {[1] = pool_4_18}},                                                \
    {                                                                                              \
        2,                                                                                         \
        {                                                                                          \
            [1] = pool_2_18                                                                        \
        }                                                                                          \
    }
#endif
static const pool_copy8 single_channel_copies_3[] = {
    {10, {[1] = single_channel_3_10}}, {8, {[1] = single_channel_3_8}}, SINGLE_CHANNEL_REST};
static const pool_copy8 single_channel_copies_5[] = {
    {10, {[1] = single_channel_5_10}}, {8, {[1] = single_channel_5_8}}, SINGLE_CHANNEL_REST};
#undef SINGLE_CHANNEL_REST

/* The copies for this convolution; NULL: it has to use conv_tile_impl.h's. */
static const pool_copy8 *single_channel_copies(const conv_geom *g)
{
    const bool plain = g->cs == 1 && g->sh == 1 && g->sw == 1 && g->dh == 1 && g->dw == 1;
    return !plain       ? NULL
           : g->kw == 3 ? single_channel_copies_3
           : g->kw == 5 ? single_channel_copies_5
                        : NULL;
}
