/* test_infer.c: who asks for a model's answer has room in the order of coming. */
#include "controller/api/infer.c"

#include <sched.h>

#include "test.h"

enum { WAIT_MS = 30000, SMALL_BYTES = 40 << 20 };

static controller platform;

typedef struct guest {
    infer *i;
    visit v;
    pthread_t thread;
    bool answers; /* it has entered, and wants room for its answer */
    bool in;
} guest;

static void *come(void *arg)
{
    guest *g = arg;
    err e = ERR_INIT;
    if (g->answers)
        CHECK_OK(enter_answer(g->i, &g->v, LARGE_BYTES, &e), e);
    else
        CHECK_OK(enter(g->i, &g->v, &e), e);
    pthread_mutex_lock(&g->i->lock);
    g->in = true;
    pthread_cond_broadcast(&g->i->freed);
    pthread_mutex_unlock(&g->i->lock);
    return NULL;
}

static int length(const visit *line)
{
    int count = 0;
    for (; line; line = line->next)
        count++;
    return count;
}

/* Returns once it is in the line. */
static void send_in(guest *g, visit *const *line)
{
    int before = length(*line), now = before;
    int64_t deadline_ms = clock_deadline_ms(WAIT_MS);
    CHECK_INT(pthread_create(&g->thread, NULL, come, g), 0);
    while (now == before) {
        sched_yield();
        CHECK(clock_left_ms(deadline_ms) > 0);
        pthread_mutex_lock(&g->i->lock);
        now = length(*line);
        CHECK(!g->in);
        pthread_mutex_unlock(&g->i->lock);
    }
}

static bool is_in(guest *g)
{
    pthread_mutex_lock(&g->i->lock);
    bool in = g->in;
    pthread_mutex_unlock(&g->i->lock);
    return in;
}

TEST(a_large_question_is_passed_by_no_small_one)
{
    err e = ERR_INIT;
    infer *i = infer_open(&platform);
    guest large = {.i = i, .v.question_bytes = LARGE_BYTES};
    guest small = {.i = i, .v.question_bytes = SMALL_BYTES};
    visit first = {.question_bytes = SMALL_BYTES}, second = first;
    CHECK_OK(enter(i, &first, &e), e);
    CHECK_OK(enter(i, &second, &e), e);
    send_in(&large, &i->entering);
    send_in(&small, &i->entering);
    leave(i, &first);
    leave(i, &second);
    CHECK_INT(pthread_join(large.thread, NULL), 0);
    CHECK(!is_in(&small));
    leave(i, &large.v);
    CHECK_INT(pthread_join(small.thread, NULL), 0);
    leave(i, &small.v);
    CHECK_INT(i->asking, 0);
    CHECK_INT((int)i->questions_bytes, 0);
    infer_close(i);
}

TEST(an_answer_that_waits_is_passed_by_none)
{
    err e = ERR_INIT;
    infer *i = infer_open(&platform);
    visit first = {0}, third = {0};
    guest second = {.i = i, .answers = true};
    CHECK_OK(enter(i, &first, &e), e);
    CHECK_OK(enter(i, &second.v, &e), e);
    CHECK_OK(enter(i, &third, &e), e);
    CHECK_OK(enter_answer(i, &first, LARGE_BYTES, &e), e);
    send_in(&second, &i->answering);
    leave(i, &first);
    CHECK_INT(pthread_join(second.thread, NULL), 0);
    CHECK_OK(enter_answer(i, &third, 1 << 20, &e), e); /* beside it */
    leave(i, &second.v);
    leave(i, &third);
    CHECK_INT((int)i->answers_bytes, 0);
    infer_close(i);
}
