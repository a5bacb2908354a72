/* zlib, one piece at a time. */
#include "gunzip.h"

#include <zlib.h>

static enum gunzip unpack(z_stream *stream, struct strbuf *out, uint64_t limit) {
    unsigned char piece[16384];
    for (;;) {
        stream->next_out = piece;
        stream->avail_out = sizeof piece;
        int result = inflate(stream, Z_NO_FLUSH);
        if (result == Z_MEM_ERROR)
            return GUNZIP_MEMORY;
        if (result != Z_OK && result != Z_STREAM_END)
            return GUNZIP_BAD;
        size_t made = sizeof piece - stream->avail_out;
        if (out->length + made > limit)
            return GUNZIP_TOO_LARGE;
        strbuf_add(out, piece, made);
        if (out->failed)
            return GUNZIP_MEMORY;
        if (result == Z_STREAM_END)
            return stream->avail_in ? GUNZIP_BAD : GUNZIP_WHOLE;
        if (!made && !stream->avail_in)
            return GUNZIP_BAD; /* the data end early */
    }
}

enum gunzip gunzip(const void *bytes, size_t length, uint64_t limit, struct strbuf *out) {
    enum { GZIP_WINDOW = 15 + 16 }; /* zlib's number for a gzip header and no other */
    z_stream stream = {.next_in = (unsigned char *)bytes, .avail_in = (unsigned)length};
    if (inflateInit2(&stream, GZIP_WINDOW) != Z_OK)
        return GUNZIP_MEMORY;
    enum gunzip result = unpack(&stream, out, limit);
    inflateEnd(&stream);
    return result;
}

enum gunzip gunzip_replace(struct strbuf *bytes, uint64_t limit) {
    struct strbuf out = STRBUF_INIT;
    enum gunzip result = gunzip(strbuf_text(bytes), bytes->length, limit, &out);
    struct strbuf *old = result == GUNZIP_WHOLE ? bytes : &out;
    strbuf_free(old);
    if (result == GUNZIP_WHOLE)
        *bytes = out;
    return result;
}
