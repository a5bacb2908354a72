/* The kinds of ASCII bytes, and where UTF-8 ends to be valid. The table of all code points is unicode_table.c. */
#include "scan-internal.h"

#include <string.h>

#define O   UNICODE_OTHER
#define L   UNICODE_LETTER
#define N   UNICODE_NUMBER
#define S   UNICODE_SPACE
#define M   SCAN_MULTIBYTE
#define M16 M, M, M, M, M, M, M, M, M, M, M, M, M, M, M, M
const uint8_t scan_byte_kinds[256] = {
    O,   O,   O,   O,   O,   O,   O,   O,   O, S, S, S, S, S, O, O, /* \t \n \v \f \r */
    O,   O,   O,   O,   O,   O,   O,   O,   O, O, O, O, O, O, O, O, /* */
    S,   O,   O,   O,   O,   O,   O,   O,   O, O, O, O, O, O, O, O, /* space */
    N,   N,   N,   N,   N,   N,   N,   N,   N, N, O, O, O, O, O, O, /* 0 to 9 */
    O,   L,   L,   L,   L,   L,   L,   L,   L, L, L, L, L, L, L, L, /* A to O */
    L,   L,   L,   L,   L,   L,   L,   L,   L, L, L, O, O, O, O, O, /* P to Z */
    O,   L,   L,   L,   L,   L,   L,   L,   L, L, L, L, L, L, L, L, /* a to o */
    L,   L,   L,   L,   L,   L,   L,   L,   L, L, L, O, O, O, O, O, /* p to z */
    M16, M16, M16, M16, M16, M16, M16, M16,
};

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
        uint32_t point;
        size_t step = *at < 0x80 ? 1 : utf8_decode(at, end, &point);
        if (step == 0)
            break;
        at += step;
    }
    return (size_t)(at - bytes);
}
