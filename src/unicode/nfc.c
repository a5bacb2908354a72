/* Unicode's normal form NFC (Unicode Standard Annex 15), by libutf8proc for text that may not be in it yet.
 *
 * Most characters are plain: they start anew. A text's form is therefore that of its stretches, each a plain character
 * with what follows it up to the next plain one. Only stretches of several characters are decomposed, put in canonical
 * order and composed. The order is computed here, because libutf8proc's own sorting takes quadratic time in a long row
 * of marks. (It also drops U+11A7 after a syllable of Hangul; here that character is plain, so it never follows
 * one.) */
#include "nfc.h"

#include "base/base.h"
#include "base/utf8.h"
#include "unicode.h"

#include <utf8proc.h>

enum { MOST_PARTS = 8 /* of one character; Unicode has up to 4 */ };

/* Returns whether the character at `at` is plain, and its length. */
static inline bool is_plain(const unsigned char *at, const unsigned char *end, size_t *bytes) {
    uint32_t point;
    *bytes = 1;
    if (*at < 0x80)
        return true;
    size_t length = utf8_decode(at, end, &point);
    if (length == 0)
        return true;
    *bytes = length;
    return unicode_traits_of(point) & UNICODE_PLAIN && (point & ~1u) != 0x2000;
}

static inline bool is_ascii_word(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return !(word & 0x8080808080808080u);
}

size_t nfc_normal_length(const unsigned char *bytes, size_t length) {
    const unsigned char *at = bytes, *end = bytes + length, *last = bytes;
    while (at < end) {
        size_t step = 8;
        if (end - at >= 8 && is_ascii_word(at)) {
            last = at + 7;
        } else {
            if (!is_plain(at, end, &step))
                return (size_t)(last - bytes);
            last = at;
        }
        at += step;
    }
    return length;
}

bool nfc_is_border(const unsigned char *begin, const unsigned char *at, const unsigned char *end) {
    const unsigned char *before = at - 1;
    size_t bytes;
    while (before > begin && at - before < 4 && (*before & 0xc0) == 0x80)
        before--;
    return is_plain(before, at, &bytes) && is_plain(at, end, &bytes);
}

void nfc_scratch_free(struct nfc_scratch *scratch) {
    free(scratch->points);
    free(scratch->sorted);
    *scratch = (struct nfc_scratch){0};
}

static int combining_class(int32_t point) {
    return utf8proc_get_property(point)->combining_class;
}

/* Puts a row of marks in canonical order: by class, equal classes in their present order. */
static int sort_marks(struct nfc_scratch *scratch, int32_t *marks, size_t count) {
    size_t starts[257] = {0};
    TRY(array_reserve(&scratch->sorted, &scratch->sorted_capacity, count, sizeof *scratch->sorted));
    for (size_t i = 0; i < count; i++)
        starts[combining_class(marks[i]) + 1]++;
    for (int i = 0; i < 256; i++)
        starts[i + 1] += starts[i];
    for (size_t i = 0; i < count; i++)
        scratch->sorted[starts[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, scratch->sorted, count * sizeof *marks);
    return STATUS_OK;
}

/* Orders the points from `from` on. A plain character comes first; `tokenizers` treats marks that it does not know as
 * plain. */
static int order_marks(struct nfc_scratch *scratch, size_t from, size_t count) {
    int32_t *points = scratch->points;
    for (size_t i = from, first; i < count; i++) {
        bool is_sorted = true;
        for (first = i; i < count && combining_class(points[i]) > 0; i++)
            is_sorted = is_sorted && (i == first || combining_class(points[i - 1]) <= combining_class(points[i]));
        TRY(is_sorted ? STATUS_OK : sort_marks(scratch, points + first, i - first));
    }
    return STATUS_OK;
}

/* Appends the canonical parts of the characters of a stretch. */
static int decompose(struct nfc_scratch *scratch, const unsigned char *at, const unsigned char *end, size_t *count) {
    *count = 0;
    while (at < end) {
        uint32_t point = *at;
        int boundary = 0;
        at += *at < 0x80 ? 1 : utf8_decode(at, end, &point);
        TRY(array_reserve(&scratch->points, &scratch->point_capacity, *count + MOST_PARTS, sizeof *scratch->points));
        utf8proc_ssize_t parts = utf8proc_decompose_char((utf8proc_int32_t)point, scratch->points + *count, MOST_PARTS,
                                                         UTF8PROC_DECOMPOSE, &boundary);
        if (parts < 1 || parts > MOST_PARTS)
            return status_fail(STATUS_INVALID, "U+%04X has no canonical decomposition: %s", point,
                               utf8proc_errmsg(parts));
        *count += (size_t)parts;
    }
    return STATUS_OK;
}

static int append_stretch(struct nfc_scratch *scratch, const unsigned char *at, const unsigned char *end,
                          struct strbuf *out) {
    size_t count, first;
    TRY(decompose(scratch, at, end, &count));
    TRY(order_marks(scratch, is_plain(at, end, &first) ? 1 : 0, count));
    utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(scratch->points, (utf8proc_ssize_t)count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (composed < 0)
        return status_fail(STATUS_INVALID, "a text was not normalized: %s", utf8proc_errmsg(composed));
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        unsigned char utf8[4];
        strbuf_add(out, utf8, utf8_encode((uint32_t)scratch->points[i], utf8));
    }
    return strbuf_status(out);
}

int nfc_append(struct nfc_scratch *scratch, const unsigned char *bytes, size_t length, struct strbuf *out) {
    const unsigned char *at = bytes, *end = bytes + length;
    int status = STATUS_OK;
    while (!status && at < end) {
        size_t normal = nfc_normal_length(at, (size_t)(end - at)), step;
        strbuf_add(out, at, normal);
        at += normal;
        if (at == end)
            break;
        size_t first = utf8_length(at, end);
        const unsigned char *next = at + (first ? first : 1);
        while (first && next < end && !is_plain(next, end, &step))
            next += step;
        if (first)
            status = append_stretch(scratch, at, next, out);
        else
            strbuf_add_char(out, (char)*at); /* the marks after it stand alone */
        at = next;
    }
    return status ? status : strbuf_status(out);
}
