/* wino_impl.h: the transforms of Winograd's convolutions F(4x4, 3x3), F(3x3, 4x4) and F(2x2, 5x5)
 * (Lavin and Gray 2016): a tile of 4x4, 3x3 or 2x2 outputs from 6x6 inputs with 36 instead of 144,
 * 144 or 100 products.
 * Included once by kernels_impl.h.
 *
 *   Y = A^T [ (G g G^T) * (B^T d B) ] A        dg = G^T [ (B^T d B) * (A dY A^T) ] G
 *
 * A transformed array has 36 planes, `plane` floats apart; channels follow each other. Each
 * function of the table calls a copy in which the kernel's size is a constant. */
#define WINO_KERNELS(kernel, call) ((kernel) == 5 ? call(5) : (kernel) == 4 ? call(4) : call(3))

#if KERNELS_WIDE
#define WINO_WIDE(call) for (; c + 16 <= (size_t)channels; c += 16) call(16)
#else
#define WINO_WIDE(call) (void)0
#endif
#define WINO_CHANNELS(call)                                                                        \
    do {                                                                                           \
        size_t c = 0;                                                                              \
        WINO_WIDE(call);                                                                           \
        for (; c < (size_t)channels; c += 8)                                                       \
            call(8);                                                                               \
    } while (0)

static void wino_in(const wino_span *s, int channels, const float *x, size_t x_step, size_t x_row,
                    float *v, size_t plane)
{
#define INSIDE(lanes) wino_in_tile##lanes(s, true, x + c, x_step, x_row, v + c, plane)
#define BORDER(lanes) wino_in_tile##lanes(s, false, x + c, x_step, x_row, v + c, plane)
    if (s->r0 == 0 && s->r1 == 6 && s->c0 == 0 && s->c1 == 6)
        WINO_CHANNELS(INSIDE);
    else
        WINO_CHANNELS(BORDER);
#undef INSIDE
#undef BORDER
}

INLINE void wino_out_of(const int kernel, const wino_span *s, int channels, const float *m,
                        size_t plane, const float *bias, bool relu, bool accumulate, float *y,
                        size_t y_step, size_t y_row)
{
#define INSIDE(lanes)                                                                              \
    wino_out_tile##lanes(kernel, s, true, m + c, plane, bias + c, relu, accumulate, y + c, y_step, \
                         y_row)
#define BORDER(lanes)                                                                              \
    wino_out_tile##lanes(kernel, s, false, m + c, plane, bias + c, relu, accumulate, y + c,        \
                         y_step, y_row)
    if (s->r1 == 7 - kernel && s->c1 == 7 - kernel)
        WINO_CHANNELS(INSIDE);
    else
        WINO_CHANNELS(BORDER);
#undef INSIDE
#undef BORDER
}

static void wino_out(int kernel, const wino_span *s, int channels, const float *m, size_t plane,
                     const float *bias, bool relu, bool accumulate, float *y, size_t y_step,
                     size_t y_row)
{
#define OUT(kernel)                                                                                \
    wino_out_of(kernel, s, channels, m, plane, bias, relu, accumulate, y, y_step, y_row)
    WINO_KERNELS(kernel, OUT);
#undef OUT
}

static void wino_out_pool(int channels, const float *m, size_t plane, const float *bias, float *y,
                          uint8_t *arg)
{
#define POOL(lanes) wino_pool_tile##lanes(m + c, plane, bias + c, y + c, arg ? arg + c : NULL)
    WINO_CHANNELS(POOL);
#undef POOL
}

INLINE void wino_dy_of(const int kernel, const wino_span *s, int channels, const float *dy,
                       size_t y_step, size_t y_row, float *v, size_t plane)
{
#define INSIDE(lanes) wino_dy_tile##lanes(kernel, s, true, dy + c, y_step, y_row, v + c, plane)
#define BORDER(lanes) wino_dy_tile##lanes(kernel, s, false, dy + c, y_step, y_row, v + c, plane)
    if (s->r1 == 7 - kernel && s->c1 == 7 - kernel)
        WINO_CHANNELS(INSIDE);
    else
        WINO_CHANNELS(BORDER);
#undef INSIDE
#undef BORDER
}

static void wino_dy(int kernel, const wino_span *s, int channels, const float *dy, size_t y_step,
                    size_t y_row, float *v, size_t plane)
{
#define DY(kernel) wino_dy_of(kernel, s, channels, dy, y_step, y_row, v, plane)
    WINO_KERNELS(kernel, DY);
#undef DY
}

/* The number of columns from c on, at most `most`; there are `cols` columns. */
static size_t wino_left(int cols, size_t c, size_t most)
{
    size_t left = (size_t)cols > c ? (size_t)cols - c : 0;
    return left < most ? left : most;
}

/* u[36][ld / PANEL][rows][PANEL] = G g G^T. The last panel is as wide as the rest; planes are
 * `plane` floats apart. Element (row, col) of the filter bank is w[row*rs + col*cs + tap], with the
 * taps in reverse where `turned`. Columns up to ld are zero. */
INLINE void wino_weights_of(const int kernel, int rows, int cols, size_t ld, const float *w,
                            size_t rs, size_t cs, bool turned, float *u, size_t plane)
{
    for (size_t panel = 0; panel < ld; panel += PANEL) {
        size_t width = ld - panel < PANEL ? ld - panel : PANEL;
        for (size_t r = 0; r < (size_t)rows; r++) {
            const float *from = w + r * rs + panel * cs;
            float *to = u + panel * (size_t)rows + r * width;
            size_t c = 0;
#if KERNELS_WIDE
            for (; c + 16 <= width; c += 16)
                wino_weights_tile16(kernel, wino_left(cols, panel + c, 16), from + c * cs, cs,
                                    turned, to + c, plane);
#endif
            for (; c < width; c += 8)
                wino_weights_tile8(kernel, wino_left(cols, panel + c, 8), from + c * cs, cs, turned,
                                   to + c, plane);
        }
    }
}

static void wino_weights(int kernel, int rows, int cols, size_t ld, const float *w, size_t rs,
                         size_t cs, bool turned, float *u, size_t plane)
{
#define WEIGHTS(kernel) wino_weights_of(kernel, rows, cols, ld, w, rs, cs, turned, u, plane)
    WINO_KERNELS(kernel, WEIGHTS);
#undef WEIGHTS
}

/* dw (rows, cols, taps) = G^T u G; u's planes are `plane` floats apart, dw's rows dw_row. */
INLINE void wino_dw_of(const int kernel, int rows, int cols, size_t ld, const float *u,
                       size_t plane, float *dw, size_t dw_row)
{
    const size_t taps = (size_t)(kernel * kernel);
    for (size_t r = 0; r < (size_t)rows; r++, u += ld, dw += dw_row) {
        size_t c = 0;
#if KERNELS_WIDE
        for (; c + 16 <= (size_t)cols; c += 16)
            wino_dw_tile16(kernel, 16, plane, u + c, dw + c * taps);
#endif
        for (; c < (size_t)cols; c += 8)
            wino_dw_tile8(kernel, (int)wino_left(cols, c, 8), plane, u + c, dw + c * taps);
    }
}

static void wino_dw(int kernel, int rows, int cols, size_t ld, const float *u, size_t plane,
                    float *dw, size_t dw_row)
{
#define DW(kernel) wino_dw_of(kernel, rows, cols, ld, u, plane, dw, dw_row)
    WINO_KERNELS(kernel, DW);
#undef DW
}
