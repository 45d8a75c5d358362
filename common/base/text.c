/* text.c: see text.h. */
#include "text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Length of the UTF-8 sequence that begins with `first` and the least code point it may encode. */
static size_t sequence_len(unsigned char first, uint32_t *code, uint32_t *least)
{
    if (first < 0x80) {
        *code = first;
        *least = 0;
        return 1;
    }
    size_t len = (first & 0xe0) == 0xc0   ? 2
                 : (first & 0xf0) == 0xe0 ? 3
                 : (first & 0xf8) == 0xf0 ? 4
                                          : 0;
    if (len) {
        *code = first & (0xffu >> (len + 1));
        *least = len == 2 ? 0x80 : len == 3 ? 0x800 : 0x10000;
    }
    return len;
}

/* Bytes of the character that `text` begins with; 0: no whole character, and the caller skips `bad`
 * bytes. `cut`: the character continues behind `len` bytes. */
static size_t character(const char *text, size_t len, size_t *bad, bool *cut)
{
    uint32_t code = 0, least = 0;
    size_t n = sequence_len((unsigned char)text[0], &code, &least), k = 1;
    *cut = false;
    *bad = 1;
    if (n == 0)
        return 0;
    for (; k < n && k < len && ((unsigned char)text[k] & 0xc0) == 0x80; k++)
        code = code << 6 | ((unsigned char)text[k] & 0x3f);
    *bad = k;
    *cut = k == len && k < n;
    bool whole = k == n && code != 0 && code >= least && code <= 0x10ffff &&
                 (code < 0xd800 || code >= 0xe000);
    return whole ? n : 0;
}

bool text_valid(const char *text, size_t len)
{
    size_t bad;
    bool cut;
    for (size_t i = 0, n; i < len; i += n)
        if ((n = character(text + i, len - i, &bad, &cut)) == 0)
            return false;
    return true;
}

void text_mend(char *text)
{
    size_t len = strlen(text), to = 0, bad;
    bool cut;
    for (size_t from = 0; from < len;) {
        size_t n = character(text + from, len - from, &bad, &cut);
        if (cut)
            break;
        if (n)
            memmove(text + to, text + from, n);
        else
            text[to] = '?';
        to += n ? n : 1;
        from += n ? n : bad;
    }
    text[to] = '\0';
}

void text_vprint(char *out, size_t size, const char *fmt, va_list args)
{
    if (vsnprintf(out, size, fmt, args) < 0)
        out[0] = '\0';
    text_mend(out);
}

void text_print(char *out, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    text_vprint(out, size, fmt, args);
    va_end(args);
}
