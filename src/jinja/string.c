/* Strings whose bytes have known origins. A part of a string shares its bytes. A concatenation is a copy, or extends
 * the left operand in place. Indexes count characters, as in Python. */
#include "jinja-internal.h"

#include "base/utf8.h"
#include "unicode/python.h"

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
    struct jinja_range *ranges =
        jinja_room(run, builder->ranges, builder->count, &builder->range_capacity, sizeof *ranges);
    if (ranges)
        builder->ranges = ranges;
    return ranges != NULL;
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

void jinja_build_spaces(struct jinja_run *run, struct jinja_builder *builder, int64_t count) {
    for (int64_t i = 0; i < count && jinja_charge(run, 1); i++)
        jinja_build_text(run, builder, " ");
}

struct jinja_value jinja_string(struct jinja_run *run, const char *bytes, size_t length, unsigned marks) {
    struct jinja_string *string = jinja_object(run, sizeof *string);
    if (!string)
        return jinja_undefined(NULL);
    *string = (struct jinja_string){.bytes = bytes, .length = length, .marks = marks};
    return jinja_string_value(string);
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
        return jinja_string_value(string);
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
    return jinja_set_safe(run, jinja_built(run, &builder), true);
}

struct jinja_value jinja_set_safe(struct jinja_run *run, struct jinja_value string, bool is_safe) {
    if (string.kind != JINJA_STRING || string.string->is_safe == is_safe)
        return string;
    struct jinja_string *copy = jinja_object(run, sizeof *copy);
    if (!copy)
        return jinja_undefined(NULL);
    *copy = *string.string;
    copy->is_safe = is_safe;
    return jinja_string_value(copy);
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
    return jinja_set_safe(run, jinja_built(run, &builder), is_safe);
}

/* ---- looking ---- */

bool jinja_string_is(const struct jinja_string *string, const char *text) {
    return string->length == strlen(text) && !memcmp(string->bytes, text, string->length);
}

static bool begins_character(char byte) {
    return ((unsigned char)byte & 0xc0) != 0x80;
}

int jinja_memcmp(struct jinja_run *run, const void *left, const void *right, size_t length) {
    return jinja_charge_bytes(run, length) && length ? memcmp(left, right, length) : 0;
}

bool jinja_same(struct jinja_run *run, const void *left, const void *right, size_t length) {
    return !jinja_memcmp(run, left, right, length) && !run->status;
}

size_t jinja_find_byte(struct jinja_run *run, const struct jinja_string *string, char byte, size_t from, size_t to) {
    const char *found = from < to ? memchr(string->bytes + from, byte, to - from) : NULL;
    size_t at = found ? (size_t)(found - string->bytes) : to;
    return jinja_charge_bytes(run, at - from) ? at : to;
}

size_t jinja_characters(struct jinja_run *run, const struct jinja_string *string) {
    size_t count = 0;
    if (jinja_charge_bytes(run, string->length))
        for (size_t i = 0; i < string->length; i++)
            count += begins_character(string->bytes[i]);
    return count;
}

size_t jinja_byte_of(struct jinja_run *run, const struct jinja_string *string, size_t index) {
    size_t at = 0;
    for (; at < string->length && jinja_charge_bytes(run, 1); at++)
        if (begins_character(string->bytes[at]) && index-- == 0)
            break;
    return at;
}

/* Tries the places from `at` to `stop` one after the other. It compares only where the first and the last byte match.
 * SIZE_MAX: not found. */
static size_t try_places(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                         size_t at, size_t stop, ptrdiff_t step) {
    size_t length = part->length;
    for (; jinja_charge_bytes(run, 1); at += (size_t)step) {
        const char *bytes = string->bytes + at;
        if (!length || (bytes[0] == part->bytes[0] && bytes[length - 1] == part->bytes[length - 1] &&
                        jinja_same(run, bytes, part->bytes, length)))
            return at;
        if (at == stop)
            break;
    }
    return SIZE_MAX;
}

/* memmem() reads the start of a part each time, so a window must be longer than the part. It does not check the clock
 * either, so it does not search for a part of more than LONG_BYTES. */
enum { WINDOW_BYTES = 1 << 16, LONG_BYTES = 1 << 12 };

size_t jinja_find(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                  size_t from) {
    while (from <= string->length && part->length <= string->length - from) {
        if (part->length > LONG_BYTES)
            return try_places(run, string, part, from, string->length - part->length, 1);
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

size_t jinja_find_last(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                       size_t end) {
    return part->length <= end ? try_places(run, string, part, end - part->length, 0, -1) : SIZE_MAX;
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
        return run->status ? jinja_undefined(NULL) : jinja_string_value(string);
    jinja_build_part(run, &builder, string, done, string->length);
    return jinja_built(run, &builder);
}
