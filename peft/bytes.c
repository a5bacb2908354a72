/* An adapter's files as one block of bytes: read once, digested, sent to other ranks, and opened there.
 *
 * The files follow one another in the order of `kinds`. Each is preceded by its name (FRAME_NAME bytes, padded with
 * zeros) and its length (8 bytes, little-endian). Equal files therefore give equal blocks, and the SHA-256 of the block
 * is their digest. A block may come from anywhere: nothing in it is trusted before peft_bytes_check. */
#include "bytes-internal.h"
#include "receipt.h"

#include "peft/bank.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FRAME_NAME = 56, FRAME = FRAME_NAME + 8 };

static const struct kind {
    const char *name;
    size_t most; /* bytes */
    bool has_tensors;
} kinds[] = {
    {PEFT_CONFIG_FILE, CKPT_ADAPTER_CONFIG_BYTES, false}, {CKPT_ADAPTER_PART ".safetensors", SIZE_MAX, true},
    {CKPT_HUB_PART ".safetensors", SIZE_MAX, true}, /* only when the one before it is missing */
    {PEFT_NOTES_FILE, PEFT_NOTES_BYTES, false},           {PEFT_TEMPLATE_FILE, PEFT_TEMPLATE_BYTES, false},
    {PEFT_TOKENIZER_FILE, PEFT_TOKENIZER_BYTES, false},   {PEFT_RECEIPT_FILE, RECEIPT_BYTES, false},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- a block ---- */

struct frame {
    int kind;
    const char *data;
    size_t length;
};

static int find_kind(const char name[FRAME_NAME]) {
    char padded[FRAME_NAME];
    for (int k = 0; k < KINDS; k++) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, kinds[k].name, strlen(kinds[k].name));
        if (!memcmp(name, padded, FRAME_NAME))
            return k;
    }
    return -1;
}

/* Reads the file at byte *at, and moves *at past it. Returns NULL, or the reason why there is no valid file. */
static const char *next_frame(const struct peft_bytes *bytes, size_t *at, struct frame *frame) {
    uint64_t length;
    size_t left = bytes->length - *at;
    if (left < FRAME)
        return "a cut name and length";
    const char *start = (const char *)bytes->data + *at;
    memcpy(&length, start + FRAME_NAME, sizeof length);
    *frame = (struct frame){.kind = find_kind(start), .data = start + FRAME, .length = length};
    if (frame->kind < 0)
        return "not the name of an adapter's file";
    if (length > left - FRAME)
        return "a file that is longer than what follows";
    if (length > kinds[frame->kind].most)
        return "a file that is longer than allowed";
    *at += FRAME + length;
    return NULL;
}

static int fail_bytes(const struct peft_bytes *bytes, const char *why, size_t at) {
    return status_fail(STATUS_INVALID, "%s: the bytes of an adapter are damaged at byte %zu: %s", bytes->directory, at,
                       why);
}

int peft_bytes_check(const struct peft_bytes *bytes) {
    int last = -1, tensors = 0;
    for (size_t at = 0, start = 0; at < bytes->length; start = at) {
        struct frame frame;
        const char *why = next_frame(bytes, &at, &frame);
        if (!why && frame.kind <= last)
            why = "a file that should stand before another, or once";
        tensors += !why && kinds[frame.kind].has_tensors;
        if (!why && tensors > 1)
            why = "a second file of tensors";
        if (!why && last < 0 && frame.kind != 0)
            why = "a file before the configuration";
        if (why)
            return fail_bytes(bytes, why, start);
        last = frame.kind;
    }
    if (tensors == 0)
        return fail_bytes(bytes, last < 0 ? "no configuration" : "no file of tensors", bytes->length);
    return STATUS_OK;
}

bool peft_bytes_find(const struct peft_bytes *bytes, const char *name, const char **data, size_t *length) {
    struct frame frame;
    for (size_t at = 0; at < bytes->length && !next_frame(bytes, &at, &frame);)
        if (!strcmp(kinds[frame.kind].name, name)) {
            *data = frame.data;
            *length = frame.length;
            return true;
        }
    return false;
}

bool peft_bytes_file(const struct peft_bytes *bytes, int index, struct peft_member *file) {
    struct frame frame;
    for (size_t at = 0; at < bytes->length && !next_frame(bytes, &at, &frame);)
        if (!index--) {
            *file = (struct peft_member){kinds[frame.kind].name, frame.data, frame.length};
            return true;
        }
    return false;
}

