/* conv_pairs_impl.h: convolution with 2x2 max pooling of up to 4 channels to 8 filters, 16 lanes at
 * a time: a vector holds 8 filters' results at two neighbouring pixels, filter by filter, so that
 * no lane is padding. A channel's pixels must lie side by side for that: of an image of several
 * channels a few rows at a time are copied, channels apart. Included once by kernels_impl.h where
 * 16 lanes pay. Each result is summed in the order of conv_tile_impl.h's tiles, to the same bits. */

/* A few cells, of which two make a vector each in the pooling. x: pixels side by side, channels
 * `plane` floats apart; grey: there is one. */
INLINE void pairs_tile(const conv_geom *g, const float *x, size_t plane, const float *w,
                       const float *b, float *y, uint8_t *arg, const int cells, const bool grey)
{
    v16 acc[2][8], bias = each_twice16(b);
    UNROLL for (int p = 0; p < cells; p++)
        acc[0][p] = acc[1][p] = bias;
    const int c = grey ? 1 : g->c;
    for (int i = 0; i < g->kh; i++, x += g->x_row) {
        for (int j = 0; j < g->kw; j++) {
            const float *x0 = x + j, *x1 = x0 + g->x_row;
            for (int q = 0; q < c; q++, x0 += plane, x1 += plane, w += 8) {
                OPAQUE(x0);
                OPAQUE(x1);
                v16 wv = each_twice16(w);
                UNROLL for (int p = 0; p < cells; p++)
                    acc[0][p] += wv * pair_all16(x0 + 2 * p);
                UNROLL for (int p = 0; p < cells; p++)
                    acc[1][p] += wv * pair_all16(x1 + 2 * p);
            }
        }
    }
    UNROLL for (int p = 0; p < cells; p += 2) {
        v16 v0 = evens16(acc[0][p], acc[0][p + 1]), v1 = odds16(acc[0][p], acc[0][p + 1]);
        v16 v2 = evens16(acc[1][p], acc[1][p + 1]), v3 = odds16(acc[1][p], acc[1][p + 1]);
        v16 up = max16(v1, v0), down = max16(v3, v2), m = relu16(max16(down, up));
        float *to = y + (size_t)(p * g->ks);
        store8(to, low8(m));
        store8(to + g->ks, high8(m));
        if (arg) {
            uint8_t *at = arg + (size_t)(p * g->ks);
            v16b bytes = bytes16(which16(v0, v1, v2, v3, up, down));
            memcpy(at, &bytes, 8);
            memcpy(at + g->ks, (const char *)&bytes + 8, 8);
        }
    }
}

typedef void pairs_fn(const conv_geom *, const float *, size_t, const float *, const float *,
                      float *, uint8_t *);
#define PAIRS_COPY(NAME, CELLS, GREY)                                                              \
    static void NAME##_##CELLS(const conv_geom *g, const float *x, size_t plane, const float *w,   \
                               const float *b, float *y, uint8_t *arg)                             \
    {                                                                                              \
        pairs_tile(g, x, plane, w, b, y, arg, CELLS, GREY);                                        \
    }
#define PAIRS_COPIES(NAME, GREY)                                                                   \
    PAIRS_COPY(NAME, 2, GREY)                                                                      \
    PAIRS_COPY(NAME, 4, GREY) PAIRS_COPY(NAME, 6, GREY) PAIRS_COPY(NAME, 8, GREY)
PAIRS_COPIES(pairs, false)
PAIRS_COPIES(grey_pairs, true)
#undef PAIRS_COPIES
#undef PAIRS_COPY

/* What is copied at a time, which stays in the first cache. */
enum { SPLIT_FLOATS = 6144 };

/* Floats of a row whose channels lie apart: each has whole vectors. */
static size_t split_row(const conv_geom *g)
{
    return (size_t)((g->ow + g->kw - 1 + 15) / 16 * 16 * g->c);
}

/* Whether conv_pairs_block takes it: there must be room for the rows that make a row of cells. */
static bool pairs_fit(const conv_geom *g)
{
    return g->cs == 1 || (g->cs <= 4 && (size_t)(g->kh + 1) * split_row(g) <= SPLIT_FLOATS);
}

/* to = `rows` rows of x, channels apart. */
INLINE void split_rows(const conv_geom *g, int rows, const float *x, float *to, const int c)
{
    const size_t row = split_row(g), plane = row / (size_t)c;
    const int width = (g->ow + g->kw - 1) * c;
    for (int r = 0; r < rows; r++, x += g->x_row, to += row)
        for (int i = 0; i * c < width; i += 16)
            split16(x + (size_t)(i * c), width - i * c, c, to + i, plane);
}

static void split(const conv_geom *g, int rows, const float *x, float *to)
{
    switch (g->c) {
    case 2: split_rows(g, rows, x, to, 2); break;
    case 3: split_rows(g, rows, x, to, 3); break;
    default: split_rows(g, rows, x, to, 4); break;
    }
}

/* `rows` rows of cells of one block of 8 filters: of x, and of what was split of it, as `s` says.
 * Tiles about as wide as each other: 14 = 8 + 6. */
static void pairs_rows(const conv_geom *g, int rows, const float *x, const conv_geom *s,
                       const float *apart, const float *w, const float *b, float *y, uint8_t *arg)
{
    static pairs_fn *const copies[2][4] = {
        {pairs_2, pairs_4, pairs_6, pairs_8},
        {grey_pairs_2, grey_pairs_4, grey_pairs_6, grey_pairs_8},
    };
    pairs_fn *const *f = copies[g->c == 1];
    const size_t plane = s->x_row / (size_t)g->c;
    int cells = g->ow / 2, twos = cells / 2, tiles = (twos + 3) / 4,
        want = tiles ? (twos + tiles - 1) / tiles : 1;
    for (int row = 0; row < rows; row++, x += 2 * g->x_row, y += g->y_row) {
        for (int done = 0, n; done < twos; done += n) {
            n = twos - done < want ? twos - done : want;
            size_t to = (size_t)(2 * done * g->ks);
            f[n - 1](s, apart + 4 * done, plane, w, b, y + to, arg ? arg + to : NULL);
        }
        size_t last = (size_t)(2 * twos * g->ks);
        if (cells % 2) /* stands alone */
            pool_2_08(g, x + (size_t)(4 * twos * g->cs), w, b, y + last, arg ? arg + last : NULL);
        apart += 2 * s->x_row;
        arg = arg ? arg + (size_t)(cells * g->ks) : NULL;
    }
}

/* One block of 8 filters over the sample. */
static void conv_pairs_block(const conv_geom *g, const float *x, const float *w, const float *b,
                             float *y, uint8_t *arg)
{
    const int all = g->oh / 2;
    if (g->cs == 1) {
        pairs_rows(g, all, x, g, x, w, b, y, arg);
        return;
    }
    float apart[SPLIT_FLOATS] __attribute__((aligned(64)));
    conv_geom s = *g;
    s.x_row = split_row(g);
    const int most = ((int)(SPLIT_FLOATS / s.x_row) - g->kh + 1) / 2;
    for (int done = 0, n; done < all; done += n) {
        n = all - done < most ? all - done : most;
        const float *from = x + (size_t)(2 * done) * g->x_row;
        split(g, 2 * n + g->kh - 1, from, apart);
        pairs_rows(g, n, from, &s, apart, w, b, y + (size_t)done * g->y_row,
                   arg ? arg + (size_t)done * (size_t)(g->ow / 2 * g->ks) : NULL);
    }
}
