/* Writes Megatron's indexed dataset. Tokens go straight to a temporary .bin; lengths wait in memory (4 bytes a
 * sequence, 8 a document) because they stand before the offsets in .idx. */
#include "data/data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum token_type indexed_token_type(int64_t vocab_size) {
    return vocab_size < 65500 ? TOKEN_U16 : TOKEN_I32;
}

static int64_t type_capacity(enum token_type type) {
    return type == TOKEN_U16 ? 1 << 16 : type == TOKEN_I32 ? (int64_t)INT32_MAX + 1 : 0;
}

static const char *type_name(enum token_type type) {
    return type == TOKEN_U16 ? "uint16" : "int32";
}

int indexed_writer_open(struct indexed_writer *writer, const char *prefix, enum token_type type, int64_t vocab_size) {
    *writer = (struct indexed_writer){.type = type, .vocab_size = vocab_size};
    if (type != TOKEN_U16 && type != TOKEN_I32)
        return status_fail(STATUS_UNSUPPORTED, "token type %d is not written, only uint16 and int32", (int)type);
    if (vocab_size < 1 || vocab_size > type_capacity(type))
        return status_fail(STATUS_INVALID, "a vocabulary of %lld ids does not fit %s, which holds %lld",
                           (long long)vocab_size, type_name(type), (long long)type_capacity(type));
    if (asprintf(&writer->bin_path, "%s.bin", prefix) < 0)
        writer->bin_path = NULL;
    if (asprintf(&writer->idx_path, "%s.idx", prefix) < 0)
        writer->idx_path = NULL;
    int64_t zero = 0;
    strbuf_add(&writer->document_ends, &zero, sizeof zero);
    int status = writer->bin_path && writer->idx_path ? strbuf_status(&writer->document_ends)
                                                      : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = file_writer_open(&writer->bin, writer->bin_path);
    if (!status)
        status = file_writer_open(&writer->idx, writer->idx_path);
    if (status)
        indexed_writer_abort(writer);
    return status;
}

int indexed_writer_add_tokens(struct indexed_writer *writer, const int32_t *tokens, int64_t count) {
    if (count > INT32_MAX - writer->open_tokens)
        return status_fail(STATUS_INVALID, "a sequence of %lld tokens is longer than the %d of the format",
                           (long long)(writer->open_tokens + count), INT32_MAX);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= writer->vocab_size)
            return status_fail(STATUS_INVALID, "token id %d is outside the vocabulary of %lld", tokens[i],
                               (long long)writer->vocab_size);
    size_t written = 0;
    if (writer->type == TOKEN_I32 && count > 0) {
        written = fwrite(tokens, 4, (size_t)count, writer->bin.stream);
    } else {
        uint16_t chunk[4096];
        for (int64_t i = 0; i < count;) {
            size_t n = 0;
            while (n < sizeof chunk / sizeof *chunk && i < count)
                chunk[n++] = (uint16_t)tokens[i++];
            size_t now = fwrite(chunk, 2, n, writer->bin.stream);
            written += now;
            if (now < n)
                break;
        }
    }
    if (written < (size_t)count)
        return status_fail_errno("cannot write %s", writer->bin_path);
    writer->open_tokens += count;
    return STATUS_OK;
}

int indexed_writer_end_sequence(struct indexed_writer *writer) {
    int32_t length = (int32_t)writer->open_tokens;
    if (writer->sequences == INT32_MAX)
        return status_fail(STATUS_INVALID, "more than %d sequences: write several datasets and blend them", INT32_MAX);
    strbuf_add(&writer->lengths, &length, sizeof length);
    writer->sequences++;
    writer->tokens += length;
    writer->open_tokens = 0;
    return strbuf_status(&writer->lengths);
}

int indexed_writer_add_sequence(struct indexed_writer *writer, const int32_t *tokens, int64_t count) {
    int status = indexed_writer_add_tokens(writer, tokens, count);
    return status ? status : indexed_writer_end_sequence(writer);
}

int indexed_writer_end_document(struct indexed_writer *writer) {
    strbuf_add(&writer->document_ends, &writer->sequences, sizeof writer->sequences);
    writer->documents++;
    return strbuf_status(&writer->document_ends);
}

static void write_index(struct indexed_writer *writer) {
    FILE *out = writer->idx.stream;
    uint64_t version = 1, sequences = (uint64_t)writer->sequences, ends = (uint64_t)writer->documents + 1;
    fwrite("MMIDIDX\0", 1, 9, out);
    fwrite(&version, 8, 1, out);
    fputc(writer->type, out);
    fwrite(&sequences, 8, 1, out);
    fwrite(&ends, 8, 1, out);
    fwrite(strbuf_text(&writer->lengths), 1, writer->lengths.length, out);
    int64_t offset = 0;
    for (int64_t i = 0; i < writer->sequences; i++) {
        int32_t length;
        memcpy(&length, writer->lengths.data + 4 * i, 4);
        fwrite(&offset, 8, 1, out);
        offset += (int64_t)length * (writer->type == TOKEN_U16 ? 2 : 4);
    }
    fwrite(writer->document_ends.data, 1, writer->document_ends.length, out);
}

static int sync_stream(FILE *stream, const char *path) {
    if (fflush(stream) || ferror(stream) || fsync(fileno(stream)))
        return status_fail_errno("cannot write %s", path);
    return STATUS_OK;
}

int indexed_writer_finish(struct indexed_writer *writer) {
    if (writer->is_finished)
        return STATUS_OK;
    write_index(writer);
    int status = sync_stream(writer->bin.stream, writer->bin_path);
    if (!status)
        status = sync_stream(writer->idx.stream, writer->idx_path);
    writer->is_finished = !status;
    return status;
}

/* An old .idx goes first, so that at no moment an index of one dataset stands beside the tokens of another. */
int indexed_writer_commit(struct indexed_writer *writer) {
    int status = indexed_writer_finish(writer);
    if (!status && unlink(writer->idx_path) && errno != ENOENT)
        status = status_fail_errno("cannot replace %s", writer->idx_path);
    if (!status)
        status = file_writer_commit(&writer->bin);
    if (!status && (status = file_writer_commit(&writer->idx)))
        unlink(writer->bin_path);
    indexed_writer_abort(writer);
    return status;
}

void indexed_writer_abort(struct indexed_writer *writer) {
    file_writer_abort(&writer->bin);
    file_writer_abort(&writer->idx);
    strbuf_free(&writer->lengths);
    strbuf_free(&writer->document_ends);
    free(writer->bin_path);
    free(writer->idx_path);
    writer->bin_path = writer->idx_path = NULL;
}
