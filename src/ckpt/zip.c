/* Reads a zip from its end: the end record (or the one of zip64), the central directory, and the headers before data.
 */
#include "zip.h"

#include "crc.h"

enum {
    END_BYTES = 22,
    LOCATOR_BYTES = 20,
    END64_BYTES = 56,
    ENTRY_BYTES = 46,
    HEADER_BYTES = 30,
    DIRECTORY_LIMIT = 4 << 20,
};

static uint64_t number(const unsigned char *bytes, size_t count) {
    uint64_t value = 0;
    memcpy(&value, bytes, count);
    return value;
}

static int refuse(const struct zip *zip, int64_t at, const char *expected) {
    return status_fail(STATUS_INVALID, "%s: byte %lld: expected %s", zip->path, (long long)(zip->start + at), expected);
}

/* Reads bytes of the archive. */
static int read_at(const struct zip *zip, void *out, int64_t bytes, int64_t at) {
    if (at < 0 || at > zip->bytes || bytes > zip->bytes - at)
        return refuse(zip, zip->bytes, "an archive that does not end within a record");
    return file_pread_all(zip->descriptor, out, (size_t)bytes, zip->start + at, zip->path);
}

struct ending {
    uint64_t count, bytes, at; /* of the central directory */
};

/* Reads the end of a zip64, whose locator lies before the end record. */
static int read_end64(const struct zip *zip, struct ending *ending) {
    unsigned char locator[LOCATOR_BYTES], end[END64_BYTES];
    int64_t at = zip->bytes - END_BYTES - LOCATOR_BYTES;
    int status = read_at(zip, locator, LOCATOR_BYTES, at);
    THEN_IF(status, number(locator, 4) != ZIP_LOCATOR, refuse(zip, at, "the locator of a zip64"));
    at = status ? 0 : (int64_t)number(locator + 8, 8);
    THEN(status, read_at(zip, end, END64_BYTES, at));
    THEN_IF(status, number(end, 4) != ZIP_END64, refuse(zip, at, "the end record of a zip64"));
    if (!status)
        *ending =
            (struct ending){.count = number(end + 32, 8), .bytes = number(end + 40, 8), .at = number(end + 48, 8)};
    return status;
}

static int read_end(const struct zip *zip, struct ending *ending) {
    unsigned char end[END_BYTES];
    TRY(read_at(zip, end, END_BYTES, zip->bytes - END_BYTES));
    if (number(end, 4) != ZIP_END || number(end + 20, 2))
        return refuse(zip, zip->bytes - END_BYTES, "the end record of a zip, without a comment");
    *ending = (struct ending){.count = number(end + 10, 2), .bytes = number(end + 12, 4), .at = number(end + 16, 4)};
    bool is_zip64 = ending->count == UINT16_MAX || ending->bytes == UINT32_MAX || ending->at == UINT32_MAX;
    return is_zip64 ? read_end64(zip, ending) : STATUS_OK;
}

/* Takes the sizes that do not fit 32 bits from an entry's further fields. */
static void read_large(const unsigned char *fields, size_t length, uint64_t *sizes[3]) {
    for (size_t at = 0; at + 4 <= length; at += 4 + number(fields + at + 2, 2)) {
        size_t bytes = number(fields + at + 2, 2), next = 0;
        if (number(fields + at, 2) != 1 || bytes > length - at - 4)
            continue;
        for (int i = 0; i < 3; i++)
            if (*sizes[i] == UINT32_MAX && next + 8 <= bytes) {
                *sizes[i] = number(fields + at + 4 + next, 8);
                next += 8;
            }
    }
}

