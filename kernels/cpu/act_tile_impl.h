/* act_tile_impl.h: activations made of pieces of lines and parabolas, for VW channels. They are so
 * cheap that a norm applies them and computes them again backward. Included once for each width;
 * channel_impl.h has the other activations. */
#ifndef KUBEML_PIECEWISE
#define KUBEML_PIECEWISE
#define EACH_PIECEWISE(X) X(ACT_RELU6) X(ACT_LEAKY_RELU) X(ACT_HARDSIGMOID) X(ACT_HARDSWISH)
#endif

INLINE VT T(min)(VT x, float top)
{
    VT t = T(all)(top);
    return T(gt)(x, t, t, x);
}

INLINE VT T(piece_value)(graph_act kind, float slope, VT x)
{
    VT zero = {0};
    switch (kind) {
    case ACT_RELU6: return T(min)(T(relu)(x), 6);
    case ACT_LEAKY_RELU: return T(gt)(x, zero, x, slope * x);
    case ACT_HARDSIGMOID: return T(min)(T(relu)(x + 3.0f), 6) * (1 / 6.0f);
    case ACT_HARDSWISH: return x * T(min)(T(relu)(x + 3.0f), 6) * (1 / 6.0f);
    default: return x;
    }
}

INLINE VT T(piece_slope)(graph_act kind, float slope, VT x)
{
    VT zero = {0}, one = T(all)(1);
    switch (kind) {
    case ACT_RELU6: return T(gt)(x, zero, T(gt)(T(all)(6), x, one, zero), zero);
    case ACT_LEAKY_RELU: return T(gt)(x, zero, one, T(all)(slope));
    case ACT_HARDSIGMOID:
        return T(gt)(x, T(all)(-3), T(gt)(T(all)(3), x, T(all)(1 / 6.0f), zero), zero);
    case ACT_HARDSWISH:
        return T(gt)(x, T(all)(-3), T(gt)(T(all)(3), x, (2.0f * x + 3.0f) * (1 / 6.0f), one), zero);
    default: return one;
    }
}
