/* wino_tile_impl.h: wino_impl.h's transforms of VW channels; included once a width. */

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

/* y (r1 x c1 of 4x4 pixels) = A^T m A + bias, ReLU when asked; accumulate: added to y. */
INLINE void T(wino_out_tile)(const wino_span *s, const bool inside, const float *m, size_t plane,
                             const float *bias, bool relu, bool accumulate, float *y, size_t y_step,
                             size_t y_row)
{
    VT t[4][6], d[6], o[4], b = T(load)(bias);
    for (int j = 0; j < 6; j++) {
        UNROLL for (int i = 0; i < 6; i++) d[i] = T(load)(m + (size_t)(i * 6 + j) * plane);
        T(wino_at)(d, o);
        UNROLL for (int i = 0; i < 4; i++) t[i][j] = o[i];
    }
    for (int i = 0; i < (inside ? 4 : s->r1); i++) {
        T(wino_at)(t[i], o);
        UNROLL for (int j = 0; j < 4; j++)
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

/* v = A dy A^T, of which r1 x c1 pixels exist. */
INLINE void T(wino_dy_tile)(const wino_span *s, const bool inside, const float *dy, size_t y_step,
                            size_t y_row, float *v, size_t plane)
{
    VT t[6][4], d[4], o[6], zero = {0};
    for (int j = 0; j < 4; j++) {
        UNROLL for (int i = 0; i < 4; i++) d[i] =
            inside || (i < s->r1 && j < s->c1)
                ? T(load)(dy + (size_t)i * y_row + (size_t)j * y_step)
                : zero;
        T(wino_a)(d, o);
        UNROLL for (int i = 0; i < 6; i++) t[i][j] = o[i];
    }
    for (int i = 0; i < 6; i++) {
        T(wino_a)(t[i], o);
        UNROLL for (int j = 0; j < 6; j++) T(store)(v + (size_t)(i * 6 + j) * plane, o[j]);
    }
}

/* u = G g G^T of VW filters' 9 taps, the filters `cs` floats apart; those beyond `real` are
 * zero. */
INLINE void T(wino_weights_tile)(size_t real, const float *w, size_t cs, bool turned, float *u,
                                 size_t plane)
{
    union {
        float f[9][VW];
        VT v[9];
    } g;
    if (real < VW)
        memset(&g, 0, sizeof g);
    if (real)
        transpose((int)real, 9, w, cs, g.f[0], VW);
    VT t[6][3], d[3], o[6];
    UNROLL for (int j = 0; j < 3; j++) {
        UNROLL for (int i = 0; i < 3; i++)
            d[i] = g.v[turned ? 8 - (i * 3 + j) : i * 3 + j];
        T(wino_g)(d, o);
        UNROLL for (int i = 0; i < 6; i++)
            t[i][j] = o[i];
    }
    for (size_t i = 0; i < 6; i++) {
        T(wino_g)(t[i], o);
        UNROLL for (size_t j = 0; j < 6; j++)
            T(store)(u + (i * 6 + j) * plane, o[j]);
    }
}

/* dw (cols, 9) = G^T u G of VW columns, of which `cols` exist. */
INLINE void T(wino_dw_tile)(int cols, size_t plane, const float *u, float *dw)
{
    VT t[3][6], d[6], o[3];
    for (size_t j = 0; j < 6; j++) {
        UNROLL for (size_t i = 0; i < 6; i++)
            d[i] = T(load)(u + (i * 6 + j) * plane);
        T(wino_gt)(d, o);
        UNROLL for (int i = 0; i < 3; i++)
            t[i][j] = o[i];
    }
    float f[9][VW];
    for (size_t i = 0; i < 3; i++) {
        T(wino_gt)(t[i], o);
        UNROLL for (size_t j = 0; j < 3; j++)
            T(store)(f[i * 3 + j], o[j]);
    }
    transpose(9, cols, f[0], VW, dw, 9);
}
