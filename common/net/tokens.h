/* tokens.h: the bearer tokens that an HTTP server takes, and whose they are.
 *
 * A list is text: one token a line, `NAME:TOKEN` for a user's or `TOKEN` for nobody's in
 * particular; what begins with # and empty lines are left out. A user may have several tokens, so
 * that one can follow another; a token is one user's.
 */
#ifndef KUBEML_TOKENS_H
#define KUBEML_TOKENS_H

#include "common/base/err.h"
#include "common/base/name.h"

enum { TOKENS_MAX = 1024, TOKENS_TEXT_BYTES_MAX = 256 << 10, TOKENS_TOKEN_BYTES_MAX = 1024 };

typedef struct tokens tokens;

tokens *tokens_new(err *e); /* takes none. ERR_NOMEM */
void tokens_free(tokens *t); /* overwritten first; NULL is fine */
/* One token, as it is. ERR_INVALID: empty, too long, with blanks, or there already. ERR_LIMIT. */
int tokens_add(tokens *t, const char *user, const char *token, err *e);
/* A list: ERR_INVALID with the line's number, or where it has none. */
int tokens_read(tokens *t, const char *text, err *e);
/* How long it takes says nothing of `want`. */
bool tokens_same(const char *given, const char *want);
/* Whose it is: "" is nobody's in particular, NULL: it is none of them. How long it takes says
 * nothing of them. */
const char *tokens_user(const tokens *t, const char *token);
/* The first of that user; NULL user: of anybody. NULL: there is none. */
const char *tokens_first(const tokens *t, const char *user);

#endif
