/* The functions that a template may call: those of Jinja2's sandbox that build values, and those of `transformers`. */
#include "jinja-internal.h"

#include <string.h>

enum { MAX_RANGE = 100000 }; /* the sandbox's limit */

static struct jinja_value make_range(struct jinja_run *run, struct jinja_call *call) {
    int64_t from = 0, to, step = 1;
    if (!call->count || call->count > 3 || call->keyword_count)
        return jinja_fail(run, "range() takes one to three integers");
    for (size_t i = 0; i < call->count; i++)
        if (call->arguments[i].kind != JINJA_INTEGER && call->arguments[i].kind != JINJA_BOOL)
            return call->arguments[i].kind == JINJA_UNDEFINED
                       ? jinja_fail_undefined(run, &call->arguments[i])
                       : jinja_fail(run, "range() takes integers, not a %s", jinja_type(&call->arguments[i]));
    to = jinja_as_integer(&call->arguments[call->count > 1]);
    if (call->count > 1)
        from = jinja_as_integer(&call->arguments[0]);
    if (call->count > 2)
        step = jinja_as_integer(&call->arguments[2]);
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

/* Fills a dict from dict()'s arguments: another dict, or pairs; and keywords. */
static struct jinja_value fill(struct jinja_run *run, struct jinja_value dict, struct jinja_call *call) {
    if (call->count > 1)
        return jinja_fail(run, "%s() takes one value and keywords", jinja_type(&dict));
    if (call->count && call->arguments[0].kind == JINJA_DICT) {
        const struct jinja_dict *from = call->arguments[0].dict;
        for (size_t i = 0; i < from->count && jinja_charge(run, 1); i++)
            jinja_dict_put(run, dict.dict, from->entries[i].key, from->entries[i].value);
    } else if (call->count) {
        const struct jinja_list *pairs = jinja_iterate(run, &call->arguments[0]);
        for (size_t i = 0; i < pairs->count && jinja_charge(run, 1); i++) {
            const struct jinja_list *pair = jinja_iterate(run, &pairs->items[i]);
            if (pair->count != 2)
                return jinja_fail(run, "%s() of a list wants pairs", jinja_type(&dict));
            jinja_dict_put(run, dict.dict, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < call->keyword_count && jinja_charge(run, 1); i++) {
        const struct jinja_keyword *keyword = &call->keywords[i];
        struct jinja_value key = {.kind = JINJA_STRING, .string = keyword->string};
        if (!keyword->string)
            key = jinja_string(run, keyword->name.bytes, keyword->name.length, 0);
        jinja_dict_put(run, dict.dict, key, keyword->value);
    }
    return dict;
}

static struct jinja_value make_dict(struct jinja_run *run, struct jinja_call *call) {
    return fill(run, jinja_dict_new(run, JINJA_DICT), call);
}

static struct jinja_value make_namespace(struct jinja_run *run, struct jinja_call *call) {
    struct jinja_value space = fill(run, jinja_dict_new(run, JINJA_NAMESPACE), call);
    for (size_t i = 0; space.kind == JINJA_NAMESPACE && i < space.dict->count; i++) {
        const struct jinja_value *key = &space.dict->entries[i].key;
        if (key->kind != JINJA_STRING || (key->string->length && key->string->bytes[0] == '_'))
            return jinja_fail(run, "a namespace has no attributes that begin with '_'");
    }
    return space;
}

static struct jinja_value raise_exception(struct jinja_run *run, struct jinja_call *call) {
    struct jinja_value message = jinja_argument(run, call, 0, "message");
    if (message.kind == JINJA_MISSING || !jinja_call_end(run, call, 1, "raise_exception()"))
        return jinja_fail(run, "raise_exception() takes one message");
    message = jinja_str(run, &message);
    return run->status
               ? message
               : jinja_fail(run, "the template refuses: %.*s",
                            (int)(message.string->length < 300 ? message.string->length : 300), message.string->bytes);
}

static struct jinja_value strftime_now(struct jinja_run *run, struct jinja_call *call) {
    const struct jinja_string *format = jinja_string_argument(run, call, 0, "format", "strftime_now()");
    char pattern[128], text[512];
    if (!jinja_call_end(run, call, 1, "strftime_now()"))
        return jinja_undefined(NULL);
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

const struct jinja_function jinja_functions[] = {
    {"dict", JINJA_COST_WALK, make_dict},
    {"namespace", JINJA_COST_WALK, make_namespace},
    {"raise_exception", JINJA_COST_WALK, raise_exception},
    {"range", JINJA_COST_WALK, make_range},
    {"strftime_now", JINJA_COST_STEP, strftime_now},
    {NULL, JINJA_COST_NOTHING, NULL},
};

const struct jinja_function *jinja_function_find(const char *name, size_t length) {
    for (const struct jinja_function *function = jinja_functions; function->name; function++)
        if (strlen(function->name) == length && !memcmp(function->name, name, length))
            return function;
    return NULL;
}
