/* test_averaging.c: where models on GPUs are averaged, as the pure machine that kubeml-ps asks:
 * what it has done after each event, without a function, a GPU or a Redis. */
#include <stdarg.h>

#include "ps/job/averaging.h"
#include "test.h"

enum { FUNCTIONS = 3 };

typedef struct scene {
    averaging *machine;
    char done[2048]; /* what the last event led to, a word or a few for each action */
    int64_t now_ms;
    int ask; /* of the last `average` */
} scene;

/* ---- what was done, as text ------------------------------------------------------------------ */

static void note(scene *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(scene *s, const char *fmt, ...)
{
    size_t len = strlen(s->done);
    va_list args;
    va_start(args, fmt);
    if (len)
        len += (size_t)snprintf(s->done + len, sizeof s->done - len, "; ");
    vsnprintf(s->done + len, sizeof s->done - len, fmt, args);
    va_end(args);
}

static void note_frame(scene *s, const averaging_action *a)
{
    const char *type = json_string_value(json_object_get(a->frame, "type"));
    const json_t *ask = json_object_get(a->frame, "ask"), *set = json_object_get(a->frame, "set");
    if (strcmp(type, "average") == 0)
        s->ask = (int)json_integer_value(ask);
    if (set)
        note(s, "%s %d to %d", type, (int)json_integer_value(set), a->function);
    else
        note(s, "%s to %d", type, a->function);
}

static void note_all(scene *s, const averaging_action *actions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const averaging_action *a = &actions[i];
        switch (a->type) {
        case AVERAGING_SEND: note_frame(s, a); break;
        case AVERAGING_POST: note(s, "merge mean_of %d", a->mean_of); break;
        case AVERAGING_FAILED:
            note(s, "failed %d %s: %s", a->failure->function, err_name(a->failure->code),
                 a->failure->message);
            break;
        case AVERAGING_PATH: note(s, "path %s", reduce_path_name(a->path)); break;
        case AVERAGING_INEXACT: note(s, "inexact %s", a->reason); break;
        case AVERAGING_INFO: note(s, "info"); break;
        case AVERAGING_WARN: note(s, "warn"); break;
        }
    }
}

static void step(scene *s, averaging_event event)
{
    const averaging_action *actions;
    event.now_ms = s->now_ms;
    size_t count = averaging_step(s->machine, &event, &actions);
    note_all(s, actions, count);
}

/* An event, and the end of the step that it belongs to. */
static const char *after(scene *s, averaging_event event)
{
    s->done[0] = '\0';
    step(s, event);
    step(s, (averaging_event){.type = AVERAGING_SETTLE});
    return s->done;
}

/* ---- a job's beginning ----------------------------------------------------------------------- */

static void open_scene(scene *s, averaging_config config)
{
    err e = ERR_INIT;
    *s = (scene){.now_ms = 1000};
    config.parallelism = FUNCTIONS;
    config.tensor_path = "shm";
    s->machine = averaging_open(&config, &e);
    CHECK_OK(s->machine ? 0 : -1, e);
}

static void close_scene(scene *s)
{
    averaging_close(s->machine);
}

static void join(scene *s, int function, int incarnation)
{
    CHECK_STR(after(s, (averaging_event){.type = AVERAGING_WELCOME,
                                         .function = function,
                                         .incarnation = incarnation,
                                         .slot = function}),
              "");
}

static const char *offers(scene *s, int function, averaging_offer offer)
{
    return after(s,
                 (averaging_event){.type = AVERAGING_OFFER, .function = function, .offer = offer});
}

static const char *trains(scene *s, int function, int round)
{
    return after(s, (averaging_event){.type = AVERAGING_TRAIN,
                                      .function = function,
                                      .round = round,
                                      .parallelism = FUNCTIONS});
}

static const char *publishes(scene *s, int function, int incarnation, int round, const char *sum)
{
    return after(s, (averaging_event){.type = AVERAGING_PUBLISHED,
                                      .function = function,
                                      .incarnation = incarnation,
                                      .round = round,
                                      .sum = sum});
}

static const char *ends(scene *s, int function, int incarnation)
{
    return after(s, (averaging_event){
                        .type = AVERAGING_GONE, .function = function, .incarnation = incarnation});
}

