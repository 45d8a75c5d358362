/* test_effects.c: what the round machine is told when a task of the keeper's comes back. */
#include "ps/job/effects.h"
#include "test.h"

static const job_spec spec = {.id = "j"};

static void open_effects(effects *f)
{
    err e = ERR_INIT;
    CHECK_OK(effects_init(f, &spec, NULL, 3, &e), e);
}

/* A task that has come back; with a code it has failed. */
static task came_back(task_kind kind, err_code code)
{
    task t = {.kind = kind, .status = code == ERR_NONE ? 0 : -1};
    t.e = (err)ERR_INIT;
    if (code != ERR_NONE)
        err_set(&t.e, code, "why");
    t.incarnation = 7;
    t.version = 4;
    t.function = 2;
    t.bad_function = 1;
    t.info.epochs = 3;
    t.merge = (round_merge){.epoch = 2, .round = 5};
    return t;
}

TEST(each_task_has_its_events)
{
    static const struct {
        task_kind kind;
        err_code code;
        bool database_down;
        round_event want;
    } cases[] = {
        {TASK_CREATE, ERR_IO, false, {.type = ROUND_LOAD_FAILED, .code = ERR_IO}},
        {TASK_LOAD, ERR_NONE, false, {.type = ROUND_LOADED, .version = 4}},
        {TASK_LOAD, ERR_IO, true, {.type = ROUND_LOAD_FAILED, .code = ERR_IO}},
        {TASK_INITIAL, ERR_NONE, false, {.type = ROUND_INITIALISED, .incarnation = 7}},
        {TASK_INITIAL, ERR_IO, false, {.type = ROUND_LOAD_FAILED, .code = ERR_IO}},
        {TASK_MERGE,
         ERR_NONE,
         false,
         {.type = ROUND_MERGED, .epoch = 2, .round = 5, .version = 4, .function = -1}},
        {TASK_MERGE,
         ERR_CORRUPT,
         false,
         {.type = ROUND_MERGE_FAILED,
          .epoch = 2,
          .round = 5,
          .version = 4,
          .function = 1,
          .code = ERR_CORRUPT}},
        {TASK_MERGE,
         ERR_CORRUPT,
         true,
         {.type = ROUND_MERGE_FAILED,
          .epoch = 2,
          .round = 5,
          .version = 4,
          .function = 1,
          .code = ERR_UNAVAILABLE}},
        {TASK_ROOM, ERR_NONE, false, {.type = ROUND_READY, .function = 2, .incarnation = 7}},
        {TASK_ROOM,
         ERR_TIMEOUT,
         false, /* it will find out */
         {.type = ROUND_READY, .function = 2, .incarnation = 7}},
        {TASK_ROOM,
         ERR_NOMEM,
         false,
         {.type = ROUND_FAILED, .function = 2, .incarnation = 7, .reason = "ModelStoreFull"}},
        {TASK_COMMIT, ERR_NONE, false, {.type = ROUND_COMMITTED, .epoch = 2}},
        {TASK_COMMIT, ERR_IO, false, {.type = ROUND_COMMIT_FAILED, .epoch = 2, .code = ERR_IO}},
        {TASK_COMMIT,
         ERR_IO,
         true,
         {.type = ROUND_COMMIT_FAILED, .epoch = 2, .code = ERR_UNAVAILABLE}},
        {TASK_RESTORE, ERR_NONE, false, {.type = ROUND_LOADED, .version = 4}},
        {TASK_RESTORE, ERR_IO, false, {.type = ROUND_LOAD_FAILED, .code = ERR_IO}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        effects f;
        open_effects(&f);
        task t = came_back(cases[i].kind, cases[i].code);
        const round_event *want = &cases[i].want;
        round_event got;
        CHECK(effects_event(&f, &t, cases[i].database_down, &got));
        CHECK_STR(round_event_name(got.type), round_event_name(want->type));
        CHECK(got.code == want->code && got.epoch == want->epoch && got.round == want->round);
        CHECK(got.version == want->version && got.function == want->function &&
              got.incarnation == want->incarnation);
        CHECK(!got.reason == !want->reason && (!got.reason || !strcmp(got.reason, want->reason)));
        CHECK(got.type == ROUND_READY || !t.status == !got.message);
        effects_free(&f, true);
    }
}

TEST(what_is_none_of_the_machines_says_nothing)
{
    effects f;
    open_effects(&f);
    round_event event;
    task open = came_back(TASK_OPEN, ERR_NONE), finish = came_back(TASK_FINISH, ERR_IO);
    task create = came_back(TASK_CREATE, ERR_NONE);
    CHECK(!effects_event(&f, &open, false, &event));
    CHECK(!effects_event(&f, &finish, false, &event));
    CHECK(!effects_event(&f, &create, false, &event)); /* `init` is to be sent */
    effects_free(&f, true);
}

TEST(version_0_is_made_once)
{
    effects f;
    open_effects(&f);
    round_event event;
    task initial = came_back(TASK_INITIAL, ERR_NONE), create = came_back(TASK_CREATE, ERR_NONE);
    CHECK(effects_event(&f, &initial, false, &event));
    f.init_incarnation = 9; /* function 0 was replaced after its model had been merged */
    CHECK(effects_event(&f, &create, false, &event));
    CHECK(event.type == ROUND_INITIALISED && event.incarnation == 9);
    task none = came_back(TASK_RESTORE, ERR_NONE);
    none.version = -1; /* Redis came back empty, and there is no checkpoint */
    CHECK(effects_event(&f, &none, false, &event));
    CHECK(!f.initial_done);
    CHECK(!effects_event(&f, &create, false, &event));
    effects_free(&f, true);
}
