/* conv_lanes_impl.h: convolution with 2x2 max pooling of up to 4 channels to 8 filters, 16 lanes at
 * a time. A vector holds one filter's results at 16 neighbouring pixels, so that a weight is
 * broadcast once for all of a tile and filters are not padded to a vector. This needs a channel's
 * pixels side by side: an image of several channels is copied a few rows at a time, channels apart.
 * Included once by kernels_impl.h where 16 lanes pay. Each result is summed in the order of
 * conv_tile_impl.h's tiles, to the same bits. */

/* 16 cells: each filter's largest values, and the places of the winners of four filters, a byte
 * each, from the lowest byte on. */
typedef struct lanes_cells {
    v16 best[8];
    v16i places[2];
} lanes_cells;

/* Computes nv vectors of pixels for nf filters. x: pixels side by side, channels `plane` floats
 * apart. */
INLINE void lanes_tile(const conv_geom *g, const float *x, size_t plane, const float *w,
                       const float *b, v16 *best, v16i *places, const int nf, const int nv)
{
    v16 acc[6][2][2];
    UNROLL for (int f = 0; f < nf; f++)
        UNROLL for (int v = 0; v < nv; v++)
            acc[f][0][v] = acc[f][1][v] = all16(b[f]);
    for (int i = 0; i < g->kh; i++, x += g->x_row) {
        for (int j = 0; j < g->kw; j++) {
            const float *x0 = x + j, *x1 = x0 + g->x_row;
            for (int q = 0; q < g->c; q++, x0 += plane, x1 += plane, w += 8) {
                v16 pixels[2][2];
                UNROLL for (int v = 0; v < nv; v++) {
                    pixels[0][v] = load16(x0 + 16 * v);
                    pixels[1][v] = load16(x1 + 16 * v);
                }
                UNROLL for (int f = 0; f < nf; f++) {
                    v16 weight = all16(w[f]);
                    IN_REGISTER(weight); /* otherwise each use reads it from memory again */
                    UNROLL for (int r = 0; r < 2; r++)
                        UNROLL for (int v = 0; v < nv; v++)
                            acc[f][r][v] += weight * pixels[r][v];
                }
            }
        }
    }
    UNROLL for (int f = 0; f < nf; f++) {
        const v16 *row0 = acc[f][0], *row1 = acc[f][1];
        v16 v0 = evens16(row0[0], row0[nv - 1]), v1 = odds16(row0[0], row0[nv - 1]);
        v16 v2 = evens16(row1[0], row1[nv - 1]), v3 = odds16(row1[0], row1[nv - 1]);
        v16 up = max16(v1, v0), down = max16(v3, v2);
        best[f] = relu16(max16(down, up));
        if (places)
            places[f / 4] |= which16(v0, v1, v2, v3, up, down) << 8 * (f % 4);
    }
}

typedef void lanes_fn(const conv_geom *, const float *, size_t, const float *, const float *, v16 *,
                      v16i *);
#define LANES_COPY(NF, NV)                                                                         \
    static void lanes_##NF##_##NV(const conv_geom *g, const float *x, size_t plane,                \
                                  const float *w, const float *b, v16 *best, v16i *places)         \
    {                                                                                              \
        lanes_tile(g, x, plane, w, b, best, places, NF, NV);                                       \
    }
LANES_COPY(2, 1)
LANES_COPY(2, 2)
LANES_COPY(4, 1)
LANES_COPY(4, 2)
LANES_COPY(6, 1)
LANES_COPY(6, 2)
#undef LANES_COPY
static lanes_fn *const lanes_copies[3][2] = {
    {lanes_2_1, lanes_2_2}, {lanes_4_1, lanes_4_2}, {lanes_6_1, lanes_6_2}};

