/* norm_tile_impl.h: passes over pixels for a band of nv vectors of VW channels, from channel c on;
 * included once for each width. norm_impl.h cuts a pixel's channels into bands. */
#ifndef KUBEML_NORM_BANDS
#define KUBEML_NORM_BANDS
enum {
    BAND = 4,
    SHORT = 4 /* pixels summed first and then added to a sum, which is rounded less often */
};

/* How to know which values ReLU let through: see bn_pass. */
enum { GATE_NONE, GATE_RESULT, GATE_VALUE, GATE_ACT /* + its kind */ };

static int gate_of(const bn_pass *in)
{
    if (in->acts)
        return GATE_ACT + (int)in->act;
    return in->y ? GATE_RESULT : in->scale ? GATE_VALUE : GATE_NONE;
}

/* Where bn_dx writes. */
typedef struct bn_out {
    const float *a, *b, *d;
    bool dx_add, dres_add;
    float *dx, *dres;
} bn_out;
#endif

INLINE void T(mask_band)(const size_t nv, size_t c, int pixels, size_t step, const float *y,
                         const float *dy, float *dst, float *db)
{
    VT zero = {0}, sum[BAND];
    size_t at = c;
    UNROLL for (size_t v = 0; v < nv; v++)
        sum[v] = zero;
    for (int i = 0; i < pixels; i += SHORT) {
        VT s[BAND] = {{0}};
        for (int end = pixels - i < SHORT ? pixels : i + SHORT, j = i; j < end; j++, at += step) {
            UNROLL for (size_t v = 0; v < nv; v++) {
                VT d = T(load)(dy + at + VW * v);
                if (y)
                    d = T(gt)(T(load)(y + at + VW * v), zero, d, zero);
                s[v] += d;
                T(store)(dst + at + VW * v, d);
            }
        }
        UNROLL for (size_t v = 0; v < nv; v++)
            sum[v] += s[v];
    }
    UNROLL for (size_t v = 0; v < nv; v++)
        T(store)(db + c + VW * v, T(load)(db + c + VW * v) + sum[v]);
}

INLINE void T(affine_band)(const size_t nv, size_t c, int pixels, size_t cs, const float *x,
                           size_t x_step, const float *scale, const float *shift, const float *add,
                           bool relu, float *y, size_t y_step)
{
    VT a[BAND], b[BAND];
    UNROLL for (size_t v = 0; v < nv; v++)
        a[v] = T(load)(scale + c + VW * v), b[v] = T(load)(shift + c + VW * v);
    x += c;
    for (size_t i = 0, at = c; i < (size_t)pixels; i++, at += cs, x += x_step, y += y_step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            VT r = a[v] * T(load)(x + VW * v) + b[v];
            if (add)
                r += T(load)(add + at + VW * v);
            T(store)(y + c + VW * v, relu ? T(relu)(r) : r);
        }
    }
}

INLINE void T(affine_act_band)(const size_t nv, size_t c, const graph_act kind, float slope,
                               int pixels, const float *x, size_t x_step, const float *scale,
                               const float *shift, float *y, size_t y_step)
{
    VT a[BAND], b[BAND];
    UNROLL for (size_t v = 0; v < nv; v++)
        a[v] = T(load)(scale + c + VW * v), b[v] = T(load)(shift + c + VW * v);
    x += c, y += c;
    for (int i = 0; i < pixels; i++, x += x_step, y += y_step)
        UNROLL for (size_t v = 0; v < nv; v++)
            T(store)(y + VW * v, T(piece_value)(kind, slope, a[v] * T(load)(x + VW * v) + b[v]));
}

INLINE void T(moments_band)(const size_t nv, size_t c, int pixels, const float *x, size_t x_step,
                            const float *center, float *sum, float *square)
{
    VT m[BAND], s[BAND], q[BAND];
    UNROLL for (size_t v = 0; v < nv; v++)
        m[v] = T(load)(center + c + VW * v), s[v] = (VT){0}, q[v] = (VT){0};
    x += c;
    for (int i = 0; i < pixels; i += SHORT) {
        VT si[BAND] = {{0}}, qi[BAND] = {{0}};
        for (int end = pixels - i < SHORT ? pixels : i + SHORT, j = i; j < end; j++, x += x_step) {
            UNROLL for (size_t v = 0; v < nv; v++) {
                VT d = T(load)(x + VW * v) - m[v];
                si[v] += d;
                qi[v] += d * d;
            }
        }
        UNROLL for (size_t v = 0; v < nv; v++)
            s[v] += si[v], q[v] += qi[v];
    }
    UNROLL for (size_t v = 0; v < nv; v++) {
        T(store)(sum + c + VW * v, T(load)(sum + c + VW * v) + s[v]);
        T(store)(square + c + VW * v, T(load)(square + c + VW * v) + q[v]);
    }
}

INLINE VT T(gated)(const int gate, const bn_pass *in, size_t at, VT x, VT scale, VT shift)
{
    VT zero = {0}, dy = T(load)(in->dy + at);
    if (gate == GATE_NONE)
        return dy;
    if (gate >= GATE_ACT)
        return dy * T(piece_slope)((graph_act)(gate - GATE_ACT), in->slope, scale * x + shift);
    return T(gt)(gate == GATE_RESULT ? T(load)(in->y + at) : scale * x + shift, zero, dy, zero);
}

