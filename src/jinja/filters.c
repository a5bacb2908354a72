/* Filters of a single value. lists.c has those of lists. */
#include "jinja-internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- strings ---- */

/* Returns the string, no longer marked as safe. */
static struct jinja_value make_plain(struct jinja_run *run, struct jinja_value value) {
    if (value.kind != JINJA_STRING || !value.string->is_safe)
        return value;
    struct jinja_string *plain = jinja_object(run, sizeof *plain);
    if (!plain)
        return jinja_undefined(NULL);
    *plain = *value.string;
    plain->is_safe = false;
    return (struct jinja_value){.kind = JINJA_STRING, .string = plain};
}

/* Returns the operand of a string filter: the string, or Python's text for another value. */
static const struct jinja_string *string_of(struct jinja_run *run, const struct jinja_value *value) {
    struct jinja_value string = jinja_str(run, value);
    return string.kind == JINJA_STRING ? string.string : NULL;
}

static struct jinja_value change_case(struct jinja_run *run, const struct jinja_value *value, struct jinja_call *call,
                                      enum jinja_case to) {
    const struct jinja_string *string = string_of(run, value);
    return jinja_call_end(run, call, 0, "the filter") ? jinja_change_case(run, string, to) : jinja_undefined(NULL);
}

static struct jinja_value filter_upper(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return change_case(run, &value, call, JINJA_UPPER);
}

static struct jinja_value filter_lower(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return change_case(run, &value, call, JINJA_LOWER);
}

static struct jinja_value filter_capitalize(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return change_case(run, &value, call, JINJA_CAPITALIZED);
}

static struct jinja_value filter_title(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return change_case(run, &value, call, JINJA_WORDS);
}

static struct jinja_value filter_trim(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    const struct jinja_string *string = string_of(run, &value);
    const struct jinja_string *characters = jinja_string_argument(run, call, 0, "chars", "trim");
    return jinja_call_end(run, call, 1, "trim") ? jinja_strip(run, string, characters, JINJA_BOTH)
                                                : jinja_undefined(NULL);
}

static struct jinja_value filter_replace(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    struct jinja_value from = jinja_argument(run, call, 0, "old"), to = jinja_argument(run, call, 1, "new");
    int64_t most = jinja_integer_argument(run, call, 2, "count", -1);
    if (from.kind == JINJA_MISSING || to.kind == JINJA_MISSING)
        return jinja_fail(run, "replace: expected the old and the new text");
    const struct jinja_string *string = string_of(run, &value), *old = string_of(run, &from),
                              *new = string_of(run, &to);
    return jinja_call_end(run, call, 3, "replace") ? make_plain(run, jinja_replace(run, string, old, new, most))
                                                   : jinja_undefined(NULL);
}

static struct jinja_value filter_string(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return jinja_call_end(run, call, 0, "string") ? jinja_str(run, &value) : jinja_undefined(NULL);
}

static struct jinja_value filter_safe(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    const struct jinja_string *string = string_of(run, &value);
    struct jinja_string *safe = jinja_object(run, sizeof *safe);
    if (!jinja_call_end(run, call, 0, "safe") || !safe)
        return jinja_undefined(NULL);
    *safe = *string;
    safe->is_safe = true;
    return (struct jinja_value){.kind = JINJA_STRING, .string = safe};
}

static struct jinja_value filter_escape(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    const struct jinja_string *string = string_of(run, &value);
    if (!jinja_call_end(run, call, 0, "escape"))
        return jinja_undefined(NULL);
    return string->is_safe ? (struct jinja_value){.kind = JINJA_STRING, .string = string} : jinja_escape(run, string);
}

