/* The functions that a template may call: those of Jinja2's sandbox that build values, and those of `transformers`. */
#include "jinja-internal.h"

enum { MAX_RANGE = 100000 }; /* the sandbox's limit */

JINJA_OPERATION(make_range) {
    const struct jinja_value *items = call->arguments.items;
    size_t given = call->arguments.count;
    int64_t from = 0, to, step = 1;
    if (!given || given > 3 || call->keyword_count)
        return jinja_fail(run, "range() takes one to three integers");
    for (size_t i = 0; i < given; i++)
        if (items[i].kind != JINJA_INTEGER && items[i].kind != JINJA_BOOL)
            return items[i].kind == JINJA_UNDEFINED
                       ? jinja_fail_undefined(run, &items[i])
                       : jinja_fail(run, "range() takes integers, not a %s", jinja_type(&items[i]));
    to = jinja_as_integer(&items[given > 1]);
    if (given > 1)
        from = jinja_as_integer(&items[0]);
    if (given > 2)
        step = jinja_as_integer(&items[2]);
    if (!step)
        return jinja_fail(run, "range() with the step 0");
    double count = ((double)to - (double)from) / (double)step;
    if (count > MAX_RANGE)
        return jinja_fail(run, "a range of more than %d numbers", MAX_RANGE);
    struct jinja_value range = jinja_list_new(run, JINJA_RANGE, 0);
    for (int64_t i = from; (step > 0 ? i < to : i > to) && jinja_charge(run, 1);) {
        jinja_list_add(run, range.list, jinja_integer(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return range;
}

/* dict() and namespace(): another dict, or pairs; and keywords. `variant`: the kind of the result. */
JINJA_OPERATION(make_dict) {
    struct jinja_value dict = jinja_dict_new(run, (enum jinja_kind)call->operation->variant);
    const struct jinja_value *given = call->arguments.items;
    if (call->arguments.count > 1)
        return jinja_fail(run, "%s() takes one value and keywords", jinja_type(&dict));
    if (call->arguments.count && given->kind == JINJA_DICT) {
        for (size_t i = 0; i < given->dict->count && jinja_charge(run, 1); i++)
            jinja_dict_put(run, dict.dict, given->dict->entries[i].key, given->dict->entries[i].value);
    } else if (call->arguments.count) {
        const struct jinja_list *pairs = jinja_iterate(run, given);
        for (size_t i = 0; i < pairs->count && jinja_charge(run, 1); i++) {
            const struct jinja_list *pair = jinja_iterate(run, &pairs->items[i]);
            if (pair->count != 2)
                return jinja_fail(run, "%s() of a list wants pairs", jinja_type(&dict));
            jinja_dict_put(run, dict.dict, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < call->keyword_count && jinja_charge(run, 1); i++)
        jinja_dict_put(run, dict.dict, jinja_string_value(call->keywords[i].name), call->keywords[i].value);
    for (size_t i = 0; dict.kind == JINJA_NAMESPACE && i < dict.dict->count; i++) {
        const struct jinja_value *key = &dict.dict->entries[i].key;
        if (key->kind != JINJA_STRING || (key->string->length && key->string->bytes[0] == '_'))
            return jinja_fail(run, "a namespace has no attributes that begin with '_'");
    }
    return dict;
}

JINJA_OPERATION(raise_exception) {
    struct jinja_value message = call->given[0];
    if (message.kind == JINJA_MISSING)
        return jinja_fail(run, "raise_exception() takes one message");
    message = jinja_str(run, &message);
    return run->status
               ? message
               : jinja_fail(run, "the template refuses: %.*s",
                            (int)(message.string->length < 300 ? message.string->length : 300), message.string->bytes);
}

JINJA_OPERATION(strftime_now) {
    const struct jinja_string *format = jinja_string_of(&call->given[0]);
    char pattern[128], text[512];
    if (!format || format->length >= sizeof pattern || memchr(format->bytes, 0, format->length))
        return jinja_fail(run, "strftime_now() takes a format of less than %zu bytes", sizeof pattern);
    if (!run->now)
        return jinja_fail(run, "strftime_now(): there is no time here");
    memcpy(pattern, format->bytes, format->length);
    pattern[format->length] = 0;
    if (strstr(pattern, "%f"))
        return jinja_fail(run, "strftime_now(): %%f is not supported");
    text[0] = 1; /* an empty result and a lack of room both give 0 */
    size_t length = *pattern ? strftime(text, sizeof text, pattern, run->now) : 0;
    if (!length && *pattern && text[0])
        return jinja_fail(run, "strftime_now(): a time of more than %zu bytes", sizeof text - 1);
    text[length] = 0;
    return jinja_text_value(run, text);
}

const struct jinja_operation jinja_functions[] = {
    ROW("dict", WANTS_VALUE, make_dict, JINJA_DICT, {NULL, WANTS_CALL, 0}),
    ROW("namespace", WANTS_VALUE, make_dict, JINJA_NAMESPACE, {NULL, WANTS_CALL, 0}),
    ROW("raise_exception", WANTS_VALUE, raise_exception, 0, {"message", WANTS_VALUE, 0}),
    ROW("range", WANTS_VALUE, make_range, 0, {NULL, WANTS_CALL, 0}),
    ROW("strftime_now", WANTS_VALUE, strftime_now, 0, {"format", WANTS_STRING, 0}),
    ROW(NULL, WANTS_NOTHING, NULL, 0),
};
