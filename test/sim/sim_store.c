/* sim_store.c: the model store, the ledger and the checkpoints of the simulated world, with the
 * checks that a real one cannot make. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

redis *redis_new(sim *s)
{
    redis *r = calloc(1, sizeof *r);
    if (!r || s->redises == SIM_PROCESSES_MAX)
        abort();
    r->up = true;
    r->model.version = -1;
    s->all_redis[s->redises++] = r;
    return r;
}

uint64_t model_first(const sim_job *j)
{
    return sim_mix(j->request.seed, j->request.init[0] ? 99 : 1);
}

uint64_t model_contribution(uint64_t base, int epoch, int parallelism, int function, uint64_t begin,
                            uint64_t end)
{
    uint64_t h =
        sim_mix(base, (uint64_t)epoch << 32 | (uint64_t)parallelism << 16 | (uint64_t)function);
    return sim_mix(h, begin << 32 | end);
}

/* Growing accuracy with noise, the same on every machine. */
uint64_t model_correct(uint64_t value, int function, uint64_t samples)
{
    return sim_mix(value, (uint64_t)function) % (samples + 1);
}

static uint64_t model_merge(uint64_t base, const uint64_t *value, const uint64_t *samples, size_t n,
                            uint64_t divisor)
{
    uint64_t h = sim_mix(base, divisor);
    for (size_t i = 0; i < n; i++)
        h = sim_mix(sim_mix(h, value[i]), samples[i]);
    return h;
}

static int shard_plan_of(sim *s, int who, int epoch, int parallelism, shard_plan *d)
{
    const sim_job *j = &s->job[who];
    err e = ERR_INIT;
    if (shard_plan_init(d,
                        &(shard_plan_spec){.seed = j->request.seed,
                                           .samples = j->samples,
                                           .chunk_samples = j->chunk_samples,
                                           .batch_size = (uint32_t)j->request.batch_size,
                                           .parallelism = parallelism,
                                           .epoch = (uint32_t)epoch},
                        &e) < 0) {
        sim_wrong(s, "the deal of epoch %d for %d functions: %s", epoch, parallelism, e.message);
        return -1;
    }
    return 0;
}

/* The rows of the ledger's epoch must count every sample of the set at most once; `whole`:
 * exactly. */
static void check_samples(sim *s, int who, const sim_model *m, bool whole)
{
    const sim_job *j = &s->job[who];
    unsigned char seen[SIM_SAMPLES_MAX] = {0};
    uint32_t order[SIM_SAMPLES_MAX];
    uint64_t count = 0;
    shard_plan d;
    if (shard_plan_of(s, who, m->rows_epoch, m->parallelism, &d) < 0)
        return;
    for (int f = 0; f < m->parallelism; f++) {
        if (d.share[f] > j->samples) {
            sim_wrong(s, "a share of %llu samples", (unsigned long long)d.share[f]);
            break;
        }
        shard_plan_order(&d, f, order);
        for (int i = 0; i < m->rows; i++) {
            const round_row *row = &m->row[i];
            for (uint64_t at = row->sample_begin; row->function == f && at < row->sample_end;
                 at++) {
                uint32_t chunk, offset;
                if (at >= d.share[f])
                    break;
                shard_plan_locate(&d, f, order[at], &chunk, &offset);
                uint64_t sample = (uint64_t)chunk * j->chunk_samples + offset;
                if (sample >= j->samples || seen[sample]++)
                    sim_wrong(s, "job %s, epoch %d: sample %llu counted twice (function %d)", j->id,
                              m->rows_epoch, (unsigned long long)sample, f);
                count++;
            }
        }
    }
    if (whole && count != j->samples)
        sim_wrong(s, "job %s, epoch %d: %llu of %llu samples counted", j->id, m->rows_epoch,
                  (unsigned long long)count, (unsigned long long)j->samples);
    shard_plan_free(&d);
}

