/* max_pool_impl.h: one window of max pooling as channel_tile_impl.h takes it, and with NaN in it. */

/* An input of the window, so that the loops over channels have all of them at hand. */
typedef struct max_tap {
    const float *x;     /* the input, or dy */
    const uint8_t *arg; /* backward: who won there */
    int32_t tap;
} max_tap;
enum { MAX_TAPS = 256, KNOWN_TAPS = 9 };

/* Channels [c, end): the first of the largest wins, and over all the last NaN. Vectors compare
 * with ">" alone, and come here where they have seen a NaN. */
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
