/* test_algorithms.c: what functions tell of measured algorithms is added to what is known, and
 * never more than that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms.h"
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
