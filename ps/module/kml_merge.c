/* kml_merge.c: MERGE, from the check of its arguments to the commit. See kml_logic.h. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kml_internal.h"

enum { LONG_MERGE_BYTES = 8 << 20 }; /* read by the merge; about 2 ms */

struct logic_merge {
    logic_job *job;
    const merge_rule *rule;
    int64_t next_epoch, next_round;
    char *ledger; /* the element to append */
    size_t ledger_len;
    int count;
    merge_input *in;        /* (count) */
    const void *(*flat)[2]; /* (count) chunks of inputs that lie in a slot */
    int status;
    merge_result result;
    err e;
};

static int merge_input_set(logic_merge *m, merge_input *in, const void *flat[2], err *e)
{
    logic_job *j = m->job;
    publication *p = &j->pub[in->function];
    if (!p->published || p->incarnation != in->incarnation)
        return err_set(e, ERR_CONFLICT, "function %d (incarnation %d) has not published",
                       in->function, in->incarnation);
    if (p->samples != in->samples)
        return err_set(e, ERR_CONFLICT, "function %d published %llu samples, not %llu",
                       in->function, (unsigned long long)p->samples,
                       (unsigned long long)in->samples);
    in->checksum = p->checksum;
    if (p->slot < 0) {
        for (size_t i = 0; i < logic_chunks(j->shape); i++)
            p->chunk[i] = j->host->text(p->owner[i]);
        in->chunk_bytes = LOGIC_CHUNK_BYTES;
        in->float_chunks = p->chunk;
        in->counter_chunks = p->chunk + logic_float_chunks(j->shape);
        return 0;
    }
    block b;
    if (shm_slot(j->segment, p->slot, false, &b, e))
        return -1;
    merge_input_contiguous(in, &b, flat);
    return 0;
}

static int merge_parse_parts(logic_merge *m, const logic_arg *argv, err *e)
{
    m->in = calloc((size_t)m->count, sizeof *m->in);
    m->flat = calloc((size_t)m->count, sizeof *m->flat);
    if (!m->in || !m->flat)
        return err_set(e, ERR_NOMEM, "no memory for a round's list");
    for (int i = 0; i < m->count; i++) {
        int64_t samples;
        merge_input *in = &m->in[i];
        if (arg_int(&argv[3 * i], "function", 0, LOGIC_FUNCTIONS_MAX - 1, &in->function, e) ||
            arg_int(&argv[3 * i + 1], "incarnation", 0, INT_MAX, &in->incarnation, e) ||
            arg_range(&argv[3 * i + 2], "samples", 0, INT64_MAX, &samples, e))
            return -1;
        if (i > 0 && in->function <= m->in[i - 1].function)
            return err_set(e, ERR_INVALID, "the round's functions are not in ascending order");
        in->samples = (uint64_t)samples;
        if (merge_input_set(m, in, m->flat[i], e))
            return -1;
    }
    return 0;
}

/* Like modelstore_ledger_full. A full ledger begins anew with the next element. */
static bool ledger_is_full(const logic_job *j, size_t more)
{
    return j->ledger_len + more + 3 > LOGIC_LEDGER_BYTES_MAX;
}

/* Makes room now, so that the commit cannot fail. */
static int reserve_ledger(logic_job *j, size_t more, err *e)
{
    size_t need = (ledger_is_full(j, more) ? 0 : j->ledger_len) + more + 2;
    if (need > LOGIC_LEDGER_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "an element of %zu bytes for the ledger, at most %d fit", more,
                       LOGIC_LEDGER_BYTES_MAX);
    if (need <= j->ledger_cap)
        return 0;
    char *bigger = realloc(j->ledger, need * 2);
    if (!bigger)
        return err_set(e, ERR_NOMEM, "no memory for the ledger");
    j->ledger = bigger;
    j->ledger_cap = need * 2;
    return 0;
}

static int merge_parse_rule(logic_merge *m, const logic_arg *rule, const logic_arg *ledger, err *e)
{
    char name[32];
    size_t len = rule->len < sizeof name - 1 ? rule->len : sizeof name - 1;
    memcpy(name, rule->bytes, len);
    name[len] = '\0';
    if (merge_rule_find(name, &m->rule, e) || reserve_ledger(m->job, ledger->len, e))
        return -1;
    m->ledger = logic_copy_text(ledger->bytes, ledger->len);
    m->ledger_len = ledger->len;
    return m->ledger ? 0 : err_set(e, ERR_NOMEM, "no memory for the ledger");
}

