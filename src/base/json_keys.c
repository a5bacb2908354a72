/* Reading the keys of a file. */
#include "json_keys.h"

#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *json_shown(const char *text, size_t bytes, char *out) {
    size_t n = 0;
    for (; text[n] && n < bytes - 1; n++)
        out[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    out[n] = 0;
    return out;
}

int json_keys_open(struct json_keys *keys, const char *text, const char *where, enum json_wording wording) {
    json_error_t error;
    char word[sizeof error.text];
    *keys = (struct json_keys){.where = where, .wording = wording};
    keys->status = json_read(text, strlen(text), JSON_REJECT_DUPLICATES, &keys->root, &error);
    keys->object = keys->root;
    if (keys->status == STATUS_INVALID)
        status_fail(keys->status, "%s:%d:%d: %s", where, error.line, error.column,
                    json_shown(error.text, sizeof word, word));
    if (!keys->status && !json_is_object(keys->root))
        keys->status = status_fail(
            STATUS_INVALID, wording == JSON_EXPECTED ? "%s: expected a JSON object" : "%s: a JSON object was expected",
            where);
    return keys->status;
}

void json_keys_close(struct json_keys *keys) {
    json_decref(keys->root);
    keys->root = NULL;
    keys->object = NULL;
}

void json_keys_refuse(struct json_keys *keys, const char *key, const char *expected, ...) {
    char what[256];
    va_list arguments;
    if (keys->status)
        return;
    va_start(arguments, expected);
    vsnprintf(what, sizeof what, expected, arguments);
    va_end(arguments);
    keys->status =
        status_fail(STATUS_INVALID, keys->wording == JSON_EXPECTED ? "%s: \"%s\": expected %s" : "%s: '%s' must be %s",
                    keys->where, key, what);
}

const json_t *json_keys_find(const struct json_keys *keys, const char *key) {
    const json_t *value = json_object_get(keys->object, key);
    return value && !json_is_null(value) ? value : NULL;
}

void json_keys_need(struct json_keys *keys, const char *key) {
    if (!keys->status && !json_keys_find(keys, key))
        keys->status = status_fail(STATUS_INVALID, "%s: '%s' is missing", keys->where, key);
}

int64_t json_keys_integer(struct json_keys *keys, const char *key, int64_t fallback, int64_t low, int64_t high) {
    const json_t *value = json_keys_find(keys, key);
    if (keys->status || !value)
        return fallback;
    if (json_is_integer(value) && json_integer_value(value) >= low && json_integer_value(value) <= high)
        return json_integer_value(value);
    json_keys_refuse(keys, key, "an integer from %lld to %lld", (long long)low, (long long)high);
    return fallback;
}

static double read_number(struct json_keys *keys, const char *key, double fallback, double low, double high,
                          bool is_below) {
    const json_t *value = json_keys_find(keys, key);
    double number = json_number_value(value);
    if (keys->status || !value)
        return fallback;
    if (json_is_number(value) && number >= low && (is_below ? number < high : number <= high))
        return number;
    json_keys_refuse(keys, key, "a number from %g to %s%g", low, is_below ? "below " : "", high);
    return fallback;
}

double json_keys_number(struct json_keys *keys, const char *key, double fallback, double low, double high) {
    return read_number(keys, key, fallback, low, high, false);
}

double json_keys_number_below(struct json_keys *keys, const char *key, double fallback, double low, double end) {
    return read_number(keys, key, fallback, low, end, true);
}

bool json_keys_bool(struct json_keys *keys, const char *key, bool fallback) {
    const json_t *value = json_keys_find(keys, key);
    if (keys->status || !value)
        return fallback;
    if (!json_is_boolean(value))
        json_keys_refuse(keys, key, "true or false");
    return json_is_true(value);
}

const char *json_keys_string(struct json_keys *keys, const char *key, const char *fallback) {
    const json_t *value = json_keys_find(keys, key);
    if (keys->status || !value)
        return fallback;
    if (!json_is_string(value))
        json_keys_refuse(keys, key, "a string");
    return json_is_string(value) ? json_string_value(value) : fallback;
}
