/* Values of a tokenizer.json, as its settings have them. */
#include "read-internal.h"

int settings_refuse(const char *key, const char *value) {
    return status_fail(STATUS_UNSUPPORTED,
                       "%s '%s' is not supported (docs/formats.md lists what a tokenizer.json may ask for)", key,
                       value);
}

bool settings_is_absent(const json_t *value) {
    return !value || json_is_null(value);
}

const char *settings_type(const json_t *value) {
    const char *type = json_string_value(json_object_get(value, "type"));
    return type ? type : "without a type";
}

/* Reads a boolean, with a default when the key is absent; STATUS_INVALID for other types. */
int settings_bool(const json_t *object, const char *key, bool fallback, bool *value) {
    const json_t *found = json_object_get(object, key);
    *value = found ? json_is_true(found) : fallback;
    return !found || json_is_boolean(found) ? STATUS_OK
                                            : status_fail(STATUS_INVALID, "'%s' is neither true nor false", key);
}
