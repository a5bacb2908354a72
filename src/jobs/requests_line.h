/* A line of `generate --requests`: one JSON object, read into values that are all in range.
 *
 * The line's adapters and template are looked up later, and its prompt is tokenized later. The input is not trusted:
 * any bytes give either a request or an error that names its field. Any thread may call this. */
#ifndef CAMBIUM_JOBS_REQUESTS_LINE_H
#define CAMBIUM_JOBS_REQUESTS_LINE_H

#include "infer/ask.h"
#include "text/chat.h"

/* Strings live until request_line_free. */
struct request_line {
    json_t *root;
    const json_t *id;   /* a string or an integer; NULL: none */
    const char *model;  /* a name of the base or of an adapter; NULL: not given */
    const char *prompt; /* NULL: ids, or messages */
    size_t prompt_length;
    struct token_buffer ids;
    struct chat_request chat; /* messages and their options, when the line has any */
    struct ask asked;
};

/* Reads a line; `vocab`: ids are below it. Call request_line_free in any case. STATUS_MEMORY. STATUS_INVALID sets
 * *field to the name of the faulty field, or NULL when the line as a whole is wrong. The name lives as long as the
 * line; the id is set also then, if it could be read. */
int request_line_read(struct request_line *line, const char *text, size_t length, bool is_first, int64_t vocab,
                      const char **field);
void request_line_free(struct request_line *line);

#endif
