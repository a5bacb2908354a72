/* Reads Megatron's indexed dataset. The index, without padding and little endian:
 *
 *     0   magic "MMIDIDX\0\0"
 *     9   u64 version 1
 *     17  u8 token type
 *     18  u64 N sequences
 *     26  u64 D = documents + 1
 *     34  N int32 lengths
 *         N int64 byte offsets in .bin
 *         D int64 document indices (0 ... N)
 *
 * docs/formats.md describes the format. Upstream trusts all of it. Here each field must agree with the others and with
 * the sizes of both files, because a wrong offset would read foreign memory. */
#include "data-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files are little endian");

enum { HEADER_BYTES = 34, CHUNK_BYTES = 1 << 16 };
static const char MAGIC[9] = "MMIDIDX\0"; /* plus one more zero byte */

static int token_bytes(int type) {
    switch (type) {
    case TOKEN_U8:
    case TOKEN_I8:
        return 1;
    case TOKEN_I16:
    case TOKEN_U16:
        return 2;
    case TOKEN_I32:
        return 4;
    case TOKEN_I64:
        return 8;
    default:
        return 0;
    }
}

/* The index file while it is being checked. */
struct index_file {
    const char *path;
    int descriptor;
    int64_t bytes;
    int64_t sequences, document_indices;
};

static int open_file(const char *path, int *descriptor, struct stat *info) {
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0 && errno == ENOENT)
        return status_fail(STATUS_NOT_FOUND, "%s does not exist (a data path is the name without .bin and .idx)", path);
    if (*descriptor < 0)
        return status_fail_errno("cannot open %s", path);
    if (fstat(*descriptor, info))
        return status_fail_errno("cannot read %s", path);
    return S_ISREG(info->st_mode) ? STATUS_OK : status_fail(STATUS_INVALID, "%s is not a regular file", path);
}

static int check_header(struct index_file *file, struct indexed_dataset *dataset) {
    unsigned char header[HEADER_BYTES];
    if (file->bytes < HEADER_BYTES)
        return status_fail(STATUS_INVALID, "%s: %lld bytes, expected at least the %d of an index header", file->path,
                           (long long)file->bytes, HEADER_BYTES);
    TRY(file_pread_all(file->descriptor, header, sizeof header, 0, file->path));
    uint64_t version, sequences, document_indices;
    memcpy(&version, header + 9, 8);
    memcpy(&sequences, header + 18, 8);
    memcpy(&document_indices, header + 26, 8);
    dataset->type = header[17];
    if (memcmp(header, MAGIC, sizeof MAGIC))
        return status_fail(STATUS_INVALID, "%s: wrong magic at byte 0, expected 'MMIDIDX' and two zero bytes",
                           file->path);
    if (version != 1)
        return status_fail(STATUS_INVALID, "%s: version at byte 9 is %llu, expected 1", file->path,
                           (unsigned long long)version);
    if (dataset->type == 6 || dataset->type == 7)
        return status_fail(STATUS_UNSUPPORTED, "%s: token type at byte 17 is %d (float%d), expected integers",
                           file->path, dataset->type, dataset->type == 6 ? 64 : 32);
    if (token_bytes(dataset->type) == 0)
        return status_fail(STATUS_INVALID, "%s: token type at byte 17 is %d, expected 1 to 5 or 8", file->path,
                           dataset->type);
    uint64_t room = (uint64_t)file->bytes - HEADER_BYTES;
    if (sequences > room / 12)
        return status_fail(STATUS_INVALID, "%s: sequence count at byte 18 is %llu, but %lld bytes hold at most %llu",
                           file->path, (unsigned long long)sequences, (long long)file->bytes,
                           (unsigned long long)(room / 12));
    if (sequences > INT32_MAX)
        return status_fail(STATUS_UNSUPPORTED, "%s: sequence count at byte 18 is %llu, expected at most %d", file->path,
                           (unsigned long long)sequences, INT32_MAX);
    room -= 12 * sequences;
    if (document_indices == 0)
        return status_fail(STATUS_INVALID, "%s: document count at byte 26 is 0, expected the documents and 1 more",
                           file->path);
    if (document_indices > room / 8)
        return status_fail(
            STATUS_INVALID,
            "%s: document count at byte 26 is %llu, but %lld bytes with %llu sequences hold at most %llu", file->path,
            (unsigned long long)document_indices, (long long)file->bytes, (unsigned long long)sequences,
            (unsigned long long)(room / 8));
    if (document_indices * 8 != room)
        return status_fail(STATUS_INVALID, "%s: %lld bytes, expected %llu for %llu sequences and %llu document indices",
                           file->path, (long long)file->bytes,
                           (unsigned long long)(HEADER_BYTES + 12 * sequences + 8 * document_indices),
                           (unsigned long long)sequences, (unsigned long long)document_indices);
    file->sequences = (int64_t)sequences;
    file->document_indices = (int64_t)document_indices;
    dataset->sequences = file->sequences;
    dataset->documents = file->document_indices - 1;
    return STATUS_OK;
}

