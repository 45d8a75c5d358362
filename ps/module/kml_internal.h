/* kml_internal.h: what the files behind kml_logic.h share, for kml_*.c alone.
 *
 * kml_logic.c      a job: its life, publishing, reading
 * kml_merge.c      merging
 * kml_save.c       saving and loading
 * kml_arguments.c  numbers from arguments */
#ifndef KUBEML_KML_INTERNAL_H
#define KUBEML_KML_INTERNAL_H

#include <stdatomic.h>

#include "common/modelstore/merge.h"
#include "common/modelstore/shm.h"
#include "kml_logic.h"

/* One function's contribution to the open round. */
typedef struct publication {
    bool published;
    int incarnation; /* -1: nothing yet */
    int slot;        /* -1: in chunks */
    uint64_t samples, checksum;
    void **owner;       /* (chunks) NULL: nothing staged */
    const void **chunk; /* (chunks) where the owners' bytes are; set as a merge begins */
    size_t chunks_here;
} publication;

struct logic_job {
    const logic_host *host;
    atomic_int holders;
    atomic_bool dead; /* no longer the value of a key */
    bool merging;
    block_shape shape;
    uint64_t layout_digest;
    char *layout;
    size_t layout_len;
    int64_t version, epoch, round;
    bool present;
    uint64_t checksum;
    char *ledger; /* elements joined by ",", without the brackets */
    size_t ledger_len, ledger_cap;
    shm *segment;
    void *own[2]; /* without a segment: references by parity */
    publication pub[LOGIC_FUNCTIONS_MAX];
};

/* kml_arguments.c: ERR_INVALID naming the argument */
int arg_count(int argc, int want, const char *command, err *e);
int arg_i64(const logic_arg *a, const char *name, int64_t *out, err *e);
int arg_range(const logic_arg *a, const char *name, int64_t low, int64_t high, int64_t *out,
              err *e);
int arg_int(const logic_arg *a, const char *name, int low, int high, int *out, err *e);
int arg_hash(const logic_arg *a, const char *name, uint64_t *out, err *e);

/* kml_logic.c */
char *logic_copy_text(const char *bytes, size_t len); /* NULL when memory is gone */
size_t logic_float_chunks(block_shape s);
size_t logic_chunks(block_shape s); /* floats' first, then counters' */
char *logic_chunk_at(block_shape s, block b, size_t i, size_t *len);
block logic_reference(const logic_job *j, int64_t version);
/* Without a segment: memory for the reference of that version's parity. */
int logic_reserve_own(logic_job *j, int64_t version, err *e);
logic_job *logic_job_new(const logic_host *host, block_shape shape); /* one holder; NULL */
void logic_job_drop(logic_job *j);                                   /* by one of its holders */
/* Forgets what was published. A lower incarnation stays refused. */
void logic_publication_forget(logic_job *j, publication *p);
void logic_publications_reset(logic_job *j);
void logic_show_state(const logic_job *j); /* in the segment */
int logic_check_round(const logic_job *j, int64_t epoch, int64_t round, err *e);
int logic_check_version(const logic_job *j, int64_t version, err *e);
int logic_check_not_merging(const logic_job *j, err_code busy, err *e);

#endif
