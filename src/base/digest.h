/* FNV-1a, 64 bits. It tells contents apart, but is no protection against forgery. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A digest starts as DIGEST_START; digest_bytes returns it after `length` more bytes. */
#define DIGEST_START 0xcbf29ce484222325u
static inline uint64_t digest_bytes(uint64_t digest, const void *bytes, size_t length) {
    for (size_t i = 0; i < length; i++)
        digest = (digest ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return digest;
}

/* Computes the size of a regular file and a digest of its contents. A file of more than 64 MiB is sampled at its
 * beginning, its end and 1022 places between. STATUS_NOT_FOUND, STATUS_IO. */
int digest_file(const char *path, int64_t *bytes, uint64_t *digest);
/* The same, from at most `places` places (at least 2) of 64 KiB each. */
int digest_places(const char *path, int places, int64_t *bytes, uint64_t *digest);
