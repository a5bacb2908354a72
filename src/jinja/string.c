/* Strings whose bytes have known origins. A part of a string shares its bytes. A concatenation is a copy, or extends
 * the left operand in place. Indexes count characters, as in Python. */
#include "jinja-internal.h"

#include "base/utf8.h"
#include "unicode/python.h"

#include <string.h>

/* ---- building ---- */

static bool grow_bytes(struct jinja_run *run, struct jinja_builder *builder, size_t needed) {
    size_t capacity = builder->capacity;
    if (needed <= capacity)
        return true;
    if (builder->bytes && jinja_extend(&run->bytes, builder->bytes + capacity, needed - capacity)) {
        builder->capacity = needed;
        return true;
    }
    capacity = needed < 64 ? 64 : needed + needed / 2;
    char *bytes = jinja_take(&run->bytes, capacity, 1);
    if (!bytes) {
        jinja_fail_memory(run, &run->bytes);
        return false;
    }
    if (builder->length && !jinja_copy(run, bytes, builder->bytes, builder->length))
        return false;
    builder->bytes = bytes;
    builder->capacity = capacity;
    return true;
}

static bool grow_ranges(struct jinja_run *run, struct jinja_builder *builder) {
    if (builder->count < builder->range_capacity)
        return true;
    size_t capacity = builder->range_capacity ? 2 * builder->range_capacity : 4;
    struct jinja_range *ranges =
        jinja_grown(run, builder->ranges, builder->count * sizeof *ranges, capacity * sizeof *ranges);
    if (!ranges)
        return false;
    builder->ranges = ranges;
    builder->range_capacity = capacity;
    return true;
}

/* The charge for a piece of a string, in addition to its bytes. */
enum { PIECE_BYTES = 16 };

void jinja_build(struct jinja_run *run, struct jinja_builder *builder, const void *bytes, size_t length,
                 unsigned marks) {
    if (!length || !jinja_charge_bytes(run, PIECE_BYTES) || !grow_bytes(run, builder, builder->length + length))
        return;
    bool is_same = builder->count && builder->ranges[builder->count - 1].marks == marks;
    if (!is_same && !grow_ranges(run, builder))
        return;
    if (!jinja_copy(run, builder->bytes + builder->length, bytes, length))
        return;
    builder->length += length;
    if (!is_same)
        builder->ranges[builder->count++].marks = marks;
    builder->ranges[builder->count - 1].end = builder->length;
}

