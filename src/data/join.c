/* Joins the ranks' output into one dataset. Each rank but the first keeps its part in a file without a name. The first
 * rank appends the parts in the order of the ranks, so a single process writes the result. */
#include "data-internal.h"

#include <fcntl.h>
#include <unistd.h>

int part_writer_open(struct indexed_writer *writer, int *descriptor, const char *prefix, enum token_type type,
                     int64_t vocab_size) {
    *descriptor = -1;
    int status = indexed_writer_open(writer, prefix, type, vocab_size);
    TRY(status);
    *descriptor = open(writer->bin_path, O_RDONLY | O_CLOEXEC);
    if (*descriptor < 0)
        status = status_fail_errno("cannot open %s", writer->bin_path);
    staging_abort(&writer->staging); /* with every name in it */
    if (status)
        indexed_writer_abort(writer);
    return status;
}

/* The announcement of a part. */
struct part_header {
    int64_t bytes, tokens, sequences, documents;
};
enum { PART_HEADER_WORDS = sizeof(struct part_header) / sizeof(int64_t) };

/* A file to send, by way of a buffer. */
struct departure {
    int descriptor;
    const char *path;
    char *buffer; /* [PART_CHUNK_BYTES] */
    int *result;  /* the first failure of reading */
};

/* Sends memory, or a file where one is given. Sends the announced bytes of it in any case, so that no rank waits for
 * them. */
static int send_bytes(struct comm *world, const char *bytes, const struct departure *file, int64_t count) {
    int status = STATUS_OK;
    for (int64_t done = 0; done < count && !status; done += PART_CHUNK_BYTES) {
        int64_t now = count - done < PART_CHUNK_BYTES ? count - done : PART_CHUNK_BYTES;
        if (file && !*file->result)
            *file->result = file_pread_all(file->descriptor, file->buffer, (size_t)now, done, file->path);
        struct comm_data data = {.send = file ? file->buffer : bytes + done, .count = now, .dtype = DTYPE_U8};
        status = comm_send(world, &data, 0);
    }
    return status;
}

int part_send(struct comm *world, struct indexed_writer *writer, int descriptor, char *buffer, int *result) {
    struct part_header header = {.bytes = writer->tokens * (writer->type == TOKEN_U16 ? 2 : 4),
                                 .tokens = writer->tokens,
                                 .sequences = writer->sequences,
                                 .documents = writer->documents};
    if (!*result && fflush(writer->bin))
        *result = status_fail_errno("cannot write %s", writer->bin_path);
    const struct departure file = {descriptor, writer->bin_path, buffer, result};
    struct comm_data data = {.send = &header, .count = PART_HEADER_WORDS, .dtype = DTYPE_I64};
    TRY(comm_send(world, &data, 0));
    TRY(send_bytes(world, NULL, &file, header.bytes));
    TRY(send_bytes(world, strbuf_text(&writer->lengths), NULL, header.sequences * (int64_t)sizeof(int32_t)));
    const char *ends = writer->document_ends.data + sizeof(int64_t); /* the first end is the dataset's 0 */
    return send_bytes(world, ends, NULL, header.documents * (int64_t)sizeof(int64_t));
}

/* A part on its way from another rank. */
struct arrival {
    struct comm *world;
    int from;
    struct indexed_writer *writer;
    char *buffer; /* [PART_CHUNK_BYTES] */
    int *result;  /* the first failure of writing */
};

/* Receives chunk after chunk and passes each to `take`. */
static int receive_bytes(const struct arrival *arrival, int64_t count,
                         int (*take)(struct indexed_writer *writer, const char *bytes, size_t count)) {
    int status = STATUS_OK;
    for (int64_t done = 0; done < count && !status; done += PART_CHUNK_BYTES) {
        int64_t now = count - done < PART_CHUNK_BYTES ? count - done : PART_CHUNK_BYTES;
        struct comm_data data = {.receive = arrival->buffer, .count = now, .dtype = DTYPE_U8};
        status = comm_receive(arrival->world, &data, arrival->from);
        if (!status && !*arrival->result)
            *arrival->result = take(arrival->writer, arrival->buffer, (size_t)now);
    }
    return status;
}

static int take_tokens(struct indexed_writer *writer, const char *bytes, size_t count) {
    return fwrite(bytes, 1, count, writer->bin) == count ? STATUS_OK
                                                         : status_fail_errno("cannot write %s", writer->bin_path);
}

static int take_lengths(struct indexed_writer *writer, const char *bytes, size_t count) {
    strbuf_add(&writer->lengths, bytes, count);
    return strbuf_status(&writer->lengths);
}

/* Ends count from the part's first sequence; writer->sequences still counts only the sequences before it. */
static int take_ends(struct indexed_writer *writer, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i += sizeof(int64_t)) {
        int64_t end;
        memcpy(&end, bytes + i, sizeof end);
        end += writer->sequences;
        strbuf_add(&writer->document_ends, &end, sizeof end);
    }
    return strbuf_status(&writer->document_ends);
}

int part_receive(struct comm *world, int from, struct indexed_writer *writer, char *buffer, int *result) {
    const struct arrival arrival = {world, from, writer, buffer, result};
    struct part_header header = {0};
    struct comm_data data = {.receive = &header, .count = PART_HEADER_WORDS, .dtype = DTYPE_I64};
    int status = comm_receive(world, &data, from);
    if (!status && !*result && writer->sequences + header.sequences > INT32_MAX)
        *result =
            status_fail(STATUS_INVALID, "more than %d sequences: write several datasets and blend them", INT32_MAX);
    THEN(status, receive_bytes(&arrival, header.bytes, take_tokens));
    THEN(status, receive_bytes(&arrival, header.sequences * (int64_t)sizeof(int32_t), take_lengths));
    THEN(status, receive_bytes(&arrival, header.documents * (int64_t)sizeof(int64_t), take_ends));
    writer->tokens += header.tokens;
    writer->sequences += header.sequences;
    writer->documents += header.documents;
    return status;
}
