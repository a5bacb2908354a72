/* Messages of gRPC in a stream of bytes: a byte of flags, four bytes of length, then the message. The stream may be cut
 * anywhere.
 *
 * This file knows neither the contents of messages nor the source of the bytes. Memory grows only with bytes that have
 * arrived, so a peer that announces much and sends little costs little. Any thread. */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GRPC_PREFIX_BYTES = 5 };

struct grpc_frames {
    uint64_t limit;     /* bytes of a message, packed or not */
    bool may_be_packed; /* the stream's encoding is gzip */
    unsigned char prefix[GRPC_PREFIX_BYTES];
    size_t prefix_length;
    struct strbuf message; /* the bytes so far */
};

enum grpc_frame {
    GRPC_FRAME_MORE,      /* all bytes were taken; the message is not complete */
    GRPC_FRAME_WHOLE,     /* `message` is complete, packed or not; grpc_frames_next moves to the next */
    GRPC_FRAME_BAD_FLAG,  /* unknown flags, or a packed message without an encoding */
    GRPC_FRAME_TOO_LARGE, /* over the limit, packed or not */
    GRPC_FRAME_MEMORY
};

/* Starts a stream whose messages have at most `limit` bytes. grpc_frames_free ends it. */
void grpc_frames_begin(struct grpc_frames *frames, uint64_t limit, bool may_be_packed);
void grpc_frames_free(struct grpc_frames *frames);
/* Takes bytes from *bytes, and advances it, until a message is complete or all bytes are consumed. No call may follow a
 * failure. */
enum grpc_frame grpc_frames_take(struct grpc_frames *frames, const unsigned char **bytes, size_t *length);
/* True when the complete message is packed; gunzip_replace unpacks it. */
bool grpc_frames_is_packed(const struct grpc_frames *frames);
/* Drops the complete message. */
void grpc_frames_next(struct grpc_frames *frames);
/* True when the stream may end here, between messages. */
bool grpc_frames_are_whole(const struct grpc_frames *frames);

/* Writes the prefix of a message that is not packed. */
void grpc_prefix_write(unsigned char prefix[GRPC_PREFIX_BYTES], uint32_t length);
