/* Reads the keys of a JSON object in a file, one by one. The first failure stays in `status`, with a text of one line
 * that names the file and the key; every later read returns its fallback. A reader is therefore a list of keys that
 * checks the status once, at the end. A key that is null counts as absent. */
#pragma once

#include "json.h"

#include <stdbool.h>
#include <stdint.h>

/* The form of a refusal: FILE: 'KEY' must be WHAT, or FILE: "KEY": expected WHAT. */
enum json_wording { JSON_MUST_BE, JSON_EXPECTED };

struct json_keys {
    json_t *root;         /* of the text */
    const json_t *object; /* the object whose keys are read: the root, or an object inside it */
    const char *where;    /* names the file in messages */
    enum json_wording wording;
    int status;
};

/* Parses the text, which must be an object without duplicate keys. STATUS_INVALID, STATUS_MEMORY. Call json_keys_close
 * in any case. */
int json_keys_open(struct json_keys *keys, const char *text, const char *where, enum json_wording wording);
void json_keys_close(struct json_keys *keys);

/* Sets STATUS_INVALID unless an earlier failure is set. `expected` is in printf form. */
void json_keys_refuse(struct json_keys *keys, const char *key, const char *expected, ...)
    __attribute__((format(printf, 3, 4)));
/* Returns the key's value, owned by the object, or NULL when it is absent. */
const json_t *json_keys_find(const struct json_keys *keys, const char *key);
/* json_keys_need fails when the key is absent. The readers return `fallback` when it is absent, and fail when its value
 * has another type or lies outside low .. high. */
void json_keys_need(struct json_keys *keys, const char *key);
int64_t json_keys_integer(struct json_keys *keys, const char *key, int64_t fallback, int64_t low, int64_t high);
double json_keys_number(struct json_keys *keys, const char *key, double fallback, double low, double high);
/* json_keys_number_below excludes `end` itself. */
double json_keys_number_below(struct json_keys *keys, const char *key, double fallback, double low, double end);
bool json_keys_bool(struct json_keys *keys, const char *key, bool fallback);
/* Returns a string that lives until the close. */
const char *json_keys_string(struct json_keys *keys, const char *key, const char *fallback);

/* Writes a file's own text on one line, cut to `bytes`, so that it cannot break a message into lines. Returns `out`. */
const char *json_shown(const char *text, size_t bytes, char *out);
