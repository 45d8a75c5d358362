/* wino_math_impl.h: the one-dimensional transforms of Winograd's F(4, 3), F(3, 4) and F(2, 5), on
 * vectors of VW channels; included once for each width. All compute 7 - kernel outputs from
 * 6 inputs by the polynomials' values at the same points, so that B is the same for all.
 *
 * The points are 0, +-P, +-Q and infinity; +-1 and +-2 are usual (Lavin and Gray 2016). A result's
 * rounding error grows with the norms of A's, B's and G's rows: +-5/8 and +-3/2 make the error 2.2
 * times smaller in two dimensions, which bf16 needs, and their squares are exact.
 * See Barabasz et al. 2018 on the choice. From (x^2 - P^2)(x^2 - Q^2) follow, as in Toom-Cook's
 * algorithm,
 *
 *   B^T d: the coefficients of x (x^2 - P^2)(x^2 - Q^2) / (x - point);
 *   G g:   point^0 .. point^(kernel - 1) / the derivative of x (x^2 - P^2)(x^2 - Q^2) there;
 *   A^T m: point^0 .. point^(6 - kernel). */
#ifndef WINO_P
#define WINO_P   0.625f
#define WINO_Q   1.5f
#define WINO_P2  (WINO_P * WINO_P)
#define WINO_Q2  (WINO_Q * WINO_Q)
#define WINO_SUM (WINO_P2 + WINO_Q2)
#define WINO_PRO (WINO_P2 * WINO_Q2)
#define WINO_GP  (1 / (2 * WINO_P2 * (WINO_P2 - WINO_Q2)))
#define WINO_GQ  (1 / (2 * WINO_Q2 * (WINO_Q2 - WINO_P2)))
#define WINO_G0  (1 / WINO_PRO)
#endif

/* o = B^T d */
INLINE void T(wino_bt)(const VT d[6], VT o[6])
{
    VT a = d[4] - WINO_Q2 * d[2], b = d[3] - WINO_Q2 * d[1];
    VT c = d[4] - WINO_P2 * d[2], e = d[3] - WINO_P2 * d[1];
    o[0] = WINO_PRO * d[0] - WINO_SUM * d[2] + d[4];
    o[1] = a + WINO_P * b;
    o[2] = a - WINO_P * b;
    o[3] = c + WINO_Q * e;
    o[4] = c - WINO_Q * e;
    o[5] = WINO_PRO * d[1] - WINO_SUM * d[3] + d[5];
}

/* o = A^T m */
INLINE void T(wino_at)(const int kernel, const VT m[6], VT *o)
{
    VT a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], d = m[3] - m[4];
    o[0] = m[0] + a + c;
    o[1] = WINO_P * b + WINO_Q * d;
    if (kernel == 5) {
        o[1] += m[5];
        return;
    }
    o[2] = WINO_P2 * a + WINO_Q2 * c;
    if (kernel == 4) {
        o[2] += m[5];
        return;
    }
    o[3] = WINO_P2 * WINO_P * b + WINO_Q2 * WINO_Q * d + m[5];
}

/* o = A y */
INLINE void T(wino_a)(const int kernel, const VT *y, VT o[6])
{
    VT a = y[0], b = y[1], c = y[0], d = y[1];
    if (kernel <= 4)
        a += WINO_P2 * y[2], c += WINO_Q2 * y[2];
    if (kernel == 3)
        b += WINO_P2 * y[3], d += WINO_Q2 * y[3];
    o[0] = y[0];
    o[1] = a + WINO_P * b;
    o[2] = a - WINO_P * b;
    o[3] = c + WINO_Q * d;
    o[4] = c - WINO_Q * d;
    o[5] = y[6 - kernel];
}

/* o = G g */
INLINE void T(wino_g)(const int kernel, const VT *g, VT o[6])
{
    VT a = WINO_GP * g[0] + WINO_GP * WINO_P2 * g[2], b = WINO_GP * WINO_P * g[1];
    VT c = WINO_GQ * g[0] + WINO_GQ * WINO_Q2 * g[2], d = WINO_GQ * WINO_Q * g[1];
    if (kernel >= 4)
        b += WINO_GP * WINO_P2 * WINO_P * g[3], d += WINO_GQ * WINO_Q2 * WINO_Q * g[3];
    if (kernel == 5)
        a += WINO_GP * WINO_P2 * WINO_P2 * g[4], c += WINO_GQ * WINO_Q2 * WINO_Q2 * g[4];
    o[0] = WINO_G0 * g[0];
    o[1] = a + b;
    o[2] = a - b;
    o[3] = c + d;
    o[4] = c - d;
    o[5] = g[kernel - 1];
}

/* o = G^T u */
INLINE void T(wino_gt)(const int kernel, const VT u[6], VT *o)
{
    VT a = u[1] + u[2], b = u[1] - u[2], c = u[3] + u[4], d = u[3] - u[4];
    o[0] = WINO_G0 * u[0] + WINO_GP * a + WINO_GQ * c;
    o[1] = WINO_GP * WINO_P * b + WINO_GQ * WINO_Q * d;
    o[2] = WINO_GP * WINO_P2 * a + WINO_GQ * WINO_Q2 * c;
    if (kernel >= 4)
        o[3] = WINO_GP * WINO_P2 * WINO_P * b + WINO_GQ * WINO_Q2 * WINO_Q * d;
    if (kernel == 5)
        o[4] = WINO_GP * WINO_P2 * WINO_P2 * a + WINO_GQ * WINO_Q2 * WINO_Q2 * c;
    o[kernel - 1] += u[5];
}
