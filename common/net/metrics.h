/* metrics.h: counters, gauges and histograms, written in Prometheus's text format.
 *
 * A family has a name, a help line and up to METRICS_LABELS_MAX label names. A series is one
 * combination of label values and is made when it is first used. All functions may be called from
 * any thread. A family's series beyond METRICS_SERIES_MAX are dropped and counted; a full family
 * takes no room from other families. */
#ifndef KUBEML_METRICS_H
#define KUBEML_METRICS_H

#include "common/base/buf.h"

enum { METRICS_LABELS_MAX = 3, METRICS_SERIES_MAX = 5000, METRICS_BUCKETS_MAX = 16 };

typedef enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM } metric_kind;

typedef struct metrics metrics;
typedef struct metric metric;

metrics *metrics_open(void); /* NULL when memory is gone */
void metrics_close(metrics *m);

/* Adds a family. `labels`: names, comma-separated, or "". `buckets`: upper bounds of a histogram,
 * ascending. All pointers must stay valid (literals). NULL when memory is gone; the metric_*
 * functions ignore NULL. */
metric *metrics_add(metrics *m, metric_kind kind, const char *name, const char *help,
                    const char *labels, const double *buckets, int bucket_count);

/* Change a series: add to it, set it, or observe a value of a histogram. `a`, `b`, `c`: the labels'
 * values, as many as there are labels. */
void metric_add(metric *f, double value, const char *a, const char *b, const char *c);
void metric_set(metric *f, double value, const char *a, const char *b, const char *c);
void metric_observe(metric *f, double value, const char *a, const char *b, const char *c);
/* Drops every series whose first label has this value. */
void metric_drop(metric *f, const char *a);

/* Appends all families in the text format. The buffer's errors. */
int metrics_write(metrics *m, buf *out, err *e);

#endif
