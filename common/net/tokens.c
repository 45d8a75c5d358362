/* tokens.c: see tokens.h. */
#include "tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct token {
    char user[NAME_BYTES];
    char *text;
} token;

struct tokens {
    token *all;
    size_t count;
};

tokens *tokens_new(err *e)
{
    tokens *t = calloc(1, sizeof *t);
    if (!t)
        err_set(e, ERR_NOMEM, "no memory for tokens");
    return t;
}

void tokens_free(tokens *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->count; i++) {
        explicit_bzero(t->all[i].text, strlen(t->all[i].text));
        free(t->all[i].text);
    }
    free(t->all);
    free(t);
}

static int check(const char *user, const char *text, err *e)
{
    if (user[0] && name_check("user", user, e))
        return -1;
    if (!text[0])
        return err_set(e, ERR_INVALID, "a token is empty");
    if (strlen(text) > TOKENS_TOKEN_BYTES_MAX)
        return err_set(e, ERR_INVALID, "a token is longer than %d bytes", TOKENS_TOKEN_BYTES_MAX);
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c > '~')
            return err_set(e, ERR_INVALID,
                           "a token has a blank or another character that no header carries");
    return 0;
}

int tokens_add(tokens *t, const char *user, const char *text, err *e)
{
    if (check(user, text, e))
        return -1;
    if (tokens_user(t, text))
        return err_set(e, ERR_INVALID, "a token is there twice");
    if (t->count == TOKENS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d tokens", TOKENS_MAX);
    token *more = realloc(t->all, (t->count + 1) * sizeof *more);
    if (more)
        t->all = more;
    char *copy = more ? strdup(text) : NULL;
    if (!copy)
        return err_set(e, ERR_NOMEM, "no memory for tokens");
    token *one = &t->all[t->count++];
    one->text = copy;
    snprintf(one->user, sizeof one->user, "%s", user);
    return 0;
}

/* One line without its end: NAME:TOKEN, or TOKEN. */
static int read_line(tokens *t, char *line, err *e)
{
    char *colon = strchr(line, ':');
    if (!colon)
        return tokens_add(t, "", line, e);
    *colon = '\0';
    return line[0] ? tokens_add(t, line, colon + 1, e)
                   : err_set(e, ERR_INVALID, "no user stands before the colon");
}

int tokens_read(tokens *t, const char *text, err *e)
{
    size_t before = t->count;
    char line[NAME_BYTES + TOKENS_TOKEN_BYTES_MAX + 3];
    for (int number = 1; *text; number++) {
        size_t len = strcspn(text, "\r\n");
        err why = ERR_INIT;
        snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line), text);
        int status = len >= sizeof line ? err_set(&why, ERR_INVALID, "it is too long")
                     : !len || line[0] == '#' ? 0
                                              : read_line(t, line, &why);
        explicit_bzero(line, sizeof line);
        if (status)
            return err_set(e, why.code, "line %d: %s", number, why.message);
        text += len;
        text += strncmp(text, "\r\n", 2) == 0 ? 2 : *text != '\0';
    }
    return t->count > before ? 0 : err_set(e, ERR_INVALID, "no token stands there");
}

bool tokens_same(const char *given, const char *want)
{
    size_t given_len = strlen(given), want_len = strlen(want);
    unsigned char differs = given_len != want_len;
    for (size_t i = 0; i < given_len; i++)
        differs |= (unsigned char)(given[i] ^ want[want_len ? i % want_len : 0]);
    return differs == 0;
}

const char *tokens_user(const tokens *t, const char *text)
{
    const char *user = NULL;
    for (size_t i = 0; i < t->count; i++)
        user = tokens_same(text, t->all[i].text) ? t->all[i].user : user;
    return user;
}

const char *tokens_first(const tokens *t, const char *user)
{
    for (size_t i = 0; i < t->count; i++)
        if (!user || strcmp(t->all[i].user, user) == 0)
            return t->all[i].text;
    return NULL;
}
