/* metrics_controller.c: the families that /metrics shows: the first KubeML's names and our own. */
#include "metrics_controller.h"

#include "controller/job/job.h"

static const double http_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                     0.1,    0.25,  0.5,    1,     2.5,  10,    60};
static const double start_bounds[] = {0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 60};

int controller_metrics_open(controller_metrics *m, err *e)
{
    m->all = metrics_open();
    if (!m->all)
        return err_set(e, ERR_NOMEM, "no memory for the metrics");
    const struct {
        metric **to;
        metric_kind kind;
        const char *name, *help, *labels;
        const double *bounds;
        int count;
    } families[] = {
        {&m->validation_loss, METRIC_GAUGE, "kubeml_job_validation_loss",
         "Validation loss after the job's last epoch.", "jobid", NULL, 0},
        {&m->accuracy, METRIC_GAUGE, "kubeml_job_validation_accuracy",
         "Validation accuracy in percent after the job's last epoch.", "jobid", NULL, 0},
        {&m->train_loss, METRIC_GAUGE, "kubeml_job_train_loss",
         "Mean training loss of the job's last epoch.", "jobid", NULL, 0},
        {&m->parallelism, METRIC_GAUGE, "kubeml_job_parallelism",
         "Functions of the job's last epoch.", "jobid", NULL, 0},
        {&m->epoch_seconds, METRIC_GAUGE, "kubeml_job_epoch_duration_seconds",
         "Seconds the job's last epoch took.", "jobid", NULL, 0},
        {&m->stage_seconds, METRIC_GAUGE, "kubeml_job_stage_seconds",
         "Seconds of the job's last epoch by stage; of fetch, load, convert, train and publish a function's mean.",
         "jobid,stage", NULL, 0},
        {&m->averaging, METRIC_GAUGE, "kubeml_job_averaging",
         "1 for where the job's models are averaged: host, ipc (on their one GPU) or nccl (between GPUs).",
         "jobid,path", NULL, 0},
        {&m->cpu_percent, METRIC_GAUGE, "kubeml_function_cpu_percent",
         "Processor time of a function's process, of one core.", "jobid,function", NULL, 0},
        {&m->memory_bytes, METRIC_GAUGE, "kubeml_function_memory_bytes",
         "The most memory that was resident in a function's process.", "jobid,function", NULL, 0},
        {&m->gpu_percent, METRIC_GAUGE, "kubeml_function_gpu_percent",
         "How busy the function's GPU is, with all that run on it.", "jobid,function", NULL, 0},
        {&m->gpu_memory_bytes, METRIC_GAUGE, "kubeml_function_gpu_memory_bytes",
         "Memory of the function's GPU that is taken, by all that run on it.", "jobid,function",
         NULL, 0},
        {&m->gpu_watts, METRIC_GAUGE, "kubeml_function_gpu_watts",
         "Power that the function's GPU draws, with all that run on it.", "jobid,function", NULL,
         0},
        {&m->gpu_own_bytes, METRIC_GAUGE, "kubeml_function_gpu_own_bytes",
         "Memory of its GPU that the function's process has taken, where the driver tells.",
         "jobid,function", NULL, 0},
        {&m->gpu_own_percent, METRIC_GAUGE, "kubeml_function_gpu_own_percent",
         "How busy its GPU is with the function's process, where the driver tells.",
         "jobid,function", NULL, 0},
        {&m->running, METRIC_GAUGE, "kubeml_job_running_total", "Jobs that run.", "type", NULL, 0},
        {&m->jobs_total, METRIC_COUNTER, "kubeml_jobs_total", "Jobs that ended, by state.", "state",
         NULL, 0},
        {&m->queue, METRIC_GAUGE, "kubeml_queue_length", "Jobs that wait for slots.", "", NULL, 0},
        {&m->slots, METRIC_GAUGE, "kubeml_slots", "Functions that may run at once.", "", NULL, 0},
        {&m->slots_free, METRIC_GAUGE, "kubeml_slots_free", "Slots that no job holds.", "", NULL,
         0},
        {&m->pool_warm, METRIC_GAUGE, "kubeml_pool_warm", "Warm pods that wait for a job.", "role",
         NULL, 0},
        {&m->leads, METRIC_GAUGE, "kubeml_leads",
         "1 for the controller that schedules, 0 for one that stands by.", "", NULL, 0},
        {&m->pods, METRIC_GAUGE, "kubeml_pods", "Pods there are.", "", NULL, 0},
        {&m->start_seconds, METRIC_HISTOGRAM, "kubeml_job_start_seconds",
         "From the request to the first trained batch, by part of it.", "part", start_bounds,
         sizeof start_bounds / sizeof *start_bounds},
        {&m->http_requests, METRIC_COUNTER, "kubeml_http_requests_total", "Requests answered.",
         "method,path,status", NULL, 0},
        {&m->http_seconds, METRIC_HISTOGRAM, "kubeml_http_request_seconds",
         "From a request's line to its answer.", "method,path", http_bounds,
         sizeof http_bounds / sizeof *http_bounds},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        *families[i].to = metrics_add(m->all, families[i].kind, families[i].name, families[i].help,
                                      families[i].labels, families[i].bounds, families[i].count);
        if (!*families[i].to)
            return err_set(e, ERR_NOMEM, "no memory for the metrics");
    }
    /* Makes the series at 0 from the start: a series that begins with 1 shows no increase, and no
     * alert fires for the first job. */
    for (job_state state = JOB_SUCCEEDED; state <= JOB_SUSPENDED; state++)
        metric_add(m->jobs_total, 0, job_state_name(state), NULL, NULL);
    return 0;
}
