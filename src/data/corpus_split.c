/* Splits a corpus between ranks. The bytes of all files, end to end, are divided evenly; in a plain file the cut moves
 * to the next border of documents. An input that cannot be cut (a packed file, or one document a file) belongs to the
 * rank in whose part it begins. The ranks' parts, in order, are therefore the corpus, with each document once. */
#include "data-internal.h"

#include <fcntl.h>
#include <unistd.h>

enum { SCAN_BYTES = 1 << 16 };

/* An input while it is being split. */
struct source {
    const char *path;
    int descriptor;
    int64_t bytes;
    const char *delimiter; /* NULL: every line end is a border */
};

static int read_at(const struct source *source, char *buffer, int64_t bytes, int64_t at) {
    return file_pread_all(source->descriptor, buffer, (size_t)bytes, at, source->path);
}

/* Finds the start of the line that holds the byte before `at`. */
static int find_line_start(const struct source *source, char *buffer, int64_t at, int64_t *start) {
    int status = STATUS_OK;
    for (int64_t end = at - 1; end > 0 && !status;) {
        int64_t first = end > SCAN_BYTES ? end - SCAN_BYTES : 0;
        status = read_at(source, buffer, end - first, first);
        const char *newline = status ? NULL : memrchr(buffer, '\n', (size_t)(end - first));
        if (newline) {
            *start = first + (newline - buffer) + 1;
            return STATUS_OK;
        }
        end = first;
    }
    *start = 0;
    return status;
}

/* Sets *answer when the line [begin, end), with its line feed, is the delimiter. */
static int is_delimiter(const struct source *source, int64_t begin, int64_t end, bool *answer) {
    int64_t length = (int64_t)strlen(source->delimiter);
    char *line = NULL;
    int status = STATUS_OK;
    *answer = false;
    if (end - begin != length + 1 && end - begin != length + 2)
        return STATUS_OK;
    if (!(line = malloc((size_t)(end - begin))))
        return status_no_memory();
    status = read_at(source, line, end - begin, begin);
    *answer = !status && !memcmp(line, source->delimiter, (size_t)length) &&
              (end - begin == length + 1 || line[length] == '\r');
    free(line);
    return status;
}

/* Finds the first border of documents at `at` or after it. */
static int find_border(const struct source *source, int64_t at, int64_t *border) {
    *border = at;
    if (at == 0 || at == source->bytes)
        return STATUS_OK;
    char *buffer = malloc(SCAN_BYTES);
    int64_t line = at - 1; /* start of the current line; unused without a delimiter */
    int status = status_allocated(buffer);
    THEN_IF(status, source->delimiter, find_line_start(source, buffer, at, &line));
    *border = source->bytes;
    bool is_found = false;
    for (int64_t first = at - 1; first < source->bytes && !status && !is_found; first += SCAN_BYTES) {
        int64_t bytes = source->bytes - first < SCAN_BYTES ? source->bytes - first : SCAN_BYTES;
        status = read_at(source, buffer, bytes, first);
        for (const char *from = buffer, *newline;
             !status && !is_found && (newline = memchr(from, '\n', (size_t)(buffer + bytes - from)));
             from = newline + 1) {
            int64_t end = first + (newline - buffer) + 1;
            is_found = true;
            if (source->delimiter)
                status = is_delimiter(source, line, end, &is_found);
            if (is_found)
                *border = end;
            line = end;
        }
    }
    free(buffer);
    return status;
}

/* ---- the inputs ---- */

static bool is_packed(int descriptor) {
    unsigned char magic[2];
    return pread(descriptor, magic, 2, 0) == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
}

/* Sets `piece` to the part of input piece->file, of `bytes` bytes, that falls into the share from `from` to `to`. Both
 * count from the start of the file, and may lie outside it. */
