/* channel_impl.h: kernels that never mix channels: depthwise convolutions, pooling, activations,
 * gates. Rows and windows are lists of taps (cpu_kernels.h), so that borders cost nothing and need
 * no padding. */

/* Runs call(lanes, vectors) over the channels from c on, `most` vectors at a time as long as there
 * are enough. */
#if KERNELS_WIDE
#define CHANNELS(most, call)                                                                       \
    for (; most >= 4 && c + 64 <= g->cs; c += 64)                                                  \
        call(16, 4);                                                                               \
    for (; most >= 2 && c + 32 <= g->cs; c += 32)                                                  \
        call(16, 2);                                                                               \
    for (; c + 16 <= g->cs; c += 16)                                                               \
        call(16, 1);                                                                               \
    for (; c < g->cs; c += 8)                                                                      \
        call(8, 1);
#else
#define CHANNELS(most, call)                                                                       \
    for (; most >= 4 && c + 32 <= g->cs; c += 32)                                                  \
        call(8, 4);                                                                                \
    for (; most >= 2 && c + 16 <= g->cs; c += 16)                                                  \
        call(8, 2);                                                                                \
    for (; c < g->cs; c += 8)                                                                      \
        call(8, 1);
#endif

INLINE void window_at(const window_geom *g, const window_group *at, const int pixels,
                      const int most, const bool weighted, const float *x, const float *w,
                      const float *b, float *y)
{
    int c = 0;
#define PIXELS(v, n) window_pixels##v(g, at, pixels, n, weighted, c, x, w, b, y)
    CHANNELS(most, PIXELS)
#undef PIXELS
}

static void window_alike(const window_geom *g, const window_group *at, int pixels, const float *x,
                         const float *w, const float *b, float *y)
{
    switch (pixels * 2 + (w != NULL)) {
    case 8: window_at(g, at, 4, 2, false, x, w, b, y); break;
    case 9: window_at(g, at, 4, 2, true, x, w, b, y); break;
    case 4: window_at(g, at, 2, 4, false, x, w, b, y); break;
    case 5: window_at(g, at, 2, 4, true, x, w, b, y); break;
    case 2: window_at(g, at, 1, 4, false, x, w, b, y); break;
    default: window_at(g, at, 1, 4, true, x, w, b, y);
    }
}

/* Computes outputs [h, h + rows) times [d, d + columns), each `every` further than the one before.
 * All have the same taps along each axis. */
static void window_block(const window_geom *g, int h, int rows, int d, int columns, const float *x,
                         const float *w, const float *b, float *y)
{
    const size_t cs = (size_t)g->cs, x_row = (size_t)g->h.step[h] * g->x_row,
                 x_step = (size_t)g->w.step[d] * cs, y_row = (size_t)g->h.every * g->y_row,
                 y_step = (size_t)g->w.every * cs;
    const bool down = rows > columns; /* groups run along the longer side */
    float *to = y + (size_t)h * g->y_row + (size_t)d * cs;
    for (int i = 0; i < (down ? columns : rows); i++, to += down ? y_step : y_row) {
        int n = i * (down ? g->w.every : g->h.every);
        window_group at = {down ? h : h + n, down ? d + n : d, down ? x_row : x_step,
                           down ? y_row : y_step};
        window_alike(g, &at, down ? rows : columns, x, w, b, to);
    }
}

static void window(const window_geom *g, const float *x, const float *w, const float *b, float *y)
{
    for (int top = 0; top < g->h.every; top++)
        for (int h = top; h < g->h.count; h += g->h.alike[h] * g->h.every)
            for (int left = 0; left < g->w.every; left++)
                for (int d = left; d < g->w.count; d += g->w.alike[d] * g->w.every)
                    window_block(g, h, g->h.alike[h], d, g->w.alike[d], x, w, b, y);
}

