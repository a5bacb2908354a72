/* Bodies of requests as JSON. They come from anybody: what the parser would take much memory for is refused before it
 * runs, and what may mean two things is refused as well. A number is an integer where it is written as one: 16.0 and
 * 1e3 are none. A field that is null counts as absent. */
#ifndef CAMBIUM_SERVE_JSON_IN_H
#define CAMBIUM_SERVE_JSON_IN_H

#include "error.h"

#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JSON_IN_DEPTH = 64,
    JSON_IN_LISTS = 1 << 15,  /* and objects, in one text: each takes hundreds of bytes */
    JSON_IN_FIELDS = 1 << 16, /* of all objects: each takes a hundred */
    JSON_IN_VALUES = 1 << 19  /* each takes forty */
};

/* Reads a text that is an object: no key twice, UTF-8, nested at most so deeply. A string of it may hold \u0000, which
 * is a character of texts like any other. An empty text is an empty object where `may_be_empty`. The caller ends *root
 * by json_decref; on failure it is NULL and *error says why. */
bool json_in_read(const char *text, size_t length, bool may_be_empty, json_t **root, struct error *error);

/* Checks that a text of JSON keeps to these numbers; for one that stands in a string of another. */
bool json_in_is_bounded(const char *text, size_t length, struct error *error);

/* Values of fields; NULL and null leave what was there. Each returns false with *error set, which names the field. */
bool json_in_bool(const json_t *value, const char *name, bool *out, struct error *error);
/* A C string: one without NUL. */
bool json_in_string(const json_t *value, const char *name, const char **out, struct error *error);
bool json_in_integer(const json_t *value, const char *name, int64_t low, int64_t high, int64_t *out,
                     struct error *error);
bool json_in_number(const json_t *value, const char *name, double low, double high, double *out, struct error *error);

/* Whether the value is this string. */
bool json_in_is(const json_t *value, const char *expected);

/* A status of a reader of ours, by the thread's text, which does not name the field yet. */
void json_in_fail(int status, const char *name, struct error *error);

#endif
