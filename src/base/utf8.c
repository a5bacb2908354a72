/* Checking and repairing UTF-8. */
#include "base/utf8.h"

#include <string.h>

size_t utf8_valid_length(const unsigned char *bytes, size_t length) {
    const unsigned char *at = bytes, *end = bytes + length;
    while (at < end) {
        if (end - at >= 8) {
            uint64_t eight;
            memcpy(&eight, at, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        size_t step = utf8_length(at, end);
        if (step == 0)
            break;
        at += step;
    }
    return (size_t)(at - bytes);
}

size_t utf8_bad_length(const unsigned char *at, const unsigned char *end) {
    unsigned char c = *at;
    unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    size_t whole = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2, bytes = 1;
    if (c < 0xc2 || c > 0xf4)
        return 1;
    for (; bytes < whole && at + bytes < end && at[bytes] >= low && at[bytes] <= high; low = 0x80, high = 0xbf)
        bytes++;
    return bytes;
}

size_t utf8_unfinished_length(const unsigned char *bytes, size_t length) {
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        unsigned char c = bytes[length - back];
        if (c >= 0xc0)
            return (c >= 0xf0 ? 4u : c >= 0xe0 ? 3u : 2u) > back ? back : 0;
        if (c < 0x80)
            return 0;
    }
    return 0;
}
