#include "cuda/fatbin.h"

#include <stdint.h>
#include <string.h>

enum { FATBIN_MAGIC = 0xBA55ED50u, WRAPPER_MAGIC = 0x466243B1, KIND_PTX = 1, FLAG_COMPRESSED = 0x2000 };

struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of the entries */
};

struct fatbin_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes; /* of what follows the header */
    uint32_t compressed_bytes, unknown, version_words, architecture;
    uint64_t name, flags;
};

/* The symbol __fatbinc_wrapper of a host compiler. */
struct fatbin_wrapper {
    uint32_t magic, version;
    const void *data, *rest;
};

int fatbin_ptx(const void *image, int architecture, const char **text, size_t *length) {
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic == WRAPPER_MAGIC) {
        image = ((const struct fatbin_wrapper *)image)->data;
        memcpy(&magic, image, sizeof magic);
    }
    if (magic != FATBIN_MAGIC) {
        *text = image;
        *length = strnlen(image, 1 << 26);
        return memchr(".\n/\t ", ((const char *)image)[0], 5) ? 0 : -1;
    }
    struct fatbin_header header;
    memcpy(&header, image, sizeof header);
    const char *at = (const char *)image + header.header_bytes, *end = at + header.bytes;
    uint32_t best = 0;
    while (at + sizeof(struct fatbin_entry) <= end) {
        struct fatbin_entry entry;
        memcpy(&entry, at, sizeof entry);
        at += entry.header_bytes;
        if (entry.kind == KIND_PTX && !(entry.flags & FLAG_COMPRESSED) && entry.architecture > best &&
            entry.architecture <= (uint32_t)architecture) {
            best = entry.architecture;
            *text = at;
            *length = strnlen(at, entry.bytes);
        }
        at += entry.bytes;
    }
    return best ? 0 : -1;
}
