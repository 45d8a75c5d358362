/* job_internal.h: the jobs machine's parts, for job*.c alone.
 *
 * job.c         the machine: the step, its actions, restarts, its jobs
 * job_queue.c   which job starts next, and the slots for it
 * job_ps.c      a job and its kubeml-ps
 * job_end.c     verdicts, retries, the end
 * job_pod.c     the pods of a job from the request to the end
 * job_gpu.c     the GPU of each function
 * job_record.c  the record's text form, and the one reason */
#ifndef KUBEML_JOB_INTERNAL_H
#define KUBEML_JOB_INTERNAL_H

#include "job.h"

struct jobs {
    job_limits limits;
    int slots;
    int cpus;
    bool pods_own_cpus; /* each pod has `cpus`; otherwise all functions share them */
    bool adopting; /* between jobs_restore and JOB_ADOPT */
    int64_t now_ms, wall_ms;
    uint64_t next_order;
    job **job; /* in order of submission */
    size_t count, room;
    job **queue; /* (room) of the last jobs_look, in the order of starting */
    job_action *action;
    size_t actions, actions_room, reserved;
    gpu_policy gpu_policy;
    bool gpus_elsewhere; /* another program assigns GPUs: known are GPUs that pods have shown */
    int gpus;
    gpu_state gpu[GPU_COUNT_MAX]; /* with nothing booked; 0 bytes: the GPU is gone */
};

/* job.c */
job_action *jobs_emit(jobs *m, job_action_type type, const job *j);
/* Makes room for `more` actions a step, so that a step never allocates. 0, or -1 when memory is
 * gone. */
int jobs_reserve_actions(jobs *m, size_t more);
size_t job_pod_actions(const job *j); /* most actions of its pods in a step */
void job_save(jobs *m, job *j);
bool job_active(const job *j); /* starting or running */
void job_condition_set(jobs *m, job *j, const char *type, bool status, const char *reason,
                       const char *message);
int jobs_add(jobs *m, job *j, err *e); /* owns `j` from now on; frees it on error */

/* job_queue.c */
int jobs_slots_held(const jobs *m);
bool jobs_slots_for(const jobs *m, const job *j, int parallelism); /* free, or held by it already */
bool job_sooner(const job *a, const job *b);                       /* a starts before b */
int job_useful(const job *j, int functions); /* `functions`, or fewer if there are fewer chunks */
int job_wants(const jobs *m, const job *j);                        /* slots it needs to start */
bool job_possible(const jobs *m, const job *j); /* it would start on an empty platform */
job *jobs_next(const jobs *m);                  /* the next of the queue to start; NULL */
job *jobs_head(const jobs *m); /* the same, even if no known GPU could hold it */
void jobs_schedule(jobs *m);   /* starts the jobs that fit */
void job_recall_exact(job *j, const json_t *record); /* job_record.c */
void job_decide_threads(const jobs *m, job *j); /* once; after job_pods_room */

/* job_ps.c */
void job_start_ps(jobs *m, job *j); /* of the present generation */
void job_ps_lost(jobs *m, job *j, const char *reason, const char *message);
/* Takes note that there was a kubeml-ps of that generation, which the record may not have. */
void job_ps_before(jobs *m, job *j, int generation);
/* Lowers the conditions that are true only as long as the kubeml-ps that raised them is there. */
void job_ps_forget(jobs *m, job *j);
void job_ps_event(jobs *m, job *j, const job_event *event); /* JOB_PS_... */

