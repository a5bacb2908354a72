/* Filters of numbers and of any value. lists.c has those of lists, texts.c those of strings. */
#include "jinja-internal.h"

#include <math.h>

static struct jinja_value integer_of(struct jinja_run *run, double real, struct jinja_value fallback) {
    if (isnan(real))
        return fallback;
    if (real < -9.2e18 || real > 9.2e18)
        return jinja_fail(run, "an integer outside 64 bits");
    return jinja_integer((int64_t)real);
}

JINJA_OPERATION(make_integer) {
    struct jinja_value fallback = call->given[0];
    int64_t integer;
    double real;
    if (fallback.kind == JINJA_MISSING)
        fallback = jinja_integer(0);
    if (self.kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, &self);
    if (self.kind == JINJA_FLOAT)
        return integer_of(run, self.real, fallback);
    if (jinja_is_number(&self))
        return jinja_integer(jinja_as_integer(&self));
    if (self.kind != JINJA_STRING)
        return fallback;
    if (call->given[1].integer != 10)
        return jinja_fail(run, "int in other bases than ten is not supported");
    if (jinja_read_integer(run, self.string, 10, &integer))
        return jinja_integer(integer);
    return jinja_read_float(run, self.string, &real) && !isinf(real) ? integer_of(run, real, fallback) : fallback;
}

JINJA_OPERATION(make_float) {
    double real;
    if (self.kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, &self);
    if (jinja_is_number(&self))
        return jinja_float(jinja_as_real(&self));
    if (self.kind == JINJA_STRING && jinja_read_float(run, self.string, &real))
        return jinja_float(real);
    return call->given[0].kind == JINJA_MISSING ? jinja_float(0) : call->given[0];
}

JINJA_OPERATION(absolute) {
    if (self.kind == JINJA_FLOAT)
        return jinja_float(fabs(self.real));
    int64_t integer = jinja_as_integer(&self);
    return integer == INT64_MIN ? jinja_fail(run, "an integer outside 64 bits")
                                : jinja_integer(integer < 0 ? -integer : integer);
}

JINJA_OPERATION(round_number) {
    int64_t precision = call->given[0].integer;
    const struct jinja_string *method = jinja_string_of(&call->given[1]);
    char text[400];
    if (precision < 0 || precision > 20)
        return jinja_fail(run, "round: only 0 to 20 digits are supported");
    if (!method || jinja_string_is(method, "common")) {
        if (self.kind != JINJA_FLOAT)
            return jinja_integer(jinja_as_integer(&self));
        snprintf(text, sizeof text, "%.*f", (int)precision, self.real);
        return jinja_float(strtod(text, NULL));
    }
    double scale = pow(10, (double)precision), real = jinja_as_real(&self) * scale;
    if (jinja_string_is(method, "ceil"))
        return jinja_float(ceil(real) / scale);
    return jinja_string_is(method, "floor") ? jinja_float(floor(real) / scale)
                                            : jinja_fail(run, "round: the method is common, ceil or floor");
}

JINJA_OPERATION(set_default) {
    if (self.kind != JINJA_UNDEFINED && (!call->given[1].truth || jinja_is_true(&self)))
        return self;
    return call->given[0].kind == JINJA_MISSING ? jinja_string(run, "", 0, 0) : call->given[0];
}

JINJA_OPERATION(length) {
    return jinja_integer((int64_t)jinja_length(run, &self));
}

const struct jinja_operation jinja_value_filters[] = {
    ROW("abs", WANTS_NUMBER, absolute, 0),
    ROW("count", WANTS_VALUE, length, 0),
    ROW("d", WANTS_VALUE, set_default, 0, {"default_value", WANTS_VALUE, 0}, {"boolean", WANTS_TRUTH, false}),
    ROW("default", WANTS_VALUE, set_default, 0, {"default_value", WANTS_VALUE, 0}, {"boolean", WANTS_TRUTH, false}),
    ROW("float", WANTS_VALUE, make_float, 0, {"default", WANTS_VALUE, 0}),
    ROW("int", WANTS_VALUE, make_integer, 0, {"default", WANTS_VALUE, 0}, {"base", WANTS_INTEGER, 10}),
    ROW("length", WANTS_VALUE, length, 0),
    ROW("round", WANTS_NUMBER, round_number, 0, {"precision", WANTS_INTEGER, 0}, {"method", WANTS_STRING, 0}),
    ROW("tojson", WANTS_VALUE, jinja_to_json, 0, {"ensure_ascii", WANTS_TRUTH, false}, {"indent", WANTS_VALUE, 0},
        {"separators", WANTS_VALUE, 0}, {"sort_keys", WANTS_TRUTH, false}),
    ROW(NULL, WANTS_NOTHING, NULL, 0),
};
