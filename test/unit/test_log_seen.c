/* test_log_seen.c: which lines of a log are new when it is read again. */
#include "cli/log_seen.h"
#include "common/base/buf.h"
#include "test.h"

#define AT(seconds) "2026-01-01T00:00:" seconds ".000Z "

/* The log, read line by line: those that are new. */
static const char *news(log_seen *s, const char *log)
{
    static char out[4096];
    out[0] = '\0';
    for (const char *end; (end = strchr(log, '\n')); log = end + 1)
        if (log_seen_is_new(s, log, (size_t)(end - log)))
            strncat(out, log, (size_t)(end + 1 - log));
    return out;
}

static log_seen *seen(const char *log)
{
    err e = ERR_INIT;
    log_seen *s = log_seen_open(&e);
    CHECK_OK(s ? 0 : -1, e);
    CHECK_STR(news(s, log), log);
    log_seen_rewind(s);
    return s;
}

TEST(what_was_read_is_not_new)
{
    const char *log = "ps          | one\nfunction-0  | one\nps          | \nps          | two\n";
    log_seen *s = seen(log);
    CHECK_STR(news(s, log), "");
    CHECK_STR(news(s, "ps          | two\n"), "ps          | two\n");
    log_seen_close(s);
}

TEST(others_lines_may_come_between_in_any_order)
{
    log_seen *s = seen("ps          | a\nps          | b\nfunction-0  | c\n");
    CHECK_STR(news(s, "function-0  | c\nfunction-0  | d\nfunction-1  | e\nps          | a\n"
                      "ps          | b\nfunction-0  | f\nps          | g\n"),
              "function-0  | d\nfunction-1  | e\nfunction-0  | f\nps          | g\n");
    log_seen_close(s);
}

TEST(what_is_left_out_counts_as_read)
{
    log_seen *s = seen("ps          | 12345\nps          | 1234567\nps          | 123\n");
    CHECK_STR(news(s, "ps          | (14 bytes of this log are left out here)\nps          | 123\n"
                      "ps          | new\n"),
              "ps          | new\n");
    log_seen_rewind(s);
    /* More is left out than was read: that is news, and so is all behind it. */
    CHECK_STR(news(s, "ps          | (99 bytes of this log are left out here)\nps          | 1\n"),
              "ps          | (99 bytes of this log are left out here)\nps          | 1\n");
    log_seen_rewind(s);
    CHECK_STR(news(s, "ps          | (101 bytes of this log are left out here)\n"), "");
    log_seen_close(s);
}

TEST(without_a_number_the_time_says_what_is_new)
{
    static const char begin[] = "ps          | " AT("01") "a\nps          | " AT("02") "b\n"
                                "ps          | code's own\n";
    log_seen *s = seen(begin);
    CHECK_STR(news(s, "ps          | (a part of this log is left out here)\n"
                      "ps          | end of a line\nps          | " AT("02") "b\n"
                      "ps          | code's own\nps          | more\nps          | " AT("01") "late\n"),
              "ps          | more\nps          | " AT("01") "late\n");
    log_seen_rewind(s);
    CHECK_STR(news(s, "(the log of before is left out here: the store is away)\n"
                      "ps          | " AT("03") "c\nfunction-0  | its first\n"),
              "ps          | " AT("03") "c\nfunction-0  | its first\n");
    log_seen_close(s);
}

TEST(a_first_reading_is_all_new)
{
    log_seen_close(seen("(the first 2 of 3 parts of this log, 9 bytes, are left out here)\n"
                        "ps          | (a part of this log is left out here)\n"
                        "ps          | " AT("02") "a\nps          | " AT("01") "earlier\n"
                        "ps          | (7 bytes of this log are left out here)\nps          |\n|\n\n"));
}