static struct jinja_value filter_indent(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    struct jinja_value width = jinja_argument(run, call, 0, "width");
    bool is_first = jinja_bool_argument(run, call, 1, "first", false);
    bool is_blank = jinja_bool_argument(run, call, 2, "blank", false);
    struct jinja_builder builder = {0}, spaces = {0};
    if (value.kind != JINJA_STRING)
        return jinja_fail(run, "indent wants a string, not a %s", jinja_type(&value));
    if (width.kind == JINJA_MISSING)
        width = jinja_integer(4);
    if (width.kind == JINJA_INTEGER || width.kind == JINJA_BOOL) {
        for (int64_t i = 0; i < jinja_as_integer(&width) && jinja_charge(run, 1); i++)
            jinja_build_text(run, &spaces, " ");
        width = jinja_built(run, &spaces);
    }
    if (width.kind != JINJA_STRING)
        return jinja_fail(run, "indent: expected a number or a string as the width, found a %s", jinja_type(&width));
    if (!jinja_call_end(run, call, 3, "indent"))
        return jinja_undefined(NULL);
    struct jinja_value newline = jinja_text_value(run, "\n"), text = jinja_binary(run, OPERATOR_ADD, &value, &newline);
    if (text.kind != JINJA_STRING)
        return text;
    struct jinja_value lines = jinja_lines(run, text.string);
    if (is_first)
        jinja_build_string(run, &builder, width.string);
    for (size_t i = 0; i < lines.list->count && jinja_charge(run, 1); i++) {
        const struct jinja_string *line = lines.list->items[i].string;
        if (i)
            jinja_build_text(run, &builder, "\n");
        if (i && (is_blank || line->length))
            jinja_build_string(run, &builder, width.string);
        jinja_build_string(run, &builder, line);
    }
    return jinja_built(run, &builder);
}

/* ---- numbers ---- */

static struct jinja_value integer_of(struct jinja_run *run, double real, struct jinja_value fallback) {
    if (isnan(real))
        return fallback;
    if (real < -9.2e18 || real > 9.2e18)
        return jinja_fail(run, "an integer outside 64 bits");
    return jinja_integer((int64_t)real);
}

static struct jinja_value filter_int(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    struct jinja_value fallback = jinja_argument(run, call, 0, "default");
    int64_t base = jinja_integer_argument(run, call, 1, "base", 10), integer;
    double real;
    if (!jinja_call_end(run, call, 2, "int"))
        return jinja_undefined(NULL);
    if (fallback.kind == JINJA_MISSING)
        fallback = jinja_integer(0);
    if (value.kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, &value);
    if (value.kind == JINJA_FLOAT)
        return integer_of(run, value.real, fallback);
    if (jinja_is_number(&value))
        return jinja_integer(jinja_as_integer(&value));
    if (value.kind != JINJA_STRING)
        return fallback;
    if (base != 10)
        return jinja_fail(run, "int in other bases than ten is not supported");
    if (jinja_read_integer(run, value.string, 10, &integer))
        return jinja_integer(integer);
    return jinja_read_float(run, value.string, &real) && !isinf(real) ? integer_of(run, real, fallback) : fallback;
}

static struct jinja_value filter_float(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    struct jinja_value fallback = jinja_argument(run, call, 0, "default");
    double real;
    if (!jinja_call_end(run, call, 1, "float"))
        return jinja_undefined(NULL);
    if (value.kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, &value);
    if (jinja_is_number(&value))
        return jinja_float(jinja_as_real(&value));
    if (value.kind == JINJA_STRING && jinja_read_float(run, value.string, &real))
        return jinja_float(real);
    return fallback.kind == JINJA_MISSING ? jinja_float(0) : fallback;
}

static struct jinja_value filter_abs(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    if (!jinja_call_end(run, call, 0, "abs"))
        return jinja_undefined(NULL);
    if (value.kind == JINJA_FLOAT)
        return jinja_float(fabs(value.real));
    if (!jinja_is_number(&value))
        return value.kind == JINJA_UNDEFINED ? jinja_fail_undefined(run, &value)
                                             : jinja_fail(run, "abs wants a number, not a %s", jinja_type(&value));
    int64_t integer = jinja_as_integer(&value);
    return integer == INT64_MIN ? jinja_fail(run, "an integer outside 64 bits")
                                : jinja_integer(integer < 0 ? -integer : integer);
}

