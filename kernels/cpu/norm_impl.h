/* norm_impl.h: batch norm's passes over pixels, a band of channels at a time. Included by kernels_impl.h. */

INLINE void affine_band(const size_t nv, size_t c, int pixels, size_t cs, const float *x,
                        size_t x_step, const float *scale, const float *shift, const float *add, bool relu,
                        float *y, size_t y_step)
{
    v8 a[BAND], b[BAND];
    UNROLL for (size_t v = 0; v < nv; v++)
        a[v] = load8(scale + c + 8 * v), b[v] = load8(shift + c + 8 * v);
    x += c;
    for (size_t i = 0, at = c; i < (size_t)pixels; i++, at += cs, x += x_step, y += y_step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            v8 r = a[v] * load8(x + 8 * v) + b[v];
            if (add)
                r += load8(add + at + 8 * v);
            store8(y + c + 8 * v, relu ? relu8(r) : r);
        }
    }
}

static void affine(int pixels, int cs, const float *x, size_t x_step, const float *scale,
                   const float *shift, const float *add, bool relu, float *y, size_t y_step)
{
#define AFFINE(nv, c) affine_band(nv, c, pixels, (size_t)cs, x, x_step, scale, shift, add, relu, y, y_step)
    BANDS(cs, AFFINE);
#undef AFFINE
}

INLINE void moments_band(const size_t nv, size_t c, int pixels, const float *x, size_t x_step,
                         const float *center, float *sum, float *square)
{
    v8 m[BAND], s[BAND], q[BAND];
    UNROLL for (size_t v = 0; v < nv; v++)
        m[v] = load8(center + c + 8 * v), s[v] = (v8){0}, q[v] = (v8){0};
    for (size_t i = 0, at = c; i < (size_t)pixels; i++, at += x_step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            v8 d = load8(x + at + 8 * v) - m[v];
            s[v] += d;
            q[v] += d * d;
        }
    }
    UNROLL for (size_t v = 0; v < nv; v++) {
        store8(sum + c + 8 * v, load8(sum + c + 8 * v) + s[v]);
        store8(square + c + 8 * v, load8(square + c + 8 * v) + q[v]);
    }
}

static void moments(int pixels, int cs, const float *x, size_t x_step, const float *center, float *sum, float *square)
{
#define MOMENTS(nv, c) moments_band(nv, c, pixels, x, x_step, center, sum, square)
    BANDS(cs, MOMENTS);
#undef MOMENTS
}

/* Which values ReLU let through: see bn_pass. */
enum { GATE_NONE, GATE_RESULT, GATE_VALUE };

static int gate_of(const bn_pass *in)
{
    return in->y ? GATE_RESULT : in->scale ? GATE_VALUE : GATE_NONE;
}

INLINE v8 gated(const int gate, const bn_pass *in, size_t at, v8 x, v8 scale, v8 shift)
{
    v8 zero = {0}, dy = load8(in->dy + at);
    if (gate == GATE_NONE)
        return dy;
    return gt8(gate == GATE_RESULT ? load8(in->y + at) : scale * x + shift, zero, dy, zero);
}

INLINE void bn_sums_band(const size_t nv, size_t c, const int gate, int pixels, size_t cs, const bn_pass *in,
                         float *sum, float *dot)
{
    v8 zero = {0}, m[BAND], s[BAND], q[BAND], scale[BAND], shift[BAND];
    UNROLL for (size_t v = 0; v < nv; v++) {
        m[v] = load8(in->mean + c + 8 * v), s[v] = zero, q[v] = zero;
        scale[v] = gate == GATE_VALUE ? load8(in->scale + c + 8 * v) : zero;
        shift[v] = gate == GATE_VALUE ? load8(in->shift + c + 8 * v) : zero;
    }
    const float *xi = in->x + c;
    for (size_t i = 0, at = c; i < (size_t)pixels; i++, at += cs, xi += in->x_step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            v8 x = load8(xi + 8 * v), g = gated(gate, in, at + 8 * v, x, scale[v], shift[v]);
            s[v] += g;
            q[v] += g * (x - m[v]);
        }
    }
    UNROLL for (size_t v = 0; v < nv; v++) {
        store8(sum + c + 8 * v, load8(sum + c + 8 * v) + s[v]);
        store8(dot + c + 8 * v, load8(dot + c + 8 * v) + q[v]);
    }
}

static void bn_sums(int pixels, int cs, const bn_pass *in, float *sum, float *dot)
{
    const int gate = gate_of(in);
#define SUMS(nv, c)                                                                                \
    gate == GATE_VALUE    ? bn_sums_band(nv, c, GATE_VALUE, pixels, (size_t)cs, in, sum, dot)      \
    : gate == GATE_RESULT ? bn_sums_band(nv, c, GATE_RESULT, pixels, (size_t)cs, in, sum, dot)     \
                          : bn_sums_band(nv, c, GATE_NONE, pixels, (size_t)cs, in, sum, dot)
    BANDS(cs, SUMS);
#undef SUMS
}

/* Where bn_dx writes. */
typedef struct bn_out {
    const float *a, *b, *d;
    bool dx_add, dres_add;
    float *dx, *dres;
} bn_out;

