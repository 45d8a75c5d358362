/* channel_tile_impl.h: windows over single channels, VW channels at a time; included once for each
 * width. */
#ifndef KUBEML_CHANNEL_GROUPS
#define KUBEML_CHANNEL_GROUPS
enum { MOST_TAPS = 5 }; /* of a depthwise weight gradient computed at a time */

/* Outputs with the same taps: the first, and floats from one to the next. */
typedef struct window_group {
    int h, w;
    size_t x_step, y_step;
} window_group;
#endif

/* `pixels` pixels with the same taps, `vectors` vectors of each: y = b + sum of w (or the taps'
 * scales) times x. */
INLINE void T(window_pixels)(const window_geom *g, const window_group *at, const int pixels,
                             const int vectors, const bool weighted, int c, const float *x,
                             const float *w, const float *b, float *y)
{
    VT acc[4][4], zero = {0};
    size_t cs = (size_t)g->cs;
    UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            acc[i][j] = b ? T(load)(b + c + VW * j) : zero;
    for (int r = g->h.begin[at->h]; r < g->h.begin[at->h + 1]; r++) {
        const window_tap *th = &g->h.taps[r];
        const float *row = x + (size_t)th->from * g->x_row + c;
        const float *weights = weighted ? w + (size_t)(th->tap * g->kw) * cs + c : NULL;
        for (int s = g->w.begin[at->w]; s < g->w.begin[at->w + 1]; s++) {
            const window_tap *tw = &g->w.taps[s];
            const float *from = row + (size_t)tw->from * cs;
            UNROLL for (int j = 0; j < vectors; j++) {
                VT v = weighted ? T(load)(weights + (size_t)tw->tap * cs + VW * j)
                                : T(all)(th->scale * tw->scale);
                UNROLL for (int i = 0; i < pixels; i++)
                    acc[i][j] += v * T(load)(from + (size_t)i * at->x_step + VW * j);
            }
        }
    }
    UNROLL for (int i = 0; i < pixels; i++) {
        UNROLL for (int j = 0; j < vectors; j++) {
            float *to = y + (size_t)i * at->y_step + c + VW * j;
            VT v = g->accumulate ? T(load)(to) + acc[i][j] : acc[i][j];
            if (g->next)
                prefetch_to_write(to + g->next, sizeof v);
            T(store)(to, g->relu ? T(relu)(v) : v);
        }
    }
}

/* Adds the weight gradients of `taps` taps of row r, from tap s on, over the whole map, to dw: a
 * value of dy is loaded once for all of them. Between outputs `first` and `last` all taps meet
 * inputs. */
INLINE void T(taps_gradient)(const window_geom *g, int r, int s, const int taps, const int vectors,
                             int first, int last, const float *x, const float *dy, size_t dy_row,
                             float *dw)
{
    VT acc[MOST_TAPS][4];
    const window_span *h = &g->h.spans[r], *w = &g->w.spans[s];
    size_t cs = (size_t)g->cs;
    UNROLL for (int i = 0; i < taps; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            acc[i][j] = T(load)(dw + (size_t)i * cs + VW * j);
    for (int p = h->from; p < h->to; p++) {
        const float *d = dy + (size_t)p * dy_row;
        const float *row = x + (size_t)(p * g->h.stride + h->shift) * g->x_row;
        for (int q = 0; q < g->w.count; q++) {
            bool all = q >= first && q < last;
            UNROLL for (int i = 0; i < taps; i++) {
                if (!all && (q < w[i].from || q >= w[i].to))
                    continue;
                const float *v = row + (size_t)(q * g->w.stride + w[i].shift) * cs;
                UNROLL for (int j = 0; j < vectors; j++)
                    acc[i][j] += T(load)(d + (size_t)q * cs + VW * j) * T(load)(v + VW * j);
            }
        }
    }
    UNROLL for (int i = 0; i < taps; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            T(store)(dw + (size_t)i * cs + VW * j, acc[i][j]);
}

/* Writes the largest of n inputs for the channels from c on, as far as whole vectors go; returns
 * the first channel that is left. `known`: n is a constant, at most KNOWN_TAPS. */
INLINE size_t T(max_channels)(const max_tap *t, const int n, const bool known, const bool wins,
                              size_t c, size_t cs, float *y, uint8_t *arg)
{
    /* Copies of the list: the compiler has to assume that a store to y changes the list itself. */
    const float *x[KNOWN_TAPS];
    TI tap[KNOWN_TAPS];
    UNROLL_KNOWN for (int i = 0; known && i < n; i++) {
        x[i] = t[i].x;
        tap[i] = (TI){0} + t[i].tap;
    }
    for (; c + VW <= cs; c += VW) {
        VT best = T(load)(t[0].x + c), before = best;
        TI at = (TI){0} + t[0].tap;
        T(nans) seen = {0};
        UNROLL_KNOWN for (int i = 1; i < n; i++) {
            VT v = T(load)((known ? x[i] : t[i].x) + c);
            T(larger)(v, known ? tap[i] : (TI){0} + t[i].tap, &best, &at);
            if (i % 2 || i + 1 == n)
                T(see_nans)(before, v, &seen);
            before = v;
        }
        if (__builtin_expect(T(any_nan)(seen), 0)) {
            max_one_by_one(t, n, c, c + VW, y, arg);
            continue;
        }
        T(store)(y + c, best);
        if (wins)
            *(TBU *)(arg + c) = T(bytes)(at);
    }
    return c;
}

/* Sums the gradients of those of n outputs whose maximum is this input; channels as in
 * max_channels. */
INLINE size_t T(max_back_channels)(const max_tap *t, const int n, bool accumulate, size_t c,
                                   size_t cs, float *dx)
{
    for (; c + VW <= cs; c += VW) {
        VT sum = accumulate ? T(load)(dx + c) : (VT){0};
        UNROLL_KNOWN for (int i = 0; i < n; i++)
            sum += T(where)(t[i].arg + c, t[i].tap, T(load)(t[i].x + c));
        T(store)(dx + c, sum);
    }
    return c;
}
