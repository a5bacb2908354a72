/* Writes Megatron's indexed dataset, in a box next to its target. Tokens go straight to .bin. Lengths wait in memory (4
 * bytes a sequence, 8 a document), because they precede the offsets in .idx. */
#include "data-internal.h"

#include <unistd.h>

enum token_type indexed_token_type(int64_t vocab_size) {
    return vocab_size < 65500 ? TOKEN_U16 : TOKEN_I32;
}

static int64_t type_capacity(enum token_type type) {
    return type == TOKEN_U16 ? 1 << 16 : type == TOKEN_I32 ? (int64_t)INT32_MAX + 1 : 0;
}

static const char *const no_names[] = {NULL};
const struct staging_files indexed_staging_files = {.kind = "dataset", .key = ".idx", .names = no_names};

int indexed_staging_begin(struct staging *staging, const char *prefix) {
    char directory[PATH_MAX];
    *staging = (struct staging){.mark = -1};
    int status = file_parent(prefix, directory, sizeof directory);
    if (!status && !file_is_directory(directory))
        status = status_fail(STATUS_IO, "cannot create %s.bin: %s is no directory", prefix, directory);
    return status ? status : staging_begin_files(staging, directory, &indexed_staging_files);
}

int indexed_writer_open_in(struct indexed_writer *writer, const struct staging *staging, const char *prefix,
                           enum token_type type, int64_t vocab_size) {
    const char *slash = strrchr(prefix, '/'), *name = slash ? slash + 1 : prefix;
    *writer = (struct indexed_writer){.type = type, .vocab_size = vocab_size, .staging.mark = -1};
    if (type != TOKEN_U16 && type != TOKEN_I32)
        return status_fail(STATUS_UNSUPPORTED, "token type %d is not written, only uint16 and int32", (int)type);
    if (vocab_size < 1 || vocab_size > type_capacity(type))
        return status_fail(STATUS_INVALID, "a vocabulary of %lld ids does not fit %s, which holds %lld",
                           (long long)vocab_size, type == TOKEN_U16 ? "uint16" : "int32",
                           (long long)type_capacity(type));
    if (asprintf(&writer->bin_path, "%s/%s.bin", staging->directory, name) < 0)
        writer->bin_path = NULL;
    if (asprintf(&writer->idx_path, "%s/%s.idx", staging->directory, name) < 0)
        writer->idx_path = NULL;
    int64_t zero = 0;
    strbuf_add(&writer->document_ends, &zero, sizeof zero);
    int status = writer->bin_path && writer->idx_path ? strbuf_status(&writer->document_ends) : status_no_memory();
    if (!status && !(writer->bin = fopen(writer->bin_path, "wbxe")))
        status = status_fail_errno("cannot create %s", writer->bin_path);
    if (status)
        indexed_writer_abort(writer);
    return status;
}

int indexed_writer_open(struct indexed_writer *writer, const char *prefix, enum token_type type, int64_t vocab_size) {
    struct staging staging;
    *writer = (struct indexed_writer){.staging.mark = -1};
    int status = indexed_staging_begin(&staging, prefix);
    THEN(status, indexed_writer_open_in(writer, &staging, prefix, type, vocab_size));
    if (status)
        staging_abort(&staging);
    else
        writer->staging = staging;
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
        written = fwrite(tokens, 4, (size_t)count, writer->bin);
    } else {
        uint16_t chunk[4096];
        for (int64_t i = 0; i < count;) {
            size_t n = 0;
            while (n < sizeof chunk / sizeof *chunk && i < count)
                chunk[n++] = (uint16_t)tokens[i++];
            size_t now = fwrite(chunk, 2, n, writer->bin);
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

static void write_index(const struct indexed_writer *writer, FILE *out) {
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

static int close_stream(FILE *stream, const char *path) {
    bool is_written = !fflush(stream) && !ferror(stream) && !fsync(fileno(stream));
    int status = is_written ? STATUS_OK : status_fail_errno("cannot write %s", path);
    if (fclose(stream) && !status)
        status = status_fail_errno("cannot write %s", path);
    return status;
}

int indexed_writer_finish(struct indexed_writer *writer) {
    if (writer->is_finished)
        return STATUS_OK;
    int status = close_stream(writer->bin, writer->bin_path);
    writer->bin = NULL;
    FILE *idx = status ? NULL : fopen(writer->idx_path, "wbxe");
    THEN_IF(status, !idx, status_fail_errno("cannot create %s", writer->idx_path));
    TRY(status);
    write_index(writer, idx);
    status = close_stream(idx, writer->idx_path);
    writer->is_finished = !status;
    return status;
}

int indexed_writer_commit(struct indexed_writer *writer) {
    int status = indexed_writer_finish(writer);
    THEN(status, staging_commit(&writer->staging));
    indexed_writer_abort(writer);
    return status;
}

void indexed_writer_abort(struct indexed_writer *writer) {
    if (writer->bin)
        fclose(writer->bin);
    writer->bin = NULL;
    if (writer->staging.target)
        staging_abort(&writer->staging);
    strbuf_free(&writer->lengths);
    strbuf_free(&writer->document_ends);
    free(writer->bin_path);
    free(writer->idx_path);
    writer->bin_path = writer->idx_path = NULL;
}
