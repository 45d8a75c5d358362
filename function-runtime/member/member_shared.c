/* member_shared.c: the tasks of a process that all functions of a job share. Its frames name the
 * functions. The process fetches once, the functions train at the same time, and it publishes their
 * mean as one contribution, whose samples are the sum of theirs. So a process that dies leaves all
 * of a round's work, or none of it. If its mean is the next reference, it does not fetch it: it
 * compares the checksum only. */
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "member_internal.h"

/* Checks that the functions are of this process, in ascending order. */
static int check_functions(const group_part *parts, int n, json_int_t parallelism, int functions,
                           err *e)
{
    if (parallelism != functions)
        return err_set(e, ERR_INVALID, "%lld functions, and this process has %d",
                       (long long)parallelism, functions);
    for (int i = 0; i < n; i++)
        if (parts[i].function <= (i ? parts[i - 1].function : -1) || parts[i].function >= functions)
            return err_set(e, ERR_INVALID,
                           "function %d is not of this process, or out of its place",
                           parts[i].function);
    return n > 0 ? 0 : err_set(e, ERR_INVALID, "no function is named");
}

static int read_shares(const json_t *shares, group_part parts[GROUP_FUNCTIONS_MAX], int *n, err *e)
{
    size_t i, count = json_array_size(shares);
    json_t *share;
    if (count > GROUP_FUNCTIONS_MAX)
        return err_set(e, ERR_INVALID, "task train: %zu functions", count);
    json_array_foreach(shares, i, share)
    {
        json_int_t begin, batches;
        if (member_unpack(share, e, "[i,I,I]", &parts[i].function, &begin, &batches) != 0)
            return -1;
        if (begin < 0 || begin > UINT32_MAX || batches < 0 || batches > UINT32_MAX)
            return err_set(e, ERR_INVALID, "task train: a number is out of range");
        parts[i].batch_begin = (uint32_t)begin;
        parts[i].batch_count = (uint32_t)batches;
    }
    *n = (int)count;
    return 0;
}

static uint64_t samples_of(const group_part *parts, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += parts[i].result.samples;
    return sum;
}

static void send_published(member *m, const train_order *o, const group_part *parts, int n,
                           double fetch_s, double publish_s)
{
    json_t *shares = json_array();
    double load = 0, convert = 0, training = 0;
    for (int i = 0; i < n; i++) {
        const trainer_result *r = &parts[i].result;
        json_array_append_new(
            shares, json_pack("{s:i,s:I,s:I,s:I,s:f,s:I}", "function", parts[i].function, "samples",
                              (json_int_t)r->samples, "sample_begin", (json_int_t)r->sample_begin,
                              "sample_end", (json_int_t)r->sample_end, "loss_sum", r->loss_sum,
                              "batches", (json_int_t)r->batches));
        load += r->load_s;
        convert += r->convert_s;
        training += r->train_s;
    }
    pslink_send(m->link, json_pack("{s:s,s:I,s:I,s:o,s:{s:f,s:f,s:f,s:f,s:f}}", "type", "published",
                                   "epoch", o->epoch, "round", o->round, "shares", shares,
                                   "seconds", "fetch", fetch_s, "load", load, "convert", convert,
                                   "train", training, "publish", publish_s));
}

/* Publishes the mean. Reports a mean that is not finite, which could not be merged. */
static int publish(member *m, const train_order *o, const group_part *parts, int n, err *e)
{
    block to;
    modelstore_publication p = {.epoch = o->epoch,
                                .round = o->round,
                                .version = o->version,
                                .function = m->function,
                                .incarnation = m->incarnation,
                                .samples = samples_of(parts, n),
                                .slot = (int)o->slot};
    m->mean.version = -1; /* this may overwrite the slot of the last mean */
    int rc = member_slot(m, p.slot, &to, e);
    if (rc != 0)
        return rc;
    if (group_mean(m->group, parts, n, to, member_half_published, e) != 0) {
        if (e->code != ERR_INVALID)
            return err_wrap(e, "averaging");
        member_tell_failed(m, "NaNLoss", e);
        return 1;
    }
    uint64_t checksum;
    rc = member_publish(m, &p, &checksum, e);
    if (rc == 0)
        m->mean = (member_mean){.version = o->version + 1, .checksum = checksum, .at = to};
    return rc;
}