/* What is stated about the merge itself, before anything is looked up. */
static void check_merge(sim *s, int who, const redis *r, const round_merge *m)
{
    const sim_job *j = &s->job[who];
    uint64_t sum = 0;
    if (m->count == 0)
        sim_wrong(s, "job %s: a merge of nothing", j->id);
    for (size_t i = 0; i < m->count; i++) {
        sum += m->rows[i].samples;
        if (i > 0 && m->rows[i].function <= m->rows[i - 1].function)
            sim_wrong(s, "job %s: merge out of function order", j->id);
        if (m->rows[i].epoch != m->epoch || m->rows[i].round != m->round)
            sim_wrong(s, "job %s: a row of epoch %d, round %d in the merge of %d, %d", j->id,
                      m->rows[i].epoch, m->rows[i].round, m->epoch, m->round);
        if (m->rows[i].samples != m->rows[i].sample_end - m->rows[i].sample_begin)
            sim_wrong(s, "job %s: a row's samples are not its range", j->id);
    }
    if (sum != m->samples)
        sim_wrong(s, "job %s: divisor %llu for %llu merged samples", j->id,
                  (unsigned long long)m->samples, (unsigned long long)sum);
    if (m->epoch != r->model.epoch || m->round != r->model.round)
        sim_wrong(s, "job %s: merge of epoch %d, round %d; open is %d, %d", j->id, m->epoch,
                  m->round, r->model.epoch, r->model.round);
}

/* As one: the whole merge is in function 0's place, whichever of its rows is looked at. */
static const sim_share *find_share(const sim_place *p, const round_merge *m, const round_row *row)
{
    int publisher = m->as_one ? 0 : row->function;
    if (!p->published || p->writing || p->function != publisher ||
        p->incarnation != row->incarnation || p->epoch != row->epoch || p->round != row->round ||
        p->samples != (m->as_one ? m->samples : row->samples))
        return NULL;
    for (int i = 0; i < p->shares.count; i++)
        if (p->shares.of[i].function == row->function)
            return &p->shares.of[i];
    return NULL;
}

/* Merges as the model store would: idempotent, all or nothing. Returns the err_code. */
int redis_merge(sim *s, int who, redis *r, const round_merge *m, int *bad)
{
    uint64_t value[SIM_FUNCTIONS_MAX], samples[SIM_FUNCTIONS_MAX];
    sim_model *now = &r->model;
    *bad = -1;
    if (!r->up)
        return ERR_UNAVAILABLE;
    if (now->version < 0)
        return ERR_NOT_FOUND;
    if (now->version == m->base_version + 1 && now->epoch == m->next_epoch &&
        now->round == m->next_round)
        return ERR_NONE; /* by an earlier try */
    if (now->version < m->base_version)
        return ERR_STALE; /* an older state was put back after the merge was sent */
    if (now->version > m->base_version) {
        sim_wrong(s, "job %s: merge onto version %lld of version %lld", s->job[who].id,
                  (long long)m->base_version, (long long)now->version);
        return ERR_STALE;
    }
    check_merge(s, who, r, m);
    for (size_t i = 0; i < m->count; i++) {
        const sim_place *p = &r->place[m->rows[i].slot];
        const sim_share *share = m->rows[i].slot < 0 || m->rows[i].slot >= SIM_SLOTS_MAX
                                     ? NULL
                                     : find_share(p, m, &m->rows[i]);
        if (!share) {
            *bad = m->as_one ? 0 : m->rows[i].function;
            return ERR_CORRUPT;
        }
        value[i] = share->value;
        samples[i] = m->rows[i].samples;
        if (value[i] != model_contribution(now->value, m->epoch, m->parallelism,
                                           m->rows[i].function, m->rows[i].sample_begin,
                                           m->rows[i].sample_end))
            sim_wrong(s, "job %s: function %d's contribution is not of this round", s->job[who].id,
                      m->rows[i].function);
    }
    if (now->rows == 0 || now->rows_epoch != m->epoch) {
        now->rows = 0;
        now->rows_epoch = m->epoch;
        now->parallelism = m->parallelism;
    }
    if (now->rows + (int)m->count > SIM_ROWS_MAX) {
        sim_wrong(s, "job %s: more rows than there can be", s->job[who].id);
        return ERR_LIMIT;
    }
    memcpy(&now->row[now->rows], m->rows, m->count * sizeof *m->rows);
    now->rows += (int)m->count;
    now->value = model_merge(now->value, value, samples, m->count, m->samples);
    now->version++;
    now->epoch = m->next_epoch;
    now->round = m->next_round;
    check_samples(s, who, now, m->next_epoch != m->epoch);
    return ERR_NONE;
}

/* The history bears the number of who wrote it last, and is not an older one's any more. */
static err_code fence(const sim *s, const sim_job *j, int generation)
{
    return !s->store_up ? ERR_UNAVAILABLE : j->writer > generation ? ERR_STALE : ERR_NONE;
}

