/* conv_pairs_impl.h: convolution with 2x2 max pooling of one channel to 8 filters, 16 lanes at a
 * time: a vector holds 8 filters' results at two neighbouring pixels, filter by filter, so that no
 * lane is padding. Included once by kernels_impl.h where 16 lanes pay. Each result is summed in the
 * order of conv_tile_impl.h's tiles: the bits are the same. */

/* A few cells, of which two make a vector each in the pooling. */
INLINE void pairs_tile(const conv_geom *g, const float *x, const float *w, const float *b, float *y,
                       uint8_t *arg, const int cells)
{
    v16 acc[2][8], bias = each_twice16(b);
    UNROLL for (int p = 0; p < cells; p++)
        acc[0][p] = acc[1][p] = bias;
    for (int i = 0; i < g->kh; i++, x += g->x_row) {
        const float *x0 = x, *x1 = x + g->x_row;
        for (int j = 0; j < g->kw; j++, x0++, x1++, w += 8) {
            OPAQUE(x0);
            OPAQUE(x1);
            v16 wv = each_twice16(w);
            UNROLL for (int p = 0; p < cells; p++)
                acc[0][p] += wv * pair_all16(x0 + 2 * p);
            UNROLL for (int p = 0; p < cells; p++)
                acc[1][p] += wv * pair_all16(x1 + 2 * p);
        }
    }
    v16 one = (v16)((v16i){0} + 1), two = (v16)((v16i){0} + 2), three = (v16)((v16i){0} + 3);
    UNROLL for (int p = 0; p < cells; p += 2) {
        v16 v0 = evens16(acc[0][p], acc[0][p + 1]), v1 = odds16(acc[0][p], acc[0][p + 1]);
        v16 v2 = evens16(acc[1][p], acc[1][p + 1]), v3 = odds16(acc[1][p], acc[1][p + 1]);
        v16 up = gt16(v1, v0, v1, v0), down = gt16(v3, v2, v3, v2),
            m = relu16(gt16(down, up, down, up));
        v16 which = gt16(down, up, gt16(v3, v2, three, two), gt16(v1, v0, one, (v16){0}));
        float *to = y + (size_t)(p * g->ks);
        store8(to, low8(m));
        store8(to + g->ks, high8(m));
        if (arg) {
            uint8_t *at = arg + (size_t)(p * g->ks);
            v16b bytes = bytes16((v16i)which);
            memcpy(at, &bytes, 8);
            memcpy(at + g->ks, (const char *)&bytes + 8, 8);
        }
    }
}

typedef void pairs_fn(const conv_geom *, const float *, const float *, const float *, float *,
                      uint8_t *);
#define PAIRS_COPY(CELLS)                                                                          \
    static void pairs_##CELLS(const conv_geom *g, const float *x, const float *w, const float *b,  \
                              float *y, uint8_t *arg)                                              \
    {                                                                                              \
        pairs_tile(g, x, w, b, y, arg, CELLS);                                                     \
    }
PAIRS_COPY(2)
PAIRS_COPY(4)
PAIRS_COPY(6)
PAIRS_COPY(8)
#undef PAIRS_COPY

/* One block of 8 filters over the sample. Tiles about as wide as each other: 14 = 8 + 6. */
static void conv_pairs_block(const conv_geom *g, const float *x, const float *w, const float *b,
                             float *y, uint8_t *arg)
{
    static pairs_fn *const copies[] = {pairs_2, pairs_4, pairs_6, pairs_8};
    int cells = g->ow / 2, twos = cells / 2, tiles = (twos + 3) / 4,
        want = tiles ? (twos + tiles - 1) / tiles : 1;
    for (int row = 0; row + 1 < g->oh; row += 2, x += 2 * g->x_row, y += g->y_row) {
        for (int done = 0, n; done < cells; done += n) {
            int left = (cells - done) / 2;
            size_t to = (size_t)(done * g->ks);
            /* a last one stands alone */
            pairs_fn *f = left ? copies[(left < want ? left : want) - 1] : pool_2_08;
            n = left ? 2 * (left < want ? left : want) : 1;
            f(g, x + 2 * done, w, b, y + to, arg ? arg + to : NULL);
        }
        arg = arg ? arg + (size_t)(cells * g->ks) : NULL;
    }
}