/* job_end.c */
enum { JOB_AGAIN_MOST_MS = 360000 }; /* until a failed job is tried again */
void job_fail(jobs *m, job *j, const char *reason, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void job_cancel(jobs *m, job *j, const char *message);
void job_suspend(jobs *m, job *j, const char *message);
/* Ends the job at once: saves the record, sends `bye` to kubeml-ps, stops the pods. */
void job_end(jobs *m, job *j, job_state state, const char *reason, const char *message);
void job_carry_out(jobs *m, job *j); /* job_end with the verdict */
/* Until when kubeml-ps may carry out the verdict itself. */
int64_t job_verdict_due_ms(const jobs *m, job_state state);
void job_finished(jobs *m, job *j, const job_event *event);
/* Puts the job back into the queue, where it holds nothing. */
void job_wait_again(jobs *m, job *j);
void job_tell_stop(jobs *m, const job *j); /* sends the verdict to kubeml-ps */
/* The end of active_deadline_seconds, counted from the first start; INT64_MAX: none. */
int64_t job_deadline_ms(const job *j);
void job_check_deadline(jobs *m, job *j);

/* job_gpu.c */
bool job_on_gpu(const jobs *m, const job *j); /* its functions are placed on GPUs */
/* Places each of the first `functions` that has no GPU yet. Returns how many have one then; all, if
 * the job is not placed. jobs_unplace takes back places beyond the granted functions. */
int job_place(jobs *m, job *j, int functions);
/* How many of `functions` the GPUs hold when empty. */
int job_gpu_room(const jobs *m, const job *j, int functions);
/* Whether the empty GPUs hold all `functions`; with unknown GPUs as job_finds_room. */
bool job_gpus_hold(const jobs *m, const job *j, int functions);
/* Whether `functions` have a place or find room now. Where there may be GPUs that are not known, an
 * elastic job needs room for one function. */
bool job_finds_room(const jobs *m, const job *j, int functions);
/* Whether the job lacks a place, and a job that began before it does too: each may hold what the
 * other waits for. */
bool job_waits_behind(const jobs *m, const job *j);
/* Adds to `gpus` the places that active jobs lack and get before j (NULL: before a queued job). */
void jobs_gpu_wishes(const jobs *m, const job *j, gpu_state gpus[GPU_COUNT_MAX]);
/* Places the functions of pod p on the pod's GPU. */
void job_settle(job *j, const job_pod *p);
void job_unplace(job *j);
void jobs_unplace(jobs *m);
/* True if `functions` of the job cannot start for want of a GPU; explains it. `booked`: from
 * jobs_gpu_states. */
bool job_explain_gpu(const jobs *m, const job *j, int functions, const gpu_state *booked,
                     job_reason *out);

/* job_pod.c */
/* The function whose pod holds the function: 0 for a shared process, else itself. */
int job_process(const job *j, int function);
int job_pods_room(jobs *m, job *j); /* 0, or -1 when memory is gone */
int job_held(const job *j);         /* slots the job occupies */
int job_held_with(const job *j, int granted); /* slots it would occupy with `granted` functions */
bool job_function_exists(const job *j, int function); /* a pod of it is there or on its way */
bool pod_exists(const job_pod *p);                    /* it may use resources of the cluster */
int pod_functions(const job *j, const job_pod *p);    /* functions that live in it */
void pod_want(jobs *m, job *j, int function, int incarnation);
job_pod *pod_of(job *j, int function, int incarnation); /* not STOPPING or GONE; NULL */
job_pod *pod_ps(job *j);                                /* the present kubeml-ps, or NULL */
void pod_stop(jobs *m, job *j, job_pod *p);
void pod_kill(jobs *m, job *j, job_pod *p); /* stops it without grace: it does not answer */
int64_t pod_given_up_ms(const jobs *m, const job_pod *p); /* for a kubeml-ps not connected */
void pods_stop(jobs *m, job *j, bool ps_too);
void pod_tell(jobs *m, job *j, job_pod *p); /* SEND, ATTACH or SPECIALISE */
void pods_tell_gone(jobs *m, job *j);       /* reports ended pods; needs a connection */
void pods_tell_no_more(jobs *m, job *j);    /* reports that only the granted functions come */
/* The function cannot start: the job goes on without it. False: the job needs it. */
bool pod_missed(jobs *m, job *j, int function, const char *message);
void pod_found(jobs *m, job *j, const job_event *event);
void pod_waiting(jobs *m, job *j, const job_event *event);
void pod_ready(jobs *m, job *j, const job_event *event);
void pod_failed(jobs *m, job *j, job_pod *p, err_code code, const char *message);
void pod_unplaced(jobs *m, job *j, const job_event *event);
void pod_ended(jobs *m, const job_event *event);
void pod_unspecialised(jobs *m, job *j, const job_event *event);
void pods_time(jobs *m, job *j);
int64_t pods_deadline(const job *j);

#endif
