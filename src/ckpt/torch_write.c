/* Values of pickles, and zips. The data of a record are written before its header, which has their sum. */
#include "torch_write.h"

#include "crc.h"
#include "torch_tensor.h"

/* ---- pickles ---- */

static void add_little(struct strbuf *out, uint64_t value, size_t bytes) {
    strbuf_add(out, &value, bytes);
}

void pickle_add_global(struct strbuf *out, const char *module, const char *name) {
    strbuf_format(out, "c%s\n%s\n", module, name);
}

void pickle_add_text(struct strbuf *out, const char *text) {
    strbuf_add_char(out, 'X');
    add_little(out, strlen(text), 4);
    strbuf_add_text(out, text);
}

void pickle_add_integer(struct strbuf *out, int64_t value) {
    if (value >= 0 && value < 256) {
        strbuf_add_char(out, 'K');
        add_little(out, (uint64_t)value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        strbuf_add_char(out, 'J');
        add_little(out, (uint64_t)value, 4);
    } else {
        strbuf_add(out, "\x8a\x08", 2);
        add_little(out, (uint64_t)value, 8);
    }
}

void pickle_add_number(struct strbuf *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    strbuf_add_char(out, 'G');
    add_little(out, __builtin_bswap64(bits), 8);
}

void pickle_add_sizes(struct strbuf *out, const int64_t *sizes, int count) {
    strbuf_add_text(out, PICKLE_MARK);
    for (int i = 0; i < count; i++)
        pickle_add_integer(out, sizes[i]);
    strbuf_add_text(out, PICKLE_END_TUPLE);
}

void pickle_add_type(struct strbuf *out, const char *type) {
    pickle_add_global(out, "torch", torch_type_name(type));
}

/* ---- archives ---- */

enum { PIECE_BYTES = 4 << 20, STORED = 20, STORED64 = 45 /* versions that a reader needs */ };

/* The places of a record, and its sum. */
struct placed {
    int64_t header, data;
    uint32_t crc;
};

static bool is_large(int64_t value) {
    return value >= UINT32_MAX;
}

static uint64_t or_largest(int64_t value) {
    return is_large(value) ? UINT32_MAX : (uint64_t)value;
}

/* The fields that the header and the entry share: times are 0, which is allowed. */
static void add_common(struct strbuf *out, const struct archive_record *record, uint32_t crc, bool is_zip64) {
    add_little(out, is_zip64 ? STORED64 : STORED, 2);
    add_little(out, 0, 2); /* flags */
    add_little(out, 0, 2); /* stored */
    add_little(out, 0, 2);
    add_little(out, 0x21, 2); /* 1 January 1980 */
    add_little(out, crc, 4);
    add_little(out, is_zip64 ? UINT32_MAX : (uint64_t)record->length, 4);
    add_little(out, is_zip64 ? UINT32_MAX : (uint64_t)record->length, 4);
    add_little(out, strlen(record->name), 2);
    add_little(out, is_zip64 ? 20 : 0, 2); /* further fields: add_name */
}

/* The name, and the sizes that do not fit 32 bits. */
static void add_name(struct strbuf *out, const struct archive_record *record, bool is_zip64) {
    strbuf_add_text(out, record->name);
    if (is_zip64) {
        add_little(out, 1, 2);
        add_little(out, 16, 2);
        add_little(out, (uint64_t)record->length, 8);
        add_little(out, (uint64_t)record->length, 8);
    }
}

static void add_header(struct strbuf *out, const struct archive_record *record, uint32_t crc) {
    bool is_zip64 = is_large(record->length);
    add_little(out, ZIP_HEADER, 4);
    add_common(out, record, crc, is_zip64);
    add_name(out, record, is_zip64);
}

static void add_entry(struct strbuf *out, const struct archive_record *record, const struct placed *placed) {
    bool is_zip64 = is_large(record->length);
    add_little(out, ZIP_ENTRY, 4);
    add_little(out, is_zip64 ? STORED64 : STORED, 2);
    add_common(out, record, placed->crc, is_zip64);
    add_little(out, 0, 2); /* comment */
    add_little(out, 0, 2); /* disk */
    add_little(out, 0, 2); /* attributes */
    add_little(out, 0, 4);
    add_little(out, (uint64_t)placed->header, 4); /* the large record is the last one */
    add_name(out, record, is_zip64);
}

static void add_end(struct strbuf *out, uint64_t count, int64_t directory_bytes, int64_t directory) {
    if (is_large(directory)) {
        add_little(out, ZIP_END64, 4);
        add_little(out, 44, 8);
        add_little(out, STORED64, 2);
        add_little(out, STORED64, 2);
        add_little(out, 0, 8); /* disks */
        add_little(out, count, 8);
        add_little(out, count, 8);
        add_little(out, (uint64_t)directory_bytes, 8);
        add_little(out, (uint64_t)directory, 8);
        add_little(out, ZIP_LOCATOR, 4);
        add_little(out, 0, 4);
        add_little(out, (uint64_t)(directory + directory_bytes), 8);
        add_little(out, 1, 4);
    }
    add_little(out, ZIP_END, 4);
    add_little(out, 0, 4); /* disks */
    add_little(out, count, 2);
    add_little(out, count, 2);
    add_little(out, (uint64_t)directory_bytes, 4);
    add_little(out, or_largest(directory), 4);
    add_little(out, 0, 2); /* comment */
}

/* Writes the data of a record piece by piece, and computes their sum. */
static int write_data(const struct archive *archive, const struct archive_record *record, const char *path,
                      int descriptor, int64_t start, uint32_t *crc) {
    char *piece = malloc(PIECE_BYTES);
    int status = status_allocated(piece);
    for (int64_t at = 0; at < record->length && !status; at += PIECE_BYTES) {
        int64_t left = record->length - at, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (record->bytes)
            memcpy(piece, (const char *)record->bytes + at, (size_t)bytes);
        else
            status = archive->read(archive->context, at, bytes, piece);
        if (status)
            break;
        *crc = crc_add(*crc, piece, (size_t)bytes);
        status = file_pwrite_all(descriptor, piece, (size_t)bytes, start + at, path);
    }
    free(piece);
    return status;
}

static int write_record(const struct archive *archive, const struct archive_record *record, const char *path,
                        int descriptor, int64_t start, struct placed *placed) {
    struct strbuf header = STRBUF_INIT;
    add_header(&header, record, 0);
    int64_t data = placed->header + (int64_t)header.length;
    int status = strbuf_status(&header);
    THEN(status, write_data(archive, record, path, descriptor, start + data, &placed->crc));
    strbuf_clear(&header);
    add_header(&header, record, placed->crc);
    THEN(status, file_pwrite_all(descriptor, header.data, header.length, start + placed->header, path));
    placed->data = data;
    strbuf_free(&header);
    return status;
}

int archive_write(const struct archive *archive, const char *path, int descriptor, int64_t start, int64_t *length) {
    struct placed placed[ARCHIVE_MAX_RECORDS] = {0};
    struct strbuf end = STRBUF_INIT;
    int64_t at = 0;
    int status = STATUS_OK;
    for (int i = 0; i < archive->count && !status; i++) {
        placed[i].header = at;
        status = write_record(archive, &archive->records[i], path, descriptor, start, &placed[i]);
        at = placed[i].data + archive->records[i].length;
    }
    for (int i = 0; i < archive->count; i++)
        add_entry(&end, &archive->records[i], &placed[i]);
    add_end(&end, (uint64_t)archive->count, (int64_t)end.length, at);
    THEN(status, strbuf_status(&end));
    THEN(status, file_pwrite_all(descriptor, end.data, end.length, start + at, path));
    *length = at + (int64_t)end.length;
    strbuf_free(&end);
    return status;
}
