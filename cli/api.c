/* api.c: calls of the controller's REST API. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli.h"
#include "common/base/clock.h"

/* AWAY_MS: a controller's 503 means that nothing was done and that a retry helps, because another
 * controller takes over within this time. LOST_TRIES: a controller that stops leading closes its
 * connections, so that a read is tried once more. */
enum { AWAY_MS = 12000, PAUSE_MS = 500, LOST_TRIES = 1 };
/* A stream's silence of which the user is told: a restart, by hand or by a kubelet, is shorter. */
enum { NEWS_MS = 5000 };

int cli_unwritten(const err *e)
{
    clearerr(stdout); /* the error is reported here */
    return e->os_errno == EPIPE ? CLI_FAILED : cli_fail(e);
}

int cli_fail(const err *e)
{
    fputs("kubeml: ", stderr);
    output_said(stderr, e->message, true); /* a message with advice may have several lines */
    fputc('\n', stderr);
    if (e->code == ERR_UNAVAILABLE && e->os_errno == ECONNREFUSED)
        fprintf(stderr,
                "Is the platform running? `kubeml up` starts it; KUBEML_URL says where it is.\n");
    /* The API server's message where the Service has no controller behind it. */
    if (strstr(e->message, "no endpoints available for service"))
        fprintf(stderr, "No controller is ready there; its log says why: kubectl logs -n NAMESPACE "
                        "-l app.kubernetes.io/component=controller\n");
    if (e->code == ERR_UNAUTHORIZED)
        fprintf(stderr, "Set KUBEML_TOKEN to the platform's token.\n");
    return CLI_FAILED;
}

const char *cli_path(const char *prefix, const char *name, const char *tail)
{
    static char path[2048];
    buf encoded;
    buf_init(&encoded, 1024);
    /* A name too long to encode becomes a path that the server refuses. */
    http_encode(&encoded, name, NULL);
    snprintf(path, sizeof path, "%s%s%s", prefix, encoded.bytes ? encoded.bytes : "", tail);
    buf_free(&encoded);
    return path;
}

int cli_part(http_part *part, const char *field, const char *path, err *e)
{
    struct stat about;
    *part = (http_part){.field = field, .path = path};
    if (stat(path, &about))
        return errno == ENOENT ? err_set(e, ERR_NOT_FOUND, "no file %.200s", path)
                               : err_set_errno(e, errno, "%.200s", path);
    if (S_ISDIR(about.st_mode))
        return err_set(e, ERR_INVALID, "%.200s is a folder, not a file", path);
    return S_ISREG(about.st_mode) ? 0
                                  : err_set(e, ERR_INVALID, "%.200s is not a regular file", path);
}

