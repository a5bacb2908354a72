/* Lines of a file, packed by gzip or not, none longer than TUNING_LINE_BYTES. */
#include "tuning-internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { CHUNK_BYTES = 1 << 17 };

struct tuning_lines {
    const char *path;
    gzFile stream;
    struct strbuf line;
    int64_t number; /* of `line`, from 1 */
    size_t used, filled;
    char chunk[CHUNK_BYTES];
};

int tuning_lines_open(const char *path, struct tuning_lines **out) {
    int64_t bytes;
    *out = NULL;
    int status = corpus_input_bytes(path, &bytes);
    if (status)
        return status;
    struct tuning_lines *lines = calloc(1, sizeof *lines);
    if (!lines)
        return status_fail(STATUS_MEMORY, "out of memory");
    lines->path = path;
    lines->stream = gzopen(path, "rb");
    if (!lines->stream) {
        free(lines);
        return status_fail_errno("cannot open %s", path);
    }
    gzbuffer(lines->stream, CHUNK_BYTES);
    *out = lines;
    return STATUS_OK;
}

/* Makes the chunk non-empty unless the file has ended. */
static int refill(struct tuning_lines *lines) {
    errno = 0;
    int got = gzread(lines->stream, lines->chunk, CHUNK_BYTES), code;
    const char *text = gzerror(lines->stream, &code);
    if (got < 0 && code == Z_ERRNO)
        return status_fail_errno("cannot read %s", lines->path);
    if (got < 0 && code == Z_MEM_ERROR)
        return status_fail(STATUS_MEMORY, "%s: out of memory", lines->path);
    if (got < 0 || code == Z_BUF_ERROR)
        return status_fail(STATUS_INVALID, "%s: damaged or truncated gzip data behind line %lld (%s)", lines->path,
                           (long long)lines->number, text);
    lines->used = 0;
    lines->filled = (size_t)got;
    return STATUS_OK;
}

int tuning_lines_next(struct tuning_lines *lines, bool *is_end) {
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
        if (lines->line.length + length > TUNING_LINE_BYTES)
            return status_fail(STATUS_INVALID, "%s:%lld: longer than the %d bytes that a row may have", lines->path,
                               (long long)lines->number, TUNING_LINE_BYTES);
        strbuf_add(&lines->line, from, length);
        lines->used += length + (newline != NULL);
        if (newline) {
            *is_end = false;
            return strbuf_status(&lines->line);
        }
    }
}

const struct strbuf *tuning_lines_text(const struct tuning_lines *lines) {
    return &lines->line;
}

int64_t tuning_lines_number(const struct tuning_lines *lines) {
    return lines->number;
}

void tuning_lines_close(struct tuning_lines *lines) {
    if (!lines)
        return;
    gzclose_r(lines->stream);
    strbuf_free(&lines->line);
    free(lines);
}
