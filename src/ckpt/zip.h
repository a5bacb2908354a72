/* Zip archives as torch.save writes them, for reading: stored records under one directory. An archive may lie anywhere
 * in a file. Opening checks the central directory; sizes come from there, because torch leaves them out of the headers
 * before the data. */
#pragma once

#include "base/base.h"

/* The four bytes that each part of a zip begins with. */
#define ZIP_END     0x06054b50u
#define ZIP_LOCATOR 0x07064b50u
#define ZIP_END64   0x06064b50u
#define ZIP_ENTRY   0x02014b50u
#define ZIP_HEADER  0x04034b50u

struct zip_record {
    const char *name; /* [length] below the directory, not terminated */
    size_t length;
    int64_t header;       /* byte of the archive where its header begins */
    int64_t start, bytes; /* of the data, in the file; start: zip_locate sets it */
    uint32_t crc;
};

struct zip {
    const char *path; /* the caller's */
    int descriptor;   /* the caller's */
    int64_t start, bytes;
    char *directory; /* the central one's bytes */
    struct zip_record *records;
    size_t count;
};

/* Opens the archive in bytes [start, start + bytes) of a file. STATUS_INVALID when it is damaged, compressed or
 * encrypted, or has records outside one directory; STATUS_IO, STATUS_MEMORY. Call zip_close in any case. */
int zip_open(struct zip *zip, const char *path, int descriptor, int64_t start, int64_t bytes);
void zip_close(struct zip *zip);
/* Returns the record of that name below the directory; NULL when there is none. */
struct zip_record *zip_find(const struct zip *zip, const char *name);
/* Finds the data of a record. STATUS_INVALID, STATUS_IO. */
int zip_locate(const struct zip *zip, struct zip_record *record);
/* Reads a located or unlocated record of at most `limit` bytes, and checks its sum. The caller frees *bytes. */
int zip_read(const struct zip *zip, struct zip_record *record, int64_t limit, char **bytes);
