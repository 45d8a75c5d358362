/* job_record.c: see job_record.h. */
#include "job_record.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

int job_record_init(job_record *r, const job_spec *spec, err *e)
{
    const history_subject of = {.job = spec->id,
                                .seed = spec->request.seed,
                                .task = spec->task,
                                .function = spec->function,
                                .dataset = spec->dataset};
    *r = (job_record){.shares = json_array()};
    r->of_targets = json_integer_value(json_object_get(spec->dataset, "targets")) > 0;
    r->history = history_new(&of, e);
    return r->history ? 0 : -1;
}

void job_record_free(job_record *r)
{
    history_free(r->history);
    json_decref(r->shares);
    json_decref(r->losses);
}

/* ---- the open epoch -------------------------------------------------------------------------- */

static bool extend_share(json_t *shares, const round_row *row)
{
    size_t i;
    json_t *one;
    json_array_foreach (shares, i, one) {
        if (json_integer_value(json_array_get(one, 0)) != row->function ||
            json_integer_value(json_array_get(one, 1)) != row->incarnation ||
            json_integer_value(json_array_get(one, 3)) != (json_int_t)row->sample_begin)
            continue;
        json_array_set_new(one, 3, json_integer((json_int_t)row->sample_end));
        return true;
    }
    return false;
}

static void note_row(job_record *rec, int parallelism, const round_row *r)
{
    round_row *o = &rec->open[r->function];
    rec->open_parallelism = parallelism;
    if (o->batches == 0) {
        *o = *r;
        return;
    }
    o->incarnation = r->incarnation;
    o->round = r->round;
    o->samples += r->samples;
    o->sample_end = r->sample_end;
    o->loss_sum += r->loss_sum;
    o->batches += r->batches;
}

static void note_share(json_t *shares, const round_row *r)
{
    if (!extend_share(shares, r))
        json_array_append_new(shares,
                              json_pack("[i,i,I,I]", r->function, r->incarnation,
                                        (json_int_t)r->sample_begin, (json_int_t)r->sample_end));
}

/* The digest leaves incarnations out: it is the same for a job whose functions were replaced. */
void job_record_merge(job_record *r, const round_merge *merge, const round_row *rows,
                      double seconds)
{
    digest_sum *d;
    err e = ERR_INIT;
    r->seconds.merge += seconds;
    if (digest_new(&d, &e)) {
        log_error("%s", e.message);
        return;
    }
    digest_update(d, r->ledger, strlen(r->ledger));
    for (size_t i = 0; i < merge->count; i++) {
        const round_row *row = &rows[i];
        char line[160];
        int len = snprintf(line, sizeof line, "%d %d %d %" PRIu64 " %" PRIu64 "\n", row->epoch,
                           row->round, row->function, row->sample_begin, row->sample_end);
        digest_update(d, line, (size_t)len);
        note_row(r, merge->parallelism, row);
        note_share(r->shares, row);
    }
    digest_finish_hex(d, r->ledger);
    digest_free(d);
}

void job_record_seconds(job_record *r, const job_seconds *s, size_t functions)
{
    r->seconds.fetch += s->fetch * (double)functions;
    r->seconds.load += s->load;
    r->seconds.convert += s->convert;
    r->seconds.train += s->train;
    r->seconds.publish += s->publish * (double)functions;
}

void job_record_validates(job_record *r, int64_t now_ms)
{
    if (!r->validating_since_ms)
        r->validating_since_ms = now_ms;
}

void job_record_reset_epoch(job_record *r)
{
    json_array_clear(r->shares);
    memset(r->open, 0, sizeof r->open);
    r->seconds = (job_seconds){0};
    r->validating_since_ms = 0;
}

/* ---- epochs ---------------------------------------------------------------------------------- */

