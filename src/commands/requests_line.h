/* A line of `generate --requests`: one JSON object, read into values that are all in their ranges.
 *
 * What it asks for by name, adapters and templates, is looked up later, and its prompt is tokenized later. Lines come
 * from anybody: whatever the bytes are, they give a request or an error with the name of its field. Any thread. */
#ifndef CAMBIUM_COMMANDS_REQUESTS_LINE_H
#define CAMBIUM_COMMANDS_REQUESTS_LINE_H

#include "infer/sampler.h"
#include "infer/writer.h"
#include "text/chat.h"

enum {
    REQUEST_MAX_CHOICES = 128,
    REQUEST_MAX_TOP = 20, /* likeliest tokens beside one */
    REQUEST_MAX_ADAPTERS = 4,
    REQUEST_MAX_CHANGES = 1022 /* of logits: biases and stop ids; there may be two ends beside them */
};

/* Texts live as long as the line. */
struct request_line {
    json_t *root;
    const json_t *id;   /* a string or an integer; NULL: none */
    const char *prompt; /* NULL: ids, or messages */
    size_t prompt_length;
    struct token_buffer ids;
    struct chat_message *messages; /* [message_count] */
    size_t message_count;
    const char *adapters[REQUEST_MAX_ADAPTERS];
    int64_t adapter_count;
    int64_t max_tokens; /* -1: to the end of the context */
    int64_t min_tokens, choices, priority;
    int64_t logprobs, prompt_logprobs; /* likeliest tokens beside each; -1: not even its own log-probability */
    struct sampling sampling;
    bool has_seed, ignore_eos;
    struct logit_bias *bias; /* [bias_count] */
    int64_t bias_count;
    int32_t *stop_ids; /* [stop_id_count] */
    int64_t stop_id_count;
    struct writer_string *stop; /* [stop_count] */
    int64_t stop_count;
};

/* Reads a line. STATUS_INVALID with one line of text, and in *field the name of what is wrong (NULL: all of it), which
 * lives as long as the line, as do the id and what else was read; STATUS_MEMORY. request_line_free ends it in any case.
 */
int request_line_read(struct request_line *line, const char *text, size_t length, bool is_first, int64_t vocab,
                      const char **field);
void request_line_free(struct request_line *line);

#endif
