/* A call as an object: {"name": "N", "arguments": A}, with its members in any order, and others beside them. */
#include "call_parser-internal.h"

static enum taken take_key(struct call_reading *call, unit one) {
    if (one != '"') {
        if (one < 0x20 || one == '\\' || one >= UNIT_MARK)
            return BAD;
        if (call->key_length < sizeof call->key - 1) /* a longer one is none of ours */
            call->key[call->key_length++] = (char)one;
        return TAKEN;
    }
    call->key[call->key_length] = 0;
    call->object = OBJECT_COLON;
    return TAKEN;
}

static enum taken end_object(struct call_reading *call) {
    call->has_ended = call->tool && call->has_arguments;
    return call->has_ended ? TAKEN : BAD;
}

/* Begins the value of a member; a name and arguments come once. */
static enum taken begin_value(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    bool is_name = !strcmp(call->key, "name"), is_arguments = !strcmp(call->key, parser->options.format->arguments);
    if ((is_name && call->tool) || (is_arguments && call->has_arguments))
        return BAD;
    call->scan = (struct json_scan){0};
    call->object = OBJECT_IN_VALUE;
    call->is_name = is_name;
    if (is_name)
        return one == '"' ? TAKEN : BAD;
    call->is_arguments = is_arguments;
    return AGAIN;
}

static enum taken take_other(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    struct strbuf bytes = STRBUF_INIT;
    enum json_scan_result result = JSON_SCAN_MORE;
    unit_add_bytes(parser, one, &bytes);
    for (size_t i = 0; i < bytes.length && result != JSON_SCAN_FAILS; i++)
        result = result == JSON_SCAN_ENDS ? JSON_SCAN_FAILS : json_scan_next(&call->scan, (uint8_t)bytes.data[i]);
    enum taken taken = bytes.failed ? FAILED : result == JSON_SCAN_FAILS ? BAD : TAKEN;
    strbuf_free(&bytes);
    if (result == JSON_SCAN_ENDS || result == JSON_SCAN_ENDED)
        call->object = OBJECT_NEXT;
    return taken == TAKEN && result == JSON_SCAN_ENDED ? AGAIN : taken;
}

static enum taken take_value(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    if (call->is_name) {
        enum taken taken = name_take(parser, one);
        if (taken != AGAIN)
            return taken;
        call->object = OBJECT_NEXT;
        return one == '"' ? TAKEN : BAD;
    }
    if (!call->is_arguments)
        return take_other(parser, one);
    enum taken taken = arguments_take(parser, one);
    if (call->has_ended)
        call->object = OBJECT_NEXT;
    call->has_ended = false;
    return taken;
}

enum taken object_take(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    if (call->object == OBJECT_IN_KEY)
        return take_key(call, one);
    if (call->object == OBJECT_IN_VALUE)
        return take_value(parser, one);
    if (unit_is_space(one))
        return TAKEN;
    switch (call->object) {
    case OBJECT_BEGIN:
        call->object = OBJECT_KEY;
        return one == '{' ? TAKEN : BAD;
    case OBJECT_KEY:
        call->object = OBJECT_IN_KEY;
        call->key_length = 0;
        return one == '"' ? TAKEN : BAD;
    case OBJECT_COLON:
        call->object = OBJECT_VALUE;
        return one == ':' ? TAKEN : BAD;
    case OBJECT_VALUE:
        return begin_value(parser, one);
    default:
        call->object = OBJECT_KEY;
        return one == ',' ? TAKEN : one == '}' ? end_object(call) : BAD;
    }
}
