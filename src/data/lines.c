/* A regular file is read by zlib, which passes plain contents through. A pipe is read directly, because zlib would wait
 * for a whole chunk while another program may write line by line. */
#include "lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { CHUNK_BYTES = 1 << 17 };

struct lines {
    const char *name;
    int descriptor;
    gzFile packed; /* NULL: the descriptor is read directly */
    size_t most;
    struct strbuf line;
    int64_t number; /* of `line`, from 1 */
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

int lines_open(const char *path, size_t most, struct lines **out) {
    bool is_input = !strcmp(path, "-");
    struct lines *lines = calloc(1, sizeof *lines);
    *out = NULL;
    if (!lines)
        return status_fail(STATUS_MEMORY, "out of memory");
    lines->name = is_input ? "standard input" : path;
    lines->most = most;
    lines->descriptor = is_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    int status = lines->descriptor < 0 ? status_fail_errno("cannot open %s", path) : STATUS_OK;
    if (!status && !is_input)
        status = open_packed(lines);
    if (status)
        lines_close(lines);
    else
        *out = lines;
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
        *got = read(lines->descriptor, lines->chunk, CHUNK_BYTES);
    while (*got < 0 && errno == EINTR);
    return *got < 0 ? status_fail_errno("cannot read %s", lines->name) : STATUS_OK;
}

/* Fills the chunk; it stays empty only at the end of the file. */
static int refill(struct lines *lines) {
    ssize_t got;
    int status = lines->packed ? read_packed(lines, &got) : read_plain(lines, &got);
    lines->used = 0;
    lines->filled = status ? 0 : (size_t)got;
    return status;
}

int lines_next(struct lines *lines, bool *is_end) {
    bool is_begun = false;
    strbuf_clear(&lines->line);
    lines->number++;
    for (;;) {
        int status = lines->used == lines->filled ? refill(lines) : STATUS_OK;
        if (status)
            return status;
        if (lines->filled == 0) {
            *is_end = !is_begun;
            return strbuf_status(&lines->line);
        }
        is_begun = true;
        const char *from = lines->chunk + lines->used;
        const char *newline = memchr(from, '\n', lines->filled - lines->used);
        size_t length = newline ? (size_t)(newline - from) : lines->filled - lines->used;
        if (length > lines->most - lines->line.length)
            return status_fail(STATUS_INVALID, "%s:%lld: longer than the %zu bytes that a row may have", lines->name,
                               (long long)lines->number, lines->most);
        strbuf_add(&lines->line, from, length);
        lines->used += length + (newline != NULL);
        if (newline) {
            *is_end = false;
            return strbuf_status(&lines->line);
        }
    }
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
    return lines->number;
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
    free(lines);
}