/* All rows of a round, each of that function's incarnation. */
static const char *merges(scene *s, int round, const int incarnation[FUNCTIONS])
{
    round_row rows[FUNCTIONS];
    for (int f = 0; f < FUNCTIONS; f++)
        rows[f] = (round_row){
            .round = round, .function = f, .incarnation = incarnation[f], .samples = 10};
    const round_merge merge = {
        .round = round, .base_version = round, .count = FUNCTIONS, .rows = rows};
    return after(s, (averaging_event){.type = AVERAGING_MERGE, .merge = &merge});
}

static const int firsts[FUNCTIONS] = {0, 0, 0};

static const char *averages(scene *s, int function, averaging_event answer)
{
    answer.type = AVERAGING_AVERAGED;
    answer.function = function;
    answer.ask = s->ask;
    if (answer.code == ERR_NONE) {
        answer.sum = "5";
        answer.checksum = "77";
    }
    return after(s, answer);
}

static const averaging_config one_gpu = {.own_processes = true, .whole_state = true};

/* All functions are on one GPU, and function 0 is the root. */
static void lead(scene *s)
{
    open_scene(s, one_gpu);
    for (int f = 0; f < FUNCTIONS; f++)
        join(s, f, 0);
    CHECK_STR(offers(s, 0, (averaging_offer){.handle = "a"}), "");
    CHECK_STR(offers(s, 1, (averaging_offer){.handle = "b"}), "");
    CHECK_STR(offers(s, 2, (averaging_offer){.handle = "c"}), "lead to 0");
    CHECK_STR(after(s, (averaging_event){.type = AVERAGING_LEADS, .handle = "m"}), "path ipc");
}

static void train_round(scene *s, int round)
{
    for (int f = 0; f < FUNCTIONS; f++)
        CHECK_STR(trains(s, f, round), "");
    for (int f = 0; f < FUNCTIONS; f++)
        CHECK_STR(publishes(s, f, 0, round, "1"), "");
}

/* ---- on one GPU ------------------------------------------------------------------------------ */

TEST(a_round_that_is_kept_is_merged_as_its_mean)
{
    scene s;
    lead(&s);
    train_round(&s, 0);
    const round_action train = {.type = ROUND_TRAIN, .function = 1, .version = 0};
    CHECK(averaging_task_of(s.machine, &train).keep && !averaging_task_of(s.machine, &train).mean);
    CHECK_STR(merges(&s, 0, firsts), "average to 0");
    CHECK_INT(averaging_deadline(s.machine), s.now_ms + AVERAGING_CALL_MS);
    CHECK_STR(averages(&s, 0, (averaging_event){.step = 3}), "merge mean_of 0");
    CHECK(averaging_deadline(s.machine) == INT64_MAX);
    /* Model store away: asked again, the mean is there already. */
    CHECK_STR(merges(&s, 0, firsts), "merge mean_of 0");
    const round_action next = {.type = ROUND_VALIDATE, .function = 2, .version = 1};
    const averaging_task task = averaging_task_of(s.machine, &next);
    CHECK(!task.keep);
    CHECK_STR(json_string_value(json_object_get(task.mean, "loan")), "m");
    CHECK_STR(json_string_value(json_object_get(task.mean, "checksum")), "77");
    close_scene(&s);
}

TEST(what_lies_in_the_model_store_is_merged_there)
{
    scene s;
    open_scene(&s, one_gpu);
    for (int f = 0; f < FUNCTIONS; f++)
        join(&s, f, 0);
    for (int f = 0; f < FUNCTIONS; f++)
        CHECK_STR(publishes(&s, f, 0, 0, NULL), "");
    CHECK_STR(merges(&s, 0, firsts), "merge mean_of -1");
    close_scene(&s);
}

TEST(nobody_leads_where_the_state_is_not_averaged_whole)
{
    static const averaging_config configs[] = {{.whole_state = true}, {.own_processes = true}};
    for (size_t i = 0; i < 2; i++) {
        scene s;
        open_scene(&s, configs[i]);
        for (int f = 0; f < FUNCTIONS; f++) {
            join(&s, f, 0);
            CHECK_STR(offers(&s, f, (averaging_offer){.handle = "a"}), "");
        }
        close_scene(&s);
    }
}