INLINE void taps_at(const window_geom *g, int r, int s, const int taps, const float *x,
                    const float *dy, size_t dy_row, float *dw)
{
    const int most = KERNELS_WIDE ? 4 : 2;
    int c = 0, first = 0, last = g->w.count;
    for (int i = s; i < s + taps; i++) {
        first = g->w.spans[i].from > first ? g->w.spans[i].from : first;
        last = g->w.spans[i].to < last ? g->w.spans[i].to : last;
    }
#define TAPS(v, n) taps_gradient##v(g, r, s, taps, n, first, last, x + c, dy + c, dy_row, dw + c)
    CHANNELS(most, TAPS)
#undef TAPS
}

static void window_dw(const window_geom *g, const float *x, const float *dy, size_t dy_row,
                      float *dw)
{
    for (int r = 0; r < g->kh; r++)
        for (int s = 0, taps; s < g->kw; s += taps, dw += (size_t)(taps * g->cs)) {
            taps = g->kw - s >= 5 ? 5 : g->kw - s >= 3 ? 3 : 1;
            switch (taps) {
            case 5: taps_at(g, r, s, 5, x, dy, dy_row, dw); break;
            case 3: taps_at(g, r, s, 3, x, dy, dy_row, dw); break;
            default: taps_at(g, r, s, 1, x, dy, dy_row, dw);
            }
        }
}

INLINE void max_cell(const max_tap *t, const int n, const bool known, const bool wins, size_t cs,
                     float *y, uint8_t *arg)
{
    size_t c = 0;
#if KERNELS_WIDE
    c = max_channels16(t, n, known, wins, c, cs, y, arg);
#endif
    max_channels8(t, n, known, wins, c, cs, y, arg);
}

static void window_max(const window_geom *g, const float *x, float *y, uint8_t *arg)
{
    size_t cs = (size_t)g->cs;
    max_tap taps[MAX_TAPS];
    for (int h = 0; h < g->h.count; h++)
        for (int d = 0; d < g->w.count; d++) {
            int n = 0;
            for (int r = g->h.begin[h]; r < g->h.begin[h + 1]; r++)
                for (int s = g->w.begin[d]; s < g->w.begin[d + 1]; s++) {
                    const window_tap *th = &g->h.taps[r], *tw = &g->w.taps[s];
                    taps[n++] = (max_tap){x + (size_t)th->from * g->x_row + (size_t)tw->from * cs,
                                          NULL, th->tap * g->kw + tw->tap};
                }
            float *to = y + (size_t)h * g->y_row + (size_t)d * cs;
            uint8_t *won = arg ? arg + ((size_t)h * (size_t)g->w.count + (size_t)d) * cs : NULL;
#define CELL(n, known)                                                                             \
    won ? max_cell(taps, n, known, true, cs, to, won)                                              \
        : max_cell(taps, n, known, false, cs, to, NULL)
            switch (n) {
            case 4: CELL(4, true); break;
            case 6: CELL(6, true); break;
            case 9: CELL(9, true); break;
            default: CELL(n, false);
            }
#undef CELL
        }
}

INLINE void max_back_cell(const max_tap *t, const int n, size_t cs, bool accumulate, float *dx)
{
    size_t c = 0;
#if KERNELS_WIDE
    c = max_back_channels16(t, n, accumulate, c, cs, dx);
#endif
    max_back_channels8(t, n, accumulate, c, cs, dx);
}

/* The axes are those of dx: each input pixel gathers from the outputs that read it. */
static void window_max_back(const window_geom *g, const float *dy, const uint8_t *arg,
                            size_t arg_row, float *dx)
{
    size_t cs = (size_t)g->cs;
    max_tap taps[MAX_TAPS];
    for (int h = 0; h < g->h.count; h++)
        for (int d = 0; d < g->w.count; d++) {
            int n = 0;
            for (int r = g->h.begin[h]; r < g->h.begin[h + 1]; r++)
                for (int s = g->w.begin[d]; s < g->w.begin[d + 1]; s++) {
                    const window_tap *th = &g->h.taps[r], *tw = &g->w.taps[s];
                    size_t at = (size_t)tw->from * cs;
                    taps[n++] =
                        (max_tap){dy + (size_t)th->from * g->x_row + at,
                                  arg + (size_t)th->from * arg_row + at, th->tap * g->kw + tw->tap};
                }
            float *to = dx + (size_t)h * g->y_row + (size_t)d * cs;
            switch (n) {
            case 1: max_back_cell(taps, 1, cs, g->accumulate, to); break;
            case 2: max_back_cell(taps, 2, cs, g->accumulate, to); break;
            case 4: max_back_cell(taps, 4, cs, g->accumulate, to); break;
            default: max_back_cell(taps, n, cs, g->accumulate, to);
            }
        }
}

