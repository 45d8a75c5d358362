/* channel_tile_impl.h: windows over single channels, VW of them at a time; included once a
 * width. */

/* Four neighbours with the same taps, or one pixel and so many vectors: y = b + sum of w (or the
 * taps' scales) times x. */
INLINE void T(window_pixels)(const window_geom *g, int h, int d, const int pixels,
                             const int vectors, const bool weighted, int c, const float *x,
                             const float *w, const float *b, float *y)
{
    VT acc[4][4], zero = {0};
    size_t cs = (size_t)g->cs, step = pixels > 1 ? (size_t)g->w.step[d] * cs : 0;
    UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            acc[i][j] = b ? T(load)(b + c + VW * j) : zero;
    for (int r = g->h.begin[h]; r < g->h.begin[h + 1]; r++) {
        const window_tap *th = &g->h.taps[r];
        const float *row = x + (size_t)th->from * g->x_row + c;
        const float *weights = weighted ? w + (size_t)(th->tap * g->kw) * cs + c : NULL;
        for (int s = g->w.begin[d]; s < g->w.begin[d + 1]; s++) {
            const window_tap *tw = &g->w.taps[s];
            const float *from = row + (size_t)tw->from * cs;
            UNROLL for (int j = 0; j < vectors; j++) {
                VT v = weighted ? T(load)(weights + (size_t)tw->tap * cs + VW * j)
                                : T(all)(th->scale * tw->scale);
                UNROLL for (int i = 0; i < pixels; i++)
                    acc[i][j] += v * T(load)(from + (size_t)i * step + VW * j);
            }
        }
    }
    UNROLL for (int i = 0; i < pixels; i++) {
        UNROLL for (int j = 0; j < vectors; j++) {
            float *to = y + (size_t)i * cs + c + VW * j;
            VT v = g->accumulate ? T(load)(to) + acc[i][j] : acc[i][j];
            T(store)(to, g->relu ? T(relu)(v) : v);
        }
    }
}

/* One tap's weight gradient over the whole map, added to dw, of vectors enough that none waits for
 * itself. */
INLINE void T(tap_vectors)(const window_geom *g, const window_span *h, const window_span *w,
                           const int vectors, const float *x, const float *dy, size_t dy_row,
                           float *dw)
{
    VT acc[4];
    size_t cs = (size_t)g->cs, step = (size_t)g->w.stride * cs;
    UNROLL for (int j = 0; j < vectors; j++)
        acc[j] = T(load)(dw + VW * j);
    for (int p = h->from; p < h->to; p++) {
        const float *d = dy + (size_t)p * dy_row + (size_t)w->from * cs;
        const float *v = x + (size_t)(p * g->h.stride + h->shift) * g->x_row +
                         (size_t)(w->from * g->w.stride + w->shift) * cs;
        for (int q = w->from; q < w->to; q++, d += cs, v += step)
            UNROLL for (int j = 0; j < vectors; j++)
                acc[j] += T(load)(d + VW * j) * T(load)(v + VW * j);
    }
    UNROLL for (int j = 0; j < vectors; j++)
        T(store)(dw + VW * j, acc[j]);
}

/* The same of one vector: four sums. */
INLINE VT T(tap_gradient)(const window_geom *g, const window_span *h, const window_span *w,
                          const float *x, const float *dy, size_t dy_row)
{
    VT acc[4] = {{0}, {0}, {0}, {0}};
    size_t cs = (size_t)g->cs, step = (size_t)g->w.stride * cs;
    for (int p = h->from; p < h->to; p++) {
        const float *d = dy + (size_t)p * dy_row + (size_t)w->from * cs;
        const float *v = x + (size_t)(p * g->h.stride + h->shift) * g->x_row +
                         (size_t)(w->from * g->w.stride + w->shift) * cs;
        int q = w->from;
        for (; q + 4 <= w->to; q += 4, d += 4 * cs, v += 4 * step)
            UNROLL for (int i = 0; i < 4; i++)
                acc[i] += T(load)(d + (size_t)i * cs) * T(load)(v + (size_t)i * step);
        for (; q < w->to; q++, d += cs, v += step)
            acc[0] += T(load)(d) * T(load)(v);
    }
    return (acc[0] + acc[1]) + (acc[2] + acc[3]);
}

/* The largest of n inputs, channels from c on as far as whole vectors go; returns where they end.
 * `known`: n is a constant, at most KNOWN_TAPS. */
INLINE size_t T(max_channels)(const max_tap *t, const int n, const bool known, const bool wins,
                              size_t c, size_t cs, float *y, uint8_t *arg)
{
    /* In registers: as far as the compiler knows, what is written might be the list. */
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

/* Of n outputs' gradients those whose winner this input is, summed; likewise. */
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