TEST(a_model_that_cannot_be_read_leaves_it_to_the_host)
{
    scene s;
    open_scene(&s, one_gpu);
    join(&s, 0, 0);
    CHECK_STR(offers(&s, 0, (averaging_offer){.no_handle = "walls"}), "path host");
    CHECK_STR(offers(&s, 0, (averaging_offer){.no_handle = "walls"}), "");
    close_scene(&s);
}

TEST(a_round_of_which_some_was_published_is_trained_again)
{
    scene s;
    lead(&s);
    train_round(&s, 0);
    CHECK_STR(publishes(&s, 1, 0, 0, NULL), "");
    CHECK_STR(merges(&s, 0, firsts),
              "failed -1 not-found: some functions published, others did not");
    close_scene(&s);
}

TEST(what_a_function_kept_ends_with_it)
{
    scene s;
    lead(&s);
    train_round(&s, 0);
    CHECK_STR(ends(&s, 2, 0), "");
    CHECK_STR(merges(&s, 0, firsts),
              "failed 2 not-found: it was on the device, with a process that has ended");
    /* The next process has it trained, and kept, again. */
    join(&s, 2, 1);
    CHECK_STR(offers(&s, 2, (averaging_offer){.handle = "d"}), "");
    CHECK_STR(trains(&s, 2, 0), "");
    CHECK_STR(publishes(&s, 2, 1, 0, "1"), "");
    CHECK_STR(merges(&s, 0, (const int[FUNCTIONS]){0, 0, 1}), "average to 0");
    close_scene(&s);
}

TEST(the_end_of_an_older_process_is_no_news)
{
    scene s;
    lead(&s);
    join(&s, 2, 1);
    CHECK_STR(offers(&s, 2, (averaging_offer){.handle = "d"}), "");
    CHECK_STR(ends(&s, 2, 0), "");
    for (int f = 0; f < FUNCTIONS; f++)
        CHECK_STR(publishes(&s, f, f == 2, 0, "1"), "");
    CHECK_STR(merges(&s, 0, (const int[FUNCTIONS]){0, 0, 1}), "average to 0");
    close_scene(&s);
}

TEST(another_root_is_asked_when_one_has_ended)
{
    scene s;
    lead(&s);
    train_round(&s, 0);
    CHECK_STR(merges(&s, 0, firsts), "average to 0");
    CHECK_STR(ends(&s, 0, 0), "failed -1 not-found: the leader has ended");
    CHECK_STR(averages(&s, 0, (averaging_event){.step = 3}), ""); /* of a merge that is none */
    CHECK_STR(merges(&s, 0, firsts), "failed -1 not-found: nobody leads");
    join(&s, 0, 1);
    CHECK_STR(offers(&s, 0, (averaging_offer){.handle = "e"}), "lead to 0");
    CHECK_STR(ends(&s, 0, 1), "path host"); /* of being asked: not again */
    join(&s, 0, 2);
    CHECK_STR(offers(&s, 0, (averaging_offer){.handle = "f"}), "");
    close_scene(&s);
}

