/* log_seen.c: see log_seen.h. */
#include "log_seen.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL_BYTES = 32, TIME_BYTES = 25 }; /* 2026-11-27T12:40:28.349Z */

typedef struct place {
    uint64_t bytes;
    char time[TIME_BYTES]; /* of the last line with a time */
    uint64_t lines;        /* from the first line with that time on */
} place;

typedef struct process {
    char label[LABEL_BYTES];
    place at, seen;
    bool caught_up; /* all further lines in this reading are new */
    struct process *next;
} process;

struct log_seen {
    process *processes;
    bool again;   /* there was an earlier reading with lines */
    bool by_time; /* bytes cannot be compared any more in this reading */
};

log_seen *log_seen_open(err *e)
{
    log_seen *s = calloc(1, sizeof *s);
    if (!s)
        err_set(e, ERR_NOMEM, "no memory to follow a log");
    return s;
}

void log_seen_close(log_seen *s)
{
    for (process *p = s ? s->processes : NULL, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    free(s);
}

void log_seen_rewind(log_seen *s)
{
    s->again = s->processes != NULL;
    s->by_time = false;
    for (process *p = s->processes; p; p = p->next) {
        p->at = (place){0};
        p->caught_up = false;
    }
}

static process *find(log_seen *s, const char *label, size_t len)
{
    for (process *p = s->processes; p; p = p->next)
        if (strncmp(p->label, label, len) == 0 && !p->label[len])
            return p;
    process *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    memcpy(p->label, label, len);
    p->next = s->processes;
    s->processes = p;
    return p;
}

static bool is_text(const char *line, size_t len, const char *text)
{
    return len == strlen(text) && memcmp(line, text, len) == 0;
}

/* The number of bytes that a line reports as left out in its place; 0: it is another line. */
static uint64_t left_out(const char *line, size_t len)
{
    char text[96], same[96];
    uint64_t bytes;
    if (!len || *line != '(' || len >= sizeof text)
        return 0;
    snprintf(text, sizeof text, "%.*s", (int)len, line);
    if (sscanf(text, "(%" SCNu64 " bytes", &bytes) != 1)
        return 0;
    snprintf(same, sizeof same, "(%" PRIu64 " bytes of this log are left out here)", bytes);
    return strcmp(text, same) == 0 ? bytes : 0;
}

static void move(place *at, const char *line, size_t len)
{
    uint64_t gap = left_out(line, len);
    bool timed = len >= TIME_BYTES - 1 && line[4] == '-' && line[10] == 'T' && line[23] == 'Z';
    at->bytes += gap ? gap : len + 1;
    if (timed && strncmp(at->time, line, TIME_BYTES - 1) != 0) {
        memcpy(at->time, line, TIME_BYTES - 1);
        at->lines = 0;
    }
    at->lines++;
}

static bool is_beyond(const place *at, const place *seen, bool by_time)
{
    int order = strcmp(at->time, seen->time);
    return by_time ? order > 0 || (order == 0 && at->lines > seen->lines) : at->bytes > seen->bytes;
}

bool log_seen_is_new(log_seen *s, const char *line, size_t len)
{
    const char *bar = memchr(line, '|', len < LABEL_BYTES ? len : LABEL_BYTES - 1);
    process *p = bar && *line != '(' ? find(s, line, (size_t)(bar - line)) : NULL;
    if (!p) { /* "(the log of before is left out here: ...)", before all other lines */
        s->by_time = true;
        return !s->again;
    }
    size_t head = (size_t)(bar - line) + (bar + 1 < line + len ? 2 : 1);
    if (is_text(line + head, len - head, "(a part of this log is left out here)")) {
        s->by_time = true;
        return p->caught_up || !p->seen.lines;
    }
    move(&p->at, line + head, len - head);
    p->caught_up |= is_beyond(&p->at, &p->seen, s->by_time);
    if (!p->caught_up)
        return false;
    uint64_t bytes = p->seen.bytes > p->at.bytes ? p->seen.bytes : p->at.bytes;
    p->seen = p->at;
    p->seen.bytes = bytes;
    return true;
}