static char *put_frame(char *at, int kind, const void *data, size_t bytes) {
    uint64_t length = bytes;
    memcpy(at, kinds[kind].name, strlen(kinds[kind].name));
    memcpy(at + FRAME_NAME, &length, sizeof length);
    if (data)
        memcpy(at + FRAME, data, bytes);
    return at + FRAME + bytes;
}

int peft_bytes_make(const char *directory, const struct peft_member *files, int count, struct peft_bytes *bytes) {
    *bytes = (struct peft_bytes){.directory = strdup(directory)};
    for (int i = 0; i < count; i++)
        for (int k = 0; k < KINDS; k++)
            bytes->length += strcmp(files[i].name, kinds[k].name) ? 0 : FRAME + files[i].length;
    char *at = bytes->data = calloc(bytes->length + 1, 1);
    int status = status_allocated(bytes->directory && bytes->data);
    for (int k = 0; k < KINDS && !status; k++)
        for (int i = 0; i < count; i++)
            if (!strcmp(files[i].name, kinds[k].name))
                at = put_frame(at, k, files[i].data, files[i].length);
    THEN(status, peft_bytes_check(bytes));
    if (status)
        peft_bytes_free(bytes);
    return status;
}

void peft_bytes_free(struct peft_bytes *bytes) {
    free(bytes->directory);
    free(bytes->data);
    free(bytes->difference);
    *bytes = (struct peft_bytes){0};
}

int peft_bytes_digest(const struct peft_bytes *bytes, char digest[PEFT_SHA256_BYTES]) {
    return peft_sha256(bytes->data, bytes->length, digest);
}

/* ---- reading ---- */

/* A directory, with its name for messages. */
struct place {
    const char *root, *path; /* as in struct peft_place */
    const char *shown;
};

static int open_beneath(int at, const char *path, int flags) {
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, at, path, &how, sizeof how);
}

static int open_folder(const struct place *place) {
    int flags = O_RDONLY | O_DIRECTORY;
    if (!place->root)
        return open(place->path, flags | O_CLOEXEC);
    int root = open(place->root, flags | O_CLOEXEC);
    if (root < 0)
        return root;
    int folder = open_beneath(root, place->path, flags), reason = errno;
    close(root);
    errno = reason;
    return folder;
}

/* A file while it is read. Descriptor -1: there is no such file. */
struct source {
    char path[PATH_MAX];
    int descriptor;
    bool is_tried;
    struct stat info;
};

static int open_source(int folder, const struct place *place, int kind, struct source *source) {
    const char *name = kinds[kind].name;
    TRY(file_join(source->path, sizeof source->path, place->shown, name));
    source->is_tried = true;
    source->descriptor = place->root ? open_beneath(folder, name, O_RDONLY | O_NONBLOCK)
                                     : openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source->descriptor < 0)
        return errno == ENOENT ? STATUS_OK : status_fail_errno("cannot open %s", source->path);
    if (fstat(source->descriptor, &source->info))
        return status_fail_errno("cannot stat %s", source->path);
    if (!S_ISREG(source->info.st_mode))
        return status_fail(STATUS_INVALID, "%s is not a regular file", source->path);
    if ((uint64_t)source->info.st_size > kinds[kind].most)
        return status_fail(STATUS_INVALID, "%s has %lld bytes, more than the %zu allowed", source->path,
                           (long long)source->info.st_size, kinds[kind].most);
    return STATUS_OK;
}

static int open_sources(const struct place *place, struct source sources[KINDS]) {
    int status = STATUS_OK, folder = open_folder(place);
    if (folder < 0) {
        status = errno == ENOENT || errno == ENOTDIR ? STATUS_NOT_FOUND
                 : errno == ELOOP || errno == EXDEV  ? STATUS_INVALID
                                                     : STATUS_IO;
        status_fail_errno("cannot open the directory %s", place->shown);
        return status;
    }
    bool has_tensors = false;
    for (int k = 0; k < KINDS && !status; k++) {
        if (kinds[k].has_tensors && has_tensors)
            continue;
        status = open_source(folder, place, k, &sources[k]);
        has_tensors = has_tensors || (kinds[k].has_tensors && sources[k].descriptor >= 0);
    }
    close(folder);
    return status;
}

