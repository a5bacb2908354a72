/* Fields of a JSON object and texts under construction, which the builders of rows share. */
#pragma once

#include "tasks.h"

/* ---- fields: fields.c ---- */

/* A text of a row's object. */
struct text {
    const char *bytes;
    size_t length;
};
/* Reads an object's fields. The first failure stays in `status`; later reads return empty texts and zeros. */
struct fields {
    const json_t *object;
    int status;
};
/* Refuses a field unless an earlier failure is set. */
void field_refuse(struct fields *fields, const char *name, const char *expected);
struct text field_text(struct fields *fields, const char *name);
/* Returns an integer from 0 to `most`. `takes_digits`: a text of digits is one, too. */
int64_t field_index(struct fields *fields, const char *name, int64_t most, bool takes_digits);
/* Returns a list of at least `least` texts, and its number of texts; NULL after a failure. */
const json_t *field_texts(struct fields *fields, const char *name, size_t least, size_t *count);
/* Returns text `i` of such a list. */
struct text text_at(const json_t *texts, size_t i);

/* ---- rows: rows.c ---- */

/* Empties the row. */
void row_begin(struct task_row *row);
/* Appends to the row's texts. */
void row_add(struct task_row *row, struct text text);
void row_add_words(struct task_row *row, const char *words);
/* Returns the texts since byte `start`. */
struct task_span row_span(const struct task_row *row, size_t start);
/* Takes the context of a row of the user's own: a text, or the chat in "messages". */
void row_take_context(struct task_row *row, struct fields *fields);
/* Adds a request. STATUS_MEMORY. */
int row_request(struct task_row *row, struct task_span context, struct task_span continuation, int64_t characters);
/* Adds requests for " " and each of the choices after one context. STATUS_MEMORY. */
int row_choices(struct task_row *row, struct task_span context, const struct text *choices, int64_t count);
/* Returns STATUS_MEMORY when the texts had no memory. */
int row_status(const struct task_row *row);

/* ---- cleaning: clean.c ---- */

/* Appends a text of HellaSwag without the traces of its source. */
void hellaswag_clean(struct text text, struct strbuf *out);
/* Appends a page of WikiText as people would have written it. */
void wikitext_detokenize(struct text page, struct strbuf *out);

/* ---- builders ---- */

int build_hellaswag(const json_t *object, struct task_row *row);
int build_piqa(const json_t *object, struct task_row *row);
int build_winogrande(const json_t *object, struct task_row *row);
int build_boolq(const json_t *object, struct task_row *row);
int build_arc(const json_t *object, struct task_row *row);
int build_race(const json_t *object, struct task_row *row);
int build_choice(const json_t *object, struct task_row *row);
int build_lambada(const json_t *object, struct task_row *row);
int build_wikitext(const json_t *object, struct task_row *row);
int build_text(const json_t *object, struct task_row *row);
int build_generate(const json_t *object, struct task_row *row);