/* ---- activations ----------------------------------------------------------------------------- */

/* e^x = 2^n e^r with |r| <= ln 2 / 2, e^r by its series to the seventh power. Within 2 units in the
 * last place; x is clamped to [-87, 88], NaN stays. */
INLINE v8 exp8(v8 x)
{
    const v8 low = all8(-87.0f), high = all8(88.0f);
    x = gt8(low, x, low, x);
    x = gt8(x, high, high, x);
    v8 magic = all8(12582912.0f); /* adding it rounds to an integer in the low bits */
    v8 n = (x * 1.44269504f + magic);
    v8i bits = ((v8i)n - (v8i)magic) + 127;
    n -= magic;
    v8 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    v8 e = all8(1.0f / 5040);
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    return e * (v8)(bits << 23);
}

INLINE v8 sigmoid8(v8 x)
{
    return 1.0f / (1.0f + exp8(-x));
}

/* Near zero, 1 - 2 / (1 + e^2x) would cancel: there the series is used. */
INLINE v8 tanh8(v8 x)
{
    v8 far = 1.0f - 2.0f / (1.0f + exp8(2.0f * x)), q = x * x, limit = all8(0.04f);
    v8 near =
        x * (1.0f + q * (-1.0f / 3 + q * (2.0f / 15 + q * (-17.0f / 315 + q * (62.0f / 2835)))));
    return gt8(q, limit, far, near);
}

/* Abramowitz and Stegun 7.1.26: within 2e-7 for all x. Near zero the series is used. */
INLINE v8 erf8(v8 x)
{
    v8 zero = {0}, a = gt8(zero, x, -x, x), t = 1.0f / (1.0f + 0.3275911f * a);
    v8 p = all8(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    v8 q = x * x, far = 1.0f - p * t * exp8(-q), limit = all8(0.04f);
    far = gt8(zero, x, -far, far);
    v8 near = x * (1.128379167f + q * (-0.376126389f + q * (0.112837917f + q * -0.026866171f)));
    return gt8(q, limit, far, near);
}

INLINE v8 value8(graph_act kind, float slope, v8 x)
{
    switch (kind) {
    case ACT_RELU: return relu8(x);
    case ACT_RELU6:
    case ACT_LEAKY_RELU:
    case ACT_HARDSIGMOID:
    case ACT_HARDSWISH: return piece_value8(kind, slope, x);
    case ACT_SIGMOID: return sigmoid8(x);
    case ACT_TANH: return tanh8(x);
    case ACT_GELU: return x * 0.5f * (1.0f + erf8(x * 0.707106781f));
    case ACT_SILU: return x * sigmoid8(x);
    case ACT_COUNT: break;
    }
    return x;
}

INLINE v8 slope8(graph_act kind, float slope, v8 x)
{
    v8 zero = {0}, one = all8(1), s;
    switch (kind) {
    case ACT_RELU: return gt8(x, zero, one, zero);
    case ACT_RELU6:
    case ACT_LEAKY_RELU:
    case ACT_HARDSIGMOID:
    case ACT_HARDSWISH: return piece_slope8(kind, slope, x);
    case ACT_SIGMOID: s = sigmoid8(x); return s * (1.0f - s);
    case ACT_TANH: s = tanh8(x); return 1.0f - s * s;
    case ACT_GELU:
        return 0.5f * (1.0f + erf8(x * 0.707106781f)) + x * exp8(-0.5f * x * x) * 0.398942280f;
    case ACT_SILU: s = sigmoid8(x); return s * (1.0f + x * (1.0f - s));
    case ACT_COUNT: break;
    }
    return one;
}

#define EACH_ACT(X)                                                                                \
    X(ACT_RELU) X(ACT_RELU6) X(ACT_LEAKY_RELU) X(ACT_HARDSIGMOID) X(ACT_HARDSWISH) X(ACT_SIGMOID)  \
    X(ACT_TANH) X(ACT_GELU) X(ACT_SILU)

static void act(graph_act kind, float slope, size_t n, const float *x, float *y)
{
#define FORWARD(k)                                                                                 \
    case k:                                                                                        \
        for (size_t i = 0; i < n; i += 8)                                                          \
            store8(y + i, value8(k, slope, load8(x + i)));                                         \
        break;
    switch (kind) { EACH_ACT(FORWARD) case ACT_COUNT: break; }
#undef FORWARD
}

static void act_back(graph_act kind, float slope, size_t n, const float *x, const float *dy,
                     bool accumulate, float *dx)
{
    v8 zero = {0};
#define BACK(k)                                                                                    \
    case k:                                                                                        \
        for (size_t i = 0; i < n; i += 8)                                                          \
            store8(dx + i, (accumulate ? load8(dx + i) : zero) +                                   \
                               load8(dy + i) * slope8(k, slope, load8(x + i)));                    \
        break;
    switch (kind) { EACH_ACT(BACK) case ACT_COUNT: break; }
#undef BACK
}

/* ---- dropout --------------------------------------------------------------------------------- */

typedef uint64_t v8q __attribute__((vector_size(64)));
typedef uint32_t v16n __attribute__((vector_size(64)));

/* The product of each lane's lower half with k. */
INLINE v8q halves8(v8q a, uint32_t k)
{
#if defined(__AVX512F__)
    return (v8q)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64((long long)k));
#else
    return (a & 0xFFFFFFFFu) * (uint64_t)k;
#endif
}

