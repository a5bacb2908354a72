/* Reads the fields of a line that ask.h does not know: id, model and prompt. A null field counts as absent. */
#include "requests_line.h"

#include "requests_batch.h"

#include "data/json_line.h"

#include <stdlib.h>
#include <string.h>

static int read_id(const json_t *value, struct request_line *line) {
    if (!json_is_string(value) && !json_is_integer(value))
        return status_fail(STATUS_INVALID, "expected a string or an integer");
    line->id = value;
    return STATUS_OK;
}

static int read_prompt(const json_t *value, struct request_line *line, int64_t vocab) {
    int status = STATUS_OK;
    if (json_is_string(value)) {
        line->request.prompts[0].text = json_string_value(value);
        line->request.prompts[0].length = json_string_length(value);
        return STATUS_OK;
    }
    if (!json_is_array(value) || !json_array_size(value))
        return status_fail(STATUS_INVALID, "expected a text, or a list of token ids, at least one");
    for (size_t i = 0; i < json_array_size(value) && !status; i++) {
        int32_t id;
        status = ask_read_id(json_array_get(value, i), i, vocab, &id);
        THEN(status, token_buffer_add(&line->request.prompts[0].ids, id));
    }
    return status;
}

static int read_messages(const json_t *value, struct request_line *line) {
    line->request.prompts[0].chat.messages = value;
    return chat_check_messages(value);
}

static int read_model(const json_t *value, struct request_line *line) {
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return status_fail(STATUS_INVALID, "expected the name of the model or of an adapter");
    line->model = json_string_value(value);
    return STATUS_OK;
}

static int fail_unknown(const char *name) {
    static const char *const others[] = {
        "id", "prompt", "messages", "model", "tools", "documents", "chat_template_kwargs"};
    const char *nearest = ask_nearest_field(name, others, sizeof others / sizeof *others);
    return status_fail(STATUS_INVALID, "there is no such field%s%s%s", nearest ? " (did you mean " : "",
                       nearest ? nearest : "", nearest ? "?)" : "");
}

static int read_field(struct request_line *line, const char *name, const json_t *value, int64_t vocab) {
    bool is_known;
    int status = ask_read_field(&line->request.ask, name, value, vocab, &is_known);
    bool is_null = json_is_null(value);
    if (is_known)
        return status;
    if (!strcmp(name, "id"))
        return is_null ? STATUS_OK : read_id(value, line);
    if (!strcmp(name, "prompt"))
        return is_null ? STATUS_OK : read_prompt(value, line, vocab);
    if (!strcmp(name, "messages"))
        return is_null ? STATUS_OK : read_messages(value, line);
    if (!strcmp(name, "model"))
        return is_null ? STATUS_OK : read_model(value, line);
    if (!strcmp(name, "tools") || !strcmp(name, "documents") || !strcmp(name, "chat_template_kwargs"))
        return chat_take_fields(line->root, &line->request.prompts[0].chat);
    if (!strcmp(name, "suffix") && (is_null || (json_is_string(value) && !json_string_length(value))))
        return STATUS_OK; /* OpenAI's, for no text after the completion */
    return fail_unknown(name);
}

static int read_fields(struct request_line *line, int64_t vocab, const char **field) {
    const char *key;
    json_t *value;
    if (!json_is_object(line->root))
        return status_fail(STATUS_INVALID, "expected an object");
    const json_t *id = json_object_get(line->root, "id"); /* the answer reports it, also for a faulty line */
    if (json_is_string(id) || json_is_integer(id))
        line->id = id;
    json_object_foreach(line->root, key, value) {
        *field = key;
        TRY(read_field(line, key, value, vocab));
    }
    *field = "messages";
    if (!line->request.prompts[0].chat.messages &&
        (line->request.prompts[0].chat.tools || line->request.prompts[0].chat.documents ||
         line->request.prompts[0].chat.variables))
        return status_fail(STATUS_INVALID, "tools, documents and chat_template_kwargs go with messages");
    *field = "parse_special";
    if (line->request.prompts[0].chat.messages && line->request.ask.parse_special)
        return status_fail(STATUS_INVALID, "names of special tokens in messages are text");
    *field = "prompt";
    if ((line->request.prompts[0].text || line->request.prompts[0].ids.count) ==
        (line->request.prompts[0].chat.messages != NULL))
        return status_fail(STATUS_INVALID, "expected either \"prompt\" or \"messages\"");
    return ask_check(&line->request.ask, vocab, field);
}

int request_line_read(struct request_line *line, const char *text, size_t length, int64_t number,
                      const struct openai_model *model, const char **field) {
    json_error_t error;
    *line = (struct request_line){0};
    *field = NULL;
    int status = json_read(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &line->root, &error);
    if (status == STATUS_INVALID)
        return status_fail(status, "column %d: bad JSON: %s", error.column, error.text);
    if (!status && batch_is(line->root))
        return batch_read(line, number, model, field);
    THEN(status, call_request_begin(&line->request, 1));
    return status ? status : read_fields(line, model->vocab, field);
}

void request_line_free(struct request_line *line) {
    batch_free(line->batch);
    call_request_free(&line->request);
    json_decref(line->root);
    *line = (struct request_line){0};
}
