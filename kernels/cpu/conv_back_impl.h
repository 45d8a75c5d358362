/* conv_back_impl.h: backward convolution, by runs. A kernel row of a channels-last image, kw * cs
 * floats, lies without gaps; so weight gradient and input gradient are sums of scaled runs.
 *
 * Included once by kernels_impl.h. MAX_ACC is how many v8 accumulators fit the register file. */

/* Tiles (rows, vectors) of a filter that registers hold at once. */
#if KERNELS_LEAN
#define POOL_TILES(X) X(1, 1) X(1, 3) X(3, 1)
#elif MAX_ACC >= 28
#define POOL_TILES(X)                                                                              \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(1, 5) X(1, 6) X(1, 8) X(1, 12) X(2, 1) X(2, 2) X(2, 3)       \
    X(2, 4) X(2, 5) X(2, 6) X(2, 8) X(2, 12) X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(3, 5) X(3, 6)       \
    X(3, 8) X(3, 9) X(5, 1) X(5, 2) X(5, 3) X(5, 4) X(5, 5)
#else
#define POOL_TILES(X)                                                                              \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(1, 5) X(1, 6) X(1, 8) X(2, 1) X(2, 2) X(2, 3) X(2, 4)        \
    X(2, 5) X(3, 1) X(3, 2) X(3, 3) X(5, 1) X(5, 2)
#endif

/* One tile at row r and vector v of a filter; `tile` counts through POOL_TILES. */
typedef struct piece {
    int tile;
    size_t w, x; /* floats from the start of the filter, and of its window */
} piece;
enum { PIECES_MAX = 64 };
typedef struct pieces {
    int count;
    piece of[PIECES_MAX];
} pieces;

static const struct {
    int nr, nv;
} pool_tiles[] = {
#define POOL_TILE_SIZE(NR, NV) {NR, NV},
    POOL_TILES(POOL_TILE_SIZE)
};

/* Covers rows x vectors from (r0, v0) on with tiles, the largest first. False when the pieces do
 * not fit the list. */
static bool cover(const conv_geom *g, int r0, int v0, int nr, int nv, pieces *out)
{
    if (nr <= 0 || nv <= 0)
        return true;
    int t = 0, most = 0;
    for (int i = 0; i < (int)(sizeof(pool_tiles) / sizeof(pool_tiles[0])); i++) {
        int b = pool_tiles[i].nr, c = pool_tiles[i].nv;
        if (b <= nr && c <= nv && b * c > most) {
            most = b * c;
            t = i;
        }
    }
    int b = pool_tiles[t].nr, c = pool_tiles[t].nv, r_end = r0 + nr - nr % b,
        v_end = v0 + nv - nv % c;
    for (int r = r0; r < r_end; r += b) {
        for (int v = v0; v < v_end; v += c) {
            if (out->count == PIECES_MAX)
                return false;
            out->of[out->count++] = (piece){t, (size_t)r * g->run + (size_t)v * 8,
                                            (size_t)r * g->x_row + (size_t)v * 8};
        }
    }
    return cover(g, r0, v_end, r_end - r0, nv - (v_end - v0), out) &&
           cover(g, r_end, v0, nr - (r_end - r0), nv, out);
}

/* ---- weight gradient through 2x2 max pooling: only the winning pixel of each cell counts ----- */

/* dw of NO filters, NR kernel rows, NV vectors of the run, over all cells of one sample. */
INLINE void pool_dw_tile(const conv_geom *g, const float *x, const float *dp, const uint8_t *arg,
                         float *dw, const int no, const int nr, const int nv)
{
    v8 acc[4][5][12];
    const size_t filter = (size_t)g->kh * g->run, x_row = g->x_row, ks = (size_t)g->ks;
    const size_t at[4] = {0, (size_t)g->cs, g->x_row, g->x_row + (size_t)g->cs};
    UNROLL for (int o = 0; o < no; o++)
        UNROLL for (int r = 0; r < nr; r++)
            UNROLL for (int v = 0; v < nv; v++)
                acc[o][r][v] = load8(dw + (size_t)o * filter + (size_t)r * g->run + (size_t)v * 8);
    const size_t cs = (size_t)g->cs;
    const int cells = g->ow / 2;
    for (int i = 0; i + 1 < g->oh; i += 2) {
        const float *xr = x + (size_t)i * x_row;
        for (int j = 0; j < cells; j++, dp += ks, arg += ks, xr += 2 * cs) {
            UNROLL for (int o = 0; o < no; o++) {
                const float *p = xr + at[arg[o]];
                v8 gv = all8(dp[o]);
                OPAQUE(p);
                UNROLL for (int r = 0; r < nr; r++)
                    UNROLL for (int v = 0; v < nv; v++)
                        acc[o][r][v] += gv * load8(p + (size_t)r * x_row + v * 8);
            }
        }
    }
    UNROLL for (int o = 0; o < no; o++)
        UNROLL for (int r = 0; r < nr; r++)
            UNROLL for (int v = 0; v < nv; v++)
                store8(dw + (size_t)o * filter + (size_t)r * g->run + (size_t)v * 8, acc[o][r][v]);
}