INLINE void T(bn_sums_band)(const size_t nv, size_t c, const int gate, int pixels, size_t cs,
                            const bn_pass *in, float *sum, float *dot)
{
    VT zero = {0}, m[BAND], s[BAND], q[BAND], scale[BAND], shift[BAND];
    UNROLL for (size_t v = 0; v < nv; v++) {
        m[v] = T(load)(in->mean + c + VW * v), s[v] = zero, q[v] = zero;
        scale[v] = gate >= GATE_VALUE ? T(load)(in->scale + c + VW * v) : zero;
        shift[v] = gate >= GATE_VALUE ? T(load)(in->shift + c + VW * v) : zero;
    }
    const float *xi = in->x + c;
    size_t at = c;
    for (int i = 0; i < pixels; i += SHORT) {
        VT si[BAND] = {{0}}, qi[BAND] = {{0}};
        for (int end = pixels - i < SHORT ? pixels : i + SHORT, j = i; j < end;
             j++, at += cs, xi += in->x_step) {
            UNROLL for (size_t v = 0; v < nv; v++) {
                VT x = T(load)(xi + VW * v),
                   g = T(gated)(gate, in, at + VW * v, x, scale[v], shift[v]);
                si[v] += g;
                qi[v] += g * (x - m[v]);
            }
        }
        UNROLL for (size_t v = 0; v < nv; v++)
            s[v] += si[v], q[v] += qi[v];
    }
    UNROLL for (size_t v = 0; v < nv; v++) {
        T(store)(sum + c + VW * v, T(load)(sum + c + VW * v) + s[v]);
        T(store)(dot + c + VW * v, T(load)(dot + c + VW * v) + q[v]);
    }
}

INLINE void T(bn_dx_band)(const size_t nv, size_t c, const int gate, int pixels, size_t cs,
                          const bn_pass *in, const bn_out *out)
{
    VT zero = {0}, m[BAND], av[BAND], bv[BAND], dv[BAND], scale[BAND], shift[BAND];
    UNROLL for (size_t v = 0; v < nv; v++) {
        m[v] = T(load)(in->mean + c + VW * v), av[v] = T(load)(out->a + c + VW * v);
        bv[v] = T(load)(out->b + c + VW * v), dv[v] = T(load)(out->d + c + VW * v);
        scale[v] = gate >= GATE_VALUE ? T(load)(in->scale + c + VW * v) : zero;
        shift[v] = gate >= GATE_VALUE ? T(load)(in->shift + c + VW * v) : zero;
    }
    float *dx = out->dx, *dres = out->dres;
    const bool dx_add = out->dx_add, dres_add = out->dres_add;
    for (size_t i = 0, at = c, xt = c; i < (size_t)pixels; i++, at += cs, xt += in->x_step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            VT x = T(load)(in->x + xt + VW * v),
               g = T(gated)(gate, in, at + VW * v, x, scale[v], shift[v]);
            VT r = av[v] * g + (bv[v] * (x - m[v]) + dv[v]);
            if (dx)
                T(store)(dx + xt + VW * v, dx_add ? T(load)(dx + xt + VW * v) + r : r);
            if (dres)
                T(store)(dres + at + VW * v, dres_add ? T(load)(dres + at + VW * v) + g : g);
        }
    }
}

INLINE void T(through_band)(const size_t nv, size_t c, int pixels, const bn_pass *in, size_t step,
                            bool relu, bool dx_add, float *dx, float *sum, float *dot)
{
    VT zero = {0}, m[BAND], s[BAND], q[BAND], scale[BAND], shift[BAND];
    UNROLL for (size_t v = 0; v < nv; v++) {
        m[v] = T(load)(in->mean + c + VW * v), s[v] = zero, q[v] = zero;
        scale[v] = T(load)(in->scale + c + VW * v), shift[v] = T(load)(in->shift + c + VW * v);
    }
    for (size_t i = 0, at = c, xt = c; i < (size_t)pixels; i++, at += step, xt += in->x_step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            VT g = T(load)(in->dy + at + VW * v), x = T(load)(in->x + xt + VW * v);
            if (relu)
                g = T(gt)(scale[v] * x + shift[v], zero, g, zero);
            s[v] += g;
            q[v] += g * (x - m[v]);
            if (dx)
                T(store)
                (dx + xt + VW * v,
                 dx_add ? T(load)(dx + xt + VW * v) + scale[v] * g : scale[v] * g);
        }
    }
    UNROLL for (size_t v = 0; v < nv; v++) {
        T(store)(sum + c + VW * v, T(load)(sum + c + VW * v) + s[v]);
        T(store)(dot + c + VW * v, T(load)(dot + c + VW * v) + q[v]);
    }
}

INLINE void T(line_band)(const size_t nv, size_t c, int pixels, size_t step, const float *x,
                         const float *mean, const float *b, const float *d, float *y)
{
    VT m[BAND], bv[BAND], dv[BAND];
    UNROLL for (size_t v = 0; v < nv; v++) m[v] = T(load)(mean + c + VW * v),
                                           bv[v] = T(load)(b + c + VW * v),
                                           dv[v] = T(load)(d + c + VW * v);
    for (size_t i = 0, at = c; i < (size_t)pixels; i++, at += step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            float *to = y + at + VW * v;
            T(store)(to, T(load)(to) + (bv[v] * (T(load)(x + at + VW * v) - m[v]) + dv[v]));
        }
    }
}
