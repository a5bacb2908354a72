/* A line of `generate --requests`: one JSON object, read into values that are all in their ranges.
 *
 * Its names, of adapters and templates, are looked up later, and its prompt is tokenized later. Lines come
 * from anybody: whatever the bytes are, they give a request or an error with the name of its field. Any thread. */
#ifndef CAMBIUM_JOBS_REQUESTS_LINE_H
#define CAMBIUM_JOBS_REQUESTS_LINE_H

#include "infer/ask.h"
#include "text/chat.h"

/* Texts live as long as the line. */
struct request_line {
    json_t *root;
    const json_t *id;   /* a string or an integer; NULL: none */
    const char *model;  /* a name of the base or of an adapter; NULL: not given */
    const char *prompt; /* NULL: ids, or messages */
    size_t prompt_length;
    struct token_buffer ids;
    struct chat_request chat; /* with messages: what its line says of them */
    struct ask asked;
};

/* Reads a line. STATUS_INVALID with one line of text, and in *field the name of what is wrong (NULL: all of it), which
 * lives as long as the line, as do the id and what else was read; STATUS_MEMORY. request_line_free ends it in any case.
 */
int request_line_read(struct request_line *line, const char *text, size_t length, bool is_first, int64_t vocab,
                      const char **field);
void request_line_free(struct request_line *line);

#endif
