/* Marks that libutf8proc knows and `tokenizers`, whose normal form is Unicode 9's, does not. */
#pragma once

#include "base/utf8.h"

#include <stdbool.h>
#include <utf8proc.h>

static inline bool is_new_mark(uint32_t c) {
    static const uint32_t ranges[][2] = {{0x7fd, 0x7fd},   {0x898, 0x89f},   {0x8ca, 0x8d3},   {0x9fe, 0x9fe},
                                         {0xc3c, 0xc3c},   {0xd3b, 0xd3c},   {0xeba, 0xeba},   {0x1715, 0x1715},
                                         {0x1abf, 0x1ace}, {0x1df6, 0x1dfa}, {0xa82c, 0xa82c}, {0x10d24, 0x10ffff}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return utf8proc_get_property((utf8proc_int32_t)c)->combining_class != 0 || c == 0x11930;
    return false;
}

/* Whether the bytes, up to the first that is no UTF-8, have one. */
static inline bool has_new_mark(const uint8_t *data, size_t size) {
    for (size_t i = 0, bytes; i < size && (bytes = utf8_length(data + i, data + size)) > 0; i += bytes) {
        uint32_t c = data[i];
        if (bytes > 1)
            utf8_decode(data + i, data + size, &c);
        if (is_new_mark(c))
            return true;
    }
    return false;
}
