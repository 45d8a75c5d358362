/* metrics.c: see metrics.h. */
#include "metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/decimal.h"

typedef struct series {
    char *label[METRICS_LABELS_MAX];
    double value; /* a histogram's sum */
    uint64_t count;
    uint64_t *buckets;
    struct series *next;
} series;

struct metric {
    metrics *owner;
    metric_kind kind;
    const char *name, *help, *labels;
    int label_count;
    const double *bounds;
    int bound_count;
    series *first;
    int count;
    struct metric *next;
};

struct metrics {
    pthread_mutex_t lock;
    metric *first, **last;
    uint64_t dropped;
};

metrics *metrics_open(void)
{
    metrics *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->last = &m->first;
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

static void series_free(series *s)
{
    for (int i = 0; i < METRICS_LABELS_MAX; i++)
        free(s->label[i]);
    free(s->buckets);
    free(s);
}

void metrics_close(metrics *m)
{
    if (!m)
        return;
    for (metric *f = m->first, *next; f; f = next) {
        next = f->next;
        for (series *s = f->first, *after; s; s = after) {
            after = s->next;
            series_free(s);
        }
        free(f);
    }
    pthread_mutex_destroy(&m->lock);
    free(m);
}

metric *metrics_add(metrics *m, metric_kind kind, const char *name, const char *help,
                    const char *labels, const double *buckets, int bucket_count)
{
    metric *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    *f = (metric){.owner = m, .kind = kind, .name = name, .help = help, .labels = labels,
                  .bounds = buckets, .bound_count = bucket_count};
    for (const char *at = labels; *at; at += strcspn(at, ","), at += *at == ',')
        f->label_count++;
    pthread_mutex_lock(&m->lock);
    *m->last = f;
    m->last = &f->next;
    pthread_mutex_unlock(&m->lock);
    return f;
}

/* Finds or makes a series. Needs the lock. */
static series *series_of(metric *f, const char *const values[METRICS_LABELS_MAX])
{
    for (series *s = f->first; s; s = s->next) {
        int same = 0;
        while (same < f->label_count && strcmp(s->label[same], values[same]) == 0)
            same++;
        if (same == f->label_count)
            return s;
    }
    series *s = f->count < METRICS_SERIES_MAX ? calloc(1, sizeof *s) : NULL;
    bool whole = s != NULL;
    for (int i = 0; whole && i < f->label_count; i++)
        whole = (s->label[i] = strdup(values[i])) != NULL;
    if (whole && f->kind == METRIC_HISTOGRAM)
        whole = (s->buckets = calloc((size_t)f->bound_count, sizeof *s->buckets)) != NULL;
    if (!whole) {
        f->owner->dropped++;
        if (s)
            series_free(s);
        return NULL;
    }
    s->next = f->first;
    f->first = s;
    f->count++;
    return s;
}

typedef enum change { CHANGE_ADD, CHANGE_SET, CHANGE_OBSERVE } change;

static void apply(metric *f, change how, double value, const char *a, const char *b, const char *c)
{
    if (!f)
        return;
    const char *const values[METRICS_LABELS_MAX] = {a ? a : "", b ? b : "", c ? c : ""};
    pthread_mutex_lock(&f->owner->lock);
    series *s = series_of(f, values);
    if (s) {
        s->value = how == CHANGE_SET ? value : s->value + value;
        s->count += how == CHANGE_OBSERVE;
        for (int i = 0; how == CHANGE_OBSERVE && i < f->bound_count; i++)
            s->buckets[i] += value <= f->bounds[i];
    }
    pthread_mutex_unlock(&f->owner->lock);
}

void metric_add(metric *f, double value, const char *a, const char *b, const char *c)
{
    apply(f, CHANGE_ADD, value, a, b, c);
}

void metric_set(metric *f, double value, const char *a, const char *b, const char *c)
{
    apply(f, CHANGE_SET, value, a, b, c);
}

void metric_observe(metric *f, double value, const char *a, const char *b, const char *c)
{
    apply(f, CHANGE_OBSERVE, value, a, b, c);
}

void metric_drop(metric *f, const char *a)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->owner->lock);
    for (series **at = &f->first; *at;) {
        series *s = *at;
        if (f->label_count && strcmp(s->label[0], a) == 0) {
            *at = s->next;
            series_free(s);
            f->count--;
        } else {
            at = &s->next;
        }
    }
    pthread_mutex_unlock(&f->owner->lock);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int write_value(buf *out, double value, err *e)
{
    if (isnan(value))
        return buf_printf(out, e, " NaN\n");
    if (isinf(value))
        return buf_printf(out, e, value > 0 ? " +Inf\n" : " -Inf\n");
    char text[DECIMAL_BYTES];
    return buf_printf(out, e, " %s\n", decimal_text(value, text));
}

