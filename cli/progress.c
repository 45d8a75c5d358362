/* progress.c: a bar on stderr, while that is a terminal. */
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"

enum { REDRAW_MS = 100, BAR_CELLS = 30 };

void progress_begin(progress *p, const char *label)
{
    *p = (progress){.label = label, .started_ms = clock_monotonic_ms()};
}

void progress_update(progress *p, uint64_t done, uint64_t total)
{
    int64_t now = clock_monotonic_ms();
    if (!isatty(STDERR_FILENO) || total == 0 || (now - p->drawn_ms < REDRAW_MS && done < total))
        return;
    p->drawn_ms = now;
    p->shown = true;
    double seconds = (double)(now - p->started_ms + 1) / 1000;
    int filled = (int)(done * BAR_CELLS / total);
    fprintf(stderr, "\r\033[K%s ", p->label);
    for (int i = 0; i < BAR_CELLS; i++)
        fputs(i < filled ? "█" : "░", stderr);
    fprintf(stderr, " %3d %%  %.1f of %.1f MiB  %.1f MiB/s", (int)(done * 100 / total),
            (double)done / 1048576, (double)total / 1048576, (double)done / 1048576 / seconds);
}

void progress_of_call(void *bar, uint64_t done, uint64_t total)
{
    progress_update(bar, done, total);
}

void progress_end(progress *p)
{
    if (p->shown)
        fputs("\r\033[K", stderr);
}