/* One step of a 64-bit hash (splitmix64's finalizer over the running state). */
static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) + 0x9e3779b97f4a7c15u;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    return hash ^ (hash >> 31);
}

static int read_lengths(const struct index_file *file, struct indexed_dataset *dataset) {
    int32_t chunk[CHUNK_BYTES / 4];
    int64_t total = 0;
    uint64_t hash = mix(0, (uint64_t)file->sequences);
    for (int64_t i = 0; i < file->sequences;) {
        int64_t n = file->sequences - i < CHUNK_BYTES / 4 ? file->sequences - i : CHUNK_BYTES / 4;
        TRY(file_pread_all(file->descriptor, chunk, (size_t)n * 4, HEADER_BYTES + 4 * i, file->path));
        for (int64_t k = 0; k < n; k++, i++) {
            if (chunk[k] < 0)
                return status_fail(STATUS_INVALID, "%s: length of sequence %lld at byte %lld is %d, expected 0 or more",
                                   file->path, (long long)i, (long long)(HEADER_BYTES + 4 * i), chunk[k]);
            dataset->starts[i] = total;
            total += chunk[k]; /* below 2^31 * 2^31 */
            hash = mix(hash, (uint64_t)chunk[k]);
        }
    }
    dataset->starts[file->sequences] = total;
    dataset->tokens = total;
    dataset->fingerprint = hash;
    return STATUS_OK;
}

static int check_offsets(const struct index_file *file, const struct indexed_dataset *dataset) {
    int64_t chunk[CHUNK_BYTES / 8], base = HEADER_BYTES + 4 * file->sequences, bytes = token_bytes(dataset->type);
    for (int64_t i = 0; i < file->sequences;) {
        int64_t n = file->sequences - i < CHUNK_BYTES / 8 ? file->sequences - i : CHUNK_BYTES / 8;
        TRY(file_pread_all(file->descriptor, chunk, (size_t)n * 8, base + 8 * i, file->path));
        for (int64_t k = 0; k < n; k++, i++) {
            int64_t expected;
            if (__builtin_mul_overflow(dataset->starts[i], bytes, &expected) || chunk[k] != expected)
                return status_fail(
                    STATUS_INVALID,
                    "%s: offset of sequence %lld at byte %lld is %lld, expected %lld, the bytes of those before it",
                    file->path, (long long)i, (long long)(base + 8 * i), (long long)chunk[k], (long long)expected);
        }
    }
    return STATUS_OK;
}

static int check_documents(const struct index_file *file) {
    int64_t chunk[CHUNK_BYTES / 8], base = HEADER_BYTES + 12 * file->sequences, previous = 0;
    for (int64_t i = 0; i < file->document_indices;) {
        int64_t n = file->document_indices - i < CHUNK_BYTES / 8 ? file->document_indices - i : CHUNK_BYTES / 8;
        TRY(file_pread_all(file->descriptor, chunk, (size_t)n * 8, base + 8 * i, file->path));
        for (int64_t k = 0; k < n; k++, i++) {
            int64_t highest = i == 0 ? 0 : file->sequences;
            int64_t lowest = i == file->document_indices - 1 ? file->sequences : previous;
            if (chunk[k] < lowest || chunk[k] > highest)
                return status_fail(STATUS_INVALID, "%s: document index %lld at byte %lld is %lld, expected %s%lld%s",
                                   file->path, (long long)i, (long long)(base + 8 * i), (long long)chunk[k],
                                   lowest == highest ? "" : "at least ",
                                   (long long)(lowest == highest || chunk[k] < lowest ? lowest : highest),
                                   lowest != highest && chunk[k] > highest ? " and no more than the sequences" : "");
            previous = chunk[k];
        }
    }
    return STATUS_OK;
}

