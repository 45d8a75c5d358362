/* metrics.h: counters, gauges and histograms, written in Prometheus's text format.
 *
 * A family has a name, a help line and up to METRICS_LABELS_MAX label names; a series is one
 * combination of their values and is made when it is first used. All functions may be called from
 * any thread. A family's series beyond METRICS_SERIES_MAX are dropped and counted: one that is full
 * leaves the others their room. */
#ifndef KUBEML_METRICS_H
#define KUBEML_METRICS_H

#include "common/base/buf.h"

enum { METRICS_LABELS_MAX = 3, METRICS_SERIES_MAX = 5000, METRICS_BUCKETS_MAX = 16 };

typedef enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM } metric_kind;

typedef struct metrics metrics;
typedef struct metric metric;

metrics *metrics_open(void); /* NULL when memory is gone */
void metrics_close(metrics *m);

/* `labels`: names, comma-separated, or "". `buckets`: upper bounds of a histogram, ascending. Both
 * stay the caller's for good (literals). NULL when memory is gone; all calls take NULL. */
metric *metrics_add(metrics *m, metric_kind kind, const char *name, const char *help,
                    const char *labels, const double *buckets, int bucket_count);

/* `a`, `b`, `c`: the labels' values, as many as there are labels. */
void metric_add(metric *f, double value, const char *a, const char *b, const char *c);
void metric_set(metric *f, double value, const char *a, const char *b, const char *c);
void metric_observe(metric *f, double value, const char *a, const char *b, const char *c);
/* Drops every series whose first label has this value. */
void metric_drop(metric *f, const char *a);

int metrics_write(metrics *m, buf *out, err *e);

#endif
