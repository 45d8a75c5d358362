/* builder_text.c: see builder_text.h. A line is one of
 *   lenet.c:12:5: error: 'y' undeclared            (compiler)
 *   lenet.c:3: Error: file not found: secret       (assembler)
 *   /usr/bin/ld: ./lenet.c:7: warning: undefined reference to `foo'
 *   ./lenet.c:(.text+0x1f): undefined reference to `foo'
 *   ./lenet.c:7:(.text+0x1f): warning: undefined reference to `foo'   (binutils 2.44)
 * or any other text, which is only copied to out->text. */
#include "builder_text.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/buf.h"
#include "common/base/text.h"

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Copies as many bytes as fit. */
static void copy(char *out, size_t room, const char *s, size_t len)
{
    size_t n = len < room ? len : room - 1;
    memcpy(out, s, n);
    out[n] = '\0';
    text_mend(out);
}

/* Reads ":<digits>" at *s. */
static bool take_number(const char **s, int *out)
{
    if (**s != ':' || !isdigit((unsigned char)(*s)[1]))
        return false;
    long n = 0;
    const char *p = *s + 1;
    for (; isdigit((unsigned char)*p); p++)
        n = n < 100000000 ? n * 10 + (*p - '0') : n;
    *out = (int)n;
    *s = p;
    return true;
}

