/* Request bodies as JSON. Anybody may send them. A text that would take the parser much memory is refused before it is
 * parsed, and so is an ambiguous one. A number is an integer only when it is written as one: 16.0 and 1e3 are not. A
 * field that is null counts as absent. */
#pragma once

#include "error.h"

#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JSON_IN_DEPTH = 64,
    JSON_IN_LISTS = 1 << 15,  /* lists and objects in one text: each takes hundreds of bytes */
    JSON_IN_FIELDS = 1 << 16, /* in all objects: each takes a hundred bytes */
    JSON_IN_VALUES = 1 << 19  /* each takes forty bytes */
};

/* The reason for refusing a text for the model, as gRPC does. */
#define JSON_IN_NUL "the text has a NUL"

/* Reads a text that is an object: UTF-8, no duplicate key, limited nesting. A string may contain \u0000, an ordinary
 * character. An empty text is an empty object with `may_be_empty`. The caller releases *root with json_decref. On
 * failure *root is NULL and *error is set. */
bool json_in_read(const char *text, size_t length, bool may_be_empty, json_t **root, struct error *error);

/* Checks these limits for a text of JSON that is a string in another text. */
bool json_in_is_bounded(const char *text, size_t length, struct error *error);

/* Readers of field values; NULL and null leave *out unchanged. On failure they return false and set *error, which names
 * the field. */
bool json_in_bool(const json_t *value, const char *name, bool *out, struct error *error);
/* json_in_string reads a C string, without NUL. */
bool json_in_string(const json_t *value, const char *name, const char **out, struct error *error);
bool json_in_integer(const json_t *value, const char *name, int64_t low, int64_t high, int64_t *out,
                     struct error *error);
bool json_in_number(const json_t *value, const char *name, double low, double high, double *out, struct error *error);

/* True when the value is this string. */
bool json_in_is(const json_t *value, const char *expected);

/* Sets the error for the status of one of our readers. The thread's text does not name the field yet. */
void json_in_fail(int status, const char *name, struct error *error);
