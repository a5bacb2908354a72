/* The keys of a JSON object in a file, one by one. The first failure stays in `status`, its text one line with the file
 * and the key; whatever is read after it is its fallback. So a reader is a list of keys, and looks at the status once,
 * at the end. A key that is null counts as absent. */
#ifndef CAMBIUM_BASE_JSON_KEYS_H
#define CAMBIUM_BASE_JSON_KEYS_H

#include "json.h"

#include <stdbool.h>
#include <stdint.h>

/* How a refusal is put: FILE: 'KEY' must be WHAT, or FILE: "KEY": expected WHAT. */
enum json_wording { JSON_MUST_BE, JSON_EXPECTED };

struct json_keys {
    json_t *root;         /* of the text */
    const json_t *object; /* whose keys are read: the root, or an object in it */
    const char *where;    /* names the file in messages */
    enum json_wording wording;
    int status;
};

/* Parses the text, which must be an object without duplicate keys; json_keys_close ends it in any case. */
int json_keys_open(struct json_keys *keys, const char *text, const char *where, enum json_wording wording);
void json_keys_close(struct json_keys *keys);

/* STATUS_INVALID, where nothing has failed yet; `expected` in printf form. */
void json_keys_refuse(struct json_keys *keys, const char *key, const char *expected, ...)
    __attribute__((format(printf, 3, 4)));
/* NULL: absent. */
const json_t *json_keys_find(const struct json_keys *keys, const char *key);
/* Fails where it is absent. */
void json_keys_need(struct json_keys *keys, const char *key);
int64_t json_keys_integer(struct json_keys *keys, const char *key, int64_t fallback, int64_t low, int64_t high);
double json_keys_number(struct json_keys *keys, const char *key, double fallback, double low, double high);
/* The same without `end` itself. */
double json_keys_number_below(struct json_keys *keys, const char *key, double fallback, double low, double end);
bool json_keys_bool(struct json_keys *keys, const char *key, bool fallback);
/* Lives until the close. */
const char *json_keys_string(struct json_keys *keys, const char *key, const char *fallback);

/* A file's own words on one line, cut where `bytes` end: they must not break a message into lines. */
const char *json_shown(const char *text, size_t bytes, char *out);

#endif