typedef void pool_dw_fn(const conv_geom *, const float *, const float *, const uint8_t *, float *);
#define POOL_DW(NO, NR, NV)                                                                        \
    static void pool_dw_##NO##_##NR##_##NV(const conv_geom *g, const float *x, const float *dp,    \
                                           const uint8_t *arg, float *dw)                          \
    {                                                                                              \
        pool_dw_tile(g, x, dp, arg, dw, NO, NR, NV);                                               \
    }
/* Several small filters at a time, so that there are enough accumulators to hide the latency. */
#if KERNELS_LEAN
#define POOL_DW_LIST(X) X(1, 1, 1) X(2, 1, 1) X(1, 3, 1)
#else
#define POOL_DW_LIST(X)                                                                            \
    X(1, 1, 1)                                                                                     \
    X(2, 1, 1) X(4, 1, 1) X(1, 3, 1) X(2, 3, 1) X(4, 3, 1) X(1, 5, 1) X(2, 5, 1) X(1, 1, 2)        \
        X(2, 1, 2) X(1, 3, 2) X(2, 3, 2) X(1, 2, 1) X(1, 1, 3) X(1, 1, 4) X(1, 1, 6)
#endif
#define POOL_DW_WIDE(X) X(4, 5, 1) X(4, 3, 2)
POOL_DW_LIST(POOL_DW)
#if MAX_ACC >= 28
POOL_DW_WIDE(POOL_DW)
#endif

static const struct {
    int no, nr, nv;
    pool_dw_fn *fn;
} pool_dw_copies[] = {
#define POOL_DW_ENTRY(NO, NR, NV) {NO, NR, NV, pool_dw_##NO##_##NR##_##NV},
    POOL_DW_LIST(POOL_DW_ENTRY)
#if MAX_ACC >= 28
    POOL_DW_WIDE(POOL_DW_ENTRY)
#endif
};

/* The copy that covers most of a block of that many filters, rows and vectors. */
static int pool_dw_best(int no, int nr, int nv)
{
    int best = 0, most = 0;
    for (int i = 0; i < (int)(sizeof(pool_dw_copies) / sizeof(pool_dw_copies[0])); i++) {
        int a = pool_dw_copies[i].no, b = pool_dw_copies[i].nr, c = pool_dw_copies[i].nv;
        if (a <= no && b <= nr && c <= nv && a * b * c > most) {
            most = a * b * c;
            best = i;
        }
    }
    return best;
}

/* Covers filters x rows x vectors with copies, largest first, cutting off one extent at a time. */
static void pool_dw_cover(const conv_geom *g, const float *x, const float *dp, const uint8_t *arg,
                          float *dw, int no, int nr, int nv)
{
    if (no <= 0 || nr <= 0 || nv <= 0)
        return;
    int t = pool_dw_best(no, nr, nv);
    int a = pool_dw_copies[t].no, b = pool_dw_copies[t].nr, c = pool_dw_copies[t].nv;
    int o_end = no - no % a, r_end = nr - nr % b, v_end = nv - nv % c;
    for (int o = 0; o < o_end; o += a)
        for (int r = 0; r < r_end; r += b)
            for (int v = 0; v < v_end; v += c)
                pool_dw_copies[t].fn(g, x + (size_t)r * g->x_row + (size_t)v * 8, dp + o, arg + o,
                                     dw + ((size_t)o * (size_t)g->kh + (size_t)r) * g->run +
                                         (size_t)v * 8);
    pool_dw_cover(g, x + (size_t)v_end * 8, dp, arg, dw + (size_t)v_end * 8, o_end, r_end,
                  nv - v_end);
    pool_dw_cover(g, x + (size_t)r_end * g->x_row, dp, arg, dw + (size_t)r_end * g->run, o_end,
                  nr - r_end, nv);
    pool_dw_cover(g, x, dp + o_end, arg + o_end, dw + (size_t)o_end * (size_t)g->kh * g->run,
                  no - o_end, nr, nv);
}

