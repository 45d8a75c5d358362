/* progress.c: draws a bar on stderr if that is a terminal. The line is shorter than the terminal's
 * width: of a line that wraps, a redraw would erase only the last piece. */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"
#include "common/base/clock.h"

enum { REDRAW_MS = 100, CELLS_MAX = 30, CELLS_MIN = 10, COLUMNS_UNKNOWN = 80, TAIL_BYTES = 96 };

void progress_begin(progress *p, const char *label)
{
    const char *slash = strrchr(label, '/');
    *p = (progress){.label = slash ? slash + 1 : label, .started_ms = clock_monotonic_ms()};
}

static int terminal_columns(void)
{
    struct winsize size = {0};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col
                                                                       : COLUMNS_UNKNOWN;
}

/* Bytes of the first `most` characters of UTF-8, or of the whole text; *columns: the number of
 * these characters. */
static int take_columns(const char *text, int most, int *columns)
{
    int bytes = 0;
    for (*columns = 0; text[bytes]; bytes++) {
        bool begins = ((unsigned char)text[bytes] & 0xC0) != 0x80;
        if (begins && *columns == most)
            break;
        *columns += begins;
    }
    return bytes;
}

/* Draws the bar in `room` columns. If they are too few, drops first the rate, then the amount, then
 * the cells, and at last a part of the label. */
static void draw(const char *label, int room, int percent, const char *amount, const char *rate)
{
    char tail[TAIL_BYTES];
    const char *const more[][2] = {{amount, rate}, {amount, ""}, {"", ""}};
    int columns, tail_len = 0, cells = 0;
    int bytes = take_columns(label, room, &columns);
    for (int i = 0; i < 3 && cells < CELLS_MIN; i++) {
        tail_len = snprintf(tail, sizeof tail, " %3d %%%s%s", percent, more[i][0], more[i][1]);
        cells = room - columns - 1 - tail_len;
    }
    if (room < tail_len)
        return;
    if (cells < CELLS_MIN) {
        bytes = take_columns(label, room - tail_len, &columns);
        fprintf(stderr, "\r\033[K%.*s%s", bytes, label, tail);
        return;
    }
    cells = cells < CELLS_MAX ? cells : CELLS_MAX;
    fprintf(stderr, "\r\033[K%.*s ", bytes, label);
    for (int i = 0; i < cells; i++)
        fputs(i < percent * cells / 100 ? "█" : "░", stderr);
    fputs(tail, stderr);
}

void progress_update(progress *p, uint64_t done, uint64_t total)
{
    char amount[40], rate[32];
    int64_t now = clock_monotonic_ms();
    if (!isatty(STDERR_FILENO) || total == 0 || (now - p->drawn_ms < REDRAW_MS && done < total))
        return;
    p->drawn_ms = now;
    p->shown = true;
    double seconds = (double)(now - p->started_ms + 1) / 1000;
    snprintf(amount, sizeof amount, "  %.1f of %.1f MiB", (double)done / 1048576,
             (double)total / 1048576);
    snprintf(rate, sizeof rate, "  %.1f MiB/s", (double)done / 1048576 / seconds);
    draw(p->label, terminal_columns() - 1, (int)(done * 100 / total), amount, rate);
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