static int merge_prepare(logic_merge *m, int argc, const logic_arg *argv, err *e)
{
    logic_job *j = m->job;
    int64_t epoch, round, version;
    if (argc < 8)
        return err_set(e, ERR_INVALID, "MERGE takes at least 8 arguments after the key");
    if (arg_i64(&argv[0], "epoch", &epoch, e) || arg_i64(&argv[1], "round", &round, e) ||
        arg_i64(&argv[2], "version", &version, e) ||
        arg_i64(&argv[3], "next_epoch", &m->next_epoch, e) ||
        arg_i64(&argv[4], "next_round", &m->next_round, e) ||
        arg_int(&argv[7], "count", 1, LOGIC_FUNCTIONS_MAX, &m->count, e) ||
        arg_count(argc, 8 + 3 * m->count, "MERGE", e) || logic_check_round(j, epoch, round, e) ||
        logic_check_version(j, version, e) || logic_check_not_merging(j, ERR_UNAVAILABLE, e))
        return -1;
    if (m->next_epoch < epoch || (m->next_epoch == epoch && m->next_round <= round))
        return err_set(e, ERR_INVALID, "the next round is not after the one that is merged");
    if (j->segment && !shm_whole(j->segment))
        return err_set(e, ERR_CORRUPT, "the segment was cut short");
    return merge_parse_rule(m, &argv[5], &argv[6], e) || merge_parse_parts(m, argv + 8, e) ||
                   logic_reserve_own(j, version + 1, e)
               ? -1
               : 0;
}

static void merge_free(logic_merge *m)
{
    free(m->ledger);
    free(m->in);
    free(m->flat);
    logic_job_drop(m->job);
    free(m);
}

int logic_merge_begin(logic_job *j, int argc, const logic_arg *argv, logic_merge **out, err *e)
{
    logic_merge *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for a merge");
    m->job = j;
    atomic_fetch_add(&j->holders, 1);
    if (merge_prepare(m, argc, argv, e)) {
        merge_free(m);
        return -1;
    }
    j->merging = true;
    *out = m;
    return 0;
}

bool logic_merge_is_long(const logic_merge *m)
{
    return block_bytes(m->job->shape) * (size_t)m->count > LONG_MERGE_BYTES;
}

void logic_merge_run(logic_merge *m)
{
    logic_job *j = m->job;
    int pays = merge_threads(j->shape, m->count);
    int threads = j->host->threads > 0 && j->host->threads < pays ? j->host->threads : pays;
    block to = logic_reference(j, j->version + 1);
    m->status = merge_run(m->rule, j->shape, m->in, m->count, to, threads, &m->result, &m->e);
}

static void append_ledger(logic_job *j, const char *element, size_t len)
{
    if (len == 0)
        return;
    if (ledger_is_full(j, len))
        j->ledger_len = 0;
    if (j->ledger_len > 0)
        j->ledger[j->ledger_len++] = ',';
    memcpy(j->ledger + j->ledger_len, element, len);
    j->ledger_len += len;
}

static void commit(logic_merge *m)
{
    logic_job *j = m->job;
    append_ledger(j, m->ledger, m->ledger_len);
    j->version++;
    j->present = true;
    j->checksum = m->result.checksum;
    j->epoch = m->next_epoch;
    j->round = m->next_round;
    logic_publications_reset(j);
    logic_show_state(j);
}

/* Forgets a refused publication, so that the function or its replacement can publish again. */
static int refused(logic_merge *m, err *e)
{
    if (e)
        *e = m->e;
    if (m->result.bad < 0)
        return -1;
    int function = m->in[m->result.bad].function;
    logic_publication_forget(m->job, &m->job->pub[function]);
    if (e) /* "@3 ...": for the client, which needs the number */
        snprintf(e->message, sizeof e->message, "@%d %.240s", function, m->e.message);
    return -1;
}

int logic_merge_end(logic_merge *m, const logic_reply *r, err *e)
{
    logic_job *j = m->job;
    int rc = 0;
    j->merging = false;
    if (atomic_load(&j->dead))
        rc = err_set(e, ERR_NOT_FOUND, "the job was removed while its round was merged");
    else if (m->status != 0)
        rc = refused(m, e);
    else
        commit(m);
    if (rc == 0 && r) {
        r->array(r->user, 4);
        r->integer(r->user, j->version);
        r->integer(r->user, j->epoch);
        r->integer(r->user, j->round);
        r->integer(r->user, (int64_t)j->checksum);
    }
    merge_free(m);
    return rc;
}
