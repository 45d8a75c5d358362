/* test_job_record.c: the books of a job's open epoch, and what a later kubeml-ps makes of them. */
#include "common/base/json_read.h"
#include "ps/job/job_record.h"
#include "test.h"

static void open_record(job_record *r, json_int_t targets)
{
    err e = ERR_INIT;
    cleanup_json json_t *nothing = json_object(), *dataset = json_pack("{s:I}", "targets", targets);
    const job_spec spec = {.id = "j", .task = nothing, .function = nothing, .dataset = dataset};
    CHECK_OK(job_record_init(r, &spec, &e), e);
}

/* Round `round` of two functions, ten samples each. */
static void merge_round(job_record *r, int round, int incarnation)
{
    round_row rows[2];
    for (int f = 0; f < 2; f++)
        rows[f] = (round_row){.round = round,
                              .function = f,
                              .incarnation = incarnation,
                              .samples = 10,
                              .sample_begin = (uint64_t)round * 10,
                              .sample_end = (uint64_t)round * 10 + 10,
                              .loss_sum = 1,
                              .batches = 1};
    const round_merge merge = {.round = round, .parallelism = 2, .count = 2};
    job_record_merge(r, &merge, rows, 0.5);
}

TEST(the_ledger_is_the_same_whoever_trained)
{
    job_record r, same, other;
    open_record(&r, 0);
    open_record(&same, 0);
    open_record(&other, 0);
    merge_round(&r, 0, 0);
    merge_round(&r, 1, 0);
    merge_round(&same, 0, 0);
    merge_round(&same, 1, 4); /* both were replaced */
    merge_round(&other, 1, 0);
    merge_round(&other, 0, 0);
    CHECK_STR(r.ledger, same.ledger);
    CHECK(strcmp(r.ledger, other.ledger) != 0);
    CHECK_INT(json_array_size(r.shares), 2); /* a function's follow each other */
    CHECK_INT(json_integer_value(json_array_get(json_array_get(r.shares, 0), 3)), 20);
    CHECK_INT(json_array_size(same.shares), 4);
    job_record_free(&r);
    job_record_free(&same);
    job_record_free(&other);
}

TEST(an_open_epoch_goes_on_where_it_was)
{
    job_record r, later;
    round_resume resume = {0};
    err e = ERR_INIT;
    open_record(&r, 0);
    open_record(&later, 0);
    CHECK(!job_record_open(&r, 0, 0, 0)); /* no merge yet */
    merge_round(&r, 0, 0);
    cleanup_json json_t *open = job_record_open(&r, 0, 1, 2.5);
    CHECK_OK(job_record_resume_open(&later, open, &resume, &e), e);
    CHECK_INT(resume.version, 1);
    CHECK_INT(resume.parallelism, 2);
    CHECK_INT(resume.count, 2);
    CHECK_INT(resume.rows[1].sample_end, 10);
    CHECK_NEAR(resume.seconds, 2.5, 0);
    CHECK_NEAR(later.seconds.merge, 0.5, 0);
    free((void *)(uintptr_t)resume.rows);
    merge_round(&r, 1, 0);
    merge_round(&later, 1, 10000);
    CHECK_STR(later.ledger, r.ledger);
    CHECK_INT(r.open[1].samples, 20);
    CHECK_INT(later.open[1].samples, 20);
    job_record_free(&r);
    job_record_free(&later);
}

TEST(an_open_epoch_that_is_no_such_thing_is_corrupt)
{
    static const char *const wrong[] = {
        "{}",
        "{\"epoch\":0}",
        "{\"epoch\":0,\"parallelism\":2,\"version\":1,\"ledger\":\"\",\"shares\":1,\"rows\":[]}",
        "{\"epoch\":0,\"parallelism\":2,\"version\":1,\"ledger\":\"\",\"shares\":[],"
        "\"rows\":[[256,0,0,10,0,10,1.0,1]]}",
        "{\"epoch\":0,\"parallelism\":2,\"version\":1,\"ledger\":\"\",\"shares\":[],"
        "\"rows\":[[0,0,0,10,10,0,1.0,1]]}",
        "{\"epoch\":0,\"parallelism\":2,\"version\":1,\"ledger\":\"\",\"shares\":[],"
        "\"rows\":[[0,0,0,10,0,10,1.0,0]]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        job_record r;
        round_resume resume = {0};
        err e = ERR_INIT;
        cleanup_json json_t *open = json_loads(wrong[i], 0, NULL);
        open_record(&r, 0);
        CHECK_ERR(job_record_resume_open(&r, open, &resume, &e), e, ERR_CORRUPT,
                  "the history's open epoch");
        CHECK(!resume.rows);
        job_record_free(&r);
    }
}

