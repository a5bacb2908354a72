/* A line in the form of OpenAI's batches, and its answer in that form.
 *
 *     {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *     {"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "request_id": "req_1", "body": {...}},
 *      "error": null}
 *
 * The body is read, and the answer's body written, by the code that serves HTTP (openai/openai.h). A refused line has
 * the status and the body that HTTP would give. One thread at a time. */
#pragma once

#include "requests_line.h"

extern const struct answer_form batch_form;

/* True when a line has a member that only this form has. */
bool batch_is(const json_t *root);
/* Reads line->root into line->request. STATUS_INVALID as request_line_read; STATUS_MEMORY. */
int batch_read(struct request_line *line, const struct openai_model *model, const char **field);
