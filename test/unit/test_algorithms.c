/* test_algorithms.c: what functions tell of measured algorithms is added to what is known, and
 * never more than that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/wire.h"
#include "controller/job/algorithms.h"
#include "controller/jobs/job_manager_internal.h"
#include "test.h"

static void check_add(const char *known, const char *told, const char *want, int want_added)
{
    err e = ERR_INIT;
    char *got;
    int added;
    CHECK_OK(algorithms_add(known, told, &got, &added, &e), e);
    CHECK_STR(got, want);
    CHECK_INT(added, want_added);
    free(got);
}

TEST(what_is_new_is_added_and_what_is_known_stays)
{
    check_add("", "", "", 0);
    check_add("", "a b\tdirect\n", "a b\tdirect\n", 1);
    check_add("a\town\n", "b\tdirect\na\tdirect\n", "a\town\nb\tdirect\n", 1);
    check_add("ab\town\n", "a\tdirect\nabc\tdirect\n", "ab\town\na\tdirect\nabc\tdirect\n", 2);
    check_add("", "a\tfirst\na\tsecond\n", "a\tfirst\n", 1);
}

TEST(lines_of_another_form_are_passed_over)
{
    static char key[ALGORITHMS_KEY_BYTES + 1], text[2 * ALGORITHMS_KEY_BYTES];
    check_add("", "no tab\n\t\nkey\t\n\twinner\na\x01\tb\na\tb\x7f\na\tb\tc\nlast\tcut off", "", 0);
    check_add("", "bad\nx\ty\n", "x\ty\n", 1);
    check_add("", "k\twinner-with-a-name-of-32-letters\n", "", 0);
    memset(key, 'k', ALGORITHMS_KEY_BYTES);
    snprintf(text, sizeof text, "%s\tw\n", key);
    check_add("", text, "", 0);
    check_add("", text + 1, text + 1, 1);
}

/* `count` lines from number `first` on. */
static char *lines(int first, int count)
{
    char *text = malloc((size_t)count * 16 + 1), *to = text;
    *text = '\0';
    for (int i = 0; i < count; i++)
        to += snprintf(to, 16, "key%d\tw\n", first + i);
    return text;
}

TEST(there_is_an_end_to_both)
{
    err e = ERR_INIT;
    int added;
    char *known = lines(0, ALGORITHMS_MAX), *told = lines(ALGORITHMS_MAX, ALGORITHMS_TOLD_MAX + 7),
         *got;
    char *want = lines(ALGORITHMS_TOLD_MAX, ALGORITHMS_MAX);
    CHECK_OK(algorithms_add(known, told, &got, &added, &e), e);
    CHECK_INT(added, ALGORITHMS_TOLD_MAX);
    CHECK_STR(got, want); /* the oldest went */
    free(known), free(told), free(got), free(want);
}

/* As much as one frame holds of it: the time of a case ends before twice the bytes may be four
 * times the work. */
TEST(a_text_without_a_line_of_that_form_costs_its_bytes)
{
    char *told = malloc(WIRE_FRAME_BYTES + 1);
    memset(told, '\n', WIRE_FRAME_BYTES);
    told[WIRE_FRAME_BYTES] = '\0';
    check_add("", told, "", 0);
    free(told);
}

TEST(what_is_told_again_and_again_is_not_looked_at_for_ever)
{
    char *told = malloc((ALGORITHMS_MAX + 1) * 4 + 1), *to = told;
    for (int i = 0; i < ALGORITHMS_MAX; i++)
        to += sprintf(to, "a\tw\n");
    strcpy(to, "b\tw\n");
    check_add("", told, "a\tw\n", 1);
    check_add("", told + 4, "a\tw\nb\tw\n", 2);
    free(told);
}

/* Functions that start together take turns until one has measured: for those with less of a GPU
 * that is another measurement. */
TEST(a_job_with_other_room_on_its_gpu_measures_for_itself)
{
    static job_manager o;
    static job bare, capped, shared;
    job_context s = {.function = json_pack("{s:s}", "object", "functions/f/1"),
                     .dataset = json_pack("{s:s}", "digest", "d")};
    bare.request.batch_size = capped.request.batch_size = shared.request.batch_size = 16;
    capped.request.gpu.memory_bytes = shared.request.gpu.memory_bytes = 1 << 30;
    shared.request.process = PROCESS_SHARED;
    shared.request.default_parallelism = 4;
    algorithms_note(&o, &s, &bare);
    CHECK(algorithms_measured(&o, &s, &bare) && !algorithms_measured(&o, &s, &capped));
    algorithms_note(&o, &s, &shared);
    CHECK(!algorithms_measured(&o, &s, &capped));
    algorithms_note(&o, &s, &capped);
    CHECK(algorithms_measured(&o, &s, &capped) && algorithms_measured(&o, &s, &bare));
    json_decref(s.function);
    json_decref(s.dataset);
}
