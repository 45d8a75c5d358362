/* cpu_spans.h: cuts the pixels of some samples into runs. The pixels of a run follow each other in
 * memory in every array that a pass reads or writes. A run is a single row where an array has a
 * border; otherwise as many rows, or whole samples, as RUN_PIXELS allow. A kernel's work once a
 * call (a channel's constants, sums) then costs little on small maps, and sums in floats stay
 * short. The cut follows from the shapes alone. */
#ifndef KUBEML_CPU_SPANS_H
#define KUBEML_CPU_SPANS_H

#include "cpu_program.h"

enum { RUN_PIXELS = 16 };

/* How far pixels follow each other without gaps. */
typedef enum run_level { RUN_ROW, RUN_SAMPLE, RUN_SAMPLES } run_level;

/* The level with one more array, a, of t; `so_far` is the level of the others. */
static inline run_level run_through(run_level so_far, const tensor *t, const plane *a)
{
    size_t row = (size_t)t->s.w * (size_t)t->step;
    bool sample = a->halo == 0 && (t->s.h == 1 || a->row == row);
    run_level level = !sample                             ? RUN_ROW
                      : a->sample != (size_t)t->s.h * row ? RUN_SAMPLE
                                                          : RUN_SAMPLES;
    return level < so_far ? level : so_far;
}

/* `pixels` pixels from row `row` of sample `sample` on. */
typedef struct pixel_run {
    int sample, row, pixels;
} pixel_run;

typedef struct pixel_runs {
    /* a run has `rows` rows; where these are a whole sample, `samples` samples */
    int h, w, rows, samples, to;
    pixel_run now;
} pixel_runs;

static inline bool runs_set(pixel_runs *r)
{
    int left = r->to - r->now.sample, samples = r->samples < left ? r->samples : left;
    int below = r->h - r->now.row, rows = r->rows < below ? r->rows : below;
    r->now.pixels = samples * rows * r->w;
    return left > 0;
}

/* False where there are no samples. */
static inline bool runs_begin(pixel_runs *r, run_level level, shape s, int from, int to)
{
    int rows = level == RUN_ROW ? 1 : RUN_PIXELS / s.w,
        samples = level == RUN_SAMPLES ? RUN_PIXELS / (s.h * s.w) : 1;
    *r = (pixel_runs){.h = s.h, .w = s.w, .to = to, .now = {.sample = from}};
    r->rows = rows < 1 ? 1 : rows < s.h ? rows : s.h;
    r->samples = samples < 1 ? 1 : samples;
    return runs_set(r);
}

static inline bool runs_next(pixel_runs *r)
{
    r->now.row += r->rows;
    if (r->now.row >= r->h) {
        r->now.row = 0;
        r->now.sample += r->samples;
    }
    return runs_set(r);
}

static inline float *run_at(const tensor *t, const plane *a, const pixel_run *r)
{
    return tensor_pixels(a, t->cs, r->sample) + (size_t)r->row * a->row;
}

/* Loops over the runs of samples [from, to); r.now is the current run. */
#define RUNS(r, level, s, from, to)                                                                \
    for (bool more = runs_begin(&(r), level, s, from, to); more; more = runs_next(&(r)))

#endif
