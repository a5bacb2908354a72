/* Filters, tests, methods and functions: found by name, given their parameters, and run. */
#include "jinja-internal.h"

const struct jinja_group jinja_groups[JINJA_GROUPS] = {
    [JINJA_FILTERS] = {"filter", jinja_value_filters},
    {"filter", jinja_text_filters},
    {"filter", jinja_list_filters},
    [JINJA_TESTS] = {"test", jinja_tests},
    [JINJA_FUNCTIONS] = {"function", jinja_functions},
    [JINJA_STRING_METHODS] = {"method str", jinja_string_methods},
    [JINJA_DICT_METHODS] = {"method dict", jinja_dict_methods},
    [JINJA_LIST_METHODS] = {"method list", jinja_list_methods},
    [JINJA_LOOP_METHODS] = {"method loop", jinja_loop_methods},
};

const struct jinja_operation *jinja_operation_find(enum jinja_group_index group, const char *name, size_t length) {
    size_t count = group == JINJA_FILTERS ? JINJA_TESTS - JINJA_FILTERS : 1;
    for (size_t i = group; i < group + count; i++)
        for (const struct jinja_operation *row = jinja_groups[i].rows; row->name; row++)
            if (length && *row->name == *name && strlen(row->name) == length && !memcmp(row->name, name, length))
                return row;
    return NULL;
}

struct jinja_value jinja_argument(struct jinja_run *run, struct jinja_call *call, size_t index, const char *keyword) {
    if (index < call->arguments.count)
        return call->arguments.items[index];
    for (size_t i = 0; keyword && i < call->keyword_count && jinja_charge_bytes(run, sizeof *call->keywords); i++)
        if (jinja_string_is(call->keywords[i].name, keyword)) {
            call->keywords[i].is_taken = true;
            return call->keywords[i].value;
        }
    return jinja_missing();
}

bool jinja_call_end(struct jinja_run *run, const struct jinja_call *call, size_t most, const char *what) {
    if (call->arguments.count > most)
        jinja_fail(run, "%s%s: %zu arguments, and it takes %zu", what, call->brackets, call->arguments.count, most);
    for (size_t i = 0; i < call->keyword_count && jinja_charge_bytes(run, sizeof *call->keywords); i++)
        if (!call->keywords[i].is_taken)
            jinja_fail(run, "%s%s: there is no argument '%.*s'", what, call->brackets,
                       jinja_shown(call->keywords[i].name->length), call->keywords[i].name->bytes);
    return !run->status;
}

/* Returns the value of a parameter. */
static struct jinja_value bind(struct jinja_run *run, struct jinja_call *call, size_t index) {
    const struct jinja_parameter *parameter = &call->operation->parameters[index];
    struct jinja_value value = jinja_argument(run, call, index, parameter->name);
    const char *name = call->operation->name;
    bool is_missing = value.kind == JINJA_MISSING, is_given = !is_missing && value.kind != JINJA_NONE;
    switch (parameter->wanted) {
    case WANTS_TRUTH:
        return jinja_bool(is_missing ? parameter->fallback : jinja_is_true(&value));
    case WANTS_INTEGER:
        if (is_given && value.kind != JINJA_INTEGER && value.kind != JINJA_BOOL)
            return jinja_fail(run, "expected an integer, found a %s", jinja_type(&value));
        return jinja_integer(is_given ? jinja_as_integer(&value) : parameter->fallback);
    case WANTS_NEEDED:
        if (!is_given)
            return jinja_fail(run, "%s%s: expected a string", name, call->brackets);
        /* fall through */
    case WANTS_STRING:
        if (is_given && value.kind != JINJA_STRING)
            return jinja_fail(run, "%s%s: expected a string, found a %s", name, call->brackets, jinja_type(&value));
        return is_given ? value : jinja_missing();
    case WANTS_TEXT:
        return is_missing ? value : jinja_str(run, &value);
    case WANTS_OTHER:
        return is_missing ? jinja_fail(run, "the test '%s' wants a value", name) : value;
    default:
        return value;
    }
}

/* Returns what an operation works on, as it wants it. */
static struct jinja_value bind_self(struct jinja_run *run, const struct jinja_operation *operation,
                                    struct jinja_value self) {
    static const char *const wanted[] = {[WANTS_STRING] = "string", [WANTS_NUMBER] = "number", [WANTS_DICT] = "dict"};
    bool is_wanted = operation->self == WANTS_STRING   ? self.kind == JINJA_STRING
                     : operation->self == WANTS_NUMBER ? jinja_is_number(&self)
                     : operation->self == WANTS_DICT   ? self.kind == JINJA_DICT
                                                       : true;
    if (operation->self == WANTS_TEXT)
        return jinja_str(run, &self);
    if (is_wanted)
        return self;
    return self.kind == JINJA_UNDEFINED && operation->self != WANTS_STRING
               ? jinja_fail_undefined(run, &self)
               : jinja_fail(run, "%s wants a %s, not a %s", operation->name, wanted[operation->self],
                            jinja_type(&self));
}

struct jinja_value jinja_run_operation(struct jinja_run *run, const struct jinja_operation *operation,
                                       struct jinja_value self, struct jinja_call *call) {
    bool reads_call = operation->parameters[0].wanted == WANTS_CALL;
    size_t count = 0;
    call->operation = operation;
    for (size_t i = 0; i < call->keyword_count && jinja_charge_bytes(run, sizeof *call->keywords); i++)
        call->keywords[i].is_taken = false;
    self = bind_self(run, operation, self);
    for (; !reads_call && count < JINJA_PARAMETERS && operation->parameters[count].wanted; count++)
        call->given[count] = bind(run, call, count);
    if (!jinja_charge(run, 1) || (!reads_call && !jinja_call_end(run, call, count, operation->name)))
        return jinja_undefined(NULL);
    return operation->run(run, self, call);
}
