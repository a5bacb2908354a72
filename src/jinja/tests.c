/* The tests after "is". */
#include "jinja-internal.h"

#include <string.h>

#define TEST(name)                                                                                                     \
    static bool name(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *other)

/* Returns the remainder for odd, even and divisibleby; fails when the value is not an integer. */
static int64_t remainder_of(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *other) {
    struct jinja_value rest = jinja_binary(run, OPERATOR_MODULO, value, other), zero = jinja_integer(0);
    if (rest.kind == JINJA_STRING)
        jinja_fail(run, "a %s has no remainder", jinja_type(value));
    return run->status || jinja_equal(run, &rest, &zero) ? 0 : 1;
}

TEST(is_odd) {
    struct jinja_value two = jinja_integer(2), one = jinja_integer(1);
    struct jinja_value rest = jinja_binary(run, OPERATOR_MODULO, value, &two);
    (void)other;
    return !run->status && jinja_equal(run, &rest, &one);
}

TEST(is_even) {
    struct jinja_value two = jinja_integer(2);
    (void)other;
    return !remainder_of(run, value, &two) && !run->status;
}

TEST(is_divisible) {
    return !remainder_of(run, value, other) && !run->status;
}

#define SIMPLE(name, expression)                                                                                       \
    TEST(name) {                                                                                                       \
        (void)run;                                                                                                     \
        (void)other;                                                                                                   \
        return expression;                                                                                             \
    }

SIMPLE(is_defined, value->kind != JINJA_UNDEFINED)
SIMPLE(is_undefined, value->kind == JINJA_UNDEFINED)
SIMPLE(is_none, value->kind == JINJA_NONE)
SIMPLE(is_boolean, value->kind == JINJA_BOOL)
SIMPLE(is_true, value->kind == JINJA_BOOL && value->truth)
SIMPLE(is_false, value->kind == JINJA_BOOL && !value->truth)
SIMPLE(is_integer, value->kind == JINJA_INTEGER)
SIMPLE(is_float, value->kind == JINJA_FLOAT)
SIMPLE(is_number, jinja_is_number(value))
SIMPLE(is_string, value->kind == JINJA_STRING)
SIMPLE(is_mapping, value->kind == JINJA_DICT)
SIMPLE(is_callable, value->kind == JINJA_MACRO || value->kind == JINJA_FUNCTION || value->kind == JINJA_METHOD ||
                        value->kind == JINJA_UNDEFINED || value->kind == JINJA_LOOP)
SIMPLE(is_sequence, value->kind == JINJA_STRING || value->kind == JINJA_LIST || value->kind == JINJA_TUPLE ||
                        value->kind == JINJA_RANGE || value->kind == JINJA_DICT || value->kind == JINJA_UNDEFINED)
SIMPLE(is_iterable, value->kind == JINJA_STRING || value->kind == JINJA_LIST || value->kind == JINJA_TUPLE ||
                        value->kind == JINJA_RANGE || value->kind == JINJA_DICT || value->kind == JINJA_UNDEFINED ||
                        value->kind == JINJA_VIEW || value->kind == JINJA_GENERATOR || value->kind == JINJA_LOOP)
SIMPLE(is_filter, value->kind == JINJA_STRING && jinja_filter_find(value->string->bytes, value->string->length))
SIMPLE(is_test, value->kind == JINJA_STRING && jinja_test_find(value->string->bytes, value->string->length))

/* Python's str.isupper() and islower(): some letter has the case, and none has the other one. */
static bool has_case(struct jinja_run *run, const struct jinja_value *value, enum jinja_case which) {
    struct jinja_value text = jinja_str(run, value);
    if (text.kind != JINJA_STRING)
        return false;
    struct jinja_value same = jinja_change_case(run, text.string, which);
    struct jinja_value changed = jinja_change_case(run, text.string, which == JINJA_UPPER ? JINJA_LOWER : JINJA_UPPER);
    return !run->status && jinja_equal(run, &text, &same) && !jinja_equal(run, &text, &changed);
}

TEST(is_upper) {
    (void)other;
    return has_case(run, value, JINJA_UPPER);
}

TEST(is_lower) {
    (void)other;
    return has_case(run, value, JINJA_LOWER);
}