static int train(member *m, const train_order *o, group_part *parts, int n, err *e)
{
    cleanup_free double *history = NULL;
    size_t history_count;
    double fetch_s;
    int rc = member_begin(m, o, &fetch_s, &history, &history_count, e);
    if (rc != 0)
        return rc < 0 ? -1 : 0;
    trainer_task task = {.epoch = (uint32_t)o->epoch,
                         .parallelism = (int)o->parallelism,
                         .lr = o->lr,
                         .history = history,
                         .history_count = history_count};
    if (group_train_parts(m->group, &task, parts, n, e) != 0)
        return member_task_failed(m, group_reason(m->group), e);
    int64_t clock_ns = clock_monotonic_ns();
    member_enter(m, "publish", o->epoch, o->round);
    if ((rc = publish(m, o, parts, n, e)) != 0)
        return rc < 0 ? -1 : 0;
    send_published(m, o, parts, n, fetch_s, member_seconds(&clock_ns));
    failpoint("function.wait");
    return 0;
}

int member_train_shared(member *m, const json_t *task, err *e)
{
    train_order o = {.history = NULL};
    group_part parts[GROUP_FUNCTIONS_MAX];
    json_t *shares;
    int n = 0;
    if (member_unpack(task, e, "{s:I,s:I,s:I,s:I,s:F,s:I,s?o,s:o}", "epoch", &o.epoch, "round",
                      &o.round, "version", &o.version, "parallelism", &o.parallelism, "lr", &o.lr,
                      "slot", &o.slot, "validation_losses", &o.history, "shares", &shares) != 0 ||
        read_shares(shares, parts, &n, e) != 0 ||
        check_functions(parts, n, o.parallelism, m->functions, e) != 0)
        return -1;
    if (o.epoch < 0 || o.epoch > REQUEST_EPOCHS_MAX || o.slot < 0 || o.slot >= MODELSTORE_SLOTS_MAX)
        return err_set(e, ERR_INVALID, "task train: a number is out of range");
    return train(m, &o, parts, n, e);
}

static json_t *validated_message(json_int_t epoch, const group_part *parts, int n)
{
    json_t *shares = json_array();
    for (int i = 0; i < n; i++) {
        const trainer_result *r = &parts[i].result;
        json_array_append_new(shares, json_pack("{s:i,s:I,s:f,s:I}", "function", parts[i].function,
                                                "samples", (json_int_t)r->samples, "loss_sum",
                                                r->loss_sum, "correct", (json_int_t)r->correct));
    }
    return json_pack("{s:s,s:I,s:o}", "type", "validated", "epoch", epoch, "shares", shares);
}

int member_validate_shared(member *m, const json_t *task, err *e)
{
    json_int_t epoch, version, parallelism;
    group_part parts[GROUP_FUNCTIONS_MAX];
    json_t *functions, *one;
    size_t i;
    if (member_unpack(task, e, "{s:I,s:I,s:I,s:o}", "epoch", &epoch, "version", &version,
                      "parallelism", &parallelism, "functions", &functions) != 0)
        return -1;
    size_t n = json_array_size(functions);
    if (epoch < 0 || epoch > REQUEST_EPOCHS_MAX || n > GROUP_FUNCTIONS_MAX)
        return err_set(e, ERR_INVALID, "task validate: a number is out of range");
    json_array_foreach(functions, i, one) parts[i] =
        (group_part){.function = (int)json_integer_value(one)};
    if (check_functions(parts, (int)n, parallelism, m->functions, e) != 0)
        return -1;
    member_enter(m, "validate", epoch, -1);
    int rc = member_fetch(m, version, NULL, e);
    if (rc != 0)
        return rc < 0 ? -1 : 0;
    if (group_validate_parts(m->group, (uint32_t)epoch, (int)parallelism, parts, (int)n, e) != 0)
        return member_task_failed(m, group_reason(m->group), e);
    pslink_send(m->link, validated_message(epoch, parts, (int)n));
    return 0;
}
