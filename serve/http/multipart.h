/* A body of multipart/form-data (RFC 7578), read in pieces of any size: its parts, one after the other.
 *
 * Nothing is kept but the header of a part and the last bytes of a piece, which may begin a boundary. Any one thread.
 */
#pragma once

#include "base/strbuf.h"

#include <stdint.h>

enum {
    MULTIPART_NAME_BYTES = 256, /* of a name or a file's name, with the zero byte; longer ones are refused */
    MULTIPART_BOUNDARY_BYTES = 71
};

/* Receives the parts. Both return a status, which ends the reading. */
struct multipart_sink {
    /* A part begins. `filename` is "" for a field that is no file. Both are UTF-8 without control characters. */
    int (*begin)(void *context, const char *name, const char *filename);
    /* Bytes of the present part. */
    int (*add)(void *context, const void *bytes, size_t length);
    void *context;
};

struct multipart {
    struct multipart_sink sink;
    char delimiter[MULTIPART_BOUNDARY_BYTES + 4]; /* "\r\n--" and the boundary */
    size_t delimiter_length;
    struct strbuf held; /* bytes that were not passed on yet */
    enum { MULTIPART_BEFORE, MULTIPART_HEADER, MULTIPART_PART, MULTIPART_AFTER } state;
};

/* Begins a body whose content-type field is `type`. STATUS_INVALID: it is not multipart/form-data, or has no valid
 * boundary. */
int multipart_open(struct multipart *multipart, const char *type, const struct multipart_sink *sink);
/* Reads the next bytes. STATUS_INVALID for malformed headers, STATUS_MEMORY, and the sink's statuses. */
int multipart_read(struct multipart *multipart, const void *bytes, size_t length);
/* Ends the body. STATUS_INVALID when its last boundary is missing. */
int multipart_end(const struct multipart *multipart);
/* Zeroed is allowed. */
void multipart_close(struct multipart *multipart);