/* Returns the range that holds byte `at`. */
static size_t range_of(const struct jinja_string *string, size_t at) {
    size_t low = 0, high = string->range_count - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (string->ranges[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void jinja_build_text(struct jinja_run *run, struct jinja_builder *builder, const char *text) {
    jinja_build(run, builder, text, strlen(text), 0);
}

void jinja_build_part(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string,
                      size_t begin, size_t end) {
    if (!string->range_count) {
        jinja_build(run, builder, string->bytes + begin, end - begin, string->marks);
        return;
    }
    size_t i = begin < end ? range_of(string, begin) : string->range_count, from = begin;
    for (; i < string->range_count && from < end; i++) {
        size_t to = string->ranges[i].end < end ? string->ranges[i].end : end;
        jinja_build(run, builder, string->bytes + from, to - from, string->ranges[i].marks);
        from = to;
    }
}

void jinja_build_string(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string) {
    jinja_build_part(run, builder, string, 0, string->length);
}

static struct jinja_value string_value(const struct jinja_string *string) {
    return (struct jinja_value){.kind = JINJA_STRING, .string = string};
}

struct jinja_value jinja_string(struct jinja_run *run, const char *bytes, size_t length, unsigned marks) {
    struct jinja_string *string = jinja_object(run, sizeof *string);
    if (!string)
        return jinja_undefined(NULL);
    *string = (struct jinja_string){.bytes = bytes, .length = length, .marks = marks};
    return string_value(string);
}

struct jinja_value jinja_built(struct jinja_run *run, struct jinja_builder *builder) {
    struct jinja_value value = jinja_string(run, builder->bytes ? builder->bytes : "", builder->length, 0);
    if (value.kind != JINJA_STRING)
        return value;
    struct jinja_string *string = (struct jinja_string *)value.string;
    if (builder->count == 1)
        string->marks = builder->ranges[0].marks;
    if (builder->count > 1) {
        string->ranges = builder->ranges;
        string->range_count = builder->count;
    }
    if (builder->bytes && builder->bytes + builder->capacity == run->bytes.top)
        run->bytes.top = builder->bytes + builder->length; /* lets the next string extend it */
    return run->status ? jinja_undefined(NULL) : value;
}

struct jinja_value jinja_text_value(struct jinja_run *run, const char *text) {
    struct jinja_builder builder = {0};
    jinja_build_text(run, &builder, text);
    return jinja_built(run, &builder);
}

unsigned jinja_marks_at(const struct jinja_string *string, size_t at) {
    return string->range_count ? string->ranges[range_of(string, at)].marks : string->marks;
}

struct jinja_value jinja_part(struct jinja_run *run, const struct jinja_string *string, size_t begin, size_t end) {
    if (begin == 0 && end == string->length)
        return string_value(string);
    struct jinja_value value = jinja_string(run, string->bytes + begin, end - begin, string->marks);
    if (value.kind != JINJA_STRING)
        return value;
    struct jinja_string *part = (struct jinja_string *)value.string;
    part->is_safe = string->is_safe;
    if (!string->range_count || begin == end)
        return value;
    size_t first = range_of(string, begin), last = range_of(string, end - 1);
    part->marks = string->ranges[first].marks;
    if (first == last)
        return value;
    struct jinja_range *ranges = jinja_object(run, (last - first + 1) * sizeof *ranges);
    if (!ranges)
        return jinja_undefined(NULL);
    for (size_t i = first; i <= last && jinja_charge_bytes(run, sizeof *ranges); i++) {
        size_t stop = string->ranges[i].end < end ? string->ranges[i].end : end;
        ranges[i - first] = (struct jinja_range){stop - begin, string->ranges[i].marks};
    }
    part->ranges = ranges;
    part->range_count = last - first + 1;
    return value;
}

struct jinja_value jinja_escape(struct jinja_run *run, const struct jinja_string *string) {
    static const char from[] = "&<>'\"", *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct jinja_builder builder = {0};
    size_t done = 0;
    for (size_t i = 0; i < string->length && jinja_charge_bytes(run, 1); i++) {
        const char *found = string->bytes[i] ? strchr(from, string->bytes[i]) : NULL;
        if (!found)
            continue;
        jinja_build_part(run, &builder, string, done, i);
        jinja_build(run, &builder, to[found - from], strlen(to[found - from]), jinja_marks_at(string, i));
        done = i + 1;
    }
    jinja_build_part(run, &builder, string, done, string->length);
    struct jinja_value value = jinja_built(run, &builder);
    if (value.kind == JINJA_STRING)
        ((struct jinja_string *)value.string)->is_safe = true;
    return value;
}

/* Starts a builder with the left operand, which is extended in place when nothing follows it in memory. */
static void begin_with(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *left,
                       size_t more) {
    struct jinja_range whole = {left->length, left->marks};
    size_t count = left->range_count ? left->range_count : 1;
    if (!left->length || !jinja_extend(&run->bytes, left->bytes + left->length, more)) {
        jinja_build_string(run, builder, left);
        return;
    }
    struct jinja_range *ranges = jinja_grown(run, left->range_count ? left->ranges : &whole, count * sizeof *ranges,
                                             (count + 2) * sizeof *ranges);
    if (!ranges)
        return;
    *builder = (struct jinja_builder){.bytes = (char *)left->bytes,
                                      .length = left->length,
                                      .capacity = left->length + more,
                                      .ranges = ranges,
                                      .count = count,
                                      .range_capacity = count + 2};
}

struct jinja_value jinja_concat(struct jinja_run *run, const struct jinja_string *left,
                                const struct jinja_string *right) {
    struct jinja_builder builder = {0};
    bool is_safe = left->is_safe || right->is_safe;
    if (left->is_safe != right->is_safe) {
        struct jinja_value escaped = jinja_escape(run, left->is_safe ? right : left);
        if (escaped.kind != JINJA_STRING)
            return escaped;
        *(left->is_safe ? &right : &left) = escaped.string;
    }
    begin_with(run, &builder, left, right->length);
    jinja_build_string(run, &builder, right);
    struct jinja_value value = jinja_built(run, &builder);
    if (is_safe && value.kind == JINJA_STRING)
        ((struct jinja_string *)value.string)->is_safe = true;
    return value;
}

/* ---- looking ---- */

bool jinja_string_is(const struct jinja_string *string, const char *text) {
    return string->length == strlen(text) && !memcmp(string->bytes, text, string->length);
}

static bool begins_character(char byte) {
    return ((unsigned char)byte & 0xc0) != 0x80;
}

int jinja_memcmp(struct jinja_run *run, const void *left, const void *right, size_t length) {
    int order = 0;
    for (size_t done = 0, piece; done < length && !order; done += piece) {
        piece = jinja_piece(length - done);
        if (!jinja_charge_bytes(run, piece))
            return 0;
        order = memcmp((const char *)left + done, (const char *)right + done, piece);
    }
    return order;
}

bool jinja_same(struct jinja_run *run, const void *left, const void *right, size_t length) {
    return !jinja_memcmp(run, left, right, length) && !run->status;
}

size_t jinja_find_byte(struct jinja_run *run, const struct jinja_string *string, char byte, size_t from, size_t to) {
    for (size_t piece; from < to; from += piece) {
        piece = jinja_piece(to - from);
        if (!jinja_charge_bytes(run, piece))
            return to;
        const char *found = memchr(string->bytes + from, byte, piece);
        if (found)
            return (size_t)(found - string->bytes);
    }
    return to;
}

/* Counts the characters that begin in bytes [from, to), at most a piece. */
static size_t count_characters(const struct jinja_string *string, size_t from, size_t to) {
    size_t count = 0;
    for (size_t i = from; i < to; i++)
        count += begins_character(string->bytes[i]);
    return count;
}

size_t jinja_characters(struct jinja_run *run, const struct jinja_string *string) {
    size_t count = 0;
    for (size_t at = 0, piece; at < string->length; at += piece) {
        piece = jinja_piece(string->length - at);
        if (!jinja_charge_bytes(run, piece))
            return 0;
        count += count_characters(string, at, at + piece);
    }
    return count;
}

size_t jinja_byte_of(struct jinja_run *run, const struct jinja_string *string, size_t index) {
    size_t at = 0;
    for (; at < string->length && jinja_charge_bytes(run, 1); at++)
        if (begins_character(string->bytes[at]) && index-- == 0)
            break;
    return at;
}

/* memmem() reads the start of a part each time, so a window must be longer than the part. It does not check the clock
 * either, so a rolling hash searches for a part of more than LONG_BYTES. */
enum { WINDOW_BYTES = 1 << 16, LONG_BYTES = 1 << 12 };

static uint64_t hash_next(uint64_t hash, char byte) {
    return hash * 0x9e3779b97f4a7c15 + (unsigned char)byte;
}

/* Finds a long part in text[0], text[step], ... [length]. With step -1 text and part are read backwards. SIZE_MAX: not
 * found. Rabin and Karp's search with hashes modulo 2^64; equal hashes are compared in full. */
static size_t find_long(struct jinja_run *run, const char *text, ptrdiff_t step, size_t length,
                        const struct jinja_string *part) {
    ptrdiff_t size = (ptrdiff_t)part->length, last = (ptrdiff_t)length - size;
    const char *sought = step > 0 ? part->bytes : part->bytes + size - 1;
    uint64_t wanted = 0, found = 0, highest = 1; /* highest: the factor of a window's first byte */
    for (ptrdiff_t i = 0; i < size && jinja_charge_bytes(run, 2); i++) {
        wanted = hash_next(wanted, sought[i * step]);
        found = hash_next(found, text[i * step]);
        highest = i ? hash_next(highest, 0) : 1;
    }
    for (ptrdiff_t at = 0; at <= last && jinja_charge_bytes(run, 1); at++) {
        const char *begin = step > 0 ? text + at : text - at - (size - 1);
        if (found == wanted && jinja_same(run, begin, part->bytes, part->length))
            return (size_t)at;
        if (at < last)
            found = hash_next(found - highest * (unsigned char)text[at * step], text[(at + size) * step]);
    }
    return SIZE_MAX;
}

size_t jinja_find(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                  size_t from) {
    if (part->length > LONG_BYTES && from <= string->length && part->length <= string->length - from) {
        size_t at = find_long(run, string->bytes + from, 1, string->length - from, part);
        return at == SIZE_MAX ? at : from + at;
    }
    while (from <= string->length && part->length <= string->length - from) {
        size_t rest = string->length - from, size = WINDOW_BYTES + 4 * part->length;
        size = size < rest ? size : rest;
        const char *begin = string->bytes + from, *found = memmem(begin, size, part->bytes, part->length);
        if (!jinja_charge_bytes(run, (found ? (size_t)(found - begin) : size) + part->length))
            return SIZE_MAX;
        if (found || size == rest)
            return found ? (size_t)(found - string->bytes) : SIZE_MAX;
        from += size - part->length + 1;
    }
    return SIZE_MAX;
}

static void reverse(char *to, const char *from, size_t length) {
    for (size_t i = 0; i < length; i++)
        to[i] = from[length - 1 - i];
}

/* Finds the last `part` in bytes [begin, end) by searching a reversed copy, because memmem() is linear. */
static size_t find_in_window(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                             size_t begin, size_t end) {
    size_t size = end - begin;
    char *copy = NULL;
    if (jinja_charge_bytes(run, 2 * (size + part->length)))
        copy = jinja_take(&run->bytes, size + part->length + 1, 1);
    if (!copy) {
        jinja_fail_memory(run, &run->bytes);
        return SIZE_MAX;
    }
    reverse(copy, string->bytes + begin, size);
    reverse(copy + size, part->bytes, part->length);
    const char *found = memmem(copy, size, copy + size, part->length);
    run->bytes.top = copy; /* nothing was taken after it */
    return found ? end - (size_t)(found - copy) - part->length : SIZE_MAX;
}

size_t jinja_find_last(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                       size_t end) {
    if (part->length > LONG_BYTES && part->length <= end) {
        size_t at = find_long(run, string->bytes + end - 1, -1, end, part);
        return at == SIZE_MAX ? at : end - at - part->length;
    }
    for (size_t size = 64 + 4 * part->length; part->length <= end && !run->status;) {
        size_t begin = end > size ? end - size : 0, found = find_in_window(run, string, part, begin, end);
        if (found != SIZE_MAX || !begin)
            return found;
        end = begin + part->length - (part->length > 0);
        size = size < WINDOW_BYTES ? 2 * size : size;
    }
    return SIZE_MAX;
}

/* ---- parts ---- */

/* Returns whether the character at `at` is removed, and its length. */
static bool is_stripped(struct jinja_run *run, const char *at, const char *end, const struct jinja_string *characters,
                        size_t *bytes) {
    if (!characters)
        return python_is_space(at, end, bytes);
    *bytes = utf8_length((const unsigned char *)at, (const unsigned char *)end);
    *bytes = *bytes ? *bytes : 1;
    for (size_t i = 0; i + *bytes <= characters->length && jinja_charge_bytes(run, 1); i++)
        if (!memcmp(characters->bytes + i, at, *bytes))
            return true;
    return false;
}

struct jinja_value jinja_strip(struct jinja_run *run, const struct jinja_string *string,
                               const struct jinja_string *characters, enum jinja_sides sides) {
    const char *from = string->bytes, *to = from + string->length;
    size_t bytes;
    while (sides & JINJA_LEFT && from < to && jinja_charge(run, 1) && is_stripped(run, from, to, characters, &bytes))
        from += bytes;
    while (sides & JINJA_RIGHT && from < to && jinja_charge(run, 1)) {
        const char *last = to - 1;
        while (last > from && !begins_character(*last))
            last--;
        if (!is_stripped(run, last, to, characters, &bytes))
            break;
        to = last;
    }
    return jinja_part(run, string, (size_t)(from - string->bytes), (size_t)(to - string->bytes));
}

struct jinja_value jinja_replace(struct jinja_run *run, const struct jinja_string *string,
                                 const struct jinja_string *from, const struct jinja_string *to, int64_t most) {
    struct jinja_builder builder = {0};
    size_t done = 0, at = 0;
    for (int64_t n = 0; (most < 0 || n < most) && !run->status; n++) {
        size_t found = from->length ? jinja_find(run, string, from, at) : at;
        if (found == SIZE_MAX || found > string->length || !jinja_charge(run, 1))
            break;
        jinja_build_part(run, &builder, string, done, found);
        jinja_build_string(run, &builder, to);
        done = found + from->length;
        at = done;
        if (!from->length) /* between all characters */
            for (at++; at < string->length && !begins_character(string->bytes[at]);)
                at++;
    }
    if (!done && !builder.length)
        return run->status ? jinja_undefined(NULL) : string_value(string);
    jinja_build_part(run, &builder, string, done, string->length);
    return jinja_built(run, &builder);
}