/* For large filters: lists the winners with a gradient, filter by filter; ReLU often leaves few. */
enum { WINNERS_MAX = 256, WINNER_FILTERS = 8 };
typedef struct winner_list {
    int count[WINNER_FILTERS];
    uint32_t at[WINNER_FILTERS][WINNERS_MAX + 1]; /* where the winner's window begins in x */
    float g[WINNER_FILTERS][WINNERS_MAX + 1];
} winner_list;

INLINE void list_dw_tile(const conv_geom *g, const float *x, const uint32_t *at, const float *gs,
                         int n, float *dw, const int nr, const int nv)
{
    v8 acc[5][12];
    const size_t run = g->run, x_row = g->x_row;
    UNROLL for (int r = 0; r < nr; r++)
        UNROLL for (int v = 0; v < nv; v++)
            acc[r][v] = load8(dw + (size_t)r * run + (size_t)v * 8);
    for (int i = 0; i < n; i++) {
        const float *p = x + at[i];
        v8 gv = all8(gs[i]);
        UNROLL for (int r = 0; r < nr; r++) {
            OPAQUE(p);
            UNROLL for (int v = 0; v < nv; v++)
                acc[r][v] += gv * load8(p + v * 8);
            p += x_row;
        }
    }
    UNROLL for (int r = 0; r < nr; r++)
        UNROLL for (int v = 0; v < nv; v++)
            store8(dw + (size_t)r * run + (size_t)v * 8, acc[r][v]);
}

typedef void list_dw_fn(const conv_geom *, const float *, const uint32_t *, const float *, int,
                        float *);
#define LIST_DW(NR, NV)                                                                            \
    static void list_dw_##NR##_##NV(const conv_geom *g, const float *x, const uint32_t *at,        \
                                    const float *gs, int n, float *dw)                             \
    {                                                                                              \
        list_dw_tile(g, x, at, gs, n, dw, NR, NV);                                                 \
    }
POOL_TILES(LIST_DW)

static list_dw_fn *const list_dw_copies[] = {
#define LIST_DW_ENTRY(NR, NV) list_dw_##NR##_##NV,
    POOL_TILES(LIST_DW_ENTRY)
};

/* Appends one cell's winners for `no` filters; without a branch, because half of the gradients may
 * be zero. */
INLINE void list_add(winner_list *l, const uint32_t *at, size_t base, const float *dp,
                     const uint8_t *arg, int no)
{
    for (int o = 0; o < no; o++) {
        int n = l->count[o];
        l->at[o][n] = (uint32_t)base + at[arg[o]];
        l->g[o][n] = dp[o];
        l->count[o] = n + (dp[o] != 0);
    }
}

/* Adds the list to dw of `no` filters and empties it; filters too large for the list of pieces go
 * vector by vector. */
static void list_flush(const conv_geom *g, const pieces *cut, const float *x, winner_list *l,
                       float *dw, int no)
{
    for (int q = 0; q < no; q++, dw += (size_t)g->kh * g->run) {
        for (int i = 0; i < cut->count; i++)
            list_dw_copies[cut->of[i].tile](g, x + cut->of[i].x, l->at[q], l->g[q], l->count[q],
                                            dw + cut->of[i].w);
        for (size_t r = 0; r < (size_t)g->kh && cut->count == 0; r++)
            for (size_t v = 0; v < g->run; v += 8)
                list_dw_1_1(g, x + r * g->x_row + v, l->at[q], l->g[q], l->count[q],
                            dw + r * g->run + v);
        l->count[q] = 0;
    }
}

