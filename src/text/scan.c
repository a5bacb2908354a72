/* The kinds and traits of ASCII bytes; unicode.h has those of all code points. */
#include "scan-internal.h"

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
#undef O
#undef L

#define O  UNICODE_PLAIN
#define W  UNICODE_PLAIN | UNICODE_WORD
#define U  UNICODE_PLAIN | UNICODE_WORD | UNICODE_UPPER
#define L  UNICODE_PLAIN | UNICODE_WORD | UNICODE_LOWER
#define O8 O, O, O, O, O, O, O, O
const uint8_t scan_byte_traits[128] = {
    O8, O8, O8, O8, O8, O8,                               /* to / */
    W,  W,  W,  W,  W,  W,  W, W, W, W, O, O, O, O, O, O, /* 0 to 9 */
    O,  U,  U,  U,  U,  U,  U, U, U, U, U, U, U, U, U, U, /* A to O */
    U,  U,  U,  U,  U,  U,  U, U, U, U, U, O, O, O, O, W, /* P to Z, _ */
    O,  L,  L,  L,  L,  L,  L, L, L, L, L, L, L, L, L, L, /* a to o */
    L,  L,  L,  L,  L,  L,  L, L, L, L, L, O, O, O, O, O, /* p to z */
};