static int cut_file(const struct preprocess_options *options, struct corpus_piece *piece, int64_t bytes, int64_t from,
                    int64_t to, bool *has_any) {
    const char *path = options->inputs.items[piece->file];
    struct source source = {.path = path, .bytes = bytes};
    enum corpus_format format = corpus_format_of(options, piece->file);
    bool begins_here = from <= 0 && to > 0;
    int status = STATUS_OK;
    *has_any = begins_here;
    *piece = (struct corpus_piece){.file = piece->file, .bytes = bytes, .is_whole = true};
    if (format == CORPUS_FILE || (begins_here && to >= bytes) || from >= bytes || to <= 0)
        return STATUS_OK;
    source.delimiter = format == CORPUS_DELIMITER ? options->delimiter : NULL;
    source.descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (source.descriptor < 0)
        return status_fail_errno("cannot open %s", path);
    if (!is_packed(source.descriptor)) {
        int64_t end = 0;
        status = find_border(&source, from > 0 ? from : 0, &piece->begin);
        THEN(status, find_border(&source, to < bytes ? to : bytes, &end));
        piece->is_whole = false;
        piece->bytes = end - piece->begin;
        *has_any = piece->bytes > 0;
    }
    close(source.descriptor);
    return status;
}

/* Returns the start of share `rank` of `ranks`. The last share has no end, so an empty file after the last byte belongs
 * to it. */
static int64_t share_begin(int64_t total, int rank, int ranks) {
    int64_t rest = total % ranks;
    return rank == ranks ? INT64_MAX : total / ranks * rank + (rank < rest ? rank : rest);
}

static int cut_inputs(const struct preprocess_options *options, const int64_t *bytes, int rank, int ranks,
                      struct corpus_pieces *out) {
    int64_t total = 0, start = 0;
    int status = STATUS_OK;
    for (size_t i = 0; i < options->inputs.count; i++)
        total += bytes[i];
    int64_t from = share_begin(total, rank, ranks), to = share_begin(total, rank + 1, ranks);
    for (size_t i = 0; i < options->inputs.count && from < to && !status; i++) {
        bool has_any = false;
        out->items[out->count].file = i;
        status = cut_file(options, &out->items[out->count], bytes[i], from - start, to - start, &has_any);
        out->count += has_any;
        start += bytes[i];
    }
    for (size_t i = 0; i < out->count; i++)
        out->total += out->items[i].bytes;
    return status;
}

int corpus_split(const struct preprocess_options *options, int rank, int ranks, struct corpus_pieces *out) {
    size_t count = options->inputs.count;
    int64_t *bytes = calloc(count + 1, sizeof *bytes);
    *out = (struct corpus_pieces){.options = options, .items = calloc(count + 1, sizeof *out->items)};
    int status = status_allocated(bytes && out->items);
    bool has_pipe = false;
    for (size_t i = 0; i < count && !status; i++) { /* all of them, before hours are spent on the first */
        status = corpus_input_bytes(options->inputs.items[i], &bytes[i]);
        has_pipe |= bytes[i] < 0;
    }
    THEN_IF(status, !has_pipe, cut_inputs(options, bytes, rank, ranks, out));
    if (has_pipe && ranks > 1)
        log_info("a pipe cannot be shared: the first rank reads everything");
    for (size_t i = 0; i < count && has_pipe && rank == 0 && !status; i++)
        out->items[out->count++] = (struct corpus_piece){.file = i, .is_whole = true};
    free(bytes);
    if (status)
        corpus_pieces_free(out);
    return status;
}

void corpus_pieces_free(struct corpus_pieces *pieces) {
    free(pieces->items);
    *pieces = (struct corpus_pieces){0};
}

/* ---- line numbers ---- */

static int64_t lines_before(const char *path, int64_t end) {
    char *buffer = malloc(SCAN_BYTES);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    int64_t lines = 0;
    ssize_t n = 1;
    for (int64_t at = 0; buffer && descriptor >= 0 && at < end && n > 0; at += n) {
        n = pread(descriptor, buffer, end - at < SCAN_BYTES ? (size_t)(end - at) : SCAN_BYTES, at);
        for (const char *from = buffer, *newline; n > 0 && (newline = memchr(from, '\n', (size_t)(buffer + n - from)));
             from = newline + 1)
            lines++;
    }
    if (descriptor >= 0)
        close(descriptor);
    free(buffer);
    return lines;
}

int64_t corpus_line(const struct corpus_pieces *pieces, size_t file, int64_t line) {
    for (size_t i = 0; i < pieces->count; i++)
        if (pieces->items[i].file == file && pieces->items[i].begin > 0)
            return line + lines_before(pieces->options->inputs.items[file], pieces->items[i].begin);
    return line;
}