static void list_dw(const conv_geom *g, const pool_cells *cells, const pieces *cut, const float *x,
                    const float *dp, const uint8_t *arg, float *dw)
{
    winner_list l;
    const size_t ks = (size_t)g->ks;
    memset(l.count, 0, sizeof l.count);
    for (int o = 0; o < g->k; o += WINNER_FILTERS) {
        int no = g->k - o < WINNER_FILTERS ? g->k - o : WINNER_FILTERS, held = 0;
        size_t cell = (size_t)o;
        for (int i = 0; i < cells->h; i++) {
            for (int j = 0; j < cells->w; j++, cell += ks) {
                size_t base = (size_t)i * cells->row + (size_t)j * cells->step;
                if (no == WINNER_FILTERS)
                    list_add(&l, cells->at, base, dp + cell, arg + cell, WINNER_FILTERS);
                else
                    list_add(&l, cells->at, base, dp + cell, arg + cell, no);
                if (++held == WINNERS_MAX) {
                    list_flush(g, cut, x, &l, dw + (size_t)o * (size_t)g->kh * g->run, no);
                    held = 0;
                }
            }
        }
        list_flush(g, cut, x, &l, dw + (size_t)o * (size_t)g->kh * g->run, no);
    }
}

static void conv_pool_dw(const conv_geom *g, const float *x, const float *dp, const uint8_t *arg,
                         float *dw)
{
    int vectors = (int)(g->run / 8);
    pieces cut = {.count = 0};
    uint32_t row = (uint32_t)g->x_row, step = (uint32_t)g->cs, at[4] = {0, step, row, row + step};
    const pool_cells cells = {g->oh / 2, g->ow / 2, 2 * g->x_row, (size_t)(2 * g->cs), at};
    if (vectors * g->kh >= 8 && cover(g, 0, 0, g->kh, vectors, &cut))
        list_dw(g, &cells, &cut, x, dp, arg, dw);
    else
        pool_dw_cover(g, x, dp, arg, dw, g->k, g->kh, vectors);
}

static void conv_window_dw(const conv_geom *g, const pool_cells *cells, const float *x,
                           const float *dp, const uint8_t *arg, float *dw)
{
    pieces cut = {.count = 0};
    if (!cover(g, 0, 0, g->kh, (int)(g->run / 8), &cut))
        cut.count = 0;
    list_dw(g, cells, &cut, x, dp, arg, dw);
}

/* ---- input gradient through 2x2 max pooling -------------------------------------------------- */

/* The filters of one cell that share a winner's position: bit o of `set` is filter dp[o]. */
typedef struct winner_set {
    uint64_t set;
    const float *dp;
    float *dx;
} winner_set;
enum { SETS_MAX = 128 };

/* Adds the runs of each set's filters to NR rows of NV vectors at its dx. */
INLINE void pool_dx_tile(const conv_geom *g, const winner_set *s, int n, const float *wb,
                         size_t x_at, const int nr, const int nv)
{
    const size_t run = g->run, filter = (size_t)g->kh * run, x_row = g->x_row;
    for (const winner_set *end = s + n; s < end; s++) {
        v8 acc[5][12];
        float *dx = s->dx + x_at;
        UNROLL for (int r = 0; r < nr; r++) {
            OPAQUE(dx);
            UNROLL for (int v = 0; v < nv; v++)
                acc[r][v] = load8(dx + v * 8);
            dx += x_row;
        }
        for (uint64_t set = s->set; set; set &= set - 1) {
            size_t o = (size_t)__builtin_ctzll(set);
            const float *w = wb + o * filter;
            v8 gv = all8(s->dp[o]);
            UNROLL for (int r = 0; r < nr; r++) {
                OPAQUE(w);
                UNROLL for (int v = 0; v < nv; v++)
                    acc[r][v] += gv * load8(w + v * 8);
                w += run;
            }
        }
        dx = s->dx + x_at;
        UNROLL for (int r = 0; r < nr; r++) {
            OPAQUE(dx);
            UNROLL for (int v = 0; v < nv; v++)
                store8(dx + v * 8, acc[r][v]);
            dx += x_row;
        }
    }
}

typedef void pool_dx_fn(const conv_geom *, const winner_set *, int, const float *, size_t);
#define POOL_DX(NR, NV)                                                                            \
    static void pool_dx_##NR##_##NV(const conv_geom *g, const winner_set *s, int n,                \
                                    const float *wb, size_t x_at)                                  \
    {                                                                                              \
        pool_dx_tile(g, s, n, wb, x_at, NR, NV);                                                   \
    }