static bool take_severity(const char **s, builder_diagnostic *d)
{
    static const struct {
        const char *word, *severity;
    } words[] = {{"fatal error: ", "error"}, {"error: ", "error"}, {"warning: ", "warning"},
                 {"note: ", "note"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t len = strlen(words[i].word);
        if (strncasecmp(*s, words[i].word, len) == 0) {
            strcpy(d->severity, words[i].severity); /* every word fits */
            *s += len;
            return true;
        }
    }
    return false;
}

/* Skips "/usr/bin/ld: " and "./", which do not help the user. */
static const char *skip_tool(const char *line)
{
    for (;;) {
        const char *blank = strstr(line, ": ");
        if (line[0] == '/' && blank && blank - line >= 2 &&
            (strncmp(blank - 2, "ld", 2) == 0 || strncmp(blank - 2, "as", 2) == 0))
            line = blank + 2;
        else if (starts(line, "./"))
            line += 2;
        else
            return line;
    }
}

/* The symbol of "undefined reference to `foo'", or NULL. */
static const char *undefined_symbol(const char *line, size_t *len)
{
    const char *at = strstr(line, "undefined reference");
    if (!at || !(at = strpbrk(at, "`'\"")))
        return NULL;
    *len = strcspn(++at, "'\"");
    return at;
}

static bool read_diagnostic(const char *line, builder_diagnostic *d)
{
    *d = (builder_diagnostic){0};
    const char *p = line;
    size_t name = strcspn(line, ": ");
    if (name > 0 && line[name] == ':') {
        copy(d->file, sizeof d->file, line, name);
        p = line + name;
        if (take_number(&p, &d->line))
            take_number(&p, &d->column);
        if (starts(p, ":("))
            p += strcspn(p, ")") + (strchr(p, ')') != NULL);
        if (!starts(p, ": "))
            return false;
        p += 2;
    }
    bool severity = take_severity(&p, d);
    size_t symbol_len;
    const char *symbol = undefined_symbol(p, &symbol_len);
    if (symbol) {
        strcpy(d->severity, "error"); /* a warning by our flags, so that ld reports all of them */
        snprintf(d->message, sizeof d->message, "undefined reference to '%.*s'",
                 (int)(symbol_len < 100 ? symbol_len : 100), symbol);
        return true;
    }
    if (!severity && starts(p, "multiple definition"))
        strcpy(d->severity, "error"), severity = true;
    if (starts(p, "excess elements in ")) /* gcc drops them, and has no flag for an error */
        strcpy(d->severity, "error");
    copy(d->message, sizeof d->message, p, strlen(p));
    return severity && (d->file[0] || strcmp(d->severity, "error") == 0);
}

/* The compiler driver's message when one of our limits, or want of memory, ended one of its
 * programs: the driver takes that for a bug of the compiler, and asks for a report. */
static bool is_about_a_limit(const char *line)
{
    return strstr(line, "limit exceeded signal terminated program") ||
           strstr(line, "Killed signal terminated program") ||
           strstr(line, "terminated with signal 9 [Killed]");
}

static bool asks_for_a_report(const char *line)
{
    return starts(line, "Please submit a full bug report") || starts(line, "See <");
}

/* Whether the line is not for the user: the linker's messages about kml_* symbols, its headings,
 * and the driver's messages about limits. */
static bool drop_line(const char *line)
{
    size_t len;
    const char *symbol = undefined_symbol(line, &len);
    if (symbol)
        return starts(symbol, "kml_");
    return is_about_a_limit(line) || asks_for_a_report(line) ||
           (strstr(line, ": in function `") && strstr(line, ".o:"));
}

static bool same_reference(const builder_result *out, const builder_diagnostic *d)
{
    for (size_t i = 0; i < out->diagnostic_count; i++)
        if (out->diagnostics[i].line == d->line && strcmp(out->diagnostics[i].file, d->file) == 0 &&
            out->diagnostics[i].column == d->column &&
            strcmp(out->diagnostics[i].message, d->message) == 0)
            return true;
    return false;
}

static void keep_diagnostic(builder_result *out, builder_diagnostic *d)
{
    if (same_reference(out, d))
        return;
    if (out->error_count && strstr(d->message, "[-Werror=return-type]"))
        strcpy(d->severity, "warning"); /* gcc ignores a return that has an error in it */
    out->error_count += strcmp(d->severity, "error") == 0;
    if (out->diagnostic_count < BUILDER_DIAGNOSTICS_MAX)
        out->diagnostics[out->diagnostic_count++] = *d;
}

/* Replaces control bytes, which must not reach a terminal or a log. */
static void clean(char *line)
{
    for (; *line; line++)
        if (iscntrl((unsigned char)*line) && *line != '\t')
            *line = '?';
}

int builder_text_read(const char *said, size_t len, builder_result *out, err *e)
{
    out->diagnostics = calloc(BUILDER_DIAGNOSTICS_MAX, sizeof *out->diagnostics);
    char *copied = malloc(len + 1);
    buf text;
    buf_init(&text, BUILDER_TEXT_BYTES_MAX + 1024);
    if (!out->diagnostics || !copied || buf_reserve(&text, 1, NULL) != 0) {
        free(copied);
        return err_set(e, ERR_NOMEM, "no memory for the compiler's words");
    }
    if (len)
        memcpy(copied, said, len);
    copied[len] = '\0';
    int rc = 0;
    for (char *line = copied, *next; rc == 0 && line < copied + len; line = next) {
        size_t n = strcspn(line, "\n");
        next = line + n + 1;
        line[n] = '\0';
        clean(line);
        text_mend(line); /* a quotation of the source may be in any encoding */
        if (drop_line(line))
            continue;
        const char *shown = skip_tool(line);
        builder_diagnostic d;
        if (read_diagnostic(shown, &d))
            keep_diagnostic(out, &d);
        rc = buf_printf(&text, e, "%s\n", shown);
    }
    free(copied);
    text.bytes[text.len] = '\0';
    out->text = text.bytes;
    return rc;
}

int builder_text_error(const builder_result *r, err *e)
{
    const builder_diagnostic *d = r->diagnostics;
    size_t i = 0;
    while (i < r->diagnostic_count && strcmp(d[i].severity, "error") != 0)
        i++;
    if (i == r->diagnostic_count)
        return 0;
    char where[BUILDER_NAME_BYTES + 32] = "", more[40] = "";
    if (d[i].file[0] && d[i].line && d[i].column)
        snprintf(where, sizeof where, "%s:%d:%d: ", d[i].file, d[i].line, d[i].column);
    else if (d[i].file[0] && d[i].line)
        snprintf(where, sizeof where, "%s:%d: ", d[i].file, d[i].line);
    else if (d[i].file[0])
        snprintf(where, sizeof where, "%s: ", d[i].file);
    if (r->error_count > 1)
        snprintf(more, sizeof more, " (and %zu more)", r->error_count - 1);
    return err_set(e, ERR_INVALID, "%serror: %.160s%s", where, d[i].message, more);
}
