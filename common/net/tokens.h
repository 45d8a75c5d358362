/* tokens.h: the bearer tokens that an HTTP server accepts, and their users.
 *
 * A list is text: one token a line, `NAME:TOKEN` for a token of a user or `TOKEN` for a token
 * without a user. Empty lines and lines that begin with # are skipped. A user may have several
 * tokens, so that a new token can replace an old token; a token has one user. */
#ifndef KUBEML_TOKENS_H
#define KUBEML_TOKENS_H

#include "common/base/err.h"
#include "common/base/name.h"

enum { TOKENS_MAX = 1024, TOKENS_TEXT_BYTES_MAX = 256 << 10, TOKENS_TOKEN_BYTES_MAX = 1024 };

typedef struct tokens tokens;

tokens *tokens_new(err *e); /* an empty set. ERR_NOMEM */
void tokens_free(tokens *t); /* overwrites the tokens first; NULL is fine */
/* Adds a copy of a token. ERR_INVALID: empty, too long, with blanks, or there already. ERR_LIMIT.
 */
int tokens_add(tokens *t, const char *user, const char *token, err *e);
/* Adds a list. ERR_INVALID with the line's number, or where the list has no token. */
int tokens_read(tokens *t, const char *text, err *e);
/* Compares in a time that does not depend on `want`'s bytes. */
bool tokens_same(const char *given, const char *want);
/* The token's user: "" for a token without a user, NULL for an unknown token. Its time does not
 * depend on the tokens' bytes. */
const char *tokens_user(const tokens *t, const char *token);
/* The first token of that user; user NULL: the first token of all. NULL: there is none. */
const char *tokens_first(const tokens *t, const char *user);

#endif
