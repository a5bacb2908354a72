#include "digest.h"

#include "file.h"
#include "status.h"

#include <unistd.h>

enum { BLOCK = 64 << 10, BLOCKS = 1024 };

/* Spreads the places evenly. In a small file they touch each other. */
static int mix_file(int descriptor, const char *path, int64_t bytes, int places, uint64_t *digest) {
    char block[BLOCK];
    int64_t all = (bytes + BLOCK - 1) / BLOCK, count = all < places ? all : places;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = all <= places ? i * BLOCK : (bytes - BLOCK) / (places - 1) * i;
        if (all > places && i == places - 1)
            at = bytes - BLOCK;
        size_t length = (size_t)(bytes - at < BLOCK ? bytes - at : BLOCK);
        TRY(file_pread_all(descriptor, block, length, at, path));
        *digest = digest_bytes(*digest, block, length);
    }
    return STATUS_OK;
}

int digest_file(const char *path, int64_t *bytes, uint64_t *digest) {
    return digest_places(path, BLOCKS, bytes, digest);
}

int digest_places(const char *path, int places, int64_t *bytes, uint64_t *digest) {
    int descriptor, status = file_open_to_read(path, &descriptor, bytes);
    TRY(status);
    *digest = digest_bytes(DIGEST_START, bytes, sizeof *bytes);
    status = mix_file(descriptor, path, *bytes, places, digest);
    close(descriptor);
    return status;
}
