/* norm_impl.h: batch norm's passes over pixels, cut into bands of channels (norm_tile_impl.h).
 * Included by kernels_impl.h. */

static void affine(int pixels, int cs, const float *x, size_t x_step, const float *scale,
                   const float *shift, const float *add, bool relu, float *y, size_t y_step)
{
#define AFFINE(lanes, nv, c)                                                                       \
    affine_band##lanes(nv, c, pixels, (size_t)cs, x, x_step, scale, shift, add, relu, y, y_step)
    BANDS(cs, AFFINE);
#undef AFFINE
}

INLINE void affine_piecewise(const graph_act kind, float slope, int pixels, int cs, const float *x,
                             size_t x_step, const float *scale, const float *shift, float *y,
                             size_t y_step)
{
#define AFFINE(lanes, nv, c)                                                                       \
    affine_act_band##lanes(nv, c, kind, slope, pixels, x, x_step, scale, shift, y, y_step)
    BANDS(cs, AFFINE);
#undef AFFINE
}

static void affine_act(graph_act kind, float slope, int pixels, int cs, const float *x,
                       size_t x_step, const float *scale, const float *shift, float *y,
                       size_t y_step)
{
#define AFFINE_CASE(k)                                                                             \
    case k: affine_piecewise(k, slope, pixels, cs, x, x_step, scale, shift, y, y_step); break;
    switch (kind) {
        EACH_PIECEWISE(AFFINE_CASE)
    default: break;
    }
#undef AFFINE_CASE
}

static void moments(int pixels, int cs, const float *x, size_t x_step, const float *center,
                    float *sum, float *square)
{
#define MOMENTS(lanes, nv, c) moments_band##lanes(nv, c, pixels, x, x_step, center, sum, square)
    BANDS(cs, MOMENTS);
#undef MOMENTS
}

/* Calls f(gate) with the gate as a constant. */
#define EACH_GATE(gate, f)                                                                         \
    do {                                                                                           \
        switch (gate) {                                                                            \
        case GATE_NONE: f(GATE_NONE); break;                                                       \
        case GATE_RESULT: f(GATE_RESULT); break;                                                   \
        case GATE_VALUE: f(GATE_VALUE); break;                                                     \
            EACH_PIECEWISE(f##_CASE)                                                               \
        }                                                                                          \
    } while (0)

INLINE void bn_sums_through(const int gate, int pixels, int cs, const bn_pass *in, float *sum,
                            float *dot)
{
#define SUMS(lanes, nv, c) bn_sums_band##lanes(nv, c, gate, pixels, (size_t)cs, in, sum, dot)
    BANDS(cs, SUMS);
#undef SUMS
}

static void bn_sums(int pixels, int cs, const bn_pass *pass, float *sum, float *dot)
{
    const bn_pass in = *pass; /* a copy that, as the compiler knows, no store changes */
#define SUMS(gate)      bn_sums_through(gate, pixels, cs, &in, sum, dot)
#define SUMS_CASE(kind) case GATE_ACT + kind: SUMS(GATE_ACT + kind); break;
    EACH_GATE(gate_of(&in), SUMS);
#undef SUMS
#undef SUMS_CASE
}

INLINE void bn_dx_through(const int gate, int pixels, int cs, const bn_pass *in, const bn_out *out)
{
#define DX(lanes, nv, c) bn_dx_band##lanes(nv, c, gate, pixels, (size_t)cs, in, out)
    BANDS(cs, DX);
#undef DX
}

static void bn_dx(int pixels, int cs, const bn_pass *pass, const float *a, const float *b,
                  const float *d, bool dx_add, float *dx, bool dres_add, float *dres)
{
    const bn_pass in = *pass;
    const bn_out out = {a, b, d, dx_add, dres_add, dx, dres};
#define DX(gate)      bn_dx_through(gate, pixels, cs, &in, &out)
#define DX_CASE(kind) case GATE_ACT + kind: DX(GATE_ACT + kind); break;
    EACH_GATE(gate_of(&in), DX);
#undef DX
#undef DX_CASE
}

static void bn_through(int pixels, int cs, const bn_pass *in, size_t step, bool relu, bool dx_add,
                       float *dx, float *sum, float *dot)
{
#define THROUGH(lanes, nv, c)                                                                      \
    through_band##lanes(nv, c, pixels, in, step, relu, dx_add, dx, sum, dot)
    BANDS(cs, THROUGH);
#undef THROUGH
}

static void bn_line(int pixels, int cs, size_t step, const float *x, const float *mean,
                    const float *b, const float *d, float *y)
{
#define LINE(lanes, nv, c) line_band##lanes(nv, c, pixels, step, x, mean, b, d, y)
    BANDS(cs, LINE);
#undef LINE
}