static int open_index(struct indexed_dataset *dataset, const char *path, struct stat *info) {
    struct index_file file = {.path = path, .descriptor = -1};
    int status = open_file(path, &file.descriptor, info);
    file.bytes = status ? 0 : info->st_size;
    THEN(status, check_header(&file, dataset));
    if (!status) {
        dataset->starts = malloc((size_t)(file.sequences + 1) * sizeof *dataset->starts);
        if (!dataset->starts)
            status =
                status_fail(STATUS_MEMORY, "no memory for the %lld sequences of %s", (long long)file.sequences, path);
    }
    THEN(status, read_lengths(&file, dataset));
    THEN(status, check_offsets(&file, dataset));
    THEN(status, check_documents(&file));
    if (file.descriptor >= 0)
        close(file.descriptor);
    return status;
}

static int open_tokens(struct indexed_dataset *dataset, const char *path, const char *idx_path) {
    struct stat info;
    int64_t expected;
    TRY(open_file(path, &dataset->descriptor, &info));
    if (__builtin_mul_overflow(dataset->tokens, (int64_t)token_bytes(dataset->type), &expected) ||
        info.st_size != expected)
        return status_fail(STATUS_INVALID, "%s: %lld bytes, expected %lld for the %lld tokens that %s counts", path,
                           (long long)info.st_size, (long long)expected, (long long)dataset->tokens, idx_path);
    return STATUS_OK;
}

static void forget(struct indexed_dataset *dataset) {
    if (dataset->descriptor >= 0)
        close(dataset->descriptor);
    free(dataset->starts);
    dataset->descriptor = -1;
    dataset->starts = NULL;
}

/* Opens both files. Sets *is_replaced when a writer removed the index meanwhile, because the tokens may then belong to
 * another dataset. */
static int open_pair(struct indexed_dataset *dataset, const char *prefix, bool *is_replaced) {
    struct strbuf idx = STRBUF_INIT, bin = STRBUF_INIT;
    struct stat info = {0}, now;
    strbuf_format(&idx, "%s.idx", prefix);
    strbuf_format(&bin, "%s.bin", prefix);
    int status = strbuf_status(&idx);
    THEN(status, strbuf_status(&bin));
    THEN(status, open_index(dataset, strbuf_text(&idx), &info));
    bool is_open = !status;
    THEN(status, open_tokens(dataset, strbuf_text(&bin), strbuf_text(&idx)));
    *is_replaced = is_open && (stat(strbuf_text(&idx), &now) || now.st_dev != info.st_dev || now.st_ino != info.st_ino);
    if (*is_replaced)
        status = status_fail(STATUS_IO, "%s was replaced while it was opened", strbuf_text(&idx));
    strbuf_free(&idx);
    strbuf_free(&bin);
    if (status)
        forget(dataset);
    return status;
}

/* Finds a dataset that a killed writer left ready, without its index in place. */
static int find_ready(const char *prefix, char ready[PATH_MAX], bool *is_ready) {
    const char *slash = strrchr(prefix, '/'), *name = slash ? slash + 1 : prefix;
    char directory[PATH_MAX], box[PATH_MAX], idx[PATH_MAX];
    int n = snprintf(idx, sizeof idx, "%s.idx", name);
    *is_ready = false;
    if (n >= (int)sizeof idx || file_parent(prefix, directory, sizeof directory) || !file_is_directory(directory))
        return STATUS_OK;
    int status = staging_is_ready(directory, &indexed_staging_files, idx, box, is_ready);
    *is_ready = *is_ready && !file_join(ready, PATH_MAX, box, name);
    return status;
}

static bool has_index(const char *prefix) {
    char idx[PATH_MAX];
    return snprintf(idx, sizeof idx, "%s.idx", prefix) < (int)sizeof idx && file_exists(idx);
}

