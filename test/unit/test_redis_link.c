/* test_redis_link.c: a connection to Redis whose peer that is this test. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/modelstore/redis_link.h"
#include "test.h"

static redis_link *client;
static int peer;
static redis_command command;

static void begin(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    client = redis_link_adopt(pair[0]);
    CHECK(client);
    peer = pair[1];
}

static void finish(void)
{
    redis_link_close(client);
    close(peer);
}

static int64_t soon(void)
{
    return clock_deadline_ms(5000);
}

/* What has reached the peer by now; "" nothing. */
static const char *arrived(void)
{
    static char text[1 << 20];
    ssize_t n = read(peer, text, sizeof text - 1);
    CHECK(n >= 0 || errno == EAGAIN);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void say(const char *text)
{
    CHECK(write(peer, text, strlen(text)) == (ssize_t)strlen(text));
}

static void hold(const char *word)
{
    err e = ERR_INIT;
    CHECK_OK(redis_command_format(&command, &e, "%s", word), e);
    CHECK_OK(redis_link_append(client, &command, soon(), &e), e);
}

TEST(what_is_held_travels_with_the_next_one)
{
    err e = ERR_INIT;
    begin();
    hold("ONE");
    hold("TWO");
    CHECK_STR(arrived(), "");
    hold("THREE");
    CHECK_OK(redis_link_flush(client, soon(), &e), e);
    CHECK_STR(arrived(), "*1\r\n$3\r\nONE\r\n*1\r\n$3\r\nTWO\r\n*1\r\n$5\r\nTHREE\r\n");
    finish();
}

TEST(what_is_held_is_sent_before_a_reply_is_waited_for)
{
    err e = ERR_INIT;
    redisReply *reply;
    char four[4];
    begin();
    hold("ONE");
    say("+OK\r\n$4\r\nabcd\r\n");
    CHECK_OK(redis_link_receive(client, &reply, soon(), &e), e);
    CHECK_STR(reply->str, "OK");
    redis_reply_free(&reply);
    CHECK_STR(arrived(), "*1\r\n$3\r\nONE\r\n");
    hold("TWO");
    CHECK_OK(redis_link_receive_long(client, four, sizeof four, soon(), &e), e);
    CHECK(memcmp(four, "abcd", 4) == 0);
    CHECK_STR(arrived(), "*1\r\n$3\r\nTWO\r\n");
    finish();
}

static void announce(const char *word, size_t len, int more)
{
    err e = ERR_INIT;
    CHECK_OK(redis_command_format(&command, &e, "%s key", word), e);
    CHECK_OK(redis_link_announce(client, &command, len, more, soon(), &e), e);
}

static void send_rest(const void *bytes, size_t len)
{
    err e = ERR_INIT;
    CHECK_OK(redis_command_format(&command, &e, "%d", -7), e);
    CHECK_OK(redis_link_send_long(client, bytes, len, &command, soon(), &e), e);
}

/* What was held before a long argument goes first. */
TEST(a_long_argument_is_sent_at_once)
{
    static char bytes[100000];
    err e = ERR_INIT;
    begin();
    memset(bytes, 'x', sizeof bytes);
    hold("ONE");
    announce("TWO", sizeof bytes, 0);
    CHECK_OK(redis_link_send_long(client, bytes, sizeof bytes, NULL, soon(), &e), e);
    const char *got = arrived();
    CHECK_CONTAINS(got, "*1\r\n$3\r\nONE\r\n*3\r\n$3\r\nTWO\r\n$3\r\nkey\r\n$100000\r\nxxxx");
    CHECK_INT(strlen(got), 13 + 13 + 9 + 9 + 100000 + 2);
    finish();
}

/* The length goes with what is sent next, the bytes later; replies may be taken in between. */
TEST(an_announced_argument_goes_in_two_parts)
{
    static char bytes[100000], want[sizeof bytes + 64];
    err e = ERR_INIT;
    redisReply *reply;
    begin();
    memset(bytes, 'x', sizeof bytes);
    hold("ONE");
    announce("WRITE", sizeof bytes, 1);
    CHECK_STR(arrived(), "");
    say("+OK\r\n");
    CHECK_OK(redis_link_receive(client, &reply, soon(), &e), e);
    redis_reply_free(&reply);
    CHECK_STR(arrived(), "*1\r\n$3\r\nONE\r\n*4\r\n$5\r\nWRITE\r\n$3\r\nkey\r\n$100000\r\n");
    send_rest(bytes, sizeof bytes);
    snprintf(want, sizeof want, "%.*s\r\n$2\r\n-7\r\n", (int)sizeof bytes, bytes);
    CHECK(strcmp(arrived(), want) == 0);
    announce("WRITE", sizeof bytes, 1); /* both at once */
    send_rest(bytes, sizeof bytes);
    const char *got = arrived();
    CHECK_CONTAINS(got, "*4\r\n$5\r\nWRITE\r\n$3\r\nkey\r\n$100000\r\nxxxx");
    CHECK_STR(got + strlen(got) - 10, "\r\n$2\r\n-7\r\n");
    announce("WRITE", 3, 1); /* a short one is held */
    send_rest("abc", 3);
    CHECK_STR(arrived(), "");
    hold("TWO");
    say("+OK\r\n");
    CHECK_OK(redis_link_receive(client, &reply, soon(), &e), e);
    redis_reply_free(&reply);
    CHECK_STR(arrived(),
              "*4\r\n$5\r\nWRITE\r\n$3\r\nkey\r\n$3\r\nabc\r\n$2\r\n-7\r\n*1\r\n$3\r\nTWO\r\n");
    finish();
}

/* What does not fit beside what is held pushes it out. */
TEST(announcements_stay_in_order)
{
    enum { COMMANDS = 1000 };
    static char all[COMMANDS * 64];
    size_t used = 0;
    err e = ERR_INIT;
    redisReply *reply;
    begin();
    for (int i = 0; i < COMMANDS; i++) {
        char word[16];
        snprintf(word, sizeof word, "N%03d", i);
        announce(word, 3, 1);
        send_rest("abc", 3);
        used += (size_t)snprintf(all + used, sizeof all - used, "%s", arrived());
    }
    say("+OK\r\n");
    CHECK_OK(redis_link_receive(client, &reply, soon(), &e), e);
    redis_reply_free(&reply);
    snprintf(all + used, sizeof all - used, "%s", arrived());
    const char *at = all;
    for (int i = 0; i < COMMANDS; i++) {
        char want[64];
        int len = snprintf(want, sizeof want,
                           "*4\r\n$4\r\nN%03d\r\n$3\r\nkey\r\n$3\r\nabc\r\n$2\r\n-7\r\n", i);
        CHECK(strncmp(at, want, (size_t)len) == 0);
        at += len;
    }
    CHECK_STR(at, "");
    finish();
}

TEST(more_than_can_be_held_is_sent_in_order)
{
    enum { COMMANDS = 1000 };
    char word[16], want[64];
    size_t used = 0;
    static char all[COMMANDS * 32];
    begin();
    for (int i = 0; i < COMMANDS; i++) {
        snprintf(word, sizeof word, "N%d", i);
        hold(word);
        const char *got = arrived();
        CHECK(used + strlen(got) < sizeof all);
        memcpy(all + used, got, strlen(got) + 1);
        used += strlen(got);
    }
    err e = ERR_INIT;
    redisReply *reply;
    say("+OK\r\n");
    CHECK_OK(redis_link_receive(client, &reply, soon(), &e), e);
    redis_reply_free(&reply);
    snprintf(all + used, sizeof all - used, "%s", arrived());
    const char *at = all;
    for (int i = 0; i < COMMANDS; i++) {
        snprintf(word, sizeof word, "N%d", i);
        int len = snprintf(want, sizeof want, "*1\r\n$%zu\r\n%s\r\n", strlen(word), word);
        CHECK(strncmp(at, want, (size_t)len) == 0);
        at += len;
    }
    CHECK_STR(at, "");
    finish();
}

/* What comes right behind a bulk is kept for the next reply, wherever the pieces are cut. */
TEST(a_bulk_ends_where_it_ends)
{
    enum { BYTES = 50000 };
    static char into[BYTES], text[BYTES + 64];
    err e = ERR_INIT;
    redisReply *reply;
    memset(text, 'y', sizeof text);
    int head = snprintf(text, sizeof text, "$%d\r\n", BYTES);
    text[head] = 'y';
    int len = head + BYTES + snprintf(text + head + BYTES, 32, "\r\n:42\r\n$3\r\nend\r\n");
    for (int cut = len - 25; cut <= len; cut++) {
        begin();
        CHECK(write(peer, text, (size_t)cut) == cut);
        if (fork() == 0) { /* the rest, later or not: the reader waits for it */
            CHECK(write(peer, text + cut, (size_t)(len - cut)) == len - cut);
            _exit(0);
        }
        CHECK_OK(redis_link_receive_long(client, into, BYTES, soon(), &e), e);
        CHECK(into[0] == 'y' && into[BYTES - 1] == 'y');
        CHECK_OK(redis_link_receive(client, &reply, soon(), &e), e);
        CHECK_INT(reply->integer, 42);
        redis_reply_free(&reply);
        CHECK_OK(redis_link_receive(client, &reply, soon(), &e), e);
        CHECK_STR(reply->str, "end");
        redis_reply_free(&reply);
        finish();
    }
}

TEST(a_peer_that_is_gone_is_told_of)
{
    err e = ERR_INIT;
    redisReply *reply;
    begin();
    close(peer);
    hold("ONE");
    CHECK_ERR(redis_link_receive(client, &reply, soon(), &e), e, ERR_UNAVAILABLE, "closed");
    CHECK(!reply);
    CHECK(redis_link_broken(client));
    redis_link_close(client);
}

/* What may still come of it would be taken for the answer to another command. */
TEST(a_reply_that_was_not_taken_whole_ends_the_connection)
{
    static const struct {
        const char *text;
        err_code code;
    } cases[] = {
        {"", ERR_TIMEOUT},
        {"+OK", ERR_TIMEOUT},
        {"$4\r\nab", ERR_TIMEOUT},
        {"*2\r\n:1\r\n", ERR_TIMEOUT},
        {"?\r\n", ERR_CORRUPT},
        {"+OK\n", ERR_TIMEOUT},
        {"\r\n", ERR_CORRUPT},
        {":x1\r\n", ERR_CORRUPT},
        {":\r\n", ERR_CORRUPT},
        {"$99999999999\r\n", ERR_LIMIT},
        {"$-2\r\n", ERR_CORRUPT},
        {"*1\r\n$134217729\r\nab", ERR_LIMIT},
        {"*65537\r\n", ERR_LIMIT},
        {"*1\r\n*2147483647\r\n", ERR_LIMIT},
        {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = ERR_INIT;
        redisReply *reply;
        begin();
        say(cases[i].text);
        CHECK_ERR(redis_link_receive(client, &reply, clock_deadline_ms(1), &e), e, cases[i].code,
                  "redis: ");
        if (!redis_link_broken(client))
            test_fail(__FILE__, __LINE__, "goes on after \"%s\"", cases[i].text);
        finish();
    }
}

/* Nothing is allocated for what a reply announces beyond the limits. */
TEST(a_line_without_an_end_is_refused)
{
    static char text[REDIS_LINE_BYTES_MAX + 2];
    err e = ERR_INIT;
    redisReply *reply;
    for (int i = 0; i < 2; i++) { /* a bare \n is no end */
        begin();
        memset(text, 'a', sizeof text - 1);
        text[0] = '+';
        text[1] = i == 0 ? 'a' : '\n';
        say(text);
        CHECK_ERR(redis_link_receive(client, &reply, soon(), &e), e, ERR_CORRUPT, "without an end");
        CHECK(redis_link_broken(client));
        finish();
    }
}

TEST(a_reply_may_be_as_deep_and_as_empty_as_the_limits_say)
{
    err e = ERR_INIT;
    redisReply *reply;
    begin();
    say("*1\r\n*1\r\n*1\r\n*2\r\n*0\r\n*-1\r\n");
    CHECK_OK(redis_link_receive(client, &reply, soon(), &e), e);
    const redisReply *inner = reply->element[0]->element[0]->element[0];
    CHECK_INT(inner->elements, 2);
    CHECK_INT(inner->element[0]->elements, 0);
    CHECK_INT(inner->element[1]->type, REDIS_REPLY_NIL);
    redis_reply_free(&reply);
    finish();
}

/* Where a bulk of known length is wanted. */
TEST(other_replies_than_the_bulk_are_errors)
{
    static const struct {
        const char *text;
        err_code code;
        bool broken;
    } cases[] = {
        {"-KML-STALE over\r\n", ERR_STALE, false}, {"$-1\r\n", ERR_NOT_FOUND, false},
        {"$3\r\nabc\r\n", ERR_CORRUPT, true},      {"+abcd\r\n", ERR_CORRUPT, true},
        {":1234\r\n", ERR_CORRUPT, true},          {"$4\r\nabcdef", ERR_CORRUPT, true},
        {"$4\r\nab", ERR_TIMEOUT, true},           {"$4", ERR_TIMEOUT, true},
        {"$99999999999\r\n", ERR_LIMIT, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = ERR_INIT;
        char four[4];
        begin();
        say(cases[i].text);
        CHECK_ERR(redis_link_receive_long(client, four, sizeof four, clock_deadline_ms(1), &e), e,
                  cases[i].code, "");
        if (redis_link_broken(client) != cases[i].broken)
            test_fail(__FILE__, __LINE__, "after \"%s\"", cases[i].text);
        if (!cases[i].broken) {
            say("$4\r\nabcd\r\n");
            CHECK_OK(redis_link_receive_long(client, four, sizeof four, soon(), &e), e);
        }
        finish();
    }
}

/* The peer first answers more than its socket holds, and reads afterwards. */
TEST(a_long_argument_is_written_while_replies_come)
{
    enum { REPLIES = 8, REPLY_BYTES = 60000, ARGUMENT_BYTES = 8 << 20 };
    static char argument[ARGUMENT_BYTES], text[REPLY_BYTES + 16], into[REPLY_BYTES];
    err e = ERR_INIT;
    begin();
    CHECK(fcntl(peer, F_SETFL, 0) == 0);
    int head = snprintf(text, sizeof text, "$%d\r\n", REPLY_BYTES);
    memset(text + head, 'r', REPLY_BYTES);
    memcpy(text + head + REPLY_BYTES, "\r\n", 3);
    pid_t child = fork();
    if (child == 0) {
        static char sink[1 << 16];
        size_t left = strlen("*1\r\n$8388608\r\n\r\n") + ARGUMENT_BYTES;
        for (int i = 0; i < REPLIES; i++)
            say(text);
        for (ssize_t n; left > 0 && (n = read(peer, sink, sizeof sink)) > 0;)
            left -= (size_t)n;
        _exit(left == 0 ? 0 : 1);
    }
    CHECK_OK(redis_command_words(&command, 0, NULL, NULL, &e), e);
    CHECK_OK(redis_link_announce(client, &command, ARGUMENT_BYTES, 0, soon(), &e), e);
    CHECK_OK(redis_link_send_long(client, argument, ARGUMENT_BYTES, NULL, soon(), &e), e);
    for (int i = 0; i < REPLIES; i++) {
        CHECK_OK(redis_link_receive_long(client, into, REPLY_BYTES, soon(), &e), e);
        CHECK(into[0] == 'r' && into[REPLY_BYTES - 1] == 'r');
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    finish();
}
