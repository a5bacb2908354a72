/* Messages of gRPC in a stream of bytes: a byte of flags, a length of four bytes, the bytes. They come cut anywhere.
 *
 * Nothing here knows what a message holds, nor where bytes come from. A length is believed only as far as bytes have
 * come: a peer that promises much and sends little costs little. Any thread. */
#ifndef CAMBIUM_SERVE_GRPC_FRAMES_H
#define CAMBIUM_SERVE_GRPC_FRAMES_H

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
    struct strbuf message; /* so far */
};

enum grpc_frame {
    GRPC_FRAME_MORE,      /* all was taken; a message is not whole yet */
    GRPC_FRAME_WHOLE,     /* `message` is one, packed or not; grpc_frames_next goes to the next */
    GRPC_FRAME_BAD_FLAG,  /* flags that there are not, or packed without an encoding */
    GRPC_FRAME_TOO_LARGE, /* over the limit, packed or unpacked */
    GRPC_FRAME_BAD_GZIP,
    GRPC_FRAME_MEMORY
};

void grpc_frames_begin(struct grpc_frames *frames, uint64_t limit, bool may_be_packed);
void grpc_frames_free(struct grpc_frames *frames);
/* Takes bytes from *bytes, which it moves on, until a message is whole or there are no more. Nothing can follow a
 * failure. */
enum grpc_frame grpc_frames_take(struct grpc_frames *frames, const unsigned char **bytes, size_t *length);
/* True when the message that is whole is packed. */
bool grpc_frames_is_packed(const struct grpc_frames *frames);
/* Unpacks a message in place: GRPC_FRAME_WHOLE, or the message is as it was. */
enum grpc_frame grpc_message_unpack(struct strbuf *message, uint64_t limit);
/* Forgets the message that was whole. */
void grpc_frames_next(struct grpc_frames *frames);
/* Whether the stream may end here: between messages. */
bool grpc_frames_are_whole(const struct grpc_frames *frames);

/* Writes the prefix of a message that is not packed. */
void grpc_prefix_write(unsigned char prefix[GRPC_PREFIX_BYTES], uint32_t length);

#endif
