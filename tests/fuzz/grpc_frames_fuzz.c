/* Any bytes as a stream of messages: cut anywhere they give the same messages and the same end, and none is over the
 * limit. The first byte says whether messages may be packed, the second where the bytes are cut. */
#include "serve/grpc_frames.h"
#include "serve/gunzip.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LIMIT = 4096 };

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "grpc_frames_fuzz: %s\n", what);
    abort();
}

/* Appends every message with its length, and returns how the stream ends. */
static enum grpc_frame read_stream(const uint8_t *data, size_t size, size_t step, bool may_be_packed,
                                   struct strbuf *out) {
    struct grpc_frames frames;
    enum grpc_frame frame = GRPC_FRAME_MORE;
    grpc_frames_begin(&frames, LIMIT, may_be_packed);
    for (size_t at = 0; at < size && frame == GRPC_FRAME_MORE; at += step) {
        const unsigned char *bytes = data + at;
        size_t left = size - at < step ? size - at : step;
        while ((frame = grpc_frames_take(&frames, &bytes, &left)) == GRPC_FRAME_WHOLE) {
            enum gunzip unpacked =
                grpc_frames_is_packed(&frames) ? gunzip_replace(&frames.message, LIMIT) : GUNZIP_WHOLE;
            if (unpacked) {
                frame = GRPC_FRAME_MEMORY + unpacked; /* an end that is none of the frames' own */
                break;
            }
            check(frames.message.length <= LIMIT, "a message over the limit");
            strbuf_format(out, "%zu:", frames.message.length);
            strbuf_add(out, strbuf_text(&frames.message), frames.message.length);
            grpc_frames_next(&frames);
            if (!left) {
                frame = GRPC_FRAME_MORE;
                break;
            }
        }
    }
    strbuf_format(out, "%d", grpc_frames_are_whole(&frames));
    grpc_frames_free(&frames);
    return frame;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strbuf whole = STRBUF_INIT, bytes = STRBUF_INIT, pieces = STRBUF_INIT;
    if (size < 2)
        return 0;
    bool may_be_packed = data[0] & 1;
    size_t step = data[1] ? data[1] : 256;
    enum grpc_frame end = read_stream(data + 2, size - 2, size, may_be_packed, &whole);
    check(end == read_stream(data + 2, size - 2, 1, may_be_packed, &bytes), "another end byte by byte");
    check(end == read_stream(data + 2, size - 2, step, may_be_packed, &pieces), "another end in pieces");
    check(whole.length == bytes.length && !memcmp(whole.data, bytes.data, whole.length), "other messages byte by byte");
    check(whole.length == pieces.length && !memcmp(whole.data, pieces.data, whole.length), "other messages in pieces");
    strbuf_free(&whole);
    strbuf_free(&bytes);
    strbuf_free(&pieces);
    return 0;
}
