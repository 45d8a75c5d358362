/* max_pool_impl.h: one window of max pooling for channel_tile_impl.h, and the case of NaN in the
 * window. */

/* One input of the window; a list of these lets the loops over channels reach all inputs. */
typedef struct max_tap {
    const float *x;     /* the input, or dy */
    const uint8_t *arg; /* backward: the winners there */
    int32_t tap;
} max_tap;
enum { MAX_TAPS = 256, KNOWN_TAPS = 9 };

/* Channels [c, end) one by one: the first of the largest wins, and the last NaN wins over all. The
 * vector code compares with ">" alone and calls this where there is a NaN. */
static void max_one_by_one(const max_tap *t, int n, size_t c, size_t end, float *y, uint8_t *arg)
{
    for (; c < end; c++) {
        float best = t[0].x[c];
        int32_t at = t[0].tap;
        for (int i = 1; i < n; i++) {
            float v = t[i].x[c];
            if (v > best || v != v)
                best = v, at = t[i].tap;
        }
        y[c] = best;
        if (arg)
            arg[c] = (uint8_t)at;
    }
}
