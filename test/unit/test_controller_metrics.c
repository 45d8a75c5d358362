/* test_controller_metrics.c: the text that Prometheus reads. */
#include "controller/metrics_controller.h"
#include "test.h"

static char *text_of(metrics *m)
{
    buf out;
    err e = ERR_INIT;
    buf_init(&out, 1 << 20);
    CHECK_OK(metrics_write(m, &out, &e), e);
    return out.bytes;
}

TEST(text_format)
{
    static const double bounds[] = {0.1, 1};
    metrics *m = metrics_open();
    metric *jobs = metrics_add(m, METRIC_COUNTER, "jobs", "Jobs.", "state", NULL, 0);
    metric *free_slots = metrics_add(m, METRIC_GAUGE, "slots", "Slots.", "", NULL, 0);
    metric *accuracy = metrics_add(m, METRIC_GAUGE, "accuracy", "Accuracy.", "", NULL, 0);
    metric *seconds = metrics_add(m, METRIC_HISTOGRAM, "seconds", "Time.", "a,b", bounds, 2);
    metric_add(jobs, 1, "ok", NULL, NULL);
    metric_add(jobs, 2, "ok", NULL, NULL);
    metric_add(jobs, 1, "a\"\\\nb", NULL, NULL);
    metric_set(free_slots, 4, NULL, NULL, NULL);
    metric_set(free_slots, 3, NULL, NULL, NULL);
    metric_set(accuracy, 95.97, NULL, NULL, NULL);
    metric_observe(seconds, 0.05, "x", "y", NULL);
    metric_observe(seconds, 0.5, "x", "y", NULL);
    metric_observe(seconds, 5, "x", "y", NULL);
    metric_add(NULL, 1, "x", NULL, NULL);
    char *text = text_of(m);
    CHECK_CONTAINS(text,
                   "# TYPE jobs counter\njobs{state=\"a\\\"\\\\\\nb\"} 1\njobs{state=\"ok\"} 3\n");
    CHECK_CONTAINS(text, "\nslots 3\n");
    CHECK_CONTAINS(text, "\naccuracy 95.97\n");
    CHECK_CONTAINS(text, "seconds_bucket{a=\"x\",b=\"y\",le=\"0.1\"} 1\n"
                         "seconds_bucket{a=\"x\",b=\"y\",le=\"1\"} 2\n"
                         "seconds_bucket{a=\"x\",b=\"y\",le=\"+Inf\"} 3\n"
                         "seconds_sum{a=\"x\",b=\"y\"} 5.5");
    free(text);
    metric_drop(jobs, "ok");
    text = text_of(m);
    CHECK(!strstr(text, "state=\"ok\""));
    free(text);
    metrics_close(m);
}

TEST(series_are_bounded)
{
    metrics *m = metrics_open();
    metric *f = metrics_add(m, METRIC_COUNTER, "f", "F.", "n", NULL, 0);
    metric *other = metrics_add(m, METRIC_COUNTER, "other", "O.", "n", NULL, 0);
    char name[16];
    for (int i = 0; i < METRICS_SERIES_MAX + 5; i++) {
        snprintf(name, sizeof name, "%d", i);
        metric_add(f, 1, name, NULL, NULL);
    }
    metric_add(other, 7, "mine", NULL, NULL); /* which has room of its own */
    char *text = text_of(m);
    CHECK_CONTAINS(text, "kubeml_metrics_dropped_total 5\n");
    CHECK_CONTAINS(text, "other{n=\"mine\"} 7\n");
    free(text);
    metric_drop(f, "0");
    metric_add(f, 8, "again", NULL, NULL);
    text = text_of(m);
    CHECK_CONTAINS(text, "f{n=\"again\"} 8\n");
    free(text);
    metrics_close(m);
}

TEST(the_first_kubemls_names)
{
    controller_metrics m = {0};
    err e = ERR_INIT;
    CHECK_OK(controller_metrics_open(&m, &e), e);
    char *text = text_of(m.all);
    static const char *const names[] = {"kubeml_job_validation_loss",
                                        "kubeml_job_validation_accuracy",
                                        "kubeml_job_train_loss",
                                        "kubeml_job_parallelism",
                                        "kubeml_job_epoch_duration_seconds",
                                        "kubeml_job_running_total"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK_CONTAINS(text, names[i]);
    static const char *const ends[] = {"succeeded", "failed", "cancelled", "suspended"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char line[64];
        snprintf(line, sizeof line, "kubeml_jobs_total{state=\"%s\"} 0\n", ends[i]);
        CHECK_CONTAINS(text, line);
    }
    free(text);
    metrics_close(m.all);
}
