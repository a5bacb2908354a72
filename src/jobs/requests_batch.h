/* A line in the form of OpenAI's batches, and its answer in that form.
 *
 *     {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *     {"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "request_id": "req_1", "body": {...}},
 *      "error": null}
 *
 * The body is read, and the answer's body written, by the code that serves HTTP (openai/openai.h). A refused line has
 * the status and the body that HTTP would give. One thread at a time. */
#ifndef CAMBIUM_JOBS_REQUESTS_BATCH_H
#define CAMBIUM_JOBS_REQUESTS_BATCH_H

#include "requests_line.h"

#include "openai/openai.h"

struct batch_end { /* the id that ended a completion */
    bool has_token;
    struct call_token token;
    struct call_top tops[ASK_MAX_TOP];
};

struct batch {
    char id[24];             /* the number of the line */
    const json_t *custom_id; /* a string; NULL: none */
    struct openai request;   /* it asks line->request */
    struct error error;      /* ERROR_NONE: the line is right so far */
    struct call_update *update;
    struct batch_end *ends; /* [completions] */
    uint64_t generations[ASK_MAX_ADAPTERS];
    int64_t cached;      /* of the prompt's tokens */
    bool predicts_first; /* virtual tokens predict the prompt's first token */
    bool has_prompt;     /* a token of the prompt was reported */
    bool is_broken;      /* a log-probability is not finite */
};

/* True when a line has a member that only this form has. */
bool batch_is(const json_t *root);
/* Reads line->root into line->request, and sets line->batch, also for a faulty line. STATUS_INVALID as
 * request_line_read; STATUS_MEMORY. */
int batch_read(struct request_line *line, int64_t number, const struct openai_model *model, const char **field);
/* `batch` may be NULL. */
void batch_free(struct batch *batch);

/* Take a drawn token, a token of the prompt, and the end of a completion. STATUS_MEMORY. */
int batch_add_token(struct batch *batch, int64_t choice, const struct ask_completion *completion,
                    const struct scheduler_token *token, bool *is_ended);
int batch_add_prompt_token(struct batch *batch, int64_t index, const struct scheduler_token *token);
int batch_end(struct batch *batch, int64_t choice, struct writer *writer, bool is_stop, int64_t drawn);

/* Makes the current error text (status_text) the line's error, unless it has one. `field` may be NULL. */
void batch_fail(struct batch *batch, enum error_case which, const char *field);
/* Write the whole line of the answer, or of the error. `out` has failed when memory was lacking. */
void batch_write(struct batch *batch, struct strbuf *out);
void batch_write_error(const struct batch *batch, struct strbuf *out);

#endif
