/* FNV-1a, 64 bits: tells contents apart that nobody forged. */
#ifndef CAMBIUM_BASE_DIGEST_H
#define CAMBIUM_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

/* Where a digest starts, and what it becomes by further bytes. */
#define DIGEST_START 0xcbf29ce484222325u
static inline uint64_t digest_bytes(uint64_t digest, const void *bytes, size_t length) {
    for (size_t i = 0; i < length; i++)
        digest = (digest ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return digest;
}

/* The digest of a regular file's size and contents; the beginning, the end and 1022 places between them stand for all
 * of a file of more than 64 MiB. */
int digest_file(const char *path, int64_t *bytes, uint64_t *digest);
/* The same from at most so many places (at least 2) of 64 KiB. */
int digest_places(const char *path, int places, int64_t *bytes, uint64_t *digest);

#endif