static epoch_result end_epoch(job_record *r, int epoch)
{
    static job_usage usage;
    epoch_result out;
    err e = ERR_INIT;
    const round_epoch done = {.epoch = epoch,
                              .parallelism = 2,
                              .version = 2,
                              .samples = 40,
                              .validated = true,
                              .validation_loss = 0.5,
                              .accuracy = 75};
    CHECK_OK(job_record_epoch(r, &done, &usage, 4000, &e), e);
    CHECK(history_at(r->history, epoch, &out) == 0);
    return out;
}

TEST(an_epoch_has_means_over_its_functions)
{
    job_record r;
    const job_seconds s = {.fetch = 1, .load = 2, .convert = 3, .train = 4, .publish = 5};
    open_record(&r, 0);
    for (int f = 0; f < 2; f++)
        job_record_seconds(&r, &s, 1);
    merge_round(&r, 0, 0);
    job_record_validates(&r, 1000);
    job_record_validates(&r, 3000); /* the first one counts */
    epoch_result got = end_epoch(&r, 0);
    CHECK_NEAR(got.fetch_s + 10 * got.convert_s + 100 * got.publish_s, 531, 1e-9);
    CHECK_NEAR(got.merge_s, 0.5, 1e-9);
    CHECK_NEAR(got.validate_s, 3, 1e-9);
    CHECK_NEAR(got.accuracy, 75, 0);
    CHECK_STR(got.ledger, r.ledger);
    merge_round(&r, 1, 0);
    CHECK_STR(end_epoch(&r, 0).ledger, got.ledger); /* told once more: it has that entry */
    CHECK_INT(json_array_size(job_record_losses(&r, 1)), 1);
    job_record_committed(&r, 0, 1);
    CHECK_INT(json_array_size(r.shares), 0);
    CHECK(r.seconds.train == 0 && r.open[0].batches == 0);
    job_record_free(&r);
}

TEST(targets_have_no_accuracy)
{
    job_record r;
    open_record(&r, 1);
    CHECK(isnan(end_epoch(&r, 0).accuracy));
    job_record_free(&r);
}

TEST(what_was_done_is_forgotten_beyond_its_checkpoint)
{
    job_record r, later;
    err e = ERR_INIT;
    const checkpoint_info info = {.epochs = 1, .version = 2};
    char ledger[DIGEST_HEX_BYTES];
    open_record(&r, 0);
    open_record(&later, 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        merge_round(&r, 0, 0);
        end_epoch(&r, epoch);
        if (epoch == 0)
            memcpy(ledger, r.ledger, sizeof ledger);
        job_record_reset_epoch(&r);
    }
    cleanup_json json_t *record = history_json(r.history);
    CHECK_OK(job_record_restore(&later, record, &info, &e), e);
    CHECK_STR(later.ledger, ledger);
    CHECK_INT(later.told_epochs, 1);
    const round_resume resume = job_record_resume(&later, &info);
    CHECK(resume.epoch == 0 && resume.committed && resume.parallelism == 2 && resume.version == 2);
    job_record_begin_again(&later);
    CHECK_INT(history_epochs(later.history), 0);
    CHECK_STR(later.ledger, "");
    job_record_free(&r);
    job_record_free(&later);
}

TEST(the_same_text_is_the_same_algorithms)
{
    char one[DIGEST_HEX_BYTES], two[DIGEST_HEX_BYTES];
    err e = ERR_INIT;
    cleanup_json json_t *about =
        json_pack("{s:s,s:i,s:s}", "cpu", "avx2", "threads", 2, "algorithms", "a");
    CHECK_OK(job_record_algorithms(about, one, &e), e);
    json_object_set_new(about, "more", json_true());
    CHECK_OK(job_record_algorithms(about, two, &e), e);
    CHECK_STR(two, one);
    json_object_set_new(about, "threads", json_integer(3));
    CHECK_OK(job_record_algorithms(about, two, &e), e);
    CHECK(strcmp(two, one) != 0);
    json_object_del(about, "cpu");
    CHECK_OK(job_record_algorithms(about, two, &e), e);
    CHECK_STR(two, "");
}