TEST(a_refused_mean_says_what_is_trained_again)
{
    static const struct {
        averaging_event answer;
        const char *done;
    } cases[] = {
        {{.code = ERR_INVALID, .about = 1, .message = "not finite"},
         "warn; failed 1 invalid: not finite"},
        {{.code = ERR_CORRUPT, .about = 2, .message = "changed"},
         "warn; failed 2 not-found: changed"},
        {{.code = ERR_INTERNAL, .about = -1, .message = "odd"}, "warn; failed -1 not-found: odd"},
        {{.code = ERR_UNSUPPORTED, .about = 1, .message = "cannot"},
         "warn; path host; failed -1 not-found: cannot"},
        {{.code = ERR_STALE, .about = -1, .message = ""}, "merge mean_of 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scene s;
        lead(&s);
        train_round(&s, 0);
        CHECK_STR(merges(&s, 0, firsts), "average to 0");
        CHECK_STR(averages(&s, 1, cases[i].answer), ""); /* it is not the root's */
        CHECK_STR(averages(&s, 0, cases[i].answer), cases[i].done);
        close_scene(&s);
    }
}

TEST(what_fails_again_and_again_is_the_hosts)
{
    scene s;
    lead(&s);
    for (int time = 1; time <= 2 * AVERAGING_FAILURES_MAX; time++) {
        bool store_down = time <= AVERAGING_FAILURES_MAX; /* which is no failure of the GPU's */
        train_round(&s, time);
        CHECK_STR(merges(&s, time, firsts), "average to 0");
        s.now_ms = averaging_deadline(s.machine);
        CHECK_STR(after(&s, (averaging_event){.type = AVERAGING_TICK, .store_down = store_down}),
                  time < 2 * AVERAGING_FAILURES_MAX
                      ? "warn; failed -1 not-found: the leader does not answer"
                      : "warn; path host; failed -1 not-found: the leader does not answer");
    }
    close_scene(&s);
}

TEST(nothing_is_due_before_its_time)
{
    scene s;
    lead(&s);
    train_round(&s, 0);
    CHECK_STR(merges(&s, 0, firsts), "average to 0");
    s.now_ms = averaging_deadline(s.machine) - 1;
    CHECK_STR(after(&s, (averaging_event){.type = AVERAGING_TICK}), "");
    close_scene(&s);
}

TEST(a_model_store_that_was_put_back_has_no_mean)
{
    scene s;
    lead(&s);
    train_round(&s, 0);
    CHECK_STR(merges(&s, 0, firsts), "average to 0");
    CHECK_STR(after(&s, (averaging_event){.type = AVERAGING_RESTORE}), "");
    CHECK(averaging_deadline(s.machine) == INT64_MAX);
    CHECK_STR(averages(&s, 0, (averaging_event){.step = 3}), "");
    const round_action train = {.type = ROUND_TRAIN, .version = 1};
    CHECK(!averaging_task_of(s.machine, &train).mean);
    close_scene(&s);
}

/* ---- on GPUs of their own -------------------------------------------------------------------- */

static const averaging_config nccl = {.own_processes = true, .whole_state = true, .nccl = true};

/* Each function offers the GPU that is named; the last answer. */
static const char *offer_gpus(scene *s, const char *const gpus[FUNCTIONS])
{
    const char *done = "";
    open_scene(s, nccl);
    for (int f = 0; f < FUNCTIONS; f++)
        join(s, f, 0);
    for (int f = 0; f < FUNCTIONS; f++) {
        CHECK_STR(done, "");
        done = offers(s, f, (averaging_offer){.handle = "h", .gpu = gpus[f]});
    }
    return done;
}

static const char *joins(scene *s, averaging_event_type type, int function, int set)
{
    return after(s,
                 (averaging_event){.type = type, .function = function, .set = set, .id = "name"});
}

/* A communicator of all three, with the first round's mean asked for. */
static void connect_ranks(scene *s)
{
    CHECK_STR(offer_gpus(s, (const char *const[]){"x", "y", "z"}), "path nccl");
    train_round(s, 0);
    CHECK_STR(merges(s, 0, firsts), "identify 1 to 0");
    CHECK_STR(joins(s, AVERAGING_IDENTIFIED, 0, 7), ""); /* of another communicator */
    CHECK_STR(joins(s, AVERAGING_IDENTIFIED, 0, 1),
              "connect 1 to 0; connect 1 to 1; connect 1 to 2");
    CHECK_STR(joins(s, AVERAGING_CONNECTED, 0, 1), "");
    CHECK_STR(joins(s, AVERAGING_CONNECTED, 1, 1), "");
    CHECK_STR(joins(s, AVERAGING_CONNECTED, 2, 1),
              "info; average 1 to 0; average 1 to 1; average 1 to 2");
}

TEST(where_the_gpus_are_decides_how)
{
    scene s;
    CHECK_STR(offer_gpus(&s, (const char *const[]){"x", "y", "x"}), "path host");
    close_scene(&s);
    CHECK_STR(offer_gpus(&s, (const char *const[]){"x", "x", "x"}), "lead to 0");
    close_scene(&s);
    open_scene(&s, nccl);
    join(&s, 0, 0);
    CHECK_STR(offers(&s, 0, (averaging_offer){.no_gpu = "no NCCL"}), "path host");
    close_scene(&s);
}

TEST(ranks_stay_connected_from_round_to_round)
{
    scene s;
    connect_ranks(&s);
    CHECK_STR(averages(&s, 0, (averaging_event){.step = 1}), "inexact NcclOrder; merge mean_of 0");
    train_round(&s, 1);
    CHECK_STR(merges(&s, 1, firsts), "average 1 to 0; average 1 to 1; average 1 to 2");
    CHECK_STR(averages(&s, 0, (averaging_event){.step = 2}), "merge mean_of 0");
    const round_action next = {.type = ROUND_TRAIN, .version = 2};
    CHECK_INT(json_integer_value(json_object_get(averaging_task_of(s.machine, &next).mean, "ask")),
              s.ask);
    s.done[0] = '\0';
    const averaging_action *actions;
    size_t count = averaging_tell(s.machine, &actions);
    note_all(&s, actions, count);
    CHECK_STR(s.done, "inexact NcclOrder; path nccl");
    close_scene(&s);
}

TEST(a_rank_that_ends_ends_the_communicator)
{
    scene s;
    connect_ranks(&s);
    CHECK_STR(ends(&s, 1, 0), "leave 1 to 0; leave 1 to 2; failed 1 not-found: a function has "
                              "ended that was to be averaged with");
    CHECK_STR(averages(&s, 0, (averaging_event){.step = 1}), "");
    join(&s, 1, 1);
    CHECK_STR(offers(&s, 1, (averaging_offer){.handle = "h", .gpu = "y"}), "");
    CHECK_STR(trains(&s, 1, 0), "");
    CHECK_STR(publishes(&s, 1, 1, 0, "1"), "");
    CHECK_STR(merges(&s, 0, (const int[FUNCTIONS]){0, 1, 0}), "identify 2 to 0");
    close_scene(&s);
}

TEST(an_error_of_a_rank_is_tried_again_with_the_next_communicator)
{
    scene s;
    const averaging_event error = {.code = ERR_UNAVAILABLE, .about = -1, .message = "link"};
    const averaging_event told = {.code = ERR_CANCELLED, .about = -1, .message = "left"};
    connect_ranks(&s);
    int ask = s.ask;
    CHECK_STR(averages(&s, 2, error),
              "warn; leave 1 to 0; leave 1 to 1; leave 1 to 2; identify 2 to 0");
    s.ask = ask;
    CHECK_STR(averages(&s, 1, error), ""); /* the same trouble, from another rank */
    averaging_event failed = {.type = AVERAGING_IDENTIFIED, .set = 2};
    failed.code = ERR_UNAVAILABLE;
    failed.message = "link";
    CHECK_STR(after(&s, failed), "warn; leave 2 to 0; leave 2 to 1; leave 2 to 2; identify 3 to 0");
    failed.set = 3;
    CHECK_STR(after(&s, failed), "warn; leave 3 to 0; leave 3 to 1; leave 3 to 2; path host; "
                                 "failed -1 not-found: link");
    CHECK_STR(averages(&s, 1, told), "");
    close_scene(&s);
}

TEST(a_rank_whose_model_is_wrong_is_trained_again)
{
    scene s;
    connect_ranks(&s);
    CHECK_STR(averages(&s, 2,
                       (averaging_event){.code = ERR_INVALID, .about = 2, .message = "not finite"}),
              "warn; leave 1 to 0; leave 1 to 1; leave 1 to 2; failed 2 invalid: not finite");
    close_scene(&s);
}

TEST(a_mean_that_could_not_be_published_is_no_ranks_trouble)
{
    scene s;
    connect_ranks(&s);
    CHECK_STR(averages(&s, 0,
                       (averaging_event){.code = ERR_UNAVAILABLE,
                                         .about = -1,
                                         .unpublished = true,
                                         .store_down = true,
                                         .message = "Redis is gone"}),
              "warn; failed -1 not-found: Redis is gone");
    close_scene(&s);
}