int indexed_dataset_open(const char *prefix, struct indexed_dataset **out) {
    enum { ATTEMPTS = 100 /* at a pair that a writer is replacing */, LOOKS = 4 };
    struct indexed_dataset *dataset = calloc(1, sizeof *dataset);
    char ready[PATH_MAX];
    *out = NULL;
    if (!dataset || !(dataset->prefix = strdup(prefix))) {
        free(dataset);
        return status_no_memory();
    }
    dataset->descriptor = -1;
    bool is_replaced = true;
    int status = STATUS_OK;
    for (int i = 0; i < ATTEMPTS && is_replaced; i++) {
        status = open_pair(dataset, prefix, &is_replaced);
        if (is_replaced || status != STATUS_NOT_FOUND)
            continue;
        bool is_ready;
        int found = find_ready(prefix, ready, &is_ready);
        if (found) {
            status = found;
            break;
        }
        if (is_ready)
            status = open_pair(dataset, ready, &is_replaced);
        if (status) /* a writer may have finished between the attempts, and another begun */
            is_replaced = is_ready || has_index(prefix) || i < LOOKS;
    }
    if (status)
        indexed_dataset_close(dataset);
    else
        *out = dataset;
    return status;
}

void indexed_dataset_close(struct indexed_dataset *dataset) {
    if (!dataset)
        return;
    forget(dataset);
    free(dataset->prefix);
    free(dataset);
}

#define WIDEN(type)                                                                                                    \
    do {                                                                                                               \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            type value;                                                                                                \
            memcpy(&value, raw + i * (int64_t)sizeof value, sizeof value);                                             \
            bool fits = value >= 0 && (int64_t)value < limit;                                                          \
            tokens[i] = (int32_t)value;                                                                                \
            if (!fits && bad < 0) {                                                                                    \
                bad = i;                                                                                               \
                *bad_value = (int64_t)value;                                                                           \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* Converts stored tokens to ids. Returns the index of the first one outside [0, limit), or -1. */
static int64_t widen(int type, const char *raw, int64_t count, int64_t limit, int32_t *tokens, int64_t *bad_value) {
    int64_t bad = -1;
    switch (type) {
    case TOKEN_U8:
        for (int64_t i = 0; i < count; i++)
            tokens[i] = (unsigned char)raw[i];
        break;
    case TOKEN_I8:
        WIDEN(int8_t);
        return bad;
    case TOKEN_I16:
        WIDEN(int16_t);
        return bad;
    case TOKEN_I32:
        WIDEN(int32_t);
        return bad;
    case TOKEN_I64:
        WIDEN(int64_t);
        return bad;
    default:
        for (int64_t i = 0; i < count; i++) {
            uint16_t value;
            memcpy(&value, raw + 2 * i, 2);
            tokens[i] = value;
        }
    }
    for (int64_t i = count - 1; i >= 0; i--)
        if (tokens[i] >= limit) {
            bad = i;
            *bad_value = tokens[i];
        }
    return bad;
}

int indexed_dataset_read(const struct indexed_dataset *dataset, int64_t sequence, int64_t offset, int64_t count,
                         int64_t vocab_size, int32_t *tokens) {
    if (sequence < 0 || sequence >= dataset->sequences || offset < 0 || count < 0 ||
        offset > indexed_dataset_length(dataset, sequence) - count)
        return status_fail(STATUS_INVALID, "%s.bin: tokens %lld and %lld more of sequence %lld are not in the file",
                           dataset->prefix, (long long)offset, (long long)count, (long long)sequence);
    int64_t bytes = token_bytes(dataset->type), limit = vocab_size > 0 ? vocab_size : (int64_t)INT32_MAX + 1;
    char raw[CHUNK_BYTES / 8];
    for (int64_t done = 0; done < count;) {
        int64_t room = (int64_t)sizeof raw / bytes, n = count - done < room ? count - done : room;
        int64_t first = dataset->starts[sequence] + offset + done, bad_value = 0;
        size_t length = (size_t)(n * bytes);
        ssize_t got;
        do
            got = pread(dataset->descriptor, raw, length, first * bytes);
        while (got < 0 && errno == EINTR);
        if (got != (ssize_t)length) { /* rare: report the details, with the file's name */
            char path[4096];
            snprintf(path, sizeof path, "%s.bin", dataset->prefix);
            TRY(file_pread_all(dataset->descriptor, raw, length, first * bytes, path));
        }
        int64_t bad = widen(dataset->type, raw, n, limit, tokens + done, &bad_value);
        if (bad >= 0)
            return status_fail(STATUS_INVALID, "%s.bin: token at byte %lld is %lld, expected 0 to %lld%s",
                               dataset->prefix, (long long)((first + bad) * bytes), (long long)bad_value,
                               (long long)(limit - 1), vocab_size > 0 ? " of the vocabulary" : "");
        done += n;
    }
    return STATUS_OK;
}
