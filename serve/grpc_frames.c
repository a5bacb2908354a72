/* The prefix, byte by byte, and gzip, whose output is counted while it comes. */
#include "grpc_frames.h"

#include <zlib.h>

void grpc_frames_begin(struct grpc_frames *frames, uint64_t limit, bool may_be_packed) {
    *frames = (struct grpc_frames){.limit = limit, .may_be_packed = may_be_packed};
}

void grpc_frames_free(struct grpc_frames *frames) {
    strbuf_free(&frames->message);
}

static uint64_t length_of(const struct grpc_frames *frames) {
    const unsigned char *at = frames->prefix + 1;
    return (uint64_t)at[0] << 24 | (uint64_t)at[1] << 16 | (uint64_t)at[2] << 8 | at[3];
}

/* ---- gzip ---- */

/* One stream with nothing behind it. */
static enum grpc_frame inflate_whole(z_stream *stream, struct strbuf *out, uint64_t limit) {
    unsigned char piece[16384];
    for (;;) {
        stream->next_out = piece;
        stream->avail_out = sizeof piece;
        int result = inflate(stream, Z_NO_FLUSH);
        if (result == Z_MEM_ERROR)
            return GRPC_FRAME_MEMORY;
        if (result != Z_OK && result != Z_STREAM_END)
            return GRPC_FRAME_BAD_GZIP;
        size_t made = sizeof piece - stream->avail_out;
        if (out->length + made > limit)
            return GRPC_FRAME_TOO_LARGE;
        strbuf_add(out, piece, made);
        if (out->failed)
            return GRPC_FRAME_MEMORY;
        if (result == Z_STREAM_END)
            return stream->avail_in ? GRPC_FRAME_BAD_GZIP : GRPC_FRAME_WHOLE;
        if (!made && !stream->avail_in)
            return GRPC_FRAME_BAD_GZIP; /* it breaks off */
    }
}

static enum grpc_frame unpack(struct grpc_frames *frames) {
    enum { GZIP_WINDOW = 15 + 16 }; /* zlib's number for a header of gzip and no other */
    struct strbuf out = STRBUF_INIT;
    z_stream stream = {.next_in = (unsigned char *)frames->message.data, .avail_in = (unsigned)frames->message.length};
    if (inflateInit2(&stream, GZIP_WINDOW) != Z_OK)
        return GRPC_FRAME_MEMORY;
    enum grpc_frame result = inflate_whole(&stream, &out, frames->limit);
    inflateEnd(&stream);
    if (result != GRPC_FRAME_WHOLE) {
        strbuf_free(&out);
        return result;
    }
    strbuf_free(&frames->message);
    frames->message = out;
    return GRPC_FRAME_WHOLE;
}

/* ---- frames ---- */

static enum grpc_frame take_prefix(struct grpc_frames *frames, const unsigned char **bytes, size_t *length) {
    while (frames->prefix_length < GRPC_PREFIX_BYTES && *length) {
        frames->prefix[frames->prefix_length++] = *(*bytes)++;
        (*length)--;
    }
    if (frames->prefix_length && (frames->prefix[0] > 1 || (frames->prefix[0] && !frames->may_be_packed)))
        return GRPC_FRAME_BAD_FLAG;
    if (frames->prefix_length < GRPC_PREFIX_BYTES)
        return GRPC_FRAME_MORE;
    return length_of(frames) > frames->limit ? GRPC_FRAME_TOO_LARGE : GRPC_FRAME_WHOLE;
}

enum grpc_frame grpc_frames_take(struct grpc_frames *frames, const unsigned char **bytes, size_t *length) {
    enum grpc_frame result = take_prefix(frames, bytes, length);
    if (result != GRPC_FRAME_WHOLE)
        return result;
    uint64_t missing = length_of(frames) - frames->message.length;
    size_t taken = missing < *length ? (size_t)missing : *length;
    if (taken) /* an empty message takes no memory */
        strbuf_add(&frames->message, *bytes, taken);
    if (frames->message.failed)
        return GRPC_FRAME_MEMORY;
    *bytes += taken;
    *length -= taken;
    if (taken < missing)
        return GRPC_FRAME_MORE;
    return frames->prefix[0] ? unpack(frames) : GRPC_FRAME_WHOLE;
}

void grpc_frames_next(struct grpc_frames *frames) {
    frames->prefix_length = 0;
    strbuf_free(&frames->message); /* a large one is not kept for the small ones behind it */
}

bool grpc_frames_are_whole(const struct grpc_frames *frames) {
    return frames->prefix_length == 0;
}

void grpc_prefix_write(unsigned char prefix[GRPC_PREFIX_BYTES], uint32_t length) {
    prefix[0] = 0;
    for (int i = 0; i < 4; i++)
        prefix[1 + i] = (unsigned char)(length >> (24 - 8 * i));
}
