/* The constraint of a request: the field `structured_outputs`, in all its spellings. Fields are refused that give a
 * second constraint, and keys that they do not have. */
#pragma once

#include "grammar/grammar.h"

struct ask_constraint {
    struct grammar_source
        source; /* its field is the name that the request uses, and its text is `text`; zeroed: none */
    char *text;
};
/* Frees the text. */
void ask_constraint_free(struct ask_constraint *constraint);
/* True for the name of a field that gives a constraint. */
bool ask_constraint_has(const char *field);
/* Reads such a field, which is not null. STATUS_INVALID, whose message does not have the name; STATUS_MEMORY. */
int ask_constraint_read(struct ask_constraint *constraint, const char *field, const json_t *value);
/* Takes a constraint that is not JSON. `field` is a name that lives on. Errors as above. */
int ask_constraint_take(struct ask_constraint *constraint, const char *field, enum grammar_kind kind, const char *text,
                        size_t length);
/* Writes members of the JSON schema of a field's values. */
void ask_constraint_add_schema(const char *field, struct strbuf *out);
