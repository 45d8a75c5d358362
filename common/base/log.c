/* log.c: see log.h. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

enum { LINE_BYTES = 1024 };

static const char *const names[] = {"debug", "info", "warn", "error"};
static char component[24] = "kubeml";
static log_level threshold = LOG_INFO;
static __thread char context[64];

void log_open(const char *name)
{
    snprintf(component, sizeof component, "%s", name);
    const char *wanted = getenv("KUBEML_LOG");
    for (int level = LOG_DEBUG; wanted && level <= LOG_ERROR; level++)
        if (strcmp(wanted, names[level]) == 0)
            threshold = (log_level)level;
}

void log_set_level(log_level level)
{
    threshold = level;
}

void log_context(const char *job, int epoch, int round)
{
    int used = 0;
    context[0] = '\0';
    if (job)
        used = snprintf(context, sizeof context, " job=%.24s", job);
    if (job && epoch >= 0)
        used += snprintf(context + used, sizeof context - (size_t)used, " epoch=%d", epoch + 1);
    if (job && epoch >= 0 && round >= 0)
        snprintf(context + used, sizeof context - (size_t)used, " round=%d", round + 1);
}

/* Appends `text`, with newlines and control bytes escaped; `line` holds LINE_BYTES. */
static size_t append_escaped(char *line, size_t used, const char *text)
{
    for (; *text && used + 5 < LINE_BYTES; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\n')
            used += (size_t)snprintf(line + used, 3, "\\n");
        else if (c < 0x20 || c == 0x7f)
            used += (size_t)snprintf(line + used, 5, "\\x%02x", c);
        else
            line[used++] = (char)c;
    }
    return used;
}

void log_write(log_level level, const char *fmt, ...)
{
    if (level < threshold)
        return;
    char text[LINE_BYTES], line[LINE_BYTES], when[25];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    clock_rfc3339(clock_wall_ms(), when);
    size_t used = (size_t)snprintf(line, sizeof line, "%s %-5s %s%s ", when, names[level],
                                   component, context);
    used = append_escaped(line, used, text);
    line[used++] = '\n';
    /* One write a line, so that the lines of several processes on one descriptor do not mix. There
     * is no place to report a log line that cannot be written. */
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written;
}
