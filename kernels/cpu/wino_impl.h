/* wino_impl.h: the transforms of Winograd's F(4x4, 3x3) convolution (Lavin and Gray 2016): a tile of 4x4
 * outputs from 6x6 inputs with 36 instead of 144 products. Included once by kernels_impl.h.
 *
 *   Y = A^T [ (G g G^T) * (B^T d B) ] A        dg = G^T [ (B^T d B) * (A dY A^T) ] G
 *
 * A transformed array has 36 planes, `plane` floats apart; channels lie 8 to a vector. */
#include "wino_math_impl.h"

/* v = B^T d B of one tile; of d only rows [r0, r1) and columns [c0, c1) exist, the rest is zero. */
static void wino_in(const wino_span *s, int channels, const float *x, size_t x_step, size_t x_row, float *v, size_t plane)
{
    bool inside = s->r0 == 0 && s->r1 == 6 && s->c0 == 0 && s->c1 == 6;
    for (int c = 0; c < channels; c += 8) {
        v8 t[6][6], d[6], o[6];
        for (int j = 0; j < 6; j++) {
            UNROLL for (int i = 0; i < 6; i++) {
                bool there = inside || (i >= s->r0 && i < s->r1 && j >= s->c0 && j < s->c1);
                d[i] = there ? load8(x + (size_t)i * x_row + (size_t)j * x_step + (size_t)c) : (v8){0};
            }
            wino_bt(d, o);
            UNROLL for (int i = 0; i < 6; i++)
                t[i][j] = o[i];
        }
        for (int i = 0; i < 6; i++) {
            wino_bt(t[i], o);
            UNROLL for (int j = 0; j < 6; j++)
                store8(v + (size_t)(i * 6 + j) * plane + (size_t)c, o[j]);
        }
    }
}

/* y (r1 x c1 of 4x4 pixels) = A^T m A + bias, ReLU when asked; accumulate: added to y. */
static void wino_out(const wino_span *s, int channels, const float *m, size_t plane, const float *bias,
                     bool relu, bool accumulate, float *y, size_t y_step, size_t y_row)
{
    for (int k = 0; k < channels; k += 8) {
        v8 t[4][6], d[6], o[4], b = load8(bias + k);
        for (int j = 0; j < 6; j++) {
            UNROLL for (int i = 0; i < 6; i++)
                d[i] = load8(m + (size_t)(i * 6 + j) * plane + (size_t)k);
            wino_at(d, o);
            UNROLL for (int i = 0; i < 4; i++)
                t[i][j] = o[i];
        }
        for (int i = 0; i < s->r1; i++) {
            wino_at(t[i], o);
            for (int j = 0; j < s->c1; j++) {
                float *to = y + (size_t)i * y_row + (size_t)j * y_step + (size_t)k;
                v8 r = o[j] + b;
                if (accumulate)
                    r += load8(to);
                store8(to, relu ? relu8(r) : r);
            }
        }
    }
}

/* v = A dy A^T of one tile, of which r1 x c1 pixels exist. */
static void wino_dy(const wino_span *s, int channels, const float *dy, size_t y_step, size_t y_row, float *v, size_t plane)
{
    for (int k = 0; k < channels; k += 8) {
        v8 t[6][4], d[4], o[6];
        for (int j = 0; j < 4; j++) {
            UNROLL for (int i = 0; i < 4; i++)
                d[i] = i < s->r1 && j < s->c1 ? load8(dy + (size_t)i * y_row + (size_t)j * y_step + (size_t)k)
                                              : (v8){0};
            wino_a(d, o);
            UNROLL for (int i = 0; i < 6; i++)
                t[i][j] = o[i];
        }
        for (int i = 0; i < 6; i++) {
            wino_a(t[i], o);
            UNROLL for (int j = 0; j < 6; j++)
                store8(v + (size_t)(i * 6 + j) * plane + (size_t)k, o[j]);
        }
    }
}

/* u[36][ld / WINO_PANEL][rows][WINO_PANEL], the last panel as wide as is left, = G g G^T: element (row, col) of the filter bank is w[row*rs + col*cs + tap], 9 taps,
 * in reverse where `turned`. Columns up to ld are zero. */
static void wino_weights(int rows, int cols, size_t ld, const float *w, size_t rs, size_t cs, bool turned,
                         float *u)
{
    size_t plane = (size_t)rows * ld + WINO_GAP;
    for (size_t r = 0; r < (size_t)rows; r++) {
        for (size_t c = 0; c < ld; c += 8) {
            union {
                float f[9][8];
                v8 v[9];
            } g;
            size_t panel = c / WINO_PANEL * WINO_PANEL, width = ld - panel < WINO_PANEL ? ld - panel : WINO_PANEL;
            size_t at = panel * (size_t)rows + r * width + c - panel;
            size_t real = c >= (size_t)cols ? 0 : (size_t)cols - c < 8 ? (size_t)cols - c : 8;
            if (real < 8)
                memset(&g, 0, sizeof g);
            if (real)
                transpose((int)real, 9, w + r * rs + c * cs, cs, g.f[0], 8);
            v8 t[6][3], d[3], o[6];
            UNROLL for (int j = 0; j < 3; j++) {
                UNROLL for (int i = 0; i < 3; i++)
                    d[i] = g.v[turned ? 8 - (i * 3 + j) : i * 3 + j];
                wino_g(d, o);
                UNROLL for (int i = 0; i < 6; i++)
                    t[i][j] = o[i];
            }
            for (size_t i = 0; i < 6; i++) {
                wino_g(t[i], o);
                UNROLL for (size_t j = 0; j < 6; j++)
                    store8(u + (i * 6 + j) * plane + at, o[j]);
            }
        }
    }
}

/* dw (rows, cols, 9) = G^T u G, its rows dw_row floats apart. */
static void wino_dw(int rows, int cols, size_t ld, const float *u, float *dw, size_t dw_row)
{
    size_t plane = (size_t)rows * ld + WINO_GAP;
    for (size_t r = 0; r < (size_t)rows; r++) {
        for (size_t c = 0; c < (size_t)cols; c += 8) {
            v8 t[3][6], d[6], o[3];
            for (size_t j = 0; j < 6; j++) {
                UNROLL for (size_t i = 0; i < 6; i++)
                    d[i] = load8(u + (i * 6 + j) * plane + r * ld + c);
                wino_gt(d, o);
                UNROLL for (int i = 0; i < 3; i++)
                    t[i][j] = o[i];
            }
            float f[9][8];
            for (size_t i = 0; i < 3; i++) {
                wino_gt(t[i], o);
                UNROLL for (size_t j = 0; j < 3; j++)
                    store8(f[i * 3 + j], o[j]);
            }
            transpose(9, (size_t)cols - c < 8 ? (int)((size_t)cols - c) : 8, f[0], 8,
                      dw + r * dw_row + c * 9, 9);
        }
    }
}
