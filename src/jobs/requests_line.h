/* A line of `generate --requests`: one JSON object, read into values that are all in range. It has the form of
 * docs/requests.md, or that of OpenAI's batches, which requests_batch.h reads.
 *
 * The line's adapters and template are looked up later, and its prompt is tokenized later. The input is not trusted:
 * any bytes give either a request or an error that names its field. Any thread may call this. */
#pragma once

#include "openai/openai.h"

struct answer;

/* The lines that answer requests of one form. */
struct answer_form {
    /* Writes the whole line of a finished answer. `out` has failed when memory was lacking. */
    void (*write)(struct answer *answer, struct strbuf *out);
    /* Writes the whole line of an error, whose text is the current one (status_text). `field` may be NULL. */
    void (*write_error)(struct answer *answer, enum error_case which, const char *field, struct strbuf *out);
};

/* Strings live until request_line_free. */
struct request_line {
    json_t *root;
    const struct answer_form *form;
    char number[24];
    const json_t *id;            /* a string, or an integer where the form allows it; NULL: none */
    const char *model;           /* a name of the base or of an adapter; NULL: not given */
    struct call_request request; /* with one prompt */
    struct openai openai;        /* the answer to `request` */
    struct error error;          /* of OpenAI's form; ERROR_NONE: the line is right so far */
};

/* Reads line `number` of the input, from 1. The line keeps `model`. Call request_line_free in any case. STATUS_MEMORY.
 * STATUS_INVALID sets *field to the name of the faulty field, or NULL when the line as a whole is wrong. The name lives
 * as long as the line; the id is set also then, if it could be read. */
int request_line_read(struct request_line *line, const char *text, size_t length, int64_t number,
                      const struct openai_model *model, const char **field);
void request_line_free(struct request_line *line);