/* Philox4x32-10 as in common/base/rng.c, for eight consecutive counters; only the lower halves of
 * the lanes count. */
INLINE void philox8(v8q c[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        v8q low = halves8(c[0], 0xD2511F53u), high = halves8(c[2], 0xCD9E8D57u);
        c[0] = (high >> 32) ^ c[1] ^ (uint64_t)key0;
        c[1] = high;
        c[2] = (low >> 32) ^ c[3] ^ (uint64_t)key1;
        c[3] = low;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

static void keep(const uint32_t key[2], const uint32_t counter[4], size_t n, uint32_t drop_below,
                 float scale, float *y)
{
    for (size_t block = 0; block * 4 < n; block += 8) {
        v8q c[4] = {(v8q){0, 1, 2, 3, 4, 5, 6, 7} + (uint64_t)(counter[0] + (uint32_t)block),
                    (v8q){0} + (uint64_t)counter[1], (v8q){0} + (uint64_t)counter[2],
                    (v8q){0} + (uint64_t)counter[3]};
        philox8(c, key[0], key[1]);
        v8q low = (c[0] & 0xFFFFFFFFu) | c[1] << 32, high = (c[2] & 0xFFFFFFFFu) | c[3] << 32;
        v16n words[2] = {(v16n)__builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11),
                         (v16n)__builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15)};
        UNROLL for (size_t i = 0; i < 2; i++) store16(
            y + block * 4 + i * 16, (v16)((v16i)(words[i] >= drop_below) & (v16i)all16(scale)));
    }
}

static void multiply(size_t n, const float *a, const float *b, bool accumulate, float *y)
{
    for (size_t i = 0; i < n; i += 8) {
        v8 v = load8(a + i) * load8(b + i);
        store8(y + i, accumulate ? load8(y + i) + v : v);
    }
}

/* ---- gates: one factor a channel ------------------------------------------------------------- */

static void gate_back(int pixels, int cs, const float *x, const float *gate, const float *dy,
                      bool accumulate, float *dx, float *dgate)
{
    v8 zero = {0};
    for (int c = 0; c < cs; c += 8) {
        v8 f = load8(gate + c), sum = zero;
        for (size_t i = 0, at = (size_t)c; i < (size_t)pixels; i++, at += (size_t)cs) {
            v8 d = load8(dy + at);
            sum += d * load8(x + at);
            if (dx)
                store8(dx + at, (accumulate ? load8(dx + at) : zero) + d * f);
        }
        store8(dgate + c, load8(dgate + c) + sum);
    }
}
