/* The tests after "is". */
#include "jinja-internal.h"

/* Sets of kinds. */
#define KIND(name) (1 << JINJA_##name)
enum {
    ALL_KINDS = -1,
    NUMBERS = KIND(BOOL) | KIND(INTEGER) | KIND(FLOAT),
    CALLABLES = KIND(MACRO) | KIND(FUNCTION) | KIND(METHOD) | KIND(UNDEFINED) | KIND(LOOP),
    SEQUENCES = KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(RANGE) | KIND(DICT) | KIND(UNDEFINED),
    ITERABLES = SEQUENCES | KIND(VIEW) | KIND(GENERATOR) | KIND(LOOP),
};

/* `variant`: the set of kinds. */
JINJA_OPERATION(is_of_kind) {
    return jinja_bool(call->operation->variant >> self.kind & 1);
}

JINJA_OPERATION(is_truth) {
    return jinja_bool(self.kind == JINJA_BOOL && self.truth == call->operation->variant);
}

/* `variant`: the remainder after division by the other value, or by 2. */
JINJA_OPERATION(has_remainder) {
    struct jinja_value divisor = call->operation->parameters[0].wanted ? call->given[0] : jinja_integer(2);
    struct jinja_value wanted = jinja_integer(call->operation->variant),
                       rest = jinja_binary(run, OPERATOR_MODULO, &self, &divisor);
    return jinja_bool(!run->status && jinja_equal(run, &rest, &wanted));
}

JINJA_OPERATION(is_operation) {
    enum jinja_group_index group = (enum jinja_group_index)call->operation->variant;
    return jinja_bool(self.kind == JINJA_STRING &&
                      jinja_operation_find(group, self.string->bytes, self.string->length));
}

/* Python's str.isupper() and islower(): some letter has the case, and none has the other one. */
JINJA_OPERATION(has_case) {
    enum jinja_case which = (enum jinja_case)call->operation->variant;
    struct jinja_value same = jinja_change_case(run, self.string, which),
                       changed = jinja_change_case(run, self.string, which == JINJA_UPPER ? JINJA_LOWER : JINJA_UPPER);
    return jinja_bool(!run->status && jinja_equal(run, &self, &same) && !jinja_equal(run, &self, &changed));
}

JINJA_OPERATION(is_same) {
    const struct jinja_value *other = &call->given[0];
    if (self.kind != other->kind)
        return jinja_bool(false);
    if (self.kind == JINJA_LIST || self.kind == JINJA_DICT)
        return jinja_bool(self.list == other->list);
    if (self.kind == JINJA_STRING || self.kind == JINJA_FLOAT || self.kind == JINJA_TUPLE)
        return jinja_fail(run, "sameas of a %s is not supported", jinja_type(&self));
    return jinja_bool(jinja_equal(run, &self, other));
}

JINJA_OPERATION(compare) {
    return jinja_bool(jinja_compare(run, (enum jinja_operator)call->operation->variant, &self, &call->given[0]));
}

#define OTHER                                                                                                          \
    { "other", WANTS_OTHER, 0 }

const struct jinja_operation jinja_tests[] = {
    ROW("odd", WANTS_VALUE, has_remainder, 1),
    ROW("even", WANTS_VALUE, has_remainder, 0),
    ROW("divisibleby", WANTS_VALUE, has_remainder, 0, OTHER),
    ROW("defined", WANTS_VALUE, is_of_kind, ALL_KINDS & ~KIND(UNDEFINED)),
    ROW("undefined", WANTS_VALUE, is_of_kind, KIND(UNDEFINED)),
    ROW("filter", WANTS_VALUE, is_operation, JINJA_FILTERS),
    ROW("test", WANTS_VALUE, is_operation, JINJA_TESTS),
    ROW("none", WANTS_VALUE, is_of_kind, KIND(NONE)),
    ROW("boolean", WANTS_VALUE, is_of_kind, KIND(BOOL)),
    ROW("false", WANTS_VALUE, is_truth, false),
    ROW("true", WANTS_VALUE, is_truth, true),
    ROW("integer", WANTS_VALUE, is_of_kind, KIND(INTEGER)),
    ROW("float", WANTS_VALUE, is_of_kind, KIND(FLOAT)),
    ROW("lower", WANTS_TEXT, has_case, JINJA_LOWER),
    ROW("upper", WANTS_TEXT, has_case, JINJA_UPPER),
    ROW("string", WANTS_VALUE, is_of_kind, KIND(STRING)),
    ROW("mapping", WANTS_VALUE, is_of_kind, KIND(DICT)),
    ROW("number", WANTS_VALUE, is_of_kind, NUMBERS),
    ROW("sequence", WANTS_VALUE, is_of_kind, SEQUENCES),
    ROW("iterable", WANTS_VALUE, is_of_kind, ITERABLES),
    ROW("callable", WANTS_VALUE, is_of_kind, CALLABLES),
    ROW("sameas", WANTS_VALUE, is_same, 0, OTHER),
    ROW("in", WANTS_VALUE, compare, OPERATOR_IN, OTHER),
    ROW("==", WANTS_VALUE, compare, OPERATOR_EQUAL, OTHER),
    ROW("eq", WANTS_VALUE, compare, OPERATOR_EQUAL, OTHER),
    ROW("equalto", WANTS_VALUE, compare, OPERATOR_EQUAL, OTHER),
    ROW("!=", WANTS_VALUE, compare, OPERATOR_NOT_EQUAL, OTHER),
    ROW("ne", WANTS_VALUE, compare, OPERATOR_NOT_EQUAL, OTHER),
    ROW(">", WANTS_VALUE, compare, OPERATOR_GREATER, OTHER),
    ROW("gt", WANTS_VALUE, compare, OPERATOR_GREATER, OTHER),
    ROW("greaterthan", WANTS_VALUE, compare, OPERATOR_GREATER, OTHER),
    ROW(">=", WANTS_VALUE, compare, OPERATOR_GREATER_EQUAL, OTHER),
    ROW("ge", WANTS_VALUE, compare, OPERATOR_GREATER_EQUAL, OTHER),
    ROW("<", WANTS_VALUE, compare, OPERATOR_LESS, OTHER),
    ROW("lt", WANTS_VALUE, compare, OPERATOR_LESS, OTHER),
    ROW("lessthan", WANTS_VALUE, compare, OPERATOR_LESS, OTHER),
    ROW("<=", WANTS_VALUE, compare, OPERATOR_LESS_EQUAL, OTHER),
    ROW("le", WANTS_VALUE, compare, OPERATOR_LESS_EQUAL, OTHER),
    ROW(NULL, WANTS_NOTHING, NULL, 0),
};