err_code store_claim(sim *s, int who, int generation)
{
    sim_job *j = &s->job[who];
    err_code code = fence(s, j, generation);
    if (code == ERR_NONE && j->writer < 0)
        j->unfenced = generation;
    if (code || j->writer < 0 || (j->final && j->end.state == JOB_SUCCEEDED))
        return code;
    j->writer = generation;
    j->final = false;
    return ERR_NONE;
}

/* A row each of what functions have contributed to the epoch so far, as the history has them. */
static void keep_open(sim *s, sim_job *j, const sim_model *m)
{
    sim_model *to = &j->open_model;
    *to = *m;
    to->rows = 0;
    for (int i = 0; i < m->rows; i++) {
        const round_row *row = &m->row[i];
        int at = 0;
        while (at < to->rows && to->row[at].function != row->function)
            at++;
        round_row *all = &to->row[at];
        if (at == to->rows) {
            to->rows++;
            *all = *row;
            continue;
        }
        if (all->sample_end != row->sample_begin)
            sim_wrong(s, "job %s: function %d's rows do not continue", j->id, row->function);
        all->incarnation = row->incarnation;
        all->round = row->round;
        all->samples += row->samples;
        all->sample_end = row->sample_end;
        all->batches += row->batches;
    }
    j->open = true;
}

err_code store_end(sim *s, int who, int generation, const ps *p)
{
    sim_job *j = &s->job[who];
    err_code code = fence(s, j, generation);
    const sim_model *m = &p->merged;
    if (code)
        return code;
    j->writer = generation;
    j->final = true;
    j->end = p->end;
    if (p->end.state == JOB_SUSPENDED && m->version >= 0 && m->rows > 0 &&
        m->epoch == m->rows_epoch)
        keep_open(s, j, m); /* else the one that it was resumed with stays */
    return ERR_NONE;
}

err_code store_commit(sim *s, int who, int generation, const ps *p, const round_epoch *record)
{
    sim_job *j = &s->job[who];
    err_code code = fence(s, j, generation);
    if (code)
        return code;
    const sim_model *m = &p->merged;
    int e = record->epoch;
    if (e > j->committed || e >= SIM_EPOCHS_MAX) {
        sim_wrong(s, "job %s: epoch %d committed after %d epochs", j->id, e, j->committed);
        return ERR_NONE;
    }
    if (m->version != record->version || m->rows_epoch != e || m->epoch != e + 1 ||
        m->parallelism != record->parallelism || record->samples != j->samples)
        sim_wrong(s, "job %s: epoch %d committed with the model of another moment", j->id, e);
    if (e < j->committed && j->request.on_loss == ON_LOSS_RECOMPUTE &&
        (j->epoch[e].value != m->value) && j->epoch[e].record.parallelism == record->parallelism)
        sim_wrong(s, "job %s: epoch %d committed twice with other weights", j->id, e);
    j->epoch[e].record = *record;
    j->epoch[e].value = m->value;
    bool fenced = j->writer >= generation || j->unfenced != generation;
    if (e + 1 < j->committed && fenced)
        sim_wrong(s, "job %s: %d epochs are committed where %d were", j->id, e + 1, j->committed);
    j->committed = e + 1;
    j->open = false;
    j->writer = generation;
    return ERR_NONE;
}

uint64_t store_reference(sim *s, int who)
{
    const sim_job *j = &s->job[who];
    uint64_t weights = model_first(j);
    for (int e = 0; e < j->committed; e++) {
        int parallelism = j->epoch[e].record.parallelism;
        shard_plan d;
        if (shard_plan_of(s, who, e, parallelism, &d) < 0)
            return 0;
        for (uint32_t r = 0; r < shard_plan_rounds(&d, j->request.k); r++) {
            uint64_t value[SIM_FUNCTIONS_MAX], samples[SIM_FUNCTIONS_MAX], divisor = 0;
            size_t n = 0;
            for (int f = 0; f < parallelism; f++) {
                uint32_t first, count;
                uint64_t begin, end;
                shard_plan_range(&d, f, j->request.k, r, &first, &count);
                shard_plan_samples(&d, f, first, count, &begin, &end);
                if (count == 0)
                    continue;
                value[n] = model_contribution(weights, e, parallelism, f, begin, end);
                samples[n] = end - begin;
                divisor += samples[n++];
            }
            weights = model_merge(weights, value, samples, n, divisor);
        }
        shard_plan_free(&d);
    }
    return weights;
}