/* Stores the first `count` of the cells, which lie side by side, to y and arg. */
static void lanes_store(const conv_geom *g, const lanes_cells *of, int count, float *y,
                        uint8_t *arg)
{
    v16 four[2][4];
    UNROLL for (int h = 0; h < 2; h++)
        transpose4x16(of->best + 4 * h, four[h]);
    UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int h = 0; h < 2; h++) {
            const int cell = 8 * h + i;
            v16 two = quarters16(four[0][i], four[1][i], h); /* of this cell and of cell + 4 */
            if (cell < count)
                store8(y + (size_t)(cell * g->ks), low8(two));
            if (cell + 4 < count)
                store8(y + (size_t)((cell + 4) * g->ks), high8(two));
        }
    }
    if (!arg)
        return;
    uint64_t places[16];
    zip16(of->places[0], of->places[1], places);
    for (int cell = 0; cell < count; cell++, arg += g->ks)
        memcpy(arg, &places[cell], 8);
}

/* Floats copied at a time, which stay in the first cache. */
enum { SPLIT_FLOATS = 6144 };

/* Floats of a row whose channels lie apart: each channel has whole vectors, even from its last tap
 * on. */
static size_t split_row(const conv_geom *g)
{
    return (size_t)(((g->ow + 15) / 16 * 16 + g->kw - 1 + 15) / 16 * 16 * g->c);
}

/* Whether conv_lanes_block can compute this: the rows that make a row of cells must fit its
 * buffer. */
static bool lanes_fit(const conv_geom *g)
{
    return g->cs == 1 || (g->cs <= 4 && (size_t)(g->kh + 1) * split_row(g) <= SPLIT_FLOATS);
}

/* Copies `rows` rows of x, channels apart, to `to`. */
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

/* Computes `rows` rows of cells for up to 8 filters; more than 6 filters go in two halves. The
 * channels of x lie apart, its rows x_row floats from each other. */
static void lanes_rows(const conv_geom *g, int filters, int rows, const float *x, size_t x_row,
                       const float *w, const float *b, float *y, uint8_t *arg)
{
    const int all = g->ow / 2, at_once = filters > 6 ? 4 : (filters + 1) / 2 * 2;
    lanes_fn *const *f = lanes_copies[at_once / 2 - 1];
    const size_t plane = x_row / (size_t)g->c;
    conv_geom s = *g;
    s.x_row = x_row;
    for (int row = 0; row < rows; row++, x += 2 * x_row, y += g->y_row) {
        for (int done = 0; done < all; done += 16) {
            const int count = all - done < 16 ? all - done : 16;
            const size_t to = (size_t)(done * g->ks);
            lanes_cells cells;
            memset(&cells, 0, sizeof cells);
            for (int o = 0; o < filters; o += at_once)
                f[count > 8](&s, x + 2 * done, plane, w + o, b + o, cells.best + o,
                             arg ? cells.places + o / 4 : NULL);
            lanes_store(g, &cells, count, y + to, arg ? arg + to : NULL);
        }
        arg = arg ? arg + (size_t)(all * g->ks) : NULL;
    }
}

/* Computes up to 8 filters over the sample. */
static void conv_lanes_block(const conv_geom *g, int filters, const float *x, const float *w,
                             const float *b, float *y, uint8_t *arg)
{
    const int all = g->oh / 2;
    if (g->cs == 1) {
        lanes_rows(g, filters, all, x, g->x_row, w, b, y, arg);
        return;
    }
    float apart[SPLIT_FLOATS] __attribute__((aligned(64)));
    const size_t row = split_row(g);
    const int most = ((int)(SPLIT_FLOATS / row) - g->kh + 1) / 2;
    for (int done = 0, n; done < all; done += n) {
        n = all - done < most ? all - done : most;
        split(g, 2 * n + g->kh - 1, x + (size_t)(2 * done) * g->x_row, apart);
        lanes_rows(g, filters, n, apart, row, w, b, y + (size_t)done * g->y_row,
                   arg ? arg + (size_t)done * (size_t)(g->ow / 2 * g->ks) : NULL);
    }
}
