/* First checks the brackets, then uses jansson. */
#include "json_in.h"

#include "base/base.h"

/* ---- checks before memory is allocated ---- */

struct shape {
    int depth, deepest;
    size_t lists, fields, values;
};

/* Starts after a string's opening quotation mark; returns the place after its closing one, or the end. */
static const char *skip_string(const char *at, const char *end) {
    for (; at < end && *at != '"'; at++)
        if (*at == '\\' && at + 1 < end)
            at++;
    return at < end ? at + 1 : end;
}

static void look(const char *text, size_t length, struct shape *shape) {
    const char *at = text, *end = text + length;
    *shape = (struct shape){0};
    while (at < end) {
        char c = *at++;
        if (c == '"')
            at = skip_string(at, end);
        else if (c == '[' || c == '{') {
            shape->lists++;
            shape->depth++;
            if (shape->depth > shape->deepest)
                shape->deepest = shape->depth;
        } else if (c == ']' || c == '}')
            shape->depth--;
        else if (c == ':')
            shape->fields++;
        else if (c == ',')
            shape->values++;
    }
}

static bool refuse(struct error *error, const char *text) {
    return error_set(error, ERROR_ARGUMENT, NULL, "%s", text);
}

bool json_in_is_bounded(const char *text, size_t length, struct error *error) {
    struct shape shape;
    look(text, length, &shape);
    if (shape.deepest > JSON_IN_DEPTH)
        error_set(error, ERROR_ARGUMENT, NULL, "the JSON is nested more than %d deep", JSON_IN_DEPTH);
    else if (shape.lists > JSON_IN_LISTS)
        error_set(error, ERROR_ARGUMENT, NULL, "the JSON has more than %d lists and objects", JSON_IN_LISTS);
    else if (shape.fields > JSON_IN_FIELDS)
        error_set(error, ERROR_ARGUMENT, NULL, "the JSON has more than %d fields", JSON_IN_FIELDS);
    else if (shape.values > JSON_IN_VALUES)
        error_set(error, ERROR_ARGUMENT, NULL, "the JSON has more than %d values", JSON_IN_VALUES);
    else
        return true;
    return false;
}

bool json_in_read(const char *text, size_t length, bool may_be_empty, json_t **root, struct error *error) {
    json_error_t bad = {0};
    *root = NULL;
    if (may_be_empty && length == 0)
        text = "{}", length = 2;
    if (!json_in_is_bounded(text, length, error))
        return false;
    int status = json_read(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, root, &bad);
    if (status == STATUS_MEMORY) {
        json_in_fail(status, NULL, error);
        return false;
    }
    if (status)
        return error_set(error, ERROR_ARGUMENT, NULL, "the body is not JSON: line %d, column %d: %s", bad.line,
                         bad.column, bad.text);
    if (json_is_object(*root))
        return true;
    json_decref(*root);
    *root = NULL;
    return refuse(error, "the body is not a JSON object");
}

/* ---- values ---- */

void json_in_fail(int status, const char *name, struct error *error) {
    if (status == STATUS_MEMORY)
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    else if (name && *name) {
        status_wrap(status, "%s", name);
        error_of_status(error, ERROR_ARGUMENT, name);
    } else
        error_of_status(error, ERROR_ARGUMENT, NULL);
}

static bool expect(struct error *error, const char *name, const char *what) {
    return error_set(error, ERROR_ARGUMENT, name, "%s: expected %s", name, what);
}

bool json_in_bool(const json_t *value, const char *name, bool *out, struct error *error) {
    if (!value || json_is_null(value))
        return true;
    if (!json_is_boolean(value))
        return expect(error, name, "true or false");
    *out = json_is_true(value);
    return true;
}

bool json_in_string(const json_t *value, const char *name, const char **out, struct error *error) {
    if (!value || json_is_null(value))
        return true;
    if (!json_is_string(value))
        return expect(error, name, "a string");
    if (strlen(json_string_value(value)) != json_string_length(value))
        return expect(error, name, "a string without NUL");
    *out = json_string_value(value);
    return true;
}

bool json_in_is(const json_t *value, const char *expected) {
    return json_is_string(value) && json_string_length(value) == strlen(expected) &&
           !memcmp(json_string_value(value), expected, strlen(expected));
}

bool json_in_integer(const json_t *value, const char *name, int64_t low, int64_t high, int64_t *out,
                     struct error *error) {
    if (!value || json_is_null(value))
        return true;
    json_int_t given = json_integer_value(value);
    if (!json_is_integer(value) || given < low || given > high)
        return error_set(error, ERROR_ARGUMENT, name, "%s: expected an integer from %lld to %lld", name, (long long)low,
                         (long long)high);
    *out = given;
    return true;
}

bool json_in_number(const json_t *value, const char *name, double low, double high, double *out, struct error *error) {
    if (!value || json_is_null(value))
        return true;
    double given = json_number_value(value);
    if (!json_is_number(value) || !(given >= low && given <= high))
        return error_set(error, ERROR_ARGUMENT, name, "%s: expected a number from %g to %g", name, low, high);
    *out = given;
    return true;
}
