/* test_resp.c: the client of Redis's protocol against a peer that is this test. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/modelstore/resp.h"
#include "test.h"

static resp *client;
static int peer;
static resp_command command;

static void begin(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    client = resp_adopt(pair[0]);
    CHECK(client);
    peer = pair[1];
}

static void finish(void)
{
    resp_close(client);
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
    resp_begin(&command, word);
    CHECK_OK(resp_hold(client, &command, soon(), &e), e);
}

TEST(what_is_held_travels_with_the_next_one)
{
    err e = ERR_INIT;
    begin();
    hold("ONE");
    hold("TWO");
    CHECK_STR(arrived(), "");
    resp_begin(&command, "THREE");
    CHECK_OK(resp_send(client, &command, soon(), &e), e);
    CHECK_STR(arrived(), "*1\r\n$3\r\nONE\r\n*1\r\n$3\r\nTWO\r\n*1\r\n$5\r\nTHREE\r\n");
    finish();
}

TEST(what_is_held_is_sent_before_a_reply_is_waited_for)
{
    err e = ERR_INIT;
    resp_reply reply;
    char four[4];
    begin();
    hold("ONE");
    say("+OK\r\n$4\r\nabcd\r\n");
    CHECK_OK(resp_receive(client, &reply, soon(), &e), e);
    CHECK_STR(reply.bytes, "OK");
    resp_reply_free(&reply);
    CHECK_STR(arrived(), "*1\r\n$3\r\nONE\r\n");
    hold("TWO");
    CHECK_OK(resp_receive_into(client, four, sizeof four, soon(), &e), e);
    CHECK(memcmp(four, "abcd", 4) == 0);
    CHECK_STR(arrived(), "*1\r\n$3\r\nTWO\r\n");
    finish();
}

/* A long argument is not copied; what was held before it goes first. */
TEST(a_long_argument_is_sent_at_once)
{
    static char bytes[100000];
    err e = ERR_INIT;
    begin();
    memset(bytes, 'x', sizeof bytes);
    hold("ONE");
    resp_begin(&command, "TWO");
    resp_add_bytes(&command, bytes, sizeof bytes);
    CHECK_OK(resp_hold(client, &command, soon(), &e), e);
    const char *got = arrived();
    CHECK_CONTAINS(got, "*1\r\n$3\r\nONE\r\n*2\r\n$3\r\nTWO\r\n$100000\r\nxxxx");
    CHECK_INT(strlen(got), 13 + 13 + 9 + 100000 + 2);
    finish();
}

static void announce(const char *word, size_t len)
{
    err e = ERR_INIT;
    resp_begin(&command, word);
    resp_add(&command, "key");
    CHECK_OK(resp_announce(client, &command, 4, len, soon(), &e), e);
}

static void send_rest(const void *bytes, size_t len)
{
    err e = ERR_INIT;
    resp_begin_rest(&command);
    resp_add_int(&command, -7);
    CHECK_OK(resp_send_rest(client, bytes, len, &command, soon(), &e), e);
}

/* The length goes with what is sent next, the bytes later; replies may be taken in between. */
TEST(an_announced_argument_goes_in_two_parts)
{
    static char bytes[100000], want[sizeof bytes + 64];
    err e = ERR_INIT;
    resp_reply reply;
    begin();
    memset(bytes, 'x', sizeof bytes);
    hold("ONE");
    announce("WRITE", sizeof bytes);
    CHECK_STR(arrived(), "");
    say("+OK\r\n");
    CHECK_OK(resp_receive(client, &reply, soon(), &e), e);
    resp_reply_free(&reply);
    CHECK_STR(arrived(), "*1\r\n$3\r\nONE\r\n*4\r\n$5\r\nWRITE\r\n$3\r\nkey\r\n$100000\r\n");
    send_rest(bytes, sizeof bytes);
    snprintf(want, sizeof want, "%.*s\r\n$2\r\n-7\r\n", (int)sizeof bytes, bytes);
    CHECK(strcmp(arrived(), want) == 0);
    announce("WRITE", sizeof bytes); /* both at once */
    send_rest(bytes, sizeof bytes);
    const char *got = arrived();
    CHECK_CONTAINS(got, "*4\r\n$5\r\nWRITE\r\n$3\r\nkey\r\n$100000\r\nxxxx");
    CHECK_STR(got + strlen(got) - 10, "\r\n$2\r\n-7\r\n");
    announce("WRITE", 3); /* a short one is held */
    send_rest("abc", 3);
    CHECK_STR(arrived(), "");
    hold("TWO");
    say("+OK\r\n");
    CHECK_OK(resp_receive(client, &reply, soon(), &e), e);
    resp_reply_free(&reply);
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
    resp_reply reply;
    begin();
    for (int i = 0; i < COMMANDS; i++) {
        char word[16];
        snprintf(word, sizeof word, "N%03d", i);
        announce(word, 3);
        send_rest("abc", 3);
        used += (size_t)snprintf(all + used, sizeof all - used, "%s", arrived());
    }
    say("+OK\r\n");
    CHECK_OK(resp_receive(client, &reply, soon(), &e), e);
    resp_reply_free(&reply);
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
    resp_reply reply;
    say("+OK\r\n");
    CHECK_OK(resp_receive(client, &reply, soon(), &e), e);
    resp_reply_free(&reply);
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
    resp_reply reply;
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
        CHECK_OK(resp_receive_into(client, into, BYTES, soon(), &e), e);
        CHECK(into[0] == 'y' && into[BYTES - 1] == 'y');
        CHECK_OK(resp_receive(client, &reply, soon(), &e), e);
        CHECK_INT(reply.integer, 42);
        CHECK_OK(resp_receive(client, &reply, soon(), &e), e);
        CHECK_STR(reply.bytes, "end");
        resp_reply_free(&reply);
        finish();
    }
}

TEST(a_peer_that_is_gone_is_told_of)
{
    err e = ERR_INIT;
    resp_reply reply;
    begin();
    close(peer);
    hold("ONE");
    CHECK_ERR(resp_receive(client, &reply, soon(), &e), e, ERR_UNAVAILABLE, "closed");
    CHECK(resp_broken(client));
    resp_close(client);
}

/* What may still come of it would be taken for the answer to another command. */
TEST(a_reply_that_was_not_taken_whole_ends_the_connection)
{
    static const struct {
        const char *text;
        err_code code;
    } cases[] = {
        {"", ERR_TIMEOUT},           {"+OK", ERR_TIMEOUT},
        {"$4\r\nab", ERR_TIMEOUT},   {"*2\r\n:1\r\n", ERR_TIMEOUT},
        {"?\r\n", ERR_CORRUPT},      {"+OK\n", ERR_CORRUPT},
        {"\r\n", ERR_CORRUPT},       {":x1\r\n", ERR_CORRUPT},
        {"$2\r\nabcd", ERR_CORRUPT}, {"$99999999999\r\n", ERR_LIMIT},
        {":\r\n", ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err e = ERR_INIT;
        resp_reply reply;
        begin();
        say(cases[i].text);
        CHECK_ERR(resp_receive(client, &reply, clock_deadline_ms(1), &e), e, cases[i].code,
                  "redis: ");
        if (!resp_broken(client))
            test_fail(__FILE__, __LINE__, "goes on after \"%s\"", cases[i].text);
        finish();
    }
}
