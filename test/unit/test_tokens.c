/* test_tokens.c: lists of tokens, whose they are, and what is refused. */
#include <stdio.h>
#include <string.h>

#include "common/net/tokens.h"
#include "test.h"

static tokens *list(const char *text, err *e)
{
    err none = ERR_INIT;
    tokens *t = tokens_new(&none);
    CHECK(t != NULL);
    if (tokens_read(t, text, e)) {
        tokens_free(t);
        return NULL;
    }
    return t;
}

static void refused(const char *text, const char *says)
{
    err e = ERR_INIT;
    tokens *t = list(text, &e);
    CHECK(t == NULL);
    CHECK_INT(e.code, ERR_INVALID);
    if (!strstr(e.message, says))
        CHECK_STR(e.message, says);
}

TEST(a_token_says_whose_it_is)
{
    err e = ERR_INIT;
    tokens *t = list("# of the team\nanna:first\r\n\nben:b:c\ncommon\nanna:second", &e);
    CHECK(t != NULL);
    CHECK_STR(tokens_user(t, "first"), "anna");
    CHECK_STR(tokens_user(t, "second"), "anna");
    CHECK_STR(tokens_user(t, "b:c"), "ben");
    CHECK_STR(tokens_user(t, "common"), "");
    CHECK(tokens_user(t, "firs") == NULL);
    CHECK(tokens_user(t, "firstfirst") == NULL);
    CHECK(tokens_user(t, "anna:first") == NULL);
    CHECK(tokens_user(t, "") == NULL);
    CHECK(tokens_user(t, "# of the team") == NULL);
    CHECK_STR(tokens_first(t, "anna"), "first");
    CHECK_STR(tokens_first(t, ""), "common");
    CHECK_STR(tokens_first(t, NULL), "first");
    CHECK(tokens_first(t, "carl") == NULL);
    tokens_free(t);
}

TEST(one_token_stays_as_it_is)
{
    err e = ERR_INIT;
    tokens *t = tokens_new(&e);
    CHECK_INT(tokens_add(t, "", "a:b#c", &e), 0);
    CHECK_STR(tokens_user(t, "a:b#c"), "");
    CHECK(tokens_user(t, "b#c") == NULL);
    CHECK_INT(tokens_read(t, "anna:x", &e), 0); /* another list is added */
    CHECK_STR(tokens_user(t, "x"), "anna");
    tokens_free(t);
    t = tokens_new(&e);
    CHECK(tokens_user(t, "") == NULL);
    CHECK(tokens_first(t, NULL) == NULL);
    tokens_free(t);
    tokens_free(NULL);
}

TEST(what_is_refused)
{
    refused("", "no token");
    refused("# nothing\n\n", "no token");
    refused("ok\nanna:\n", "line 2: a token is empty");
    refused(":x\n", "line 1: no user");
    refused("an na:x\n", "line 1: user name");
    refused("anna:x y\n", "line 1: a token has a blank");
    refused("anna:x\nben:x\n", "line 2: a token is there twice");
    refused("\xc3\xa4\n", "line 1: a token has");
    char long_one[TOKENS_TOKEN_BYTES_MAX + 200];
    memset(long_one, 'a', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = '\0';
    refused(long_one, "line 1: it is too long");
    long_one[TOKENS_TOKEN_BYTES_MAX + 1] = '\0';
    refused(long_one, "line 1: a token is longer");
}

TEST(how_many_there_may_be)
{
    err e = ERR_INIT;
    tokens *t = tokens_new(&e);
    char one[16];
    for (int i = 0; i < TOKENS_MAX; i++) {
        snprintf(one, sizeof one, "t%d", i);
        CHECK_INT(tokens_add(t, "", one, &e), 0);
    }
    CHECK(tokens_add(t, "", "more", &e) != 0);
    CHECK_INT(e.code, ERR_LIMIT);
    CHECK_STR(tokens_user(t, "t1023"), "");
    tokens_free(t);
}
