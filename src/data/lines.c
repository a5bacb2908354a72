/* Reads files, and cuts them into rows. A regular file is read by zlib, which passes plain contents through. A pipe is
 * read directly, because zlib would wait for a whole chunk while another program may write line by line. */
#include "lines.h"

#include "json_line.h"
#include "lines-internal.h"

#include "base/beginning.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { CHUNK_BYTES = 1 << 17 };

struct lines {
    const char *name;
    int descriptor;
    gzFile packed; /* NULL: the descriptor is read directly */
    size_t most;
    enum lines_form form;
    bool is_begun, has_ended; /* has_ended: the array's last bracket was read */
    struct strbuf line, json; /* json: of a row of CSV */
    struct csv csv;
    int64_t number, rows, feeds; /* the row's line, from 1; rows, and line feeds, that were read */
    size_t used, filled;
    char chunk[CHUNK_BYTES];
};

/* zlib takes over the descriptor. */
static int open_packed(struct lines *lines) {
    struct stat info;
    if (fstat(lines->descriptor, &info) || !S_ISREG(info.st_mode))
        return STATUS_OK;
    lines->packed = gzdopen(lines->descriptor, "rb");
    if (!lines->packed)
        return status_fail(STATUS_MEMORY, "%s: out of memory", lines->name);
    gzbuffer(lines->packed, CHUNK_BYTES);
    return STATUS_OK;
}

int lines_open_plain(const char *path, size_t most, struct lines **out) {
    bool is_input = !strcmp(path, "-");
    struct lines *lines = calloc(1, sizeof *lines);
    *out = NULL;
    TRY(status_allocated(lines));
    lines->name = is_input ? "standard input" : path;
    lines->most = most;
    lines->is_begun = true;
    lines->descriptor = is_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    int status = lines->descriptor < 0 ? status_fail_errno("cannot open %s", path) : STATUS_OK;
    THEN_IF(status, !is_input, open_packed(lines));
    if (status)
        lines_close(lines);
    else
        *out = lines;
    return status;
}

int lines_open(const char *path, size_t most, struct lines **out) {
    int status = lines_open_plain(path, most, out);
    if (!status)
        (*out)->is_begun = false;
    return status;
}

static int read_packed(struct lines *lines, ssize_t *got) {
    int code;
    errno = 0;
    *got = gzread(lines->packed, lines->chunk, CHUNK_BYTES);
    const char *text = gzerror(lines->packed, &code);
    if (*got < 0 && code == Z_ERRNO)
        return status_fail_errno("cannot read %s", lines->name);
    if (*got < 0 && code == Z_MEM_ERROR)
        return status_fail(STATUS_MEMORY, "%s: out of memory", lines->name);
    if (*got < 0 || code == Z_BUF_ERROR)
        return status_fail(STATUS_INVALID, "%s: damaged or truncated gzip data after line %lld (%s)", lines->name,
                           (long long)lines->number, text);
    return STATUS_OK;
}

static int read_plain(struct lines *lines, ssize_t *got) {
    do
        *got = read(lines->descriptor, lines->chunk + lines->filled, CHUNK_BYTES - lines->filled);
    while (*got < 0 && errno == EINTR);
    return *got < 0 ? status_fail_errno("cannot read %s", lines->name) : STATUS_OK;
}

/* Fills the chunk; it stays empty only at the end of the file. */
static int refill(struct lines *lines) {
    ssize_t got;
    lines->used = lines->filled = 0;
    int status = lines->packed ? read_packed(lines, &got) : read_plain(lines, &got);
    lines->filled = status ? 0 : (size_t)got;
    return status;
}

static bool has_suffix(const char *name, const char *suffix) {
    size_t length = strlen(name), end = strlen(suffix);
    return length > end && !strcasecmp(name + length - end, suffix);
}

/* Returns the number of blanks at the beginning of a text, and counts their line feeds. */
static size_t skip_blanks(const char *text, size_t length, int64_t *feeds) {
    size_t at = 0;
    for (; at < length && memchr(" \t\r\n", text[at], 4); at++)
        *feeds += text[at] == '\n';
    return at;
}

/* Reads the first bytes, which say what the file is. A pipe may bring a byte-order mark in pieces. */
static int begin(struct lines *lines) {
    ssize_t got = 1;
    int64_t feeds = 0;
    int status = refill(lines);
    lines->is_begun = true;
    while (!status && !lines->packed && got && lines->filled && lines->filled < 4 &&
           memchr("\xef\xfe\xff", lines->chunk[0], 3)) {
        status = read_plain(lines, &got);
        lines->filled += status ? 0 : (size_t)got;
    }
    THEN(status, beginning_check(lines->name, lines->chunk, lines->filled, true));
    size_t at = lines->used = beginning_mark(lines->chunk, lines->filled);
    at += skip_blanks(lines->chunk + at, lines->filled - at, &feeds);
    if (has_suffix(lines->name, ".csv") || has_suffix(lines->name, ".csv.gz")) {
        lines->form = LINES_CSV;
    } else if (lines->packed && at < lines->filled && lines->chunk[at] == '[') {
        lines->form = LINES_ARRAY;
        lines->used = at + 1;
        lines->feeds = feeds;
    }
    return status;
}

