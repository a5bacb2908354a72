/* Index maps on disk: one file for a dataset, a range, a sequence length, a number of samples and a seed. The file says
 * all of that itself, and the fingerprint of the lengths, so one that is stale is seen; a checksum and the ranges of
 * every entry show one that is damaged. Either is built again. It appears by a rename, so several ranks may write it at
 * once. */
#include "data-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

struct header {
    char magic[16];
    uint64_t checksum;    /* crc32 of everything behind this field */
    uint64_t fingerprint; /* of the dataset's lengths */
    int64_t sequences, first, last, seq_length, samples, seed;
    int64_t document_count, length;
};
static const char MAGIC[16] = "CAMBIUM GPT IDX1";
enum { CHECKED_FROM = 24 };

static struct header expected_header(const struct gpt_dataset_request *request, const struct gpt_dataset *dataset) {
    struct header header = {
        .fingerprint = request->tokens->fingerprint,
        .sequences = request->tokens->sequences,
        .first = request->first,
        .last = request->last,
        .seq_length = request->seq_length,
        .samples = request->samples,
        .seed = request->seed,
        .document_count = dataset->document_count,
        .length = dataset->length,
    };
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    return header;
}

struct part {
    void *bytes;
    size_t length;
};
enum { PARTS = 3 };

static void list_parts(const struct gpt_dataset *dataset, struct part parts[PARTS]) {
    parts[0] =
        (struct part){dataset->document_index, (size_t)dataset->document_count * sizeof *dataset->document_index};
    parts[1] = (struct part){dataset->sample_index, (size_t)(dataset->length + 1) * sizeof *dataset->sample_index};
    parts[2] = (struct part){dataset->shuffle_index, (size_t)dataset->length * sizeof *dataset->shuffle_index};
}

static uint64_t checksum(const struct header *header, const struct part parts[PARTS]) {
    uLong crc = crc32_z(0, (const Bytef *)header + CHECKED_FROM, sizeof *header - CHECKED_FROM);
    for (int i = 0; i < PARTS; i++)
        crc = crc32_z(crc, parts[i].bytes, parts[i].length);
    return crc;
}

/* The directory of the caches of a prefix. */
static void cache_directory(const struct gpt_dataset_request *request, struct strbuf *out) {
    const char *slash = strrchr(request->tokens->prefix, '/');
    if (request->cache) {
        strbuf_add_text(out, request->cache);
        return;
    }
    if (slash)
        strbuf_add(out, request->tokens->prefix, (size_t)(slash - request->tokens->prefix) + 1);
    strbuf_add_text(out, "cache/GPTDataset_indices");
}

/* NAME-HASH.idxmap: the hash covers the dataset's real path and the request, not the contents, so that a dataset
 * written anew replaces its caches. */
static int cache_path(const struct gpt_dataset_request *request, struct strbuf *directory, struct strbuf *path) {
    const char *prefix = request->tokens->prefix, *slash = strrchr(prefix, '/');
    struct strbuf bin = STRBUF_INIT;
    strbuf_format(&bin, "%s.bin", prefix);
    char *real = realpath(strbuf_text(&bin), NULL);
    const char *name = real ? real : strbuf_text(&bin);
    int64_t request_numbers[] = {request->first, request->last, request->seq_length, request->samples, request->seed};
    uint64_t hash = digest_bytes(DIGEST_START, name, strlen(name));
    hash = digest_bytes(hash, request_numbers, sizeof request_numbers);
    free(real);
    strbuf_free(&bin);
    cache_directory(request, directory);
    strbuf_format(path, "%s/%.150s-%016llx.idxmap", strbuf_text(directory), slash ? slash + 1 : prefix,
                  (unsigned long long)hash);
    int status = strbuf_status(directory);
    return status ? status : strbuf_status(path);
}

/* What the rest of the room relies on when it follows the maps. */
static bool is_consistent(const struct gpt_dataset_request *request, const struct gpt_dataset *dataset) {
    for (int64_t i = 0; i < dataset->document_count; i++)
        if (dataset->document_index[i] < request->first || dataset->document_index[i] >= request->last)
            return false;
    for (int64_t j = 0; j <= dataset->length; j++) {
        struct gpt_position at = dataset->sample_index[j];
        if (at.document >= dataset->document_count || at.offset < 0 ||
            at.offset >= indexed_dataset_length(request->tokens, dataset->document_index[at.document]))
            if (j > 0 || at.offset != 0) /* the first document may be empty */
                return false;
    }
    for (int64_t i = 0; i < dataset->length; i++)
        if (dataset->shuffle_index[i] >= dataset->length)
            return false;
    return true;
}

static bool read_file(int descriptor, const char *path, const struct header *expected, struct part parts[PARTS]) {
    struct header header;
    size_t total = sizeof header;
    for (int i = 0; i < PARTS; i++)
        total += parts[i].length;
    off_t at = sizeof header;
    if (lseek(descriptor, 0, SEEK_END) != (off_t)total || file_pread_all(descriptor, &header, sizeof header, 0, path))
        return false;
    if (memcmp(header.magic, expected->magic, sizeof header.magic) ||
        memcmp((const char *)&header + CHECKED_FROM, (const char *)expected + CHECKED_FROM,
               sizeof header - CHECKED_FROM))
        return false;
    for (int i = 0; i < PARTS; at += (off_t)parts[i].length, i++)
        if (file_pread_all(descriptor, parts[i].bytes, parts[i].length, at, path))
            return false;
    return checksum(&header, parts) == header.checksum;
}

bool index_cache_read(const struct gpt_dataset_request *request, struct gpt_dataset *dataset) {
    struct strbuf directory = STRBUF_INIT, path = STRBUF_INIT;
    struct part parts[PARTS];
    bool is_usable = false;
    if (!cache_path(request, &directory, &path)) {
        int descriptor = open(strbuf_text(&path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (descriptor >= 0) {
            struct header expected = expected_header(request, dataset);
            list_parts(dataset, parts);
            is_usable = read_file(descriptor, strbuf_text(&path), &expected, parts) && is_consistent(request, dataset);
            close(descriptor);
            if (!is_usable)
                log_info("%s is stale or damaged and is built again", strbuf_text(&path));
        }
    }
    strbuf_free(&directory);
    strbuf_free(&path);
    return is_usable;
}

static int write_file(const char *path, const struct header *header, const struct part parts[PARTS]) {
    struct file_writer writer;
    int status = file_writer_open(&writer, path);
    if (status)
        return status;
    fwrite(header, sizeof *header, 1, writer.stream);
    for (int i = 0; i < PARTS; i++)
        fwrite(parts[i].bytes, 1, parts[i].length, writer.stream); /* an error is seen by the commit */
    return file_writer_commit(&writer);
}

void index_cache_write(const struct gpt_dataset_request *request, const struct gpt_dataset *dataset) {
    struct strbuf directory = STRBUF_INIT, path = STRBUF_INIT;
    struct part parts[PARTS];
    int status = cache_path(request, &directory, &path);
    if (!status)
        status = file_make_directories(strbuf_text(&directory));
    if (!status) {
        struct header header = expected_header(request, dataset);
        list_parts(dataset, parts);
        header.checksum = checksum(&header, parts);
        status = write_file(strbuf_text(&path), &header, parts);
    }
    if (status)
        log_warning("the index of %s is not cached: %s", request->tokens->prefix, status_text());
    strbuf_free(&directory);
    strbuf_free(&path);
}