static struct jinja_value filter_round(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    int64_t precision = jinja_integer_argument(run, call, 0, "precision", 0);
    const struct jinja_string *method = jinja_string_argument(run, call, 1, "method", "round");
    char text[400];
    if (!jinja_call_end(run, call, 2, "round"))
        return jinja_undefined(NULL);
    if (!jinja_is_number(&value))
        return value.kind == JINJA_UNDEFINED ? jinja_fail_undefined(run, &value)
                                             : jinja_fail(run, "round wants a number, not a %s", jinja_type(&value));
    if (precision < 0 || precision > 20)
        return jinja_fail(run, "round: only 0 to 20 digits are supported");
    if (!method || jinja_string_is(method, "common")) {
        if (value.kind != JINJA_FLOAT)
            return jinja_integer(jinja_as_integer(&value));
        snprintf(text, sizeof text, "%.*f", (int)precision, value.real);
        return jinja_float(strtod(text, NULL));
    }
    double scale = pow(10, (double)precision), real = jinja_as_real(&value) * scale;
    if (jinja_string_is(method, "ceil"))
        return jinja_float(ceil(real) / scale);
    return jinja_string_is(method, "floor") ? jinja_float(floor(real) / scale)
                                            : jinja_fail(run, "round: the method is common, ceil or floor");
}

/* ---- any value ---- */

static struct jinja_value filter_default(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    struct jinja_value fallback = jinja_argument(run, call, 0, "default_value");
    bool is_by_truth = jinja_bool_argument(run, call, 1, "boolean", false);
    if (!jinja_call_end(run, call, 2, "default"))
        return jinja_undefined(NULL);
    if (value.kind != JINJA_UNDEFINED && (!is_by_truth || jinja_is_true(&value)))
        return value;
    return fallback.kind == JINJA_MISSING ? jinja_string(run, "", 0, 0) : fallback;
}

static struct jinja_value filter_length(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return jinja_call_end(run, call, 0, "length") ? jinja_integer((int64_t)jinja_length(run, &value))
                                                  : jinja_undefined(NULL);
}

const struct jinja_filter jinja_value_filters[] = {
    {"abs", JINJA_COST_STEP, filter_abs},
    {"capitalize", JINJA_COST_WALK, filter_capitalize},
    {"count", JINJA_COST_WALK, filter_length},
    {"d", JINJA_COST_STEP, filter_default},
    {"default", JINJA_COST_STEP, filter_default},
    {"e", JINJA_COST_WALK, filter_escape},
    {"escape", JINJA_COST_WALK, filter_escape},
    {"float", JINJA_COST_WALK, filter_float},
    {"indent", JINJA_COST_WALK, filter_indent},
    {"int", JINJA_COST_WALK, filter_int},
    {"length", JINJA_COST_WALK, filter_length},
    {"lower", JINJA_COST_WALK, filter_lower},
    {"replace", JINJA_COST_WALK, filter_replace},
    {"round", JINJA_COST_STEP, filter_round},
    {"safe", JINJA_COST_WALK, filter_safe},
    {"string", JINJA_COST_WALK, filter_string},
    {"title", JINJA_COST_WALK, filter_title},
    {"tojson", JINJA_COST_WALK, jinja_to_json},
    {"trim", JINJA_COST_WALK, filter_trim},
    {"upper", JINJA_COST_WALK, filter_upper},
    {NULL, JINJA_COST_NOTHING, NULL},
};

struct jinja_value jinja_run_filter(struct jinja_run *run, const struct jinja_filter *filter, struct jinja_value value,
                                    struct jinja_call *call) {
    return jinja_charge(run, 1) ? filter->run(run, value, call) : jinja_undefined(NULL);
}

const struct jinja_filter *jinja_filter_find(const char *name, size_t length) {
    const struct jinja_filter *const tables[] = {jinja_value_filters, jinja_list_filters};
    for (size_t t = 0; t < 2; t++)
        for (const struct jinja_filter *filter = tables[t]; filter->name; filter++)
            if (strlen(filter->name) == length && !memcmp(filter->name, name, length))
                return filter;
    return NULL;
}