/* Reads one entry of the central directory at byte *at of it, and steps over it. */
static int read_entry(struct zip *zip, const struct ending *ending, size_t *at) {
    const unsigned char *entry = (const unsigned char *)zip->directory + *at;
    int64_t place = (int64_t)(ending->at + *at);
    if (ending->bytes - *at < ENTRY_BYTES || number(entry, 4) != ZIP_ENTRY)
        return refuse(zip, place, "an entry of the directory of a zip");
    size_t name = number(entry + 28, 2), fields = number(entry + 30, 2), comment = number(entry + 32, 2);
    uint64_t packed = number(entry + 20, 4), bytes = number(entry + 24, 4), header = number(entry + 42, 4);
    if (ending->bytes - *at - ENTRY_BYTES < name + fields + comment)
        return refuse(zip, place, "an entry within the directory of a zip");
    read_large(entry + ENTRY_BYTES + name, fields, (uint64_t *[3]){&bytes, &packed, &header});
    if (number(entry + 10, 2) || packed != bytes || number(entry + 8, 2) & 1)
        return refuse(zip, place, "a record that is stored, neither compressed nor encrypted");
    const char *text = (const char *)entry + ENTRY_BYTES, *slash = memchr(text, '/', name);
    if (!slash || slash == text || memchr(text, 0, name))
        return refuse(zip, place, "a record in a directory");
    if (bytes > (uint64_t)zip->bytes || header > (uint64_t)zip->bytes)
        return refuse(zip, place, "a record within the archive");
    size_t prefix = (size_t)(slash - text) + 1;
    const struct zip_record *first = zip->records;
    if (zip->count && ((size_t)(first->name - (zip->directory + ENTRY_BYTES)) != prefix ||
                       memcmp(zip->directory + ENTRY_BYTES, text, prefix)))
        return refuse(zip, place, "all records in one directory");
    zip->records[zip->count++] = (struct zip_record){.name = text + prefix,
                                                     .length = name - prefix,
                                                     .header = (int64_t)header,
                                                     .start = -1,
                                                     .bytes = (int64_t)bytes,
                                                     .crc = (uint32_t)number(entry + 16, 4)};
    *at += ENTRY_BYTES + name + fields + comment;
    return STATUS_OK;
}

int zip_open(struct zip *zip, const char *path, int descriptor, int64_t start, int64_t bytes) {
    *zip = (struct zip){.path = path, .descriptor = descriptor, .start = start, .bytes = bytes};
    struct ending ending = {0};
    TRY(read_end(zip, &ending));
    if (ending.bytes > DIRECTORY_LIMIT || ending.count > ending.bytes / ENTRY_BYTES)
        return refuse(zip, bytes - END_BYTES, "a directory of at most 4 MB that has room for its entries");
    zip->directory = malloc(ending.bytes + 1);
    zip->records = calloc(ending.count + 1, sizeof *zip->records);
    if (!zip->directory || !zip->records)
        return status_fail(STATUS_MEMORY, "%s: out of memory", path);
    int status = ending.at > (uint64_t)bytes ? refuse(zip, bytes - END_BYTES, "a directory within the archive")
                                             : read_at(zip, zip->directory, (int64_t)ending.bytes, (int64_t)ending.at);
    size_t at = 0;
    while (!status && zip->count < ending.count)
        status = read_entry(zip, &ending, &at);
    THEN_IF(status, at != ending.bytes, refuse(zip, (int64_t)(ending.at + at), "the end of the directory of a zip"));
    return status;
}

void zip_close(struct zip *zip) {
    free(zip->directory);
    free(zip->records);
}

struct zip_record *zip_find(const struct zip *zip, const char *name) {
    for (size_t i = 0; i < zip->count; i++)
        if (zip->records[i].length == strlen(name) && !memcmp(zip->records[i].name, name, zip->records[i].length))
            return &zip->records[i];
    return NULL;
}

int zip_locate(const struct zip *zip, struct zip_record *record) {
    unsigned char header[HEADER_BYTES];
    TRY(read_at(zip, header, HEADER_BYTES, record->header));
    if (number(header, 4) != ZIP_HEADER)
        return refuse(zip, record->header, "the header of a record");
    int64_t start = record->header + HEADER_BYTES + (int64_t)(number(header + 26, 2) + number(header + 28, 2));
    if (start > zip->bytes || record->bytes > zip->bytes - start)
        return refuse(zip, record->header, "a record within the archive");
    record->start = zip->start + start;
    return STATUS_OK;
}

int zip_read(const struct zip *zip, struct zip_record *record, int64_t limit, char **bytes) {
    *bytes = NULL;
    if (record->bytes > limit)
        return refuse(zip, record->header, "a smaller record");
    TRY(zip_locate(zip, record));
    *bytes = malloc((size_t)record->bytes + 1);
    if (!*bytes)
        return status_fail(STATUS_MEMORY, "%s: out of memory", zip->path);
    int status = file_pread_all(zip->descriptor, *bytes, (size_t)record->bytes, record->start, zip->path);
    if (!status && crc_add(0, *bytes, (size_t)record->bytes) != record->crc)
        status = refuse(zip, record->start - zip->start, "bytes with the sum that the archive has for them");
    if (status) {
        free(*bytes);
        *bytes = NULL;
    }
    return status;
}
