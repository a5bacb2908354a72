#include "requests_batch.h"

#include "base/base.h"
#include "openai/json_in.h"
#include "openai/json_out.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const members[] = {"custom_id", "method", "url", "body"};
enum { MEMBERS = sizeof members / sizeof *members };

/* ---- reading ---- */

bool batch_is(const json_t *root) {
    bool found = false;
    for (size_t i = 0; i < MEMBERS; i++)
        found |= json_object_get(root, members[i]) != NULL;
    return found;
}

/* Returns the member that no line of this form has; NULL: none. */
static const char *unknown_member(json_t *root) {
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value) {
        bool is_known = false;
        for (size_t i = 0; i < MEMBERS; i++)
            is_known |= !strcmp(name, members[i]);
        if (!is_known)
            return name;
    }
    return NULL;
}

/* Finds what the line asks for; NULL with *error. */
static const struct openai_kind *find_kind(const struct batch *batch, json_t *root, struct error *error) {
    const json_t *url = json_object_get(root, "url");
    const char *unknown = unknown_member(root);
    if (!batch->custom_id)
        error_set(error, ERROR_ARGUMENT, "custom_id", "custom_id: expected a string");
    else if (unknown)
        error_set(error, ERROR_ARGUMENT, unknown, "%.100s: there is no such field beside the body", unknown);
    else if (!json_in_is(json_object_get(root, "method"), "POST"))
        error_set(error, ERROR_METHOD, "method", "method: expected \"POST\"");
    else if (!json_is_object(json_object_get(root, "body")))
        error_set(error, ERROR_ARGUMENT, "body", "body: expected an object");
    else if (json_in_is(url, "/v1/chat/completions"))
        return &openai_chat_kind;
    else if (json_in_is(url, "/v1/completions"))
        return &openai_completion_kind;
    else
        error_set(error, ERROR_ROUTE_NOT_FOUND, "url", "url: expected \"/v1/chat/completions\" or \"/v1/completions\"");
    return NULL;
}

static bool has_many_prompts(const json_t *body) {
    const json_t *prompt = json_object_get(body, "prompt");
    return json_array_size(prompt) > 1 && !json_is_integer(json_array_get(prompt, 0));
}

static bool open_results(struct batch *batch, int64_t completions) {
    batch->update = calloc(1, sizeof *batch->update);
    batch->ends = calloc((size_t)completions, sizeof *batch->ends);
    if (!batch->update || !batch->ends)
        error_set(&batch->error, ERROR_OVERLOADED, NULL, "out of memory");
    return batch->update && batch->ends;
}

static bool read_body(struct batch *batch, struct request_line *line, const struct openai_model *model) {
    const struct openai_kind *kind = find_kind(batch, line->root, &batch->error);
    json_t *body = json_object_get(line->root, "body");
    if (!kind)
        return false;
    if (has_many_prompts(body)) {
        error_set(&batch->error, ERROR_ARGUMENT, "prompt", "prompt: a line has one");
        return false;
    }
    if (!json_in_string(json_object_get(body, "model"), "model", &line->model, &batch->error) ||
        !openai_read(&batch->request, model, kind, json_incref(body), &line->request, &batch->error))
        return false;
    if (batch->request.is_stream)
        error_set(&batch->error, ERROR_ARGUMENT, "stream", "stream: a line has one answer");
    return !batch->request.is_stream && open_results(batch, line->request.ask.choices);
}

int batch_read(struct request_line *line, int64_t number, const struct openai_model *model, const char **field) {
    struct batch *batch = line->batch = calloc(1, sizeof *batch);
    const json_t *custom_id = json_object_get(line->root, "custom_id");
    TRY(status_allocated(batch));
    snprintf(batch->id, sizeof batch->id, "%lld", (long long)number);
    batch->custom_id = json_is_string(custom_id) ? custom_id : NULL;
    if (!read_body(batch, line, model)) {
        *field = *batch->error.param ? batch->error.param : NULL;
        return status_fail(batch->error.which == ERROR_OVERLOADED ? STATUS_MEMORY : STATUS_INVALID, "%s",
                           batch->error.text);
    }
    batch->request.id = batch->id;
    batch->request.model_name = model->name;
    batch->request.created = model->created;
    batch->request.generations = batch->generations;
    batch->request.cached = &batch->cached;
    return STATUS_OK;
}

