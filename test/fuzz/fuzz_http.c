/* fuzz_http.c: what a request says before anybody knows whose it is: a line each for its target and
 * the headers Accept, Content-Type and Host. */
#include "common/base/text.h"
#include "common/net/http_internal.h"
#include "fuzz.h"

static void check_target(const char *uri)
{
    http_target t;
    err e = ERR_INIT;
    if (http_target_parse(uri, &t, &e) == 0) {
        FUZZ_CHECK(t.segment_count <= HTTP_SEGMENTS_MAX && t.query_count <= HTTP_QUERIES_MAX);
        for (int i = 0; i < t.segment_count; i++)
            FUZZ_CHECK(text_valid(t.segments[i], strlen(t.segments[i])));
        for (int i = 0; i < t.query_count; i++)
            FUZZ_CHECK(text_valid(t.query_names[i], strlen(t.query_names[i])) &&
                       text_valid(t.query_values[i], strlen(t.query_values[i])));
        if (http_pattern_matches("/tasks/{id}/logs", &t))
            FUZZ_CHECK(t.segment_count == 3 && t.segments[1][0]);
    } else {
        FUZZ_CHECK(e.code == ERR_INVALID || e.code == ERR_NOT_FOUND);
    }
    http_target_free(&t);
}

FUZZ(http)
{
    static const char gives[] = "application/json,text/plain,text/event-stream";
    const char *line[4] = {"", "", "", ""};
    char *text = malloc(len + 1), *rest = text, best[24];
    FUZZ_CHECK(text);
    memcpy(text, bytes, len);
    text[len] = '\0';
    for (int i = 0; i < 4 && rest; i++)
        line[i] = strsep(&rest, "\n");
    check_target(line[0]);
    if (http_accept_best(line[1], gives, best, sizeof best))
        FUZZ_CHECK(http_list_has(gives, best));
    if (http_type_listed(gives, line[2]))
        FUZZ_CHECK(strlen(line[2]) >= strlen("text/plain"));
    if (http_host_is_local(line[3]))
        FUZZ_CHECK(strlen(line[3]) >= strlen("[::1]"));
    free(text);
    return 0;
}