int cli_call_once(const cli *c, http_call *call, const char *path, http_reply *reply, err *e)
{
    char url[4096];
    cluster_access *a = c->cluster->wanted ? c->cluster : NULL;
    bool has_token = c->token && *c->token;
    *reply = (http_reply){0};
    if (a && cluster_reach(a, has_token, e))
        return -1;
    const char *to = a ? a->base : c->url;
    size_t base = strlen(to);
    while (base && to[base - 1] == '/')
        base--;
    snprintf(url, sizeof url, "%.*s%s", (int)base, to, path);
    call->url = url;
    call->token = a && !has_token ? a->token : c->token;
    call->kube = a ? a->config : NULL;
    return http_call_run(call, reply, e);
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

static bool is_lost(const http_call *call, const http_reply *reply, const err *why)
{
    return reply->status == 0 && why->os_errno == ECONNRESET && strcmp(call->method, "GET") == 0;
}

/* Whether a call that ended with 503 surely changed nothing, so that it may be tried again. The API
 * server's proxy sends 503 for every failure of the connection: only if it reached no pod, nothing
 * was done. */
static bool nothing_done(const http_call *call, const http_reply *reply, const err *why)
{
    return strcmp(call->method, "GET") == 0 ||
           strncmp(reply->content_type, "application/problem+json", 24) == 0 ||
           strstr(why->message, "no endpoints available for service") ||
           strstr(why->message, "error trying to reach service: dial ");
}

int cli_call_raw(const cli *c, http_call *call, const char *path, http_reply *reply, err *e)
{
    int tries = LOST_TRIES;
    for (int64_t deadline = clock_deadline_ms(AWAY_MS);;) {
        err why = ERR_INIT;
        int status = cli_call_once(c, call, path, reply, &why);
        bool refused = status && reply->status == 503;
        if (refused && !nothing_done(call, reply, &why))
            return err_set(e, ERR_TIMEOUT, "the answer was lost: look whether it was done: %s",
                           why.message);
        bool again = refused || (status && is_lost(call, reply, &why) && tries-- > 0);
        if (!again || clock_left_ms(deadline) == 0) {
            if (status && e)
                *e = why;
            return status;
        }
        http_reply_free(reply);
        pause_ms(PAUSE_MS); /* a 503 has Retry-After */
    }
}

/* Makes one call. `next` (may be NULL) holds HTTP_NEXT_BYTES: the path of a list's next page, or
 * "". */
static int call_for(const cli *c, const char *method, const char *path, const json_t *body,
                    json_t **out, char *next, err *e)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    http_call call = {.method = method, .body = text, .body_len = text ? strlen(text) : 0};
    http_reply reply;
    int status = cli_call_raw(c, &call, path, &reply, e);
    free(text);
    if (status == 0 && out) {
        *out = http_reply_json(&reply, e);
        status = *out ? 0 : -1;
    }
    if (next)
        memcpy(next, reply.next, sizeof reply.next);
    http_reply_free(&reply);
    return status;
}

int cli_call(const cli *c, const char *method, const char *path, const json_t *body, json_t **out,
             err *e)
{
    return call_for(c, method, path, body, out, NULL, e);
}

int cli_call_list(const cli *c, const char *path, json_t **rows, err *e)
{
    char at[HTTP_NEXT_BYTES], next[HTTP_NEXT_BYTES];
    snprintf(at, sizeof at, "%s", path);
    *rows = json_array();
    do {
        json_t *page = NULL;
        int status = *rows ? call_for(c, "GET", at, NULL, &page, next, e)
                           : err_set(e, ERR_NOMEM, "no memory for a list");
        if (status == 0 && !json_is_array(page))
            status = err_set(e, ERR_CORRUPT, "%s is no list", path);
        else if (status == 0 && json_array_extend(*rows, page))
            status = err_set(e, ERR_NOMEM, "no memory for a list");
        json_decref(page);
        if (status) {
            json_decref(*rows);
            *rows = NULL;
            return -1;
        }
        memcpy(at, next, sizeof at);
    } while (at[0]);
    return 0;
}

static void tell_silence(cli_stream *s, const err *e)
{
    fprintf(stderr, "kubeml: the platform does not answer, and is asked again for %d minutes: %s\n",
            CLI_SILENT_S / 60, e->code == ERR_NONE ? "its stream ends at once" : e->message);
    s->told_ms = s->heard_ms;
}

bool cli_again(cli_stream *s, long status, const err *e)
{
    int64_t silent_ms = clock_monotonic_ms() - s->heard_ms;
    bool away = e->code == ERR_UNAVAILABLE || e->code == ERR_TIMEOUT;
    s->begun |= status == 200;
    if (e->code != ERR_NONE && !(away && (s->begun || status == 503)))
        return false;
    if (silent_ms >= CLI_SILENT_S * 1000L) {
        s->given_up = true;
        return false;
    }
    if (silent_ms >= NEWS_MS && s->told_ms != s->heard_ms)
        tell_silence(s, e);
    pause_ms(PAUSE_MS); /* until the server may be back */
    return true;
}

int cli_stream_fail(const cli_stream *s, const char *job, const err *e)
{
    cli_fail(e);
    if (s->given_up && s->begun)
        fprintf(stderr,
                "Nothing has come for %d minutes, but the job may still run: `kubeml task get %s` "
                "shows it.\n",
                CLI_SILENT_S / 60, job);
    return CLI_FAILED;
}
