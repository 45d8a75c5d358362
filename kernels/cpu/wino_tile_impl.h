/* wino_tile_impl.h: wino_impl.h's transforms for VW channels; included once for each width.
 * `kernel`, 3 to 5, is a constant in each inlined copy. */

/* v = B^T d B; of d only rows [r0, r1) and columns [c0, c1) exist, the rest is zero. */
INLINE void T(wino_in_tile)(const wino_span *s, const bool inside, const float *x, size_t x_step,
                            size_t x_row, float *v, size_t plane)
{
    VT t[6][6], d[6], o[6], zero = {0};
    for (int j = 0; j < 6; j++) {
        UNROLL for (int i = 0; i < 6; i++)
        {
            bool there = inside || (i >= s->r0 && i < s->r1 && j >= s->c0 && j < s->c1);
            d[i] = there ? T(load)(x + (size_t)i * x_row + (size_t)j * x_step) : zero;
        }
        T(wino_bt)(d, o);
        UNROLL for (int i = 0; i < 6; i++) t[i][j] = o[i];
    }
    for (int i = 0; i < 6; i++) {
        T(wino_bt)(t[i], o);
        UNROLL for (int j = 0; j < 6; j++) T(store)(v + (size_t)(i * 6 + j) * plane, o[j]);
    }
}

/* y (r1 x c1 pixels of the tile) = A^T m A + bias, then ReLU if `relu`; accumulate: added to y. */
INLINE void T(wino_out_tile)(const int kernel, const wino_span *s, const bool inside,
                             const float *m, size_t plane, const float *bias, bool relu,
                             bool accumulate, float *y, size_t y_step, size_t y_row)
{
    const int edge = 7 - kernel;
    VT t[4][6], d[6], o[4], b = T(load)(bias);
    for (int j = 0; j < 6; j++) {
        UNROLL for (int i = 0; i < 6; i++) d[i] = T(load)(m + (size_t)(i * 6 + j) * plane);
        T(wino_at)(kernel, d, o);
        UNROLL for (int i = 0; i < edge; i++) t[i][j] = o[i];
    }
    for (int i = 0; i < (inside ? edge : s->r1); i++) {
        T(wino_at)(kernel, t[i], o);
        UNROLL for (int j = 0; j < edge; j++)
        {
            if (!inside && j >= s->c1)
                break;
            float *to = y + (size_t)i * y_row + (size_t)j * y_step;
            VT r = o[j] + b;
            if (accumulate)
                r += T(load)(to);
            T(store)(to, relu ? T(relu)(r) : r);
        }
    }
}

/* One cell of 2x2 max pooling, which is a tile of F(2x2, 5x5): y = relu(the largest of A^T m A +
 * bias). arg (NULL: not wanted) gets which of the four it is, as in tile_pool. */
INLINE void T(wino_pool_tile)(const float *m, size_t plane, const float *bias, float *y,
                              uint8_t *arg)
{
    VT t[2][6], d[6], o[2], v[4], b = T(load)(bias);
    for (int j = 0; j < 6; j++) {
        UNROLL for (int i = 0; i < 6; i++) d[i] = T(load)(m + (size_t)(i * 6 + j) * plane);
        T(wino_at)(5, d, o);
        t[0][j] = o[0], t[1][j] = o[1];
    }
    for (int i = 0; i < 2; i++) {
        T(wino_at)(5, t[i], o);
        v[2 * i] = o[0] + b, v[2 * i + 1] = o[1] + b;
    }
    T(max_cell)(v[0], v[1], v[2], v[3], y, arg);
}

/* v = A dy A^T, of which r1 x c1 pixels exist. */
INLINE void T(wino_dy_tile)(const int kernel, const wino_span *s, const bool inside,
                            const float *dy, size_t y_step, size_t y_row, float *v, size_t plane)
{
    const int edge = 7 - kernel;
    VT t[6][4], d[4], o[6], zero = {0};
    for (int j = 0; j < edge; j++) {
        UNROLL for (int i = 0; i < edge; i++) d[i] =
            inside || (i < s->r1 && j < s->c1)
                ? T(load)(dy + (size_t)i * y_row + (size_t)j * y_step)
                : zero;
        T(wino_a)(kernel, d, o);
        UNROLL for (int i = 0; i < 6; i++) t[i][j] = o[i];
    }
    for (int i = 0; i < 6; i++) {
        T(wino_a)(kernel, t[i], o);
        UNROLL for (int j = 0; j < 6; j++) T(store)(v + (size_t)(i * 6 + j) * plane, o[j]);
    }
}

/* u = G g G^T of VW filters' taps, the filters `cs` floats apart; those beyond `real` are
 * zero. */
INLINE void T(wino_weights_tile)(const int kernel, size_t real, const float *w, size_t cs,
                                 bool turned, float *u, size_t plane)
{
    const int taps = kernel * kernel;
    union {
        float f[25][VW];
        VT v[25];
    } g;
    if (real < VW)
        memset(&g, 0, sizeof g);
    if (real)
        transpose((int)real, taps, w, cs, g.f[0], VW);
    VT t[6][5], d[5], o[6];
    UNROLL for (int j = 0; j < kernel; j++)
    {
        UNROLL for (int i = 0; i < kernel; i++) d[i] =
            g.v[turned ? taps - 1 - (i * kernel + j) : i * kernel + j];
        T(wino_g)(kernel, d, o);
        UNROLL for (int i = 0; i < 6; i++)
            t[i][j] = o[i];
    }
    for (size_t i = 0; i < 6; i++) {
        T(wino_g)(kernel, t[i], o);
        UNROLL for (size_t j = 0; j < 6; j++)
            T(store)(u + (i * 6 + j) * plane, o[j]);
    }
}

/* dw (cols, taps) = G^T u G of VW columns, of which `cols` exist. */
INLINE void T(wino_dw_tile)(const int kernel, int cols, size_t plane, const float *u, float *dw)
{
    VT t[5][6], d[6], o[5];
    for (size_t j = 0; j < 6; j++) {
        UNROLL for (size_t i = 0; i < 6; i++)
            d[i] = T(load)(u + (i * 6 + j) * plane);
        T(wino_gt)(kernel, d, o);
        UNROLL for (int i = 0; i < kernel; i++) t[i][j] = o[i];
    }
    float f[25][VW];
    for (int i = 0; i < kernel; i++) {
        T(wino_gt)(kernel, t[i], o);
        UNROLL for (int j = 0; j < kernel; j++) T(store)(f[i * kernel + j], o[j]);
    }
    transpose(kernel * kernel, cols, f[0], VW, dw, (size_t)(kernel * kernel));
}