static epoch_result result_of(const job_record *r, const round_epoch *epoch)
{
    double n = epoch->parallelism > 0 ? epoch->parallelism : 1;
    return (epoch_result){.epoch = epoch->epoch,
                          .train_loss = epoch->train_loss,
                          .validated = epoch->validated,
                          .validation_loss = epoch->validation_loss,
                          .accuracy = r->of_targets ? (double)NAN : epoch->accuracy,
                          .parallelism = epoch->parallelism,
                          .seconds = epoch->seconds,
                          .version = (uint64_t)epoch->version,
                          .samples = epoch->samples,
                          .fetch_s = r->seconds.fetch / n,
                          .load_s = r->seconds.load / n,
                          .convert_s = r->seconds.convert / n,
                          .train_s = r->seconds.train / n,
                          .publish_s = r->seconds.publish / n,
                          .merge_s = r->seconds.merge};
}

int job_record_epoch(job_record *r, const round_epoch *epoch, job_usage *usage, int64_t now_ms,
                     err *e)
{
    if (history_epochs(r->history) > epoch->epoch)
        return 0;
    epoch_result out = result_of(r, epoch);
    if (r->validating_since_ms)
        out.validate_s = (double)(now_ms - r->validating_since_ms) / 1000;
    job_usage_epoch(usage, &out);
    memcpy(out.ledger, r->ledger, sizeof out.ledger);
    return history_add(r->history, &out, json_deep_copy(r->shares), e);
}

void job_record_committed(job_record *r, int epoch, double checkpoint_seconds)
{
    history_checkpoint_seconds(r->history, epoch, checkpoint_seconds);
    history_open(r->history, NULL);
    job_record_reset_epoch(r);
}

void job_record_begin_again(job_record *r)
{
    history_cut(r->history, 0);
    r->ledger[0] = '\0';
    job_record_reset_epoch(r);
}

json_t *job_record_losses(job_record *r, int epoch)
{
    if (!r->losses || r->losses_epoch != epoch) {
        json_decref(r->losses);
        r->losses = history_losses(r->history, epoch);
        r->losses_epoch = epoch;
    }
    return r->losses;
}

/* ---- ends, and what a later kubeml-ps goes on from ------------------------------------------- */

void job_record_cut(job_record *r, int epochs)
{
    history_cut(r->history, epochs);
    r->told_epochs = epochs < r->told_epochs ? epochs : r->told_epochs;
}

static json_t *open_row(int function, const round_row *r)
{
    return json_pack("[i,i,i,I,I,I,f,I]", function, r->incarnation, r->round,
                     (json_int_t)r->samples, (json_int_t)r->sample_begin, (json_int_t)r->sample_end,
                     r->loss_sum, (json_int_t)r->batches);
}

static json_t *open_seconds(const job_seconds *s, double epoch)
{
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "epoch", epoch, "fetch", s->fetch, "load",
                     s->load, "convert", s->convert, "train", s->train, "publish", s->publish,
                     "merge", s->merge);
}

json_t *job_record_open(const job_record *r, int epoch, int64_t version, double seconds)
{
    json_t *rows = json_array();
    for (int f = 0; f < ROUND_FUNCTIONS_MAX; f++)
        if (r->open[f].batches)
            json_array_append_new(rows, open_row(f, &r->open[f]));
    if (json_array_size(rows) == 0) {
        json_decref(rows);
        return NULL;
    }
    return json_pack("{s:i,s:i,s:I,s:s,s:o,s:o,s:o}", "epoch", epoch, "parallelism",
                     r->open_parallelism, "version", (json_int_t)version, "ledger", r->ledger,
                     "shares", json_deep_copy(r->shares), "rows", rows, "seconds",
                     open_seconds(&r->seconds, seconds));
}

int job_record_restore(job_record *r, const json_t *record, const checkpoint_info *info, err *e)
{
    epoch_result last = {0};
    if (history_restore(r->history, record, info->epochs, e))
        return -1;
    r->told_epochs = info->epochs;
    if (info->epochs > 0 && history_at(r->history, info->epochs - 1, &last))
        return err_set(e, ERR_CORRUPT, "the checkpoint is of no epoch");
    memcpy(r->ledger, last.ledger, sizeof r->ledger);
    job_record_reset_epoch(r);
    return 0;
}