/* Reports that there is no file of tensors; pickles get a different message. */
static int fail_no_tensors(const char *directory) {
    struct ckpt_tensors *shards = NULL;
    int status = ckpt_open_adapter(directory, &shards);
    ckpt_close(shards);
    return status ? status
                  : status_fail(STATUS_UNSUPPORTED, "%s: its tensors are in shards: save the adapter as one file",
                                directory);
}

static int check_sources(const char *directory, const struct source sources[KINDS], size_t limit, size_t *total) {
    bool has_tensors = false;
    *total = 0;
    if (sources[0].descriptor < 0)
        return status_fail(STATUS_NOT_FOUND, "%s holds no adapter (" PEFT_CONFIG_FILE ")", directory);
    for (int k = 0; k < KINDS; k++) {
        if (sources[k].descriptor < 0)
            continue;
        has_tensors = has_tensors || kinds[k].has_tensors;
        *total += FRAME;
        if (*total > limit || (uint64_t)sources[k].info.st_size > limit - *total)
            return status_fail(STATUS_INVALID, "%s: an adapter of more than the %zu bytes allowed", directory, limit);
        *total += (size_t)sources[k].info.st_size;
    }
    return has_tensors ? STATUS_OK : fail_no_tensors(directory);
}

/* Reads as many bytes as the file had when it was opened. Clears *is_whole when it has fewer now. */
static int read_source(const struct source *source, char *out, bool *is_whole) {
    size_t length = (size_t)source->info.st_size;
    for (size_t done = 0; done < length;) {
        ssize_t n = read(source->descriptor, out + done, length - done);
        if (n < 0 && errno != EINTR)
            return status_fail_errno("cannot read %s", source->path);
        if (n == 0) {
            *is_whole = false;
            return STATUS_OK;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return STATUS_OK;
}

static int read_sources(const struct source sources[KINDS], size_t total, struct peft_bytes *bytes, bool *is_whole) {
    int status = STATUS_OK;
    char *at = bytes->data = calloc(total, 1);
    bytes->length = total;
    if (!at)
        return status_fail(STATUS_MEMORY, "no memory for the %zu bytes of %s", total, bytes->directory);
    for (int k = 0; k < KINDS && !status; k++) {
        if (sources[k].descriptor < 0)
            continue;
        char *start = at;
        at = put_frame(at, k, NULL, (size_t)sources[k].info.st_size);
        status = read_source(&sources[k], start + FRAME, is_whole);
    }
    return status;
}

static bool is_same_time(struct timespec a, struct timespec b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool is_same_file(const struct stat *before, int folder, const char *name) {
    struct stat now;
    return !fstatat(folder, name, &now, 0) && now.st_dev == before->st_dev && now.st_ino == before->st_ino &&
           now.st_size == before->st_size && is_same_time(now.st_mtim, before->st_mtim) &&
           is_same_time(now.st_ctim, before->st_ctim);
}

/* True when the place still leads to the files that were read, and they have not changed. */
static bool is_unchanged(const struct place *place, const struct source sources[KINDS]) {
    int folder = open_folder(place);
    bool is_same = folder >= 0;
    for (int k = 0; k < KINDS && is_same; k++) {
        bool is_there = sources[k].is_tried && !faccessat(folder, kinds[k].name, F_OK, 0);
        is_same = is_there == (sources[k].descriptor >= 0) &&
                  (!is_there || is_same_file(&sources[k].info, folder, kinds[k].name));
    }
    if (folder >= 0)
        close(folder);
    return is_same;
}

static int read_config_text(const struct source *source, struct strbuf *text) {
    char block[4096];
    int64_t size = source->info.st_size;
    for (int64_t at = 0; at < size;) {
        size_t part = size - at < (int64_t)sizeof block ? (size_t)(size - at) : sizeof block;
        TRY(file_pread_all(source->descriptor, block, part, at, source->path));
        strbuf_add(text, block, part);
        at += (int64_t)part;
    }
    return strbuf_status(text);
}

/* Checks the configuration and the header of the tensors against the base. */
static int check_fit(const struct place *place, const struct source sources[KINDS], const struct peft_bank *bank) {
    struct strbuf config = STRBUF_INIT;
    struct peft_files *files = NULL;
    int tensors = 0;
    while (!kinds[tensors].has_tensors || sources[tensors].descriptor < 0)
        tensors++;
    size_t most = peft_bank_most_file_bytes(bank);
    if ((uint64_t)sources[tensors].info.st_size > most)
        return status_fail(STATUS_MEMORY,
                           "%s has %lld bytes, and the memory of all adapters holds no more than %zu of a file",
                           sources[tensors].path, (long long)sources[tensors].info.st_size, most);
    int status = read_config_text(&sources[0], &config);
    if (!status)
        status =
            peft_files_open_header(place->shown, &config, kinds[tensors].name, sources[tensors].descriptor, &files);
    THEN(status, peft_bank_check(bank, files, 0));
    peft_files_close(files);
    strbuf_free(&config);
    return status;
}

/* Reads the place once. With `bytes` NULL it only checks. */
static int read_once(const struct place *place, const struct peft_limits *limits, struct peft_bytes *bytes,
                     bool *is_whole) {
    struct source *sources = calloc(KINDS, sizeof *sources);
    size_t total;
    TRY(status_allocated(sources));
    for (int k = 0; k < KINDS; k++)
        sources[k].descriptor = -1;
    *is_whole = true;
    int status = open_sources(place, sources);
    THEN(status, check_sources(place->shown, sources, limits->bytes, &total));
    THEN_IF(status, limits->bank, check_fit(place, sources, limits->bank));
    THEN_IF(status, bytes, read_sources(sources, total, bytes, is_whole));
    *is_whole = *is_whole && (status || is_unchanged(place, sources));
    for (int k = 0; k < KINDS; k++)
        if (sources[k].descriptor >= 0)
            close(sources[k].descriptor);
    free(sources);
    return status;
}

static int read_place(const struct place *place, const struct peft_limits *limits, struct peft_bytes *bytes) {
    enum { TRIES = 3 };
    bool is_whole = false;
    int status = STATUS_OK;
    for (int i = 0; i < TRIES && !is_whole && !status; i++) {
        peft_bytes_free(bytes);
        bytes->directory = strdup(place->shown);
        status = bytes->directory ? read_once(place, limits, bytes, &is_whole) : status_no_memory();
    }
    THEN_IF(status, !is_whole, status_fail(STATUS_INVALID, "%s: its files change while they are read", place->shown));
    if (status)
        peft_bytes_free(bytes);
    return status;
}

/* `shown`: [PATH_MAX], receives the place's name. */
static int find_place(const struct peft_place *given, char *shown, struct place *place) {
    *place = (struct place){.root = given->root, .path = given->path, .shown = given->root ? shown : given->path};
    return given->root ? file_join(shown, PATH_MAX, given->root, given->path) : STATUS_OK;
}

int peft_bytes_read(const char *directory, size_t limit, struct peft_bytes *bytes) {
    return peft_bytes_read_at(&(struct peft_place){.path = directory}, &(struct peft_limits){.bytes = limit}, bytes);
}

int peft_bytes_read_at(const struct peft_place *given, const struct peft_limits *limits, struct peft_bytes *bytes) {
    char shown[PATH_MAX];
    struct place place;
    int status = find_place(given, shown, &place);
    *bytes = (struct peft_bytes){0};
    return status ? status : read_place(&place, limits, bytes);
}

int peft_check_directory(const struct peft_place *given, const struct peft_limits *limits) {
    char shown[PATH_MAX];
    struct place place;
    bool is_whole;
    int status = find_place(given, shown, &place);
    return status ? status : read_once(&place, limits, NULL, &is_whole);
}

int peft_stamp_directory(const struct peft_place *given, uint64_t *stamp) {
    char shown[PATH_MAX];
    struct place place;
    TRY(find_place(given, shown, &place));
    int folder = open_folder(&place);
    if (folder < 0)
        return status_fail_errno("cannot open the directory %s", place.shown);
    *stamp = DIGEST_START;
    for (int k = 0; k < KINDS; k++) {
        struct stat info = {0};
        bool is_there = !fstatat(folder, kinds[k].name, &info, place.root ? AT_SYMLINK_NOFOLLOW : 0);
        int64_t facts[] = {is_there,
                           (int64_t)info.st_dev,
                           (int64_t)info.st_ino,
                           (int64_t)info.st_size,
                           (int64_t)info.st_mtim.tv_sec,
                           (int64_t)info.st_mtim.tv_nsec,
                           (int64_t)info.st_ctim.tv_sec,
                           (int64_t)info.st_ctim.tv_nsec};
        *stamp = digest_bytes(*stamp, facts, sizeof facts);
    }
    close(folder);
    return STATUS_OK;
}
