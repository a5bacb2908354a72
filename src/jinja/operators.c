/* Arithmetic, comparisons and slices with Python's semantics. Integers have 64 bits: an overflow is an error. */
#include "jinja-internal.h"

#include <math.h>

static struct jinja_value too_large(struct jinja_run *run) {
    return jinja_fail(run, "an integer outside 64 bits");
}

static struct jinja_value power(struct jinja_run *run, int64_t base, int64_t exponent) {
    int64_t result = 1;
    if (exponent < 0)
        return base ? jinja_float(pow((double)base, (double)exponent)) : jinja_fail(run, "a division by zero");
    for (; exponent; exponent >>= 1) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
            return too_large(run);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            return too_large(run);
    }
    return jinja_integer(result);
}

/* Rounds down, because the remainder has the divisor's sign. */
static struct jinja_value divide(struct jinja_run *run, enum jinja_operator operation, int64_t a, int64_t b) {
    if (!b)
        return jinja_fail(run, "a division by zero");
    if (b == -1)
        return operation == OPERATOR_MODULO ? jinja_integer(0) : a == INT64_MIN ? too_large(run) : jinja_integer(-a);
    int64_t quotient = a / b, rest = a % b;
    bool is_off = rest && (rest < 0) != (b < 0);
    return jinja_integer(operation == OPERATOR_MODULO ? rest + (is_off ? b : 0) : quotient - is_off);
}

static struct jinja_value integers(struct jinja_run *run, enum jinja_operator operation, int64_t a, int64_t b) {
    int64_t result;
    switch (operation) {
    case OPERATOR_ADD:
        return __builtin_add_overflow(a, b, &result) ? too_large(run) : jinja_integer(result);
    case OPERATOR_SUBTRACT:
        return __builtin_sub_overflow(a, b, &result) ? too_large(run) : jinja_integer(result);
    case OPERATOR_MULTIPLY:
        return __builtin_mul_overflow(a, b, &result) ? too_large(run) : jinja_integer(result);
    case OPERATOR_DIVIDE:
        return b ? jinja_float((double)a / (double)b) : jinja_fail(run, "a division by zero");
    case OPERATOR_POWER:
        return power(run, a, b);
    default:
        return divide(run, operation, a, b);
    }
}

static struct jinja_value reals(struct jinja_run *run, enum jinja_operator operation, double a, double b) {
    double rest;
    if (b == 0 && operation != OPERATOR_ADD && operation != OPERATOR_SUBTRACT && operation != OPERATOR_MULTIPLY &&
        operation != OPERATOR_POWER)
        return jinja_fail(run, "a division by zero");
    switch (operation) {
    case OPERATOR_ADD:
        return jinja_float(a + b);
    case OPERATOR_SUBTRACT:
        return jinja_float(a - b);
    case OPERATOR_MULTIPLY:
        return jinja_float(a * b);
    case OPERATOR_DIVIDE:
        return jinja_float(a / b);
    case OPERATOR_POWER:
        if (a < 0 && b != floor(b))
            return jinja_fail(run, "a complex number is not supported");
        return a == 0 && b < 0 ? jinja_fail(run, "a division by zero") : jinja_float(pow(a, b));
    default:
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        return jinja_float(operation == OPERATOR_MODULO ? rest : floor((a - rest) / b + 0.5));
    }
}

static struct jinja_value join_lists(struct jinja_run *run, enum jinja_kind kind, const struct jinja_list *left,
                                     const struct jinja_list *right) {
    size_t count = left->count + right->count, each = sizeof *left->items;
    struct jinja_value joined = jinja_list_new(run, kind, 0);
    struct jinja_value *items = jinja_grown(run, left->items, left->count * each, count * each);
    if (!items || !jinja_copy(run, items + left->count, right->items, right->count * each))
        return jinja_undefined(NULL);
    *joined.list = (struct jinja_list){.items = items, .count = count, .capacity = count};
    return joined;
}

static struct jinja_value repeat(struct jinja_run *run, const struct jinja_value *value, int64_t times) {
    struct jinja_builder builder = {0};
    size_t each = value->kind == JINJA_STRING ? value->string->length : value->list->count;
    if (times < 0 || !each)
        times = 0;
    if (value->kind == JINJA_STRING) {
        for (int64_t i = 0; i < times && jinja_charge(run, 1); i++)
            jinja_build_string(run, &builder, value->string);
        return jinja_built(run, &builder);
    }
    struct jinja_value list = jinja_list_new(run, value->kind, 0);
    for (int64_t i = 0; i < times && !run->status; i++)
        for (size_t k = 0; k < each && jinja_charge(run, 1); k++)
            jinja_list_add(run, list.list, value->list->items[k]);
    return list;
}

static bool is_list(const struct jinja_value *value) {
    return value->kind == JINJA_LIST || value->kind == JINJA_TUPLE;
}

static bool can_repeat(const struct jinja_value *value, const struct jinja_value *times) {
    return (value->kind == JINJA_STRING || is_list(value)) &&
           (times->kind == JINJA_INTEGER || times->kind == JINJA_BOOL);
}