round_resume job_record_resume(const job_record *r, const checkpoint_info *info)
{
    epoch_result last = {0};
    history_at(r->history, info->epochs - 1, &last);
    return (round_resume){.epoch = info->epochs - 1,
                          .parallelism = last.parallelism,
                          .version = info->version,
                          .committed = true,
                          .validated = last.validated,
                          .accuracy = last.accuracy,
                          .seconds = last.seconds};
}

static int read_open_row(const json_t *from, int epoch, round_row *r)
{
    json_int_t samples, begin, end, batches;
    *r = (round_row){.epoch = epoch, .slot = -1};
    if (json_unpack((json_t *)(uintptr_t)from, "[i,i,i,I,I,I,F,I]", &r->function, &r->incarnation,
                    &r->round, &samples, &begin, &end, &r->loss_sum, &batches) != 0 ||
        r->function < 0 || r->function >= ROUND_FUNCTIONS_MAX || samples < 0 || begin < 0 ||
        end < begin || batches < 1 || batches > UINT32_MAX)
        return -1;
    r->samples = (uint64_t)samples;
    r->sample_begin = (uint64_t)begin;
    r->sample_end = (uint64_t)end;
    r->batches = (uint32_t)batches;
    return 0;
}

static int read_open_rows(job_record *r, const json_t *list, int epoch, round_row *rows, err *e)
{
    size_t i;
    json_t *one;
    json_array_foreach (list, i, one) {
        if (read_open_row(one, epoch, &rows[i]))
            return err_set(e, ERR_CORRUPT, "the history's open epoch: rows[%zu]", i);
        r->open[rows[i].function] = rows[i];
    }
    return 0;
}

int job_record_resume_open(job_record *r, const json_t *open, round_resume *out, err *e)
{
    const char *ledger = "";
    json_t *shares, *list;
    json_int_t version;
    job_seconds s = {0}; /* older records have none */
    if (json_unpack((json_t *)(uintptr_t)open,
                    "{s:i,s:i,s:I,s:s,s:o,s:o,s?{s?F,s?F,s?F,s?F,s?F,s?F,s?F}}", "epoch",
                    &out->epoch, "parallelism", &out->parallelism, "version", &version, "ledger",
                    &ledger, "shares", &shares, "rows", &list, "seconds", "epoch", &out->seconds,
                    "fetch", &s.fetch, "load", &s.load, "convert", &s.convert, "train", &s.train,
                    "publish", &s.publish, "merge", &s.merge) != 0 ||
        strlen(ledger) >= sizeof r->ledger || !json_is_array(shares) ||
        json_array_size(list) > ROUND_FUNCTIONS_MAX)
        return err_set(e, ERR_CORRUPT, "the history's open epoch");
    round_row *rows = calloc(json_array_size(list) + 1, sizeof *rows);
    if (!rows)
        return err_set(e, ERR_NOMEM, "no memory for the open epoch");
    if (read_open_rows(r, list, out->epoch, rows, e)) {
        free(rows);
        return -1;
    }
    snprintf(r->ledger, sizeof r->ledger, "%s", ledger);
    json_decref(r->shares);
    r->shares = json_deep_copy(shares);
    r->open_parallelism = out->parallelism;
    r->seconds = s;
    out->version = version;
    out->rows = rows;
    out->count = json_array_size(list);
    return 0;
}

int job_record_algorithms(const json_t *about, char out[DIGEST_HEX_BYTES], err *e)
{
    json_t *cpu, *threads, *algorithms;
    out[0] = '\0';
    if (json_unpack((json_t *)about, "{s:o,s:o,s:o}", "cpu", &cpu, "threads", &threads,
                    "algorithms", &algorithms))
        return 0;
    json_t *same =
        json_pack("{s:O,s:O,s:O}", "cpu", cpu, "threads", threads, "algorithms", algorithms);
    char *text = same ? json_dumps(same, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(same);
    int status = text ? digest_of(text, strlen(text), out, e)
                      : err_set(e, ERR_NOMEM, "no memory for the algorithms");
    free(text);
    return status;
}
