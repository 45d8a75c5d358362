/* ps_job_internal.h: the jobs machine's parts, for job*.c alone.
 *
 * job.c         the machine: the step, what it says, restarts, who is in it
 * job_queue.c   who starts next, and the slots for it
 * job_ps.c      a job and its kubeml-ps
 * job_end.c     verdicts, retries, the end
 * job_pod.c     the pods of a job from the wish to the end
 * job_gpu.c     on which GPU each function is
 * job_record.c  the record's text form, and the one reason */
#ifndef KUBEML_JOB_INTERNAL_H
#define KUBEML_JOB_INTERNAL_H

#include "job.h"

struct jobs {
    job_limits limits;
    int slots;
    int cpus;
    bool pods_own_cpus; /* `cpus` are each pod's; otherwise all functions share them */
    bool adopting; /* restored, and the found pods not all told */
    int64_t now_ms, wall_ms;
    uint64_t next_order;
    job **job; /* in order of submission */
    size_t count, room;
    job **queue; /* (room) of the last jobs_look, in the order in which they start */
    job_action *action;
    size_t actions, actions_room, reserved;
    gpu_policy gpu_policy;
    bool gpus_elsewhere; /* others hand out GPUs: known are those that pods have shown */
    int gpus;
    gpu_state gpu[GPU_COUNT_MAX]; /* with nothing on them; of 0 bytes: gone */
};

/* job.c */
job_action *jobs_emit(jobs *m, job_action_type type, const job *j);
/* Room for `more` actions a step, so that a step never allocates. 0, or -1 when memory is gone. */
int jobs_reserve_actions(jobs *m, size_t more);
size_t job_pod_actions(const job *j); /* what its pods may need in a step */
void job_save(jobs *m, job *j);
bool job_active(const job *j); /* starting or running */
void job_condition_set(jobs *m, job *j, const char *type, bool status, const char *reason,
                       const char *message);
int jobs_add(jobs *m, job *j, err *e); /* takes `j` over, also when it fails */

/* job_queue.c */
int jobs_slots_held(const jobs *m);
bool jobs_slots_for(const jobs *m, const job *j, int parallelism); /* free, or held by it already */
bool job_sooner(const job *a, const job *b);                       /* starts before b */
int job_useful(const job *j, int functions); /* of so many, those that it is to have */
int job_wants(const jobs *m, const job *j);                        /* slots it needs to start */
bool job_possible(const jobs *m, const job *j); /* it would start if nothing else were there */
job *jobs_next(const jobs *m);                  /* the next of the queue to start; NULL */
job *jobs_head(const jobs *m); /* the same, also if no GPU that is known could hold it */
void jobs_schedule(jobs *m);   /* starts those that may */
void job_recall_exact(job *j, const json_t *record); /* job_record.c */
void job_decide_threads(const jobs *m, job *j); /* once; after job_pods_room */

/* job_ps.c */
void job_start_ps(jobs *m, job *j); /* of the present generation */
void job_ps_lost(jobs *m, job *j, const char *reason, const char *message);
/* A kubeml-ps of that generation has been there, whatever the record says. */
void job_ps_before(jobs *m, job *j, int generation);
/* Lowers the conditions that its kubeml-ps has raised for the time that it is there. */
void job_ps_forget(jobs *m, job *j);
void job_ps_event(jobs *m, job *j, const job_event *event); /* JOB_PS_... */

/* job_end.c */
enum { JOB_AGAIN_MOST_MS = 360000 }; /* until a failed job is tried again */
void job_fail(jobs *m, job *j, const char *reason, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void job_cancel(jobs *m, job *j, const char *message);
void job_suspend(jobs *m, job *j, const char *message);
/* Ends at once: record, verdict told, pods stopped. */
void job_end(jobs *m, job *j, job_state state, const char *reason, const char *message);
void job_carry_out(jobs *m, job *j); /* the verdict, likewise */
/* How long kubeml-ps has to carry it out itself. */
int64_t job_verdict_due_ms(const jobs *m, job_state state);
void job_finished(jobs *m, job *j, const job_event *event);
/* Back into the queue: it holds nothing while it waits. */
void job_wait_again(jobs *m, job *j);
void job_tell_stop(jobs *m, const job *j); /* kubeml-ps of the verdict */
/* When active_deadline_seconds, counted from the first start, are over; INT64_MAX: never. */
int64_t job_deadline_ms(const job *j);
void job_check_deadline(jobs *m, job *j);

/* job_gpu.c */
bool job_on_gpu(const jobs *m, const job *j); /* its functions are to be placed */
/* Gives each of the first `functions` a GPU that has none; how many have one then (all, where none
 * is wanted). What is placed beyond what is granted is taken back by jobs_unplace. */
int job_place(jobs *m, job *j, int functions);
/* of that many, how many the GPUs hold when empty */
int job_gpu_room(const jobs *m, const job *j, int functions);
/* whether all of them find room there; as below, where there may be others */
bool job_gpus_hold(const jobs *m, const job *j, int functions);
/* whether that many find room now, beside those that have a place; where there may be GPUs that
 * nobody knows of, an elastic job needs room for one */
bool job_finds_room(const jobs *m, const job *j, int functions);
/* whether it lacks a place, and a job that began before it does too: each may have what the other
 * waits for */
bool job_waits_behind(const jobs *m, const job *j);
/* Books, beside what is booked, what active jobs lack and get before j (NULL: one of the queue). */
void jobs_gpu_wishes(const jobs *m, const job *j, gpu_state gpus[GPU_COUNT_MAX]);
/* Its functions are where that pod of theirs is. */
void job_settle(job *j, const job_pod *p);
void job_unplace(job *j);
void jobs_unplace(jobs *m);
/* True where it is for want of a GPU that `functions` of it cannot start; `booked` by
 * jobs_gpu_states. */
bool job_explain_gpu(const jobs *m, const job *j, int functions, const gpu_state *booked,
                     job_reason *out);

/* job_pod.c */
/* The function whose pod it lives in: 0 of a shared process. */
int job_process(const job *j, int function);
int job_pods_room(jobs *m, job *j); /* 0, or -1 when memory is gone */
int job_held(const job *j);         /* slots the job occupies */
int job_held_with(const job *j, int granted); /* would occupy with so many functions granted */
bool job_function_exists(const job *j, int function); /* a pod of it is there or on its way */
bool pod_exists(const job_pod *p);                    /* it may take something somewhere */
int pod_functions(const job *j, const job_pod *p);    /* that live in it */
void pod_want(jobs *m, job *j, int function, int incarnation);
job_pod *pod_of(job *j, int function, int incarnation); /* not STOPPING or GONE; NULL */
job_pod *pod_ps(job *j);                                /* the present kubeml-ps, or NULL */
void pod_stop(jobs *m, job *j, job_pod *p);
void pod_kill(jobs *m, job *j, job_pod *p); /* one that does not answer: without grace */
int64_t pod_given_up_ms(const jobs *m, const job_pod *p); /* a kubeml-ps without a connection */
void pods_stop(jobs *m, job *j, bool ps_too);
void pod_tell(jobs *m, job *j, job_pod *p); /* SEND, ATTACH or SPECIALISE */
void pods_tell_gone(jobs *m, job *j);       /* after a connection to kubeml-ps was made */
void pods_tell_no_more(jobs *m, job *j);    /* that no more functions can be had than granted */
/* That function cannot start: the job goes on without. False: it must have it. */
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