INLINE void bn_dx_band(const size_t nv, size_t c, const int gate, int pixels, size_t cs, const bn_pass *in,
                       const bn_out *out)
{
    v8 zero = {0}, m[BAND], av[BAND], bv[BAND], dv[BAND], scale[BAND], shift[BAND];
    UNROLL for (size_t v = 0; v < nv; v++) {
        m[v] = load8(in->mean + c + 8 * v), av[v] = load8(out->a + c + 8 * v);
        bv[v] = load8(out->b + c + 8 * v), dv[v] = load8(out->d + c + 8 * v);
        scale[v] = gate == GATE_VALUE ? load8(in->scale + c + 8 * v) : zero;
        shift[v] = gate == GATE_VALUE ? load8(in->shift + c + 8 * v) : zero;
    }
    float *dx = out->dx, *dres = out->dres;
    const bool dx_add = out->dx_add, dres_add = out->dres_add;
    for (size_t i = 0, at = c, xt = c; i < (size_t)pixels; i++, at += cs, xt += in->x_step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            v8 x = load8(in->x + xt + 8 * v), g = gated(gate, in, at + 8 * v, x, scale[v], shift[v]);
            v8 r = av[v] * g + (bv[v] * (x - m[v]) + dv[v]);
            if (dx)
                store8(dx + xt + 8 * v, dx_add ? load8(dx + xt + 8 * v) + r : r);
            if (dres)
                store8(dres + at + 8 * v, dres_add ? load8(dres + at + 8 * v) + g : g);
        }
    }
}

static void bn_dx(int pixels, int cs, const bn_pass *in, const float *a, const float *b, const float *d,
                  bool dx_add, float *dx, bool dres_add, float *dres)
{
    const bn_out out = {a, b, d, dx_add, dres_add, dx, dres};
    const int gate = gate_of(in);
#define DX(nv, c)                                                                                  \
    gate == GATE_VALUE    ? bn_dx_band(nv, c, GATE_VALUE, pixels, (size_t)cs, in, &out)            \
    : gate == GATE_RESULT ? bn_dx_band(nv, c, GATE_RESULT, pixels, (size_t)cs, in, &out)           \
                          : bn_dx_band(nv, c, GATE_NONE, pixels, (size_t)cs, in, &out)
    BANDS(cs, DX);
#undef DX
}

INLINE void through_band(const size_t nv, size_t c, int pixels, const bn_pass *in, size_t step, bool relu,
                         bool dx_add, float *dx, float *sum, float *dot)
{
    v8 zero = {0}, m[BAND], s[BAND], q[BAND], scale[BAND], shift[BAND];
    UNROLL for (size_t v = 0; v < nv; v++) {
        m[v] = load8(in->mean + c + 8 * v), s[v] = zero, q[v] = zero;
        scale[v] = load8(in->scale + c + 8 * v), shift[v] = load8(in->shift + c + 8 * v);
    }
    for (size_t i = 0, at = c, xt = c; i < (size_t)pixels; i++, at += step, xt += in->x_step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            v8 g = load8(in->dy + at + 8 * v), x = load8(in->x + xt + 8 * v);
            if (relu)
                g = gt8(scale[v] * x + shift[v], zero, g, zero);
            s[v] += g;
            q[v] += g * (x - m[v]);
            if (dx)
                store8(dx + xt + 8 * v, dx_add ? load8(dx + xt + 8 * v) + scale[v] * g : scale[v] * g);
        }
    }
    UNROLL for (size_t v = 0; v < nv; v++) {
        store8(sum + c + 8 * v, load8(sum + c + 8 * v) + s[v]);
        store8(dot + c + 8 * v, load8(dot + c + 8 * v) + q[v]);
    }
}

static void bn_through(int pixels, int cs, const bn_pass *in, size_t step, bool relu, bool dx_add, float *dx,
                       float *sum, float *dot)
{
#define THROUGH(nv, c) through_band(nv, c, pixels, in, step, relu, dx_add, dx, sum, dot)
    BANDS(cs, THROUGH);
#undef THROUGH
}

INLINE void line_band(const size_t nv, size_t c, int pixels, size_t step, const float *x, const float *mean,
                      const float *b, const float *d, float *y)
{
    v8 m[BAND], bv[BAND], dv[BAND];
    UNROLL for (size_t v = 0; v < nv; v++)
        m[v] = load8(mean + c + 8 * v), bv[v] = load8(b + c + 8 * v), dv[v] = load8(d + c + 8 * v);
    for (size_t i = 0, at = c; i < (size_t)pixels; i++, at += step) {
        UNROLL for (size_t v = 0; v < nv; v++) {
            float *to = y + at + 8 * v;
            store8(to, load8(to) + (bv[v] * (load8(x + at + 8 * v) - m[v]) + dv[v]));
        }
    }
}

static void bn_line(int pixels, int cs, size_t step, const float *x, const float *mean, const float *b, const float *d,
                 float *y)
{
#define LINE(nv, c) line_band(nv, c, pixels, step, x, mean, b, d, y)
    BANDS(cs, LINE);
#undef LINE
}