POOL_TILES(POOL_DX)

static pool_dx_fn *const pool_dx_copies[] = {
#define POOL_DX_ENTRY(NR, NV) pool_dx_##NR##_##NV,
    POOL_TILES(POOL_DX_ENTRY)
};

/* Adds all sets over the whole filter; a filter too large for the list of pieces goes vector by
 * vector. */
static void sets_flush(const conv_geom *g, const pieces *cut, const winner_set *s, int n,
                       const float *wb)
{
    for (int i = 0; i < cut->count; i++)
        pool_dx_copies[cut->of[i].tile](g, s, n, wb + cut->of[i].w, cut->of[i].x);
    if (cut->count)
        return;
    for (size_t r = 0; r < (size_t)g->kh; r++)
        for (size_t v = 0; v < g->run; v += 8)
            pool_dx_1_1(g, s, n, wb + r * g->run + v, r * g->x_row + v);
}

/* Writes the sets of one cell that are not empty; at[pos] is where position pos lies. Returns their
 * number. */
INLINE int cell_sets(const float *dp, const uint8_t *arg, int filters, const size_t at[4],
                     float *dx, winner_set *out)
{
    uint64_t set[4] = {0, 0, 0, 0};
    for (int q = 0; q < filters; q += 8)
        winners8(arg + q, dp + q, q, set);
    uint64_t real = filters < 64 ? ((uint64_t)1 << filters) - 1 : ~(uint64_t)0;
    int n = 0;
    UNROLL for (int pos = 0; pos < 4; pos++) {
        out[n] = (winner_set){set[pos] & real, dp, dx + at[pos]};
        n += out[n].set != 0;
    }
    return n;
}

static void conv_pool_dx(const conv_geom *g, const float *dp, const uint8_t *arg, const float *wb,
                         float *dx)
{
    winner_set sets[SETS_MAX + 4];
    pieces cut = {.count = 0};
    if (!cover(g, 0, 0, g->kh, (int)(g->run / 8), &cut))
        cut.count = 0;
    const size_t at[4] = {0, (size_t)g->cs, g->x_row, g->x_row + (size_t)g->cs}, ks = (size_t)g->ks;
    for (int o = 0; o < g->k; o += 64) {
        int filters = g->k - o < 64 ? g->k - o : 64, n = 0;
        const float *w = wb + (size_t)o * (size_t)g->kh * g->run;
        size_t cell = (size_t)o;
        for (int i = 0; i + 1 < g->oh; i += 2) {
            for (int j = 0; j + 1 < g->ow; j += 2, cell += ks) {
                n += cell_sets(dp + cell, arg + cell, filters, at,
                               dx + (size_t)i * g->x_row + (size_t)(j * g->cs), sets + n);
                if (n >= SETS_MAX) {
                    sets_flush(g, &cut, sets, n, w);
                    n = 0;
                }
            }
        }
        sets_flush(g, &cut, sets, n, w);
    }
}

/* ---- dense: every output pixel counts -------------------------------------------------------- */

/* dw of NO filters x NV vectors of one kernel row (undilated: the run; dilated: one pixel of
 * it). */
