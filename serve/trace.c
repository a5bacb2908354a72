/* Reading and writing the fields of W3C Trace Context, level 1 with the random flag of level 2. */
#include "trace.h"

#include "http/exchange.h"

#include "base/base.h"

#include <sys/random.h>

enum {
    KNOWN_FLAGS = 3, /* sampled, random */
    MAX_MEMBERS = 32,
    MAX_KEY = 256,
    MAX_VALUE = 256,
    MAX_TENANT = 241,
    MAX_SYSTEM = 14
};
static const char digits[] = "0123456789abcdef";

/* ---- traceparent ---- */

/* Reads exactly `count` bytes of lower-case hex digits. */
static bool read_hex(const char *text, size_t count, unsigned char *bytes) {
    for (size_t i = 0; i < count; i++) {
        const char *high = text[2 * i] ? strchr(digits, text[2 * i]) : NULL;
        const char *low = high && text[2 * i + 1] ? strchr(digits, text[2 * i + 1]) : NULL;
        if (!low)
            return false;
        bytes[i] = (unsigned char)((high - digits) << 4 | (low - digits));
    }
    return true;
}

void trace_hex(const unsigned char *bytes, size_t count, char *text) {
    for (size_t i = 0; i < count; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * count] = 0;
}

static bool is_zero(const unsigned char *bytes, size_t count) {
    unsigned char all = 0;
    for (size_t i = 0; i < count; i++)
        all |= bytes[i];
    return !all;
}

/* A later version may have more after the flags, separated by a dash. Its other flags are unknown here. */
bool trace_read_parent(const char *text, struct trace *trace) {
    enum { VERSION = 0, ID = 3, PARENT = 36, FLAGS = 53, END = 55 };
    struct trace read = *trace;
    unsigned char version, flags;
    if (strnlen(text, END) < END || text[ID - 1] != '-' || text[PARENT - 1] != '-' || text[FLAGS - 1] != '-')
        return false;
    if (!read_hex(text + VERSION, 1, &version) || version == 0xff)
        return false;
    if (text[END] && (version == 0 || text[END] != '-'))
        return false;
    if (!read_hex(text + ID, sizeof read.id, read.id) || !read_hex(text + PARENT, sizeof read.parent, read.parent) ||
        !read_hex(text + FLAGS, 1, &flags))
        return false;
    if (is_zero(read.id, sizeof read.id) || is_zero(read.parent, sizeof read.parent))
        return false;
    read.flags = flags & KNOWN_FLAGS;
    *trace = read;
    return true;
}

void trace_parent_text(const struct trace *trace, char text[TRACE_PARENT_TEXT]) {
    memcpy(text, "00-", 3);
    trace_hex(trace->id, sizeof trace->id, text + 3);
    text[35] = '-';
    trace_hex(trace->span, sizeof trace->span, text + 36);
    text[52] = '-';
    trace_hex(&trace->flags, 1, text + 53);
}

/* An id of all zeros is not valid. If the kernel has no random bytes, the time is used. */
static void draw(unsigned char *bytes, size_t count) {
    double now = clock_seconds();
    if (getrandom(bytes, count, 0) != (ssize_t)count || is_zero(bytes, count))
        memcpy(bytes, &now, sizeof now < count ? sizeof now : count);
    bytes[count - 1] |= is_zero(bytes, count);
}

/* Returns the only field with the name; NULL when there is none, or more than one. */
static const char *only_field(const struct exchange_head *head, const char *name) {
    const char *found = NULL;
    size_t length = strlen(name);
    for (size_t i = 0; i < head->field_count; i++) {
        if (head->fields[i].name_length != length || memcmp(head->fields[i].name, name, length))
            continue;
        if (found)
            return NULL;
        found = head->fields[i].value;
    }
    return found;
}

void trace_begin(const struct exchange_head *head, bool is_sampled, struct trace *trace) {
    const char *parent = only_field(head, "traceparent");
    *trace = (struct trace){.is_there = true, .flags = is_sampled ? TRACE_SAMPLED : 0};
    trace->has_parent = parent && trace_read_parent(parent, trace);
    if (!trace->has_parent)
        draw(trace->id, sizeof trace->id);
    draw(trace->span, sizeof trace->span);
}

/* ---- tracestate ---- */

static bool is_lower(char c) {
    return c >= 'a' && c <= 'z';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_key_rest(const char *at, const char *end) {
    for (; at < end; at++)
        if (!is_lower(*at) && !is_digit(*at) && !(*at && strchr("_-*/", *at)))
            return false;
    return true;
}

/* Matches "name", or "tenant@system". */
static bool is_key(const char *at, const char *end) {
    const char *sign = memchr(at, '@', (size_t)(end - at));
    if (at == end)
        return false;
    if (!sign)
        return end - at <= MAX_KEY && is_lower(*at) && is_key_rest(at, end);
    const char *system = sign + 1;
    return sign > at && sign - at <= MAX_TENANT && (is_lower(*at) || is_digit(*at)) && is_key_rest(at, sign) &&
           system < end && end - system <= MAX_SYSTEM && is_lower(*system) && is_key_rest(system, end);
}

static bool is_value(const char *at, const char *end) {
    if (at == end || end - at > MAX_VALUE || end[-1] == ' ')
        return false;
    for (; at < end; at++)
        if (*at < 0x20 || *at > 0x7e || *at == ',' || *at == '=')
            return false;
    return true;
}

struct state {
    char *text;
    size_t length, members;
    bool is_full;
};

/* Takes the members of one field; returns false when one is invalid. */
static bool take_members(struct state *state, const char *text) {
    for (const char *at = text; *at;) {
        const char *end = at + strcspn(at, ","), *next = *end ? end + 1 : end;
        while (at < end && (*at == ' ' || *at == '\t'))
            at++;
        while (end > at && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        size_t length = (size_t)(end - at), comma = state->length > 0;
        const char *equals = memchr(at, '=', length);
        if (length && (!equals || !is_key(at, equals) || !is_value(equals + 1, end) || ++state->members > MAX_MEMBERS))
            return false;
        state->is_full |= state->length + comma + length >= TRACE_STATE_TEXT;
        if (length && !state->is_full) {
            if (comma)
                state->text[state->length++] = ',';
            memcpy(state->text + state->length, at, length);
            state->length += length;
        }
        at = next;
    }
    return true;
}

size_t trace_state_text(const struct exchange_head *head, const struct trace *trace, char text[TRACE_STATE_TEXT]) {
    static const char name[] = "tracestate";
    struct state state = {.text = text};
    bool is_good = trace->has_parent;
    for (size_t i = 0; i < head->field_count && is_good; i++)
        if (head->fields[i].name_length == sizeof name - 1 && !memcmp(head->fields[i].name, name, sizeof name - 1))
            is_good = take_members(&state, head->fields[i].value);
    if (!is_good)
        state.length = 0;
    text[state.length] = 0;
    return state.length;
}
