/* test_http_client.c: calls over real sockets, to a server of ours. */
#include <stdlib.h>

#include "http_client.h"
#include "http_server.h"
#include "test.h"

#define TOKEN "open-sesame-please"

static http_server *server;

static void say_ok(http_request *r, void *context)
{
    (void)context;
    http_answer_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

static void serve(void)
{
    static const http_route routes[] = {
        {.method = "GET", .pattern = "/thing", .handle = say_ok},
    };
    err e = ERR_INIT;
    tokens *known = tokens_new(&e); /* with tokens it answers to any name */
    CHECK_OK(tokens_add(known, "", TOKEN, &e), e);
    CHECK_OK(http_server_start(
                 &(http_config){
                     .host = "127.0.0.1", .routes = routes, .route_count = 1, .tokens = known},
                 &server, &e),
             e);
}

/* ERR_NONE: it was answered. */
static err_code get(const char *host, bool direct)
{
    err e = ERR_INIT;
    http_reply reply;
    char url[128];
    snprintf(url, sizeof url, "http://%s:%u/thing", host, http_server_port(server));
    http_call call = {.method = "GET", .url = url, .token = TOKEN, .direct = direct};
    http_call_run(&call, &reply, &e);
    http_reply_free(&reply);
    return e.code;
}

/* 0.0.0.0 leads to this machine too, and is no name of it. */
TEST(a_proxy_of_the_environment_gets_no_call_to_this_machine)
{
    static const char *const variables[] = {"no_proxy", "NO_PROXY", "http_proxy", "all_proxy"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    serve();
    CHECK_INT(get("0.0.0.0", false), ERR_NONE);
    setenv("all_proxy", "http://127.0.0.1:1", 1); /* nobody */
    CHECK_INT(get("0.0.0.0", false), ERR_UNAVAILABLE);
    CHECK_INT(get("0.0.0.0", true), ERR_NONE);
    CHECK_INT(get("127.0.0.1", false), ERR_NONE);
    CHECK_INT(get("localhost", false), ERR_NONE);
    setenv("no_proxy", "0.0.0.0", 1);
    CHECK_INT(get("0.0.0.0", false), ERR_NONE);
    CHECK(http_server_stop(server, 2000));
}