#define DENSE_DW(VT, VW, LOAD, STORE, ALL, NO, NV)                                                 \
    static void dense_dw_##VW##_##NO##_##NV(const conv_geom *g, const float *x, const float *dy,   \
                                            float *dw)                                             \
    {                                                                                              \
        VT acc[NO][NV];                                                                            \
        const size_t filter = (size_t)g->kh * g->run, step = (size_t)(g->sw * g->cs);              \
        const size_t ks = (size_t)g->ks;                                                           \
        const int ow = g->ow;                                                                      \
        UNROLL for (size_t o = 0; o < NO; o++)                                                     \
            UNROLL for (size_t v = 0; v < NV; v++)                                                 \
                acc[o][v] = LOAD(dw + o * filter + v * VW);                                        \
        for (int i = 0; i < g->oh; i++) {                                                          \
            const float *p = x + (size_t)(i * g->sh) * g->x_row, *d = dy + (size_t)i * g->y_row;   \
            for (int j = 0; j < ow; j++, p += step, d += ks) {                                     \
                VT xv[NV];                                                                         \
                OPAQUE(p);                                                                         \
                UNROLL for (size_t v = 0; v < NV; v++)                                             \
                    xv[v] = LOAD(p + v * VW);                                                      \
                UNROLL for (size_t o = 0; o < NO; o++) {                                           \
                    VT gv = ALL(d[o]);                                                             \
                    UNROLL for (size_t v = 0; v < NV; v++)                                         \
                        acc[o][v] += gv * xv[v];                                                   \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        UNROLL for (size_t o = 0; o < NO; o++)                                                     \
            UNROLL for (size_t v = 0; v < NV; v++)                                                 \
                STORE(dw + o * filter + v * VW, acc[o][v]);                                        \
    }
#define DENSE_DW8(NO, NV)  DENSE_DW(v8, 8, load8, store8, all8, NO, NV)
#define DENSE_DW16(NO, NV) DENSE_DW(v16, 16, load16, store16, all16, NO, NV)

typedef void dense_dw_fn(const conv_geom *, const float *, const float *, float *);
typedef struct dense_dw_copy {
    int no, nv;
    dense_dw_fn *fn;
} dense_dw_copy;
#define DENSE_DW_ENTRY8(NO, NV)  {NO, NV, dense_dw_8_##NO##_##NV},
#define DENSE_DW_ENTRY16(NO, NV) {NO, NV, dense_dw_16_##NO##_##NV},

#if KERNELS_LEAN
#define DENSE_DW_LIST8(X)  X(1, 1) X(2, 2)
#define DENSE_DW_LIST16(X) X(1, 1) X(2, 2)
#elif KERNELS_WIDE
#define DENSE_DW_LIST8(X)  X(1, 1) X(4, 1) X(8, 1)
#define DENSE_DW_LIST16(X)                                                                         \
    X(1, 1) X(4, 1) X(8, 1) X(1, 2) X(4, 2) X(8, 2) X(1, 3) X(4, 3) X(8, 3) X(4, 6)
#else
#define DENSE_DW_LIST8(X) X(1, 1) X(4, 1) X(1, 2) X(4, 2) X(1, 4) X(2, 4) X(3, 3) X(4, 3)
#endif
DENSE_DW_LIST8(DENSE_DW8)
static const dense_dw_copy dense_dw_copies8[] = {DENSE_DW_LIST8(DENSE_DW_ENTRY8){0, 0, NULL}};
#if KERNELS_WIDE
DENSE_DW_LIST16(DENSE_DW16)
static const dense_dw_copy dense_dw_copies16[] = {DENSE_DW_LIST16(DENSE_DW_ENTRY16){0, 0, NULL}};
#endif

/* Computes dw for no filters x nv vectors of `width` floats. */
static void dense_dw_cover(const conv_geom *g, const dense_dw_copy *copies, int width,
                           const float *x, const float *dy, float *dw, int no, int nv)
{
    if (no <= 0 || nv <= 0)
        return;
    const dense_dw_copy *best = copies;
    for (const dense_dw_copy *c = copies; c->fn; c++)
        if (c->no <= no && c->nv <= nv && c->no * c->nv > best->no * best->nv)
            best = c;
    size_t filter = (size_t)g->kh * g->run;
    int o_end = no - no % best->no, v_end = nv - nv % best->nv;
    for (int o = 0; o < o_end; o += best->no)
        for (int v = 0; v < v_end; v += best->nv)
            best->fn(g, x + v * width, dy + o, dw + (size_t)o * filter + v * width);
    dense_dw_cover(g, copies, width, x + v_end * width, dy, dw + v_end * width, o_end, nv - v_end);
    dense_dw_cover(g, copies, width, x, dy + o_end, dw + (size_t)o_end * filter, no - o_end, nv);
}

/* Computes dw for `floats` floats, a multiple of 8, of one kernel row of all filters. */
static void dense_dw_row(const conv_geom *g, const float *x, const float *dy, float *dw,
                         size_t floats)
{
    size_t wide = 0;
#if KERNELS_WIDE
    wide = floats / 16 * 16;
    dense_dw_cover(g, dense_dw_copies16, 16, x, dy, dw, g->k, (int)(wide / 16));
#endif
    dense_dw_cover(g, dense_dw_copies8, 8, x + wide, dy, dw + wide, g->k,
                   (int)((floats - wide) / 8));
}

/* Sizes of a part of a sample's weight gradient: filters of one kernel row, over rows of pixels
 * that the first cache holds while all tiles of the part pass over them. A whole sample does not
 * fit, and its pixels, mostly a power of two apart, would share few lines of the cache. The order
 * of the sums does not depend on the parts. */
enum { DW_FILTERS = 32, DW_BYTES = 24 * 1024, DW_PIXELS = 32 };

static int dw_rows(const conv_geom *g, int filters)
{
    size_t row = (size_t)g->ow * (size_t)(g->sw * g->cs + filters) * sizeof(float);
    int fit = row < DW_BYTES ? (int)(DW_BYTES / row) : 1, least = (DW_PIXELS + g->ow - 1) / g->ow;
    return fit > least ? fit : least;
}

/* x begins at the kernel row. */
static void dw_filters(const conv_geom *g, const float *x, const float *dy, float *dw)
{
    conv_geom part = *g;
    int rows = dw_rows(g, g->k);
    for (int i = 0; i < g->oh; i += rows) {
        const float *xi = x + (size_t)(i * g->sh) * g->x_row, *di = dy + (size_t)i * g->y_row;
        part.oh = rows < g->oh - i ? rows : g->oh - i;
        if (g->dw == 1)
            dense_dw_row(&part, xi, di, dw, g->run);
        /* Dilated: one kernel column at a time; needs cs a multiple of 8. */
        for (int s = 0; g->dw != 1 && s < g->kw; s++)
            dense_dw_row(&part, xi + (size_t)(s * g->dw * g->cs), di, dw + (size_t)(s * g->cs),
                         (size_t)g->cs);
    }
}

static void conv_dw(const conv_geom *g, const float *x, const float *dy, float *dw)
{
    conv_geom part = *g;
    for (int r = 0; r < g->kh; r++)
        for (int o = 0; o < g->k; o += DW_FILTERS) {
            part.k = DW_FILTERS < g->k - o ? DW_FILTERS : g->k - o;
            dw_filters(&part, x + (size_t)(r * g->dh) * g->x_row, dy + o,
                       dw + (size_t)(o * g->kh + r) * g->run);
        }
}

/* Each output pixel scatters the runs of all filters; for strides and dilations without a better
 * way. */
static void conv_dx(const conv_geom *g, const float *dy, const float *wb, float *dx)
{
    const size_t filter = (size_t)g->kh * g->run;
    for (int i = 0; i < g->oh; i++) {
        for (int j = 0; j < g->ow; j++) {
            const float *d = dy + (size_t)i * g->y_row + (size_t)(j * g->ks);
            float *cell = dx + (size_t)(i * g->sh) * g->x_row + (size_t)(j * g->sw * g->cs);
            for (int r = 0; r < g->kh; r++) {
                for (int s = 0; s < g->kw; s++) {
                    float *to = cell + (size_t)(r * g->dh) * g->x_row + (size_t)(s * g->dw * g->cs);
                    const float *w = wb + (size_t)r * g->run + (size_t)(s * g->cs);
                    int v = 0;
                    for (; v + 32 <= g->cs; v += 32) {
                        v8 a0 = load8(to + v), a1 = load8(to + v + 8), a2 = load8(to + v + 16),
                           a3 = load8(to + v + 24);
                        const float *wo = w + v;
                        for (int o = 0; o < g->k; o++, wo += filter) {
                            v8 gv = all8(d[o]);
                            a0 += gv * load8(wo);
                            a1 += gv * load8(wo + 8);
                            a2 += gv * load8(wo + 16);
                            a3 += gv * load8(wo + 24);
                        }
                        store8(to + v, a0);
                        store8(to + v + 8, a1);
                        store8(to + v + 16, a2);
                        store8(to + v + 24, a3);
                    }
                    for (; v < g->cs; v += 8) {
                        v8 a = load8(to + v);
                        const float *wo = w + v;
                        for (int o = 0; o < g->k; o++, wo += filter)
                            a += all8(d[o]) * load8(wo);
                        store8(to + v, a);
                    }
                }
            }
        }
    }
}
