/* Reads the prefix byte by byte. */
#include "grpc_frames.h"

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
    return taken < missing ? GRPC_FRAME_MORE : GRPC_FRAME_WHOLE;
}

bool grpc_frames_is_packed(const struct grpc_frames *frames) {
    return frames->prefix[0];
}

void grpc_frames_next(struct grpc_frames *frames) {
    frames->prefix_length = 0;
    strbuf_free(&frames->message); /* does not keep a large message's memory for small ones */
}

bool grpc_frames_are_whole(const struct grpc_frames *frames) {
    return frames->prefix_length == 0;
}

void grpc_prefix_write(unsigned char prefix[GRPC_PREFIX_BYTES], uint32_t length) {
    prefix[0] = 0;
    for (int i = 0; i < 4; i++)
        prefix[1 + i] = (unsigned char)(length >> (24 - 8 * i));
}