void batch_free(struct batch *batch) {
    if (!batch)
        return;
    openai_free(&batch->request);
    update_free(batch->update);
    free(batch->ends);
    free(batch);
}

/* ---- results ---- */

/* Passes what the update has to the answer. */
static void pass(struct batch *batch) {
    openai_take_prompts(&batch->request, batch->update);
    openai_take_all(&batch->request, batch->update);
    update_clear(batch->update);
}

/* Adds a piece whose text begins at `begin`, with a token unless it is NULL. `choice` -1: of the prompt. */
static int add_piece(struct batch *batch, int64_t choice, size_t begin, const struct scheduler_token *drawn,
                     bool has_logprob) {
    struct call_token token;
    struct call_top tops[ASK_MAX_TOP];
    int status = strbuf_status(&batch->update->text);
    THEN(status, update_add_piece(batch->update, 0, choice, begin));
    if (drawn)
        batch->is_broken |= !update_read_token(drawn, has_logprob, &token, tops);
    if (!status && drawn)
        status = update_add_token(batch->update, &token, tops);
    pass(batch);
    return status;
}

/* Nothing predicts the first token of a prompt, except virtual tokens. */
static int add_first_token(struct batch *batch) {
    const struct call_request *asked = batch->request.asked;
    if (batch->has_prompt || batch->predicts_first || asked->ask.prompt_logprobs < 0)
        return STATUS_OK;
    batch->has_prompt = true;
    return add_piece(batch, -1, 0, &(struct scheduler_token){.token = asked->prompts[0].ids.ids[0]}, false);
}

int batch_add_prompt_token(struct batch *batch, int64_t index, const struct scheduler_token *token) {
    int status = index > 0 ? add_first_token(batch) : STATUS_OK;
    batch->has_prompt = true;
    return status ? status : add_piece(batch, -1, 0, token, true);
}

int batch_add_token(struct batch *batch, int64_t choice, const struct ask_completion *completion,
                    const struct scheduler_token *token, bool *is_ended) {
    struct batch_end *end = &batch->ends[choice];
    int status = add_first_token(batch);
    if (status || token->is_end) {
        batch->is_broken |= !update_read_token(token, true, &end->token, end->tops);
        end->has_token = true;
        return status;
    }
    status = ask_write(completion, token->token, &batch->update->text, is_ended);
    return status ? status : add_piece(batch, choice, 0, token, true);
}

int batch_end(struct batch *batch, int64_t choice, struct writer *writer, bool is_stop, int64_t drawn) {
    const struct batch_end *last = &batch->ends[choice];
    int status = add_first_token(batch);
    THEN(status, writer_end(writer, &batch->update->text));
    if (!status && batch->update->text.length)
        status = add_piece(batch, choice, 0, NULL, false);
    struct call_end end = {.choice = choice,
                           .is_stop = is_stop,
                           .completion_tokens = drawn,
                           .has_token = last->has_token,
                           .token = last->token};
    batch->request.completion_tokens += drawn;
    THEN(status, update_add_end(batch->update, &end, last->tops));
    pass(batch);
    return status;
}

/* ---- writing ---- */

void batch_fail(struct batch *batch, enum error_case which, const char *field) {
    if (batch->error.which)
        return;
    if (which == ERROR_ARGUMENT)
        json_in_fail(STATUS_INVALID, field, &batch->error);
    else
        error_of_status(&batch->error, which, field);
}

/* Begins the line, up to the body. */
static void begin(const struct batch *batch, struct strbuf *out) {
    strbuf_format(out, "{\"id\":\"batch_req_%s\",\"custom_id\":", batch->id);
    if (batch->custom_id)
        json_out_string(out, json_string_value(batch->custom_id), json_string_length(batch->custom_id));
    else
        strbuf_add_text(out, "null");
    strbuf_format(out, ",\"response\":{\"status_code\":%d,\"request_id\":\"req_%s\",\"body\":",
                  error_row(batch->error.which)->http, batch->id);
}

void batch_write(struct batch *batch, struct strbuf *out) {
    begin(batch, out);
    strbuf_add_char(out, '{');
    openai_add_head(&batch->request, out);
    openai_build(&batch->request, out);
    strbuf_add_text(out, "},\"error\":null}\n");
}

void batch_write_error(const struct batch *batch, struct strbuf *out) {
    begin(batch, out);
    error_add_json(&batch->error, out);
    strbuf_add_text(out, "},\"error\":null}\n");
}