int lines_wrap(const struct lines *lines, int status) {
    return lines->form == LINES_ARRAY ? status_wrap(status, "%s: row %lld, line %lld", lines->name,
                                                    (long long)lines->rows, (long long)lines->number)
                                      : status_wrap(status, "%s:%lld", lines->name, (long long)lines->number);
}

static int fail(const struct lines *lines, const char *why) {
    return lines_wrap(lines, status_fail(STATUS_INVALID, "%s", why));
}

/* Reads the bytes of the next row, without the byte that ends it. *end is that byte, or 0 at the end of the file;
 * *is_end: there is nothing before it. */
static int read_row(struct lines *lines, char *end, bool *is_end) {
    struct row_scan scan = {0};
    bool is_whole = false;
    *is_end = true;
    *end = 0;
    strbuf_clear(&lines->line);
    lines->number = lines->feeds + 1;
    lines->rows++;
    while (!is_whole) {
        int status = lines->used == lines->filled ? refill(lines) : STATUS_OK;
        if (status || lines->filled == 0)
            return status ? status : strbuf_status(&lines->line);
        *is_end = false;
        const char *from = lines->chunk + lines->used;
        size_t taken = row_scan(&scan, lines->form, from, lines->filled - lines->used, &is_whole);
        size_t length = taken - is_whole;
        if (length > lines->most - lines->line.length)
            return lines_wrap(
                lines, status_fail(STATUS_INVALID, "longer than the %zu bytes that a row may have", lines->most));
        for (const char *at = from; (at = memchr(at, '\n', (size_t)(from + taken - at))); at++)
            lines->feeds++;
        strbuf_add(&lines->line, from, length);
        lines->used += taken;
        *end = is_whole ? from[length] : 0;
    }
    return strbuf_status(&lines->line);
}

/* Only white space may follow the array's last bracket. */
static int next_element(struct lines *lines, bool *is_end) {
    int64_t before = 0;
    char end;
    TRY(read_row(lines, &end, is_end));
    bool is_blank = skip_blanks(strbuf_text(&lines->line), lines->line.length, &before) == lines->line.length;
    lines->number += before;
    if (lines->has_ended) {
        *is_end = is_blank && !end;
        return *is_end ? STATUS_OK : fail(lines, "text after the end of the array");
    }
    lines->has_ended = end == ']';
    if (!end)
        return fail(lines, "the array has no end");
    if (is_blank && lines->has_ended && lines->rows == 1)
        return next_element(lines, is_end);
    return is_blank ? fail(lines, "a comma without a row") : STATUS_OK;
}

/* Empty lines are no rows. */
static int next_csv(struct lines *lines, bool *is_end) {
    struct strbuf row;
    char end;
    int status = STATUS_OK;
    for (bool is_header = true; is_header && !status;) {
        do {
            status = read_row(lines, &end, is_end);
            if (lines->line.length && lines->line.data[lines->line.length - 1] == '\r')
                lines->line.length--;
        } while (!status && !*is_end && !lines->line.length);
        if (status || *is_end)
            break;
        is_header = !lines->csv.count;
        status = csv_take(&lines->csv, strbuf_text(&lines->line), lines->line.length, &lines->json);
        if (status)
            lines_wrap(lines, status);
        row = lines->line;
        lines->line = lines->json;
        lines->json = row;
    }
    return status;
}

int lines_next(struct lines *lines, bool *is_end) {
    char end;
    TRY(lines->is_begun ? STATUS_OK : begin(lines));
    return lines->form == LINES_ARRAY ? next_element(lines, is_end)
           : lines->form == LINES_CSV ? next_csv(lines, is_end)
                                      : read_row(lines, &end, is_end);
}

int lines_next_row(struct lines *lines, bool *is_end) {
    int status;
    do
        status = lines_next(lines, is_end);
    while (!status && !*is_end && json_line_is_blank(strbuf_text(&lines->line), lines->line.length));
    return status;
}

bool lines_are_of_file(const struct lines *lines) {
    struct stat info;
    return lines->packed || (!fstat(lines->descriptor, &info) && S_ISREG(info.st_mode));
}

bool lines_are_ready(const struct lines *lines, int milliseconds) {
    struct pollfd input = {.fd = lines->descriptor, .events = POLLIN};
    if (lines->packed || memchr(lines->chunk + lines->used, '\n', lines->filled - lines->used))
        return true;
    return poll(&input, 1, milliseconds) > 0;
}

const struct strbuf *lines_text(const struct lines *lines) {
    return &lines->line;
}

int64_t lines_number(const struct lines *lines) {
    return lines->form == LINES_ARRAY ? lines->rows : lines->number;
}

bool lines_are_elements(const struct lines *lines) {
    return lines->form == LINES_ARRAY;
}

const char *lines_name(const struct lines *lines) {
    return lines->name;
}

void lines_close(struct lines *lines) {
    if (!lines)
        return;
    if (lines->packed)
        gzclose_r(lines->packed);
    else if (lines->descriptor > STDIN_FILENO)
        close(lines->descriptor);
    strbuf_free(&lines->line);
    strbuf_free(&lines->json);
    csv_free(&lines->csv);
    free(lines);
}
