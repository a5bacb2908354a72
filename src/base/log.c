/* Lines and progress bars on standard error; each leaves as one write(2). */
#include "log.h"

#include "clock.h"
#include "status.h"
#include "utf8.h"

#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096, BAR_CELLS = 24, CHARACTER_BYTES = 5 /* with a backslash in front */ };

static _Thread_local bool quiet;
static atomic_bool is_json;

void log_quiet(bool is_quiet) {
    quiet = is_quiet;
}

static void write_all(const char *text, size_t length) {
    while (length > 0) {
        ssize_t n = write(STDERR_FILENO, text, length);
        if (n <= 0)
            return; /* standard error has no reader, so the failure cannot be reported */
        text += n;
        length -= (size_t)n;
    }
}

void log_as_json(void) {
    atomic_store(&is_json, true);
}

void log_time(char text[LOG_TIME_BYTES]) {
    double now = clock_wall_seconds();
    time_t seconds = (time_t)now;
    struct tm utc;
    gmtime_r(&seconds, &utc);
    size_t length = strftime(text, LOG_TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + length, LOG_TIME_BYTES - length, ".%03dZ", (int)((now - (double)seconds) * 1000));
}

/* Writes as many characters as fit, as the inside of a JSON string. text_make_line has made the text UTF-8. This
 * function allocates nothing, because it also reports that memory ran out. */
static size_t quote(char *out, size_t bytes, const char *text) {
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    size_t length = 0;
    while (at < end && length + CHARACTER_BYTES <= bytes) {
        size_t character = utf8_length(at, end);
        if (*at == '"' || *at == '\\')
            out[length++] = '\\';
        memcpy(out + length, at, character);
        length += character;
        at += character;
    }
    return length;
}

static void write_as_json(const char *level, const char *text) {
    static const char end[] = "\"}\n";
    char line[LINE_BYTES], time[LOG_TIME_BYTES];
    log_time(time);
    size_t used = (size_t)snprintf(
        line, sizeof line, "{\"time\":\"%s\",\"level\":\"%s\",\"event\":\"process\",\"message\":\"", time, level);
    used += quote(line + used, sizeof line - used - sizeof end, text);
    memcpy(line + used, end, sizeof end);
    write_all(line, used + sizeof end - 1);
}

/* `prefix` starts a line of text, `level` is the member of a JSON line. */
static void write_line(const char *prefix, const char *level, const char *format, va_list arguments) {
    char line[LINE_BYTES];
    int used = snprintf(line, sizeof line, "cambium: %s", prefix);
    if (vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments) < 0) /* leaves room for the newline */
        line[used] = 0;
    text_make_line(line);
    if (atomic_load(&is_json)) {
        write_as_json(level, line + used);
        return;
    }
    size_t length = strlen(line);
    line[length++] = '\n';
    write_all(line, length);
}

#define DEFINE_LOG(name, prefix, level, is_dropped)                                                                    \
    void name(const char *format, ...) {                                                                               \
        va_list arguments;                                                                                             \
        if (is_dropped)                                                                                                \
            return;                                                                                                    \
        va_start(arguments, format);                                                                                   \
        write_line(prefix, level, format, arguments);                                                                  \
        va_end(arguments);                                                                                             \
    }
DEFINE_LOG(log_info, "", "info", quiet)
DEFINE_LOG(log_warning, "warning: ", "warning", quiet)
DEFINE_LOG(log_error, "error: ", "error", false)

bool log_is_writable(void) {
    struct pollfd error = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&error, 1, 0) == 1;
}

bool log_is_terminal(void) {
    return isatty(STDERR_FILENO) == 1;
}

void progress_begin(struct progress *progress, const char *what, int64_t total) {
    *progress = (struct progress){.what = what, .total = total, .start = clock_seconds(), .quiet_seconds = 10};
    if (log_is_terminal())
        progress->last_shown = progress->start - 1; /* the first update is shown even when the work is short */
    else
        progress->last_shown = progress->start;
}

static int format_left(char *out, size_t bytes, double seconds) {
    if (seconds >= 3600)
        return snprintf(out, bytes, "%dh %02dm left", (int)(seconds / 3600), (int)(seconds / 60) % 60);
    if (seconds >= 60)
        return snprintf(out, bytes, "%dm %02ds left", (int)(seconds / 60), (int)seconds % 60);
    return snprintf(out, bytes, "%ds left", (int)(seconds + 0.5));
}

void progress_update(struct progress *progress, int64_t done, const char *detail_format, ...) {
    bool terminal = log_is_terminal();
    double now = clock_seconds();
    bool is_last = progress->total > 0 && done >= progress->total;
    if (now - progress->last_shown < (terminal ? 0.1 : progress->quiet_seconds) && !(is_last && progress->is_drawn))
        return;
    progress->last_shown = now;
    char detail[512] = "", left[64] = "", line[LINE_BYTES];
    if (detail_format) {
        va_list arguments;
        va_start(arguments, detail_format);
        vsnprintf(detail, sizeof detail, detail_format, arguments);
        va_end(arguments);
    }
    double part = progress->total > 0 ? (double)done / (double)progress->total : 0;
    if (part > 0 && done > 0)
        format_left(left, sizeof left, (now - progress->start) * (1 - part) / part);
    char bar[BAR_CELLS + 1];
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < (int)(part * BAR_CELLS) ? '=' : i == (int)(part * BAR_CELLS) ? '>' : ' ';
    bar[BAR_CELLS] = 0;
    int n;
    if (!terminal)
        n = snprintf(line, sizeof line, "cambium: %s %3.0f%%  %s  %s\n", progress->what, part * 100, detail, left);
    else if (progress->total > 0)
        n = snprintf(line, sizeof line, "\r\033[K%s %3.0f%% [%s] %s  %s", progress->what, part * 100, bar, detail,
                     left);
    else
        n = snprintf(line, sizeof line, "\r\033[K%s %s", progress->what, detail);
    progress->is_drawn = terminal;
    write_all(line, n < LINE_BYTES ? (size_t)n : LINE_BYTES - 1);
}

void progress_end(struct progress *progress) {
    if (progress->is_drawn)
        write_all("\n", 1);
    progress->is_drawn = false;
}

void progress_clear(struct progress *progress) {
    if (progress->is_drawn)
        write_all("\r\033[K", 4);
    progress->is_drawn = false;
}
