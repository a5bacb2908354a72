/* The names of tokens in files. In GPT-2's alphabet of bytes a name is printable text, with one character for each
 * byte. Printable bytes of Latin-1 stand for themselves; the other 68 are the characters from 256 on, in order. */
#include "text-internal.h"

#include "base/utf8.h"

enum { PLAIN_BYTES = 188 }; /* 33-126, 161-172, 174-255 */

static bool is_plain(uint32_t byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

unsigned char byte_alphabet_ranked(int rank) {
    if (rank < 94)
        return (unsigned char)(33 + rank);
    if (rank < 106)
        return (unsigned char)(161 + rank - 94);
    if (rank < PLAIN_BYTES)
        return (unsigned char)(174 + rank - 106);
    rank -= PLAIN_BYTES;
    if (rank < 33)
        return (unsigned char)rank;
    return (unsigned char)(rank < 67 ? 127 + rank - 33 : 173);
}

/* The character of a byte. */
static uint32_t byte_alphabet_character(unsigned char byte) {
    if (is_plain(byte))
        return byte;
    if (byte < 33)
        return 256u + byte;
    return byte == 173 ? 256u + 67u : 256u + 33u + (byte - 127u);
}

/* Returns the byte of a character; -1 when it is not in the alphabet. */
static int byte_alphabet_byte(uint32_t character) {
    if (character < 256)
        return is_plain(character) ? (int)character : -1;
    return character < 256 + 68 ? byte_alphabet_ranked(PLAIN_BYTES + (int)character - 256) : -1;
}

/* Appends the bytes of a name written in the alphabet; returns false, and appends nothing, for other names. */
static bool byte_alphabet_decode(const char *name, size_t length, struct strbuf *out) {
    const unsigned char *at = (const unsigned char *)name, *end = at + length;
    size_t before = out->length;
    while (at < end) {
        uint32_t character = *at;
        size_t bytes = character < 0x80 ? 1 : utf8_decode(at, end, &character);
        int byte = bytes > 0 ? byte_alphabet_byte(character) : -1;
        if (byte < 0) {
            out->length = before;
            return false;
        }
        strbuf_add_char(out, (char)byte);
        at += bytes;
    }
    return true;
}

void byte_alphabet_encode(const unsigned char *bytes, size_t length, struct strbuf *out) {
    for (size_t i = 0; i < length; i++) {
        unsigned char utf8[4];
        strbuf_add(out, utf8, utf8_encode(byte_alphabet_character(bytes[i]), utf8));
    }
}

void space_marks_add(const unsigned char *bytes, size_t length, struct strbuf *out) {
    const unsigned char *at = bytes, *end = bytes + length, *mark;
    while ((mark = memmem(at, (size_t)(end - at), SPACE_MARK, SPACE_MARK_BYTES))) {
        strbuf_add(out, at, (size_t)(mark - at));
        strbuf_add_char(out, ' ');
        at = mark + SPACE_MARK_BYTES;
    }
    strbuf_add(out, at, (size_t)(end - at));
}

void space_marks_write(const unsigned char *bytes, size_t length, struct strbuf *out) {
    for (size_t i = 0; i < length; i++)
        if (bytes[i] == ' ')
            strbuf_add_text(out, SPACE_MARK);
        else
            strbuf_add_char(out, (char)bytes[i]);
}

int token_name_byte(const char *name) {
    static const char digits[] = "0123456789ABCDEF";
    if (strlen(name) != 6 || memcmp(name, "<0x", 3) != 0 || name[5] != '>')
        return -1;
    const char *high = strchr(digits, name[3]), *low = strchr(digits, name[4]);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

bool tokenizer_name_bytes(const struct tokenizer_rules *rules, const char *name, size_t length, struct strbuf *out) {
    if (!rules->is_by_characters)
        return byte_alphabet_decode(name, length, out);
    if (memchr(name, ' ', length)) /* in a text a mark replaces each space */
        return false;
    space_marks_add((const unsigned char *)name, length, out);
    return true;
}
