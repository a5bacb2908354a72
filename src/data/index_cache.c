/* Index maps are one block: a header, then the three arrays. On disk a block is one file for a dataset, a range, a
 * sequence length, a number of samples and a seed. Its header holds all of these and the fingerprint of the lengths, so
 * a stale file is recognised. A checksum and the ranges of every entry reveal a damaged one. Either is rebuilt. The
 * file appears by a rename, so several ranks may write it at once.
 *
 * The file is mapped, not read, so the processes of a host share its pages. It may be removed or replaced at any time,
 * but shortening it in place ends the programs that have it open. */
#include "data-internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

struct header {
    char magic[16];
    uint64_t checksum;    /* crc32 of everything after this field */
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

static_assert(sizeof(struct header) == 96 && sizeof(struct gpt_position) == 8, "the file's layout");

size_t index_maps_bytes(const struct gpt_dataset *dataset) {
    return sizeof(struct header) + (size_t)dataset->document_count * sizeof *dataset->document_index +
           (size_t)(dataset->length + 1) * sizeof *dataset->sample_index +
           (size_t)dataset->length * sizeof *dataset->shuffle_index;
}

static void set_maps(struct gpt_dataset *dataset, void *maps) {
    char *documents = (char *)maps + sizeof(struct header);
    char *samples = documents + (size_t)dataset->document_count * sizeof *dataset->document_index;
    dataset->maps = maps;
    dataset->document_index = (int32_t *)documents;
    dataset->sample_index = (struct gpt_position *)samples;
    dataset->shuffle_index = (uint32_t *)(samples + (size_t)(dataset->length + 1) * sizeof *dataset->sample_index);
}

int index_maps_allocate(struct gpt_dataset *dataset) {
    size_t bytes = index_maps_bytes(dataset);
    void *maps = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (maps == MAP_FAILED)
        return status_fail(STATUS_MEMORY, "no memory for the index of %lld samples of %s", (long long)dataset->length,
                           dataset->tokens->prefix);
    madvise(maps, bytes, MADV_HUGEPAGE); /* shuffles jump around in it */
    set_maps(dataset, maps);
    return STATUS_OK;
}

void index_maps_free(struct gpt_dataset *dataset) {
    if (dataset->maps)
        munmap(dataset->maps, index_maps_bytes(dataset));
    dataset->maps = NULL;
}

static uint64_t checksum(const void *maps, size_t bytes) {
    return crc32_z(0, (const Bytef *)maps + CHECKED_FROM, bytes - CHECKED_FROM);
}

/* Finds the directory of the caches of a prefix. */
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

/* Makes NAME-HASH.idxmap. The hash covers the dataset's real path and the request, not the contents; a rewritten
 * dataset therefore replaces its caches. */
static int cache_path(const struct gpt_dataset_request *request, struct strbuf *directory, struct strbuf *path) {
    const char *prefix = request->tokens->prefix, *slash = strrchr(prefix, '/');
    struct strbuf bin = STRBUF_INIT;
    strbuf_format(&bin, "%s.bin", prefix);
    int status = strbuf_status(&bin);
    char *real = status ? NULL : realpath(strbuf_text(&bin), NULL);
    THEN_IF(status, !real && errno == ENOMEM, status_no_memory());
    const char *name = real ? real : strbuf_text(&bin);
    int64_t request_numbers[] = {request->first, request->last, request->seq_length, request->samples, request->seed};
    uint64_t hash = digest_bytes(DIGEST_START, name, strlen(name));
    hash = digest_bytes(hash, request_numbers, sizeof request_numbers);
    free(real);
    strbuf_free(&bin);
    cache_directory(request, directory);
    strbuf_format(path, "%s/%.150s-%016llx.idxmap", strbuf_text(directory), slash ? slash + 1 : prefix,
                  (unsigned long long)hash);
    THEN(status, strbuf_status(directory));
    return status ? status : strbuf_status(path);
}

/* Checks what the rest of the room relies on when it follows the maps. */
static bool is_consistent(const struct gpt_dataset_request *request, const struct gpt_dataset *dataset) {
    for (int64_t i = 0; i < dataset->document_count; i++)
        if (dataset->document_index[i] < request->first || dataset->document_index[i] >= request->last)
            return false;
    for (int64_t j = 0; j <= dataset->length; j++) {
        struct gpt_position at = dataset->sample_index[j];
        if (at.document >= dataset->document_count || at.offset < 0)
            return false;
        bool is_first = j == 0 && at.offset == 0; /* the first document may be empty */
        if (!is_first && at.offset >= indexed_dataset_length(request->tokens, dataset->document_index[at.document]))
            return false;
    }
    for (int64_t i = 0; i < dataset->length; i++)
        if (dataset->shuffle_index[i] >= dataset->length)
            return false;
    return true;
}

/* Returns the file's mapped pages, `bytes` long, or NULL. */
static void *map_file(int descriptor, size_t bytes) {
    void *maps = mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    return maps == MAP_FAILED ? NULL : maps;
}

/* Maps a file if it belongs to this request and is consistent. */
static bool take_file(int descriptor, const struct gpt_dataset_request *request, struct gpt_dataset *dataset) {
    struct header expected = expected_header(request, dataset);
    struct stat info;
    size_t bytes = index_maps_bytes(dataset);
    if (fstat(descriptor, &info) || !S_ISREG(info.st_mode) || info.st_size != (off_t)bytes)
        return false;
    void *maps = map_file(descriptor, bytes);
    if (!maps)
        return false;
    struct header header;
    memcpy(&header, maps, sizeof header);
    set_maps(dataset, maps);
    if (!memcmp(header.magic, expected.magic, sizeof header.magic) &&
        !memcmp((const char *)&header + CHECKED_FROM, (const char *)&expected + CHECKED_FROM,
                sizeof header - CHECKED_FROM) &&
        checksum(maps, bytes) == header.checksum && is_consistent(request, dataset))
        return true;
    index_maps_free(dataset);
    return false;
}

bool index_cache_read(const struct gpt_dataset_request *request, struct gpt_dataset *dataset) {
    struct strbuf directory = STRBUF_INIT, path = STRBUF_INIT;
    bool is_usable = false;
    if (!cache_path(request, &directory, &path)) {
        int descriptor = open(strbuf_text(&path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (descriptor >= 0) {
            is_usable = take_file(descriptor, request, dataset);
            close(descriptor);
            if (!is_usable)
                log_info("%s is stale or damaged and is built again", strbuf_text(&path));
        }
    }
    strbuf_free(&directory);
    strbuf_free(&path);
    return is_usable;
}

/* `info` describes the file under its name, after this returns. */
static int write_file(const char *path, const struct gpt_dataset *dataset, struct stat *info) {
    struct file_writer writer;
    TRY(file_writer_open(&writer, path));
    fwrite(dataset->maps, 1, index_maps_bytes(dataset), writer.stream); /* the commit reports an error */
    if (fstat(fileno(writer.stream), info))
        info->st_ino = 0;
    return file_writer_commit(&writer);
}

/* Replaces the memory of the maps by the file that was written from it. Keeps the memory when another file already has
 * that name. */
static void change_to_file(const char *path, const struct stat *written, struct gpt_dataset *dataset) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    size_t bytes = index_maps_bytes(dataset);
    if (descriptor < 0)
        return;
    bool is_same = !fstat(descriptor, &info) && info.st_dev == written->st_dev && info.st_ino == written->st_ino &&
                   info.st_size == (off_t)bytes;
    void *maps = is_same ? map_file(descriptor, bytes) : NULL;
    close(descriptor);
    if (!maps)
        return;
    index_maps_free(dataset);
    set_maps(dataset, maps);
}

void index_cache_write(const struct gpt_dataset_request *request, struct gpt_dataset *dataset) {
    struct strbuf directory = STRBUF_INIT, path = STRBUF_INIT;
    struct stat written;
    int status = cache_path(request, &directory, &path);
    THEN(status, file_make_directories(strbuf_text(&directory)));
    if (!status) {
        struct header header = expected_header(request, dataset);
        memcpy(dataset->maps, &header, sizeof header);
        header.checksum = checksum(dataset->maps, index_maps_bytes(dataset));
        memcpy(dataset->maps, &header, sizeof header);
        status = write_file(strbuf_text(&path), dataset, &written);
    }
    if (!status)
        change_to_file(strbuf_text(&path), &written, dataset);
    if (status)
        log_warning("the index of %s is not cached: %s", request->tokens->prefix, status_text());
    strbuf_free(&directory);
    strbuf_free(&path);
}
