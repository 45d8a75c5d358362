/* job_ranks.h: `merge: nccl`: rounds of functions that are processes of their own, each on a GPU of
 * its own, averaged between the GPUs by NCCL; the second carrier of job_device.h, whose words stand
 * here.
 *
 * Every function says at `ready` which GPU it would be a rank on. When all have, and no two are on
 * one, what they train stays where it is. A communicator is made when a round is to be merged, of
 * all functions that are not at work: function 0 names it (`identify`), all join (`connect`), and
 * it stays as long as those are the same processes. Then all are asked to average; function 0, rank
 * 0, publishes the mean.
 *
 * A rank that ends, or an error of NCCL's, ends the communicator: the others are told to `leave`,
 * which they hear while they wait, and have what they trained as before. Once the lost contribution
 * is there again the next communicator is tried; what goes wrong again and again is the host's from
 * then on. */
#ifndef KUBEML_PS_JOB_RANKS_H
#define KUBEML_PS_JOB_RANKS_H

#include <jansson.h>

#include "common/contract/reduce_placement.h"
#include "common/round/round.h"
#include "ps_job.h"
#include "ps/conn/connections.h"

enum { JOB_RANK_BYTES = 64, JOB_RANKS_CALL_MS = 60000 };

struct device_offer;

typedef enum ranks_stage { RANKS_NONE, RANKS_IDENTIFY, RANKS_CONNECT, RANKS_READY } ranks_stage;

typedef struct job_ranks {
    bool chosen;                                   /* the job's models are averaged so */
    char gpu[ROUND_FUNCTIONS_MAX][JOB_RANK_BYTES]; /* of each function; "": it is no rank */
    ranks_stage stage;
    int set, count, joined; /* the communicator's number; its ranks; how many have said so */
    int function[ROUND_FUNCTIONS_MAX], incarnation[ROUND_FUNCTIONS_MAX]; /* by rank */
} job_ranks;

void job_ranks_ready(job *j, const conn *c, const struct device_offer *offer);
bool job_ranks_reduce_root(const job *j); /* function 0 is there to lead the open merge */
/* The open merge, all of whose contributions are on the GPUs. */
void job_ranks_merge(job *j);
int job_ranks_identified(job *j, conn *c, const json_t *m, err *e);
int job_ranks_connected(job *j, conn *c, const json_t *m, err *e);
/* Function `whose` (-1: unknown) says that there is no mean. */
void job_ranks_failed(job *j, err_code code, int whose, const char *message);
/* A rank has ended: gives up what was in hand. */
void job_ranks_settle(job *j);
void job_ranks_leave(job *j);                    /* whoever is still in the communicator */
bool job_ranks_has(const job *j, const conn *c); /* that process is a rank of it */

#endif