TEST(is_same) {
    bool is_plain = value->kind != JINJA_STRING && value->kind != JINJA_FLOAT && value->kind != JINJA_TUPLE;
    if (value->kind != other->kind)
        return false;
    if (value->kind == JINJA_LIST || value->kind == JINJA_DICT)
        return value->list == other->list;
    if (!is_plain)
        jinja_fail(run, "sameas of a %s is not supported", jinja_type(value));
    return jinja_equal(run, value, other);
}

TEST(is_in) {
    return jinja_contains(run, other, value);
}

TEST(is_equal) {
    return jinja_equal(run, value, other);
}

TEST(is_not_equal) {
    return !jinja_equal(run, value, other);
}

TEST(is_greater) {
    return jinja_compare(run, OPERATOR_GREATER, value, other);
}

TEST(is_greater_equal) {
    return jinja_compare(run, OPERATOR_GREATER_EQUAL, value, other);
}

TEST(is_less) {
    return jinja_compare(run, OPERATOR_LESS, value, other);
}

TEST(is_less_equal) {
    return jinja_compare(run, OPERATOR_LESS_EQUAL, value, other);
}

const struct jinja_test jinja_tests[] = {
    {"odd", JINJA_COST_STEP, is_odd, false},
    {"even", JINJA_COST_STEP, is_even, false},
    {"divisibleby", JINJA_COST_STEP, is_divisible, true},
    {"defined", JINJA_COST_STEP, is_defined, false},
    {"undefined", JINJA_COST_STEP, is_undefined, false},
    {"filter", JINJA_COST_STEP, is_filter, false},
    {"test", JINJA_COST_STEP, is_test, false},
    {"none", JINJA_COST_STEP, is_none, false},
    {"boolean", JINJA_COST_STEP, is_boolean, false},
    {"false", JINJA_COST_STEP, is_false, false},
    {"true", JINJA_COST_STEP, is_true, false},
    {"integer", JINJA_COST_STEP, is_integer, false},
    {"float", JINJA_COST_STEP, is_float, false},
    {"lower", JINJA_COST_WALK, is_lower, false},
    {"upper", JINJA_COST_WALK, is_upper, false},
    {"string", JINJA_COST_STEP, is_string, false},
    {"mapping", JINJA_COST_STEP, is_mapping, false},
    {"number", JINJA_COST_STEP, is_number, false},
    {"sequence", JINJA_COST_STEP, is_sequence, false},
    {"iterable", JINJA_COST_STEP, is_iterable, false},
    {"callable", JINJA_COST_STEP, is_callable, false},
    {"sameas", JINJA_COST_WALK, is_same, true},
    {"in", JINJA_COST_WALK, is_in, true},
    {"==", JINJA_COST_WALK, is_equal, true},
    {"eq", JINJA_COST_WALK, is_equal, true},
    {"equalto", JINJA_COST_WALK, is_equal, true},
    {"!=", JINJA_COST_WALK, is_not_equal, true},
    {"ne", JINJA_COST_WALK, is_not_equal, true},
    {">", JINJA_COST_WALK, is_greater, true},
    {"gt", JINJA_COST_WALK, is_greater, true},
    {"greaterthan", JINJA_COST_WALK, is_greater, true},
    {">=", JINJA_COST_WALK, is_greater_equal, true},
    {"ge", JINJA_COST_WALK, is_greater_equal, true},
    {"<", JINJA_COST_WALK, is_less, true},
    {"lt", JINJA_COST_WALK, is_less, true},
    {"lessthan", JINJA_COST_WALK, is_less, true},
    {"<=", JINJA_COST_WALK, is_less_equal, true},
    {"le", JINJA_COST_WALK, is_less_equal, true},
    {NULL, JINJA_COST_NOTHING, NULL, false},
};

const struct jinja_test *jinja_test_find(const char *name, size_t length) {
    for (const struct jinja_test *test = jinja_tests; test->name; test++)
        if (strlen(test->name) == length && !memcmp(test->name, name, length))
            return test;
    return NULL;
}

bool jinja_run_test(struct jinja_run *run, const struct jinja_test *test, struct jinja_value value,
                    struct jinja_call *call) {
    struct jinja_value other = test->has_argument ? jinja_argument(run, call, 0, "other") : jinja_missing();
    if (test->has_argument && other.kind == JINJA_MISSING)
        jinja_fail(run, "the test '%s' wants a value", test->name);
    return jinja_call_end(run, call, test->has_argument, test->name) && jinja_charge(run, 1) &&
           test->run(run, &value, &other);
}
