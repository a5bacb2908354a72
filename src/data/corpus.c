/* Reads documents from files: JSON lines (decoded later, by workers) and plain text, packed by gzip or not. zlib itself
 * detects whether a file is packed. */
#include "data-internal.h"
#include "json_line.h"

#include "base/beginning.h"
#include "text/text.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { BATCH_BYTES = 1 << 18, BATCH_DOCUMENTS = 1 << 14, CHUNK_BYTES = 1 << 17, KEPT_BYTES = 1 << 22 };

struct corpus_reader {
    const struct preprocess_options *options;
    const struct corpus_pieces *pieces;
    size_t piece;              /* number of the open piece, or of the next one */
    size_t file;               /* its input */
    bool is_open, is_at_start; /* is_at_start: nothing of the file is read */
    gzFile stream;             /* of a whole input */
    int descriptor;            /* of a range */
    int64_t left;              /* bytes of the range */
    int64_t line;              /* of the next text, from 1 */
    bool is_begun;             /* a document of this file is partly read */
    size_t start;              /* the document's start in the batch's text */
    int64_t first_line;
    bool is_continued;        /* parts of it were already returned */
    struct strbuf carry;      /* text that was read past it */
    size_t carried_line;      /* start of the current line in `carry` */
    struct tokenizer_cut cut; /* of the text not yet returned */
    int64_t finished;         /* bytes of the pieces that are read to their ends */
    char *chunk;
    size_t used, filled;
};

static void corpus_batch_clear(struct corpus_batch *batch) {
    if (batch->text.capacity > KEPT_BYTES)
        strbuf_free(&batch->text); /* releases the memory of one huge document */
    strbuf_clear(&batch->text);
    batch->count = 0;
}

void corpus_batch_free(struct corpus_batch *batch) {
    strbuf_free(&batch->text);
    free(batch->documents);
    *batch = (struct corpus_batch){0};
}

int corpus_reader_new(const struct corpus_pieces *pieces, struct corpus_reader **out) {
    struct corpus_reader *reader = calloc(1, sizeof *reader);
    *out = NULL;
    if (!reader || !(reader->chunk = malloc(CHUNK_BYTES))) {
        free(reader);
        return status_no_memory();
    }
    reader->options = pieces->options;
    reader->pieces = pieces;
    *out = reader;
    return STATUS_OK;
}

static void close_piece(struct corpus_reader *reader) {
    if (reader->stream)
        gzclose_r(reader->stream);
    else if (reader->is_open)
        close(reader->descriptor);
    reader->stream = NULL;
    reader->is_open = false;
}

void corpus_reader_free(struct corpus_reader *reader) {
    if (!reader)
        return;
    close_piece(reader);
    strbuf_free(&reader->carry);
    free(reader->chunk);
    free(reader);
}

static int64_t read_so_far(const struct corpus_reader *reader) {
    int64_t inside = 0;
    if (reader->stream)
        inside = gzoffset(reader->stream);
    else if (reader->is_open)
        inside = reader->pieces->items[reader->piece].bytes - reader->left;
    return inside > 0 ? inside : 0;
}

int64_t corpus_reader_done(const struct corpus_reader *reader) {
    return reader->finished + read_so_far(reader);
}

static const char *file_name(const struct corpus_reader *reader) {
    return reader->options->inputs.items[reader->file];
}

static long long line_of(const struct corpus_reader *reader, int64_t line) {
    return (long long)corpus_line(reader->pieces, reader->file, line);
}

static int open_next(struct corpus_reader *reader) {
    const struct corpus_piece *piece = &reader->pieces->items[reader->piece];
    reader->file = piece->file;
    if (piece->is_whole) {
        reader->stream = gzopen(file_name(reader), "rb");
        if (!reader->stream)
            return status_fail_errno("cannot open %s", file_name(reader));
        gzbuffer(reader->stream, CHUNK_BYTES);
    } else {
        reader->descriptor = open(file_name(reader), O_RDONLY | O_CLOEXEC);
        if (reader->descriptor < 0)
            return status_fail_errno("cannot open %s", file_name(reader));
        reader->left = piece->bytes;
    }
    reader->is_open = true;
    reader->is_at_start = piece->begin == 0;
    reader->line = 1;
    reader->is_begun = false;
    reader->used = reader->filled = 0;
    return STATUS_OK;
}

