/* Units of a completion: texts of a format, names, and arguments that are a JSON object. */
#include "call_parser-internal.h"

#include <assert.h>

bool unit_is_space(unit one) {
    return one == ' ' || one == '\n' || one == '\t' || one == '\r';
}

int units_add(struct units *units, unit one) {
    TRY(array_reserve(&units->items, &units->capacity, units->count + 1, sizeof *units->items));
    units->items[units->count++] = one;
    return STATUS_OK;
}

/* Returns the longest special token with which a text begins, and its length; -1: none. */
static int32_t find_special(const struct tokenizer *tokenizer, const char *text, size_t length, size_t *bytes) {
    for (size_t n = length; n > 0; n--) {
        int32_t id = tokenizer_find(tokenizer, text, n);
        *bytes = n;
        if (id >= 0 && tokenizer_is_special(tokenizer, id))
            return id;
    }
    return -1;
}

void literal_set(struct literal *literal, const struct tokenizer *tokenizer, const char *text, size_t length) {
    literal->count = 0;
    assert(length <= LITERAL_UNITS);
    for (size_t at = 0, bytes = 1; at < length; at += bytes) {
        int32_t id = !tokenizer ? -1 : find_special(tokenizer, text + at, length - at, &bytes);
        if (id < 0)
            bytes = 1;
        literal->units[literal->count++] = id < 0 ? (unsigned char)text[at] : UNIT_MARK + id;
    }
}

int literal_match(const struct literal *literal, const unit *units, size_t count) {
    if (!literal->count || count > literal->count || memcmp(literal->units, units, count * sizeof *units) != 0)
        return 0;
    return count == literal->count ? 2 : 1;
}

enum taken literals_take(struct call_reading *call, const struct literal *const *literals, int count, unit one,
                         int *found) {
    struct units *tried = &call->tried;
    bool may_follow = false;
    *found = -1;
    if (!tried->count && unit_is_space(one))
        return TAKEN;
    if (units_add(tried, one))
        return FAILED;
    for (int i = 0; i < count; i++) {
        int match = literal_match(literals[i], tried->items, tried->count);
        may_follow |= match > 0;
        if (match == 2)
            *found = i;
    }
    if (*found >= 0 || !may_follow)
        tried->count = 0;
    return may_follow ? TAKEN : BAD;
}

void unit_add_bytes(const struct call_parser *parser, unit one, struct strbuf *out) {
    size_t length = 0;
    const unsigned char *bytes =
        one < UNIT_MARK ? NULL : tokenizer_token_bytes(parser->options.tokenizer, one - UNIT_MARK, &length);
    if (one < UNIT_MARK)
        strbuf_add_char(out, (char)one);
    else
        strbuf_add(out, bytes, length);
}

bool unit_is_of_name(unit one) {
    return (one >= 'a' && one <= 'z') || (one >= 'A' && one <= 'Z') || (one >= '0' && one <= '9') || one == '_' ||
           one == '-' || one == '.';
}

enum taken name_take(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    if (unit_is_of_name(one) && call->name_length < TOOL_NAME_BYTES) {
        call->name[call->name_length++] = (char)one;
        return TAKEN;
    }
    call->name[call->name_length] = 0;
    for (size_t i = 0; i < parser->options.tool_count && !call->tool; i++)
        if (!strcmp(parser->options.tools[i].name, call->name))
            call->tool = &parser->options.tools[i];
    return call->tool ? AGAIN : BAD;
}

enum taken arguments_take(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    struct strbuf *out = &call->arguments;
    size_t from = out->length;
    if (!call->has_arguments && unit_is_space(one))
        return TAKEN;
    if (!call->has_arguments && one != '{')
        return BAD;
    call->has_arguments = true;
    unit_add_bytes(parser, one, out);
    for (; from < out->length; from++) {
        enum json_scan_result result = json_scan_next(&call->scan, (uint8_t)out->data[from]);
        if (result == JSON_SCAN_FAILS || (call->has_ended && result == JSON_SCAN_ENDS)) {
            out->length = from;
            return BAD;
        }
        call->has_ended = result == JSON_SCAN_ENDS;
    }
    return out->failed ? FAILED : TAKEN;
}
