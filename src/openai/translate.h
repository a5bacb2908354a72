/* Requests of other dialects as requests of chats. Values are made with new references; NULL with *error on failure.
 * Messages of errors begin with the field, and with the number of its item. */
#pragma once

#include "openai.h"

/* A place in a request. */
struct translate_place {
    const char *field;
    size_t number; /* of the item, from 0 */
};

/* Refuses the item of a place. Returns NULL. */
json_t *translate_refuse(const struct translate_place *place, const char *what, struct error *error);
/* The content of a message: a text, or a list of parts with a text. None is an empty text. */
json_t *translate_content(const struct translate_place *place, const json_t *content, struct error *error);
/* Appends a message to a list, and takes it over. Returns false with *error; `message` NULL: the error is set. */
bool translate_add(json_t *list, json_t *message, struct error *error);
/* Returns `made`, or NULL with an error when it is NULL because memory was lacking. */
json_t *translate_made(json_t *made, struct error *error);
/* Adds a call of a tool to a message. `arguments`: a text, or an object. */
bool translate_add_call(const struct translate_place *place, json_t *message, const json_t *id, const json_t *name,
                        const json_t *arguments, struct error *error);
/* Reads a list of tools {"name", "description", SCHEMA, "strict"}, whose type is `type` or, for "custom", absent. */
bool translate_tools(struct openai *request, const json_t *list, const char *type, const char *schema,
                     struct error *error);
/* Reads a format of the answer: {"type", "schema", "name", "strict"}, whose constraint is that of response_format.
 * `field`: the request's name for it, which lives on. */
bool translate_format(struct openai *request, const char *field, const json_t *format, struct error *error);
/* Reads n, which is 1: an answer of these dialects is one completion. */
bool translate_one(struct openai *request, const char *name, const json_t *value, struct error *error);