static int refill_range(struct corpus_reader *reader) {
    const struct corpus_piece *piece = &reader->pieces->items[reader->piece];
    size_t wanted = reader->left < CHUNK_BYTES ? (size_t)reader->left : CHUNK_BYTES;
    int status = wanted ? file_pread_all(reader->descriptor, reader->chunk, wanted,
                                         (off_t)(piece->begin + piece->bytes - reader->left), file_name(reader))
                        : STATUS_OK;
    reader->left -= (int64_t)wanted;
    reader->used = 0;
    reader->filled = wanted;
    return status;
}

/* Fills the chunk; it stays empty only at the end of the piece. */
static int fill_chunk(struct corpus_reader *reader) {
    if (!reader->stream)
        return refill_range(reader);
    errno = 0;
    int got = gzread(reader->stream, reader->chunk, CHUNK_BYTES), code;
    const char *text = gzerror(reader->stream, &code);
    if (got < 0 && code == Z_ERRNO)
        return status_fail_errno("cannot read %s", file_name(reader));
    if (got < 0 && code == Z_MEM_ERROR)
        return status_fail(STATUS_MEMORY, "%s: out of memory", file_name(reader));
    if (got < 0 || code == Z_BUF_ERROR)
        return status_fail(STATUS_INVALID, "%s: damaged or truncated gzip data after line %lld (%s)", file_name(reader),
                           line_of(reader, reader->line), text);
    reader->used = 0;
    reader->filled = (size_t)got;
    return STATUS_OK;
}

/* The same, and checks how a file begins. */
static int refill(struct corpus_reader *reader) {
    bool is_json = corpus_format_of(reader->options, reader->file) == CORPUS_JSONL, is_first = reader->is_at_start;
    int status = fill_chunk(reader);
    reader->is_at_start = false;
    if (status || !is_first)
        return status;
    reader->used = beginning_mark(reader->chunk, reader->filled);
    return beginning_check(file_name(reader), reader->chunk, reader->filled, is_json);
}

static int add_part(struct corpus_reader *reader, struct corpus_batch *batch, size_t end, bool is_unfinished) {
    TRY(array_reserve(&batch->documents, &batch->capacity, batch->count + 1, sizeof *batch->documents));
    batch->documents[batch->count++] = (struct corpus_document){.start = reader->start,
                                                                .length = end - reader->start,
                                                                .line = reader->first_line,
                                                                .file = reader->file,
                                                                .is_continued = reader->is_continued,
                                                                .is_unfinished = is_unfinished};
    reader->is_begun = reader->is_continued = is_unfinished;
    return STATUS_OK;
}

static int add_document(struct corpus_reader *reader, struct corpus_batch *batch, size_t end) {
    return add_part(reader, batch, end, false);
}

/* Returns as much of a long document as possible, and keeps the rest for the next batch. A line that may still be a
 * delimiter is not cut. A line end that is removed with the document's end always follows the cut, because a cut never
 * comes after white space. */
static int cut_document(struct corpus_reader *reader, struct corpus_batch *batch, size_t line, bool *is_cut) {
    enum corpus_format format = corpus_format_of(reader->options, reader->file);
    const char *text = strbuf_text(&batch->text) + reader->start;
    size_t length = (format == CORPUS_DELIMITER ? line : batch->text.length) - reader->start;
    *is_cut = false;
    if (format == CORPUS_JSONL || length < BATCH_BYTES)
        return STATUS_OK;
    size_t cut = tokenizer_find_cut(reader->options->tokenizer, &reader->cut, text, length);
    if (cut == 0)
        return STATUS_OK;
    *is_cut = true;
    size_t end = reader->start + cut;
    reader->carried_line = line > end ? line - end : 0;
    strbuf_add(&reader->carry, text + cut, batch->text.length - end);
    int status = strbuf_status(&reader->carry);
    return status ? status : add_part(reader, batch, end, true);
}

/* Makes the rest of a partly returned document the first text of the batch. */
static int take_carry(struct corpus_reader *reader, struct corpus_batch *batch, size_t *line) {
    strbuf_add(&batch->text, strbuf_text(&reader->carry), reader->carry.length);
    strbuf_clear(&reader->carry);
    reader->start = 0;
    *line = reader->carried_line;
    return strbuf_status(&batch->text);
}