static int write_label(buf *out, const char *value, err *e)
{
    for (; *value; value++) {
        const char *escaped = *value == '\\'   ? "\\\\"
                              : *value == '"'  ? "\\\""
                              : *value == '\n' ? "\\n"
                                               : NULL;
        if (escaped ? buf_append(out, escaped, 2, e) : buf_append(out, value, 1, e))
            return -1;
    }
    return 0;
}

/* name{labels...,le="..."}; `le` NULL where there is none. */
static int write_name(buf *out, const metric *f, const series *s, const char *suffix,
                      const char *le, err *e)
{
    if (buf_printf(out, e, "%s%s", f->name, suffix))
        return -1;
    const char *name = f->labels;
    for (int i = 0; i < f->label_count; i++) {
        int len = (int)strcspn(name, ",");
        if (buf_printf(out, e, "%s%.*s=\"", i ? "," : "{", len, name) ||
            write_label(out, s->label[i], e) || buf_append(out, "\"", 1, e))
            return -1;
        name += len + (name[len] == ',');
    }
    if (le && buf_printf(out, e, "%sle=\"%s\"", f->label_count ? "," : "{", le))
        return -1;
    return f->label_count || le ? buf_append(out, "}", 1, e) : 0;
}

static int write_histogram(buf *out, const metric *f, const series *s, err *e)
{
    char bound[32];
    for (int i = 0; i <= f->bound_count; i++) {
        bool last = i == f->bound_count;
        snprintf(bound, sizeof bound, last ? "+Inf" : "%g", last ? 0.0 : f->bounds[i]);
        if (write_name(out, f, s, "_bucket", bound, e) ||
            write_value(out, (double)(last ? s->count : s->buckets[i]), e))
            return -1;
    }
    return write_name(out, f, s, "_sum", NULL, e) || write_value(out, s->value, e) ||
           write_name(out, f, s, "_count", NULL, e) || write_value(out, (double)s->count, e);
}

static int write_family(buf *out, const metric *f, err *e)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    if (buf_printf(out, e, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name,
                   kinds[f->kind]))
        return -1;
    for (const series *s = f->first; s; s = s->next)
        if (f->kind == METRIC_HISTOGRAM
                ? write_histogram(out, f, s, e)
                : write_name(out, f, s, "", NULL, e) || write_value(out, s->value, e))
            return -1;
    return 0;
}

int metrics_write(metrics *m, buf *out, err *e)
{
    int status = 0;
    pthread_mutex_lock(&m->lock);
    for (const metric *f = m->first; f && status == 0; f = f->next)
        status = write_family(out, f, e);
    if (status == 0)
        status = buf_printf(out, e,
                            "# HELP kubeml_metrics_dropped_total Series that were not kept.\n"
                            "# TYPE kubeml_metrics_dropped_total counter\n"
                            "kubeml_metrics_dropped_total %llu\n",
                            (unsigned long long)m->dropped);
    pthread_mutex_unlock(&m->lock);
    return status;
}
