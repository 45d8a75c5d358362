/* jsontext.c: see jsontext.h. */
#include "jsontext.h"

typedef struct sink {
    buf *out;
    err *e;
    bool failed;
} sink;

static int append(const char *text, size_t len, void *arg)
{
    sink *s = arg;
    if (!s->failed && buf_append(s->out, text, len, s->e) != 0)
        s->failed = true; /* recorded, because jansson does not return every failure */
    return s->failed ? -1 : 0;
}

int jsontext_append(buf *b, const json_t *value, size_t flags, err *e)
{
    sink s = {b, e, false};
    int result = json_dump_callback(value, append, &s, flags);
    if (s.failed)
        return -1;
    return result == 0 ? 0 : err_set(e, ERR_NOMEM, "no memory for JSON, or it is nested too deep");
}