static size_t without_line_end(const char *text, size_t begin, size_t end) {
    if (end > begin && text[end - 1] == '\n')
        end--;
    if (end > begin && text[end - 1] == '\r')
        end--;
    return end;
}

/* Decides what a complete line means: the text from `line` to the end of the batch's text. */
static int end_line(struct corpus_reader *reader, struct corpus_batch *batch, size_t line) {
    enum corpus_format format = corpus_format_of(reader->options, reader->file);
    const char *text = strbuf_text(&batch->text);
    size_t end = without_line_end(text, line, batch->text.length);
    if (format == CORPUS_JSONL && json_line_is_blank(text + line, end - line)) {
        batch->text.length = line; /* blank lines take no memory, however many there are */
        reader->is_begun = false;
        return STATUS_OK;
    }
    if (format == CORPUS_JSONL || format == CORPUS_LINE)
        return add_document(reader, batch, end);
    if (format == CORPUS_DELIMITER && end - line == strlen(reader->options->delimiter) &&
        !memcmp(text + line, reader->options->delimiter, end - line))
        return add_document(reader, batch, without_line_end(text, reader->start, line));
    return STATUS_OK;
}

static int end_file(struct corpus_reader *reader, struct corpus_batch *batch, size_t line) {
    enum corpus_format format = corpus_format_of(reader->options, reader->file);
    int status = STATUS_OK;
    if (format == CORPUS_FILE && !reader->is_begun) { /* an empty file is an empty document */
        reader->start = batch->text.length;
        reader->first_line = 1;
        reader->is_begun = true;
    } else if (reader->is_begun && format != CORPUS_FILE && batch->text.length > line) {
        status = end_line(reader, batch, line);
    }
    if (!status && reader->is_begun) {
        const char *text = strbuf_text(&batch->text);
        size_t end = batch->text.length;
        status = add_document(reader, batch, format == CORPUS_FILE ? end : without_line_end(text, reader->start, end));
    }
    reader->finished += read_so_far(reader);
    close_piece(reader);
    reader->piece++;
    return status;
}

int corpus_reader_fill(struct corpus_reader *reader, struct corpus_batch *batch) {
    corpus_batch_clear(batch);
    size_t line = 0; /* start of the current line in the batch's text */
    int status = reader->is_begun ? take_carry(reader, batch, &line) : STATUS_OK;
    while (!status && batch->count < BATCH_DOCUMENTS &&
           (batch->text.length < BATCH_BYTES || batch->count == 0 || reader->is_begun)) {
        if (!reader->is_open && reader->piece == reader->pieces->count)
            break;
        if (!reader->is_open) {
            status = open_next(reader);
            line = batch->text.length;
        }
        THEN_IF(status, reader->used == reader->filled, refill(reader));
        TRY(status);
        if (reader->used == reader->filled && reader->filled > 0) /* only a mark */
            continue;
        if (reader->filled == 0) {
            if ((status = end_file(reader, batch, line)))
                return status;
            continue;
        }
        if (!reader->is_begun) {
            reader->start = line = batch->text.length;
            reader->first_line = reader->line;
            reader->is_begun = true;
            reader->cut = (struct tokenizer_cut){0};
        }
        const char *from = reader->chunk + reader->used;
        size_t left = reader->filled - reader->used;
        const char *newline = memchr(from, '\n', left);
        size_t length = newline ? (size_t)(newline - from) + 1 : left;
        strbuf_add(&batch->text, from, length);
        reader->used += length;
        if ((status = strbuf_status(&batch->text)))
            return status;
        if (batch->text.length - reader->start > INT_MAX)
            return status_fail(STATUS_INVALID, "%s:%lld: a document of more than %d bytes", file_name(reader),
                               line_of(reader, reader->first_line), INT_MAX);
        if (newline) {
            reader->line++;
            if ((status = end_line(reader, batch, line)))
                return status;
            line = batch->text.length;
        }
        bool is_cut = false;
        if (reader->is_begun)
            status = cut_document(reader, batch, line, &is_cut);
        if (is_cut)
            break;
    }
    return status;
}