#define ROW_OF(name, text, level, kind) {text, level, NODE_##kind},
const struct jinja_operator_row jinja_operators[OPERATOR_COUNT] = {JINJA_OPERATORS(ROW_OF)};

struct jinja_value jinja_binary(struct jinja_run *run, enum jinja_operator operation, const struct jinja_value *left,
                                const struct jinja_value *right) {
    if (!jinja_charge(run, 1))
        return jinja_undefined(NULL);
    if (operation == OPERATOR_ADD && left->kind == JINJA_STRING && right->kind == JINJA_STRING)
        return jinja_concat(run, left->string, right->string);
    if (jinja_is_number(left) && jinja_is_number(right))
        return left->kind == JINJA_FLOAT || right->kind == JINJA_FLOAT
                   ? reals(run, operation, jinja_as_real(left), jinja_as_real(right))
                   : integers(run, operation, jinja_as_integer(left), jinja_as_integer(right));
    if (operation == OPERATOR_ADD && left->kind == right->kind && is_list(left))
        return join_lists(run, left->kind, left->list, right->list);
    if (operation == OPERATOR_MULTIPLY && can_repeat(left, right))
        return repeat(run, left, jinja_as_integer(right));
    if (operation == OPERATOR_MULTIPLY && can_repeat(right, left))
        return repeat(run, right, jinja_as_integer(left));
    if (left->kind == JINJA_UNDEFINED || right->kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, left->kind == JINJA_UNDEFINED ? left : right);
    return jinja_fail(run, "'%s' is not supported between a %s and a %s", jinja_operators[operation].text,
                      jinja_type(left), jinja_type(right));
}

bool jinja_compare(struct jinja_run *run, enum jinja_operator operation, const struct jinja_value *left,
                   const struct jinja_value *right) {
    jinja_charge(run, 1);
    switch (operation) {
    case OPERATOR_EQUAL:
        return jinja_equal(run, left, right);
    case OPERATOR_NOT_EQUAL:
        return !jinja_equal(run, left, right);
    case OPERATOR_IN:
        return jinja_contains(run, right, left);
    case OPERATOR_NOT_IN:
        return !jinja_contains(run, right, left);
    default:
        break;
    }
    bool is_nan =
        (left->kind == JINJA_FLOAT && isnan(left->real)) || (right->kind == JINJA_FLOAT && isnan(right->real));
    int order = jinja_order(run, left, right);
    return !is_nan && (operation == OPERATOR_LESS         ? order < 0
                       : operation == OPERATOR_LESS_EQUAL ? order <= 0
                       : operation == OPERATOR_GREATER    ? order > 0
                                                          : order >= 0);
}

/* ---- slices ---- */

/* Python's slice.indices(): bounds for `length` items, and a step other than 0. False when they are no bounds. */
static bool find_bounds(struct jinja_run *run, const struct jinja_value bounds[3], int64_t length, int64_t found[3]) {
    bool is_given[3];
    for (int i = 0; i < 3; i++) {
        is_given[i] = bounds[i].kind != JINJA_NONE;
        if (is_given[i] && bounds[i].kind != JINJA_INTEGER && bounds[i].kind != JINJA_BOOL)
            return false;
        found[i] = is_given[i] ? jinja_as_integer(&bounds[i]) : 1;
    }
    if (!found[2]) {
        jinja_fail(run, "a slice with the step 0");
        return false;
    }
    int64_t low = found[2] > 0 ? 0 : -1, high = found[2] > 0 ? length : length - 1;
    for (int i = 0; i < 2; i++) {
        found[i] += found[i] < 0 ? length : 0;
        found[i] = found[i] < low ? low : found[i] > high ? high : found[i];
        if (!is_given[i])
            found[i] = (i == 0) == (found[2] > 0) ? low : high;
    }
    return true;
}

struct jinja_value jinja_slice(struct jinja_run *run, const struct jinja_value *value,
                               const struct jinja_value bounds[3]) {
    int64_t found[3];
    struct jinja_builder builder = {0};
    bool is_string = value->kind == JINJA_STRING;
    jinja_charge(run, 1);
    if (value->kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, value);
    if (!is_string && !is_list(value) && value->kind != JINJA_RANGE)
        return jinja_undefined("a slice");
    size_t length = jinja_length(run, value);
    if (run->status || !find_bounds(run, bounds, (int64_t)length, found))
        return jinja_undefined("a slice");
    int64_t from = found[0], to = found[1], step = found[2];
    if (is_string && step == 1) {
        bool is_ascii = length == value->string->length;
        to = to > from ? to : from;
        return jinja_part(run, value->string, is_ascii ? (size_t)from : jinja_byte_of(run, value->string, (size_t)from),
                          is_ascii ? (size_t)to : jinja_byte_of(run, value->string, (size_t)to));
    }
    const struct jinja_list *items = jinja_iterate(run, value);
    struct jinja_value part = jinja_list_new(run, is_string ? JINJA_LIST : value->kind, 0);
    for (int64_t i = from; jinja_charge(run, 1) && (step > 0 ? i < to : i > to);) {
        if (is_string)
            jinja_build_string(run, &builder, items->items[i].string);
        else
            jinja_list_add(run, part.list, items->items[i]);
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return is_string ? jinja_built(run, &builder) : part;
}
