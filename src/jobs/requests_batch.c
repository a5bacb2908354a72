#include "requests_batch.h"
#include "requests.h"

#include "openai/json_in.h"
#include "openai/json_out.h"

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
static const struct openai_kind *find_kind(const struct request_line *line, struct error *error) {
    json_t *root = line->root;
    const json_t *url = json_object_get(root, "url");
    const char *unknown = unknown_member(root);
    if (!line->id)
        error_set(error, ERROR_ARGUMENT, "custom_id", "custom_id: expected a string");
    else if (unknown)
        error_set(error, ERROR_ARGUMENT, unknown, "%.100s: there is no such field beside the body", unknown);
    else if (!json_in_is(json_object_get(root, "method"), "POST"))
        error_set(error, ERROR_METHOD, "method", "method: expected \"POST\"");
    else if (!json_is_object(json_object_get(root, "body")))
        error_set(error, ERROR_ARGUMENT, "body", "body: expected an object");
    else {
        for (size_t i = 0; openai_kinds[i]; i++)
            if (json_in_is(url, openai_kinds[i]->url) && !openai_kinds[i]->only_counts)
                return openai_kinds[i];
        error_set(error, ERROR_ROUTE_NOT_FOUND, "url",
                  "url: expected \"/v1/chat/completions\", \"/v1/completions\", \"/v1/responses\" or "
                  "\"/v1/messages\"");
    }
    return NULL;
}

static bool read_body(struct request_line *line, const struct openai_model *model) {
    const struct openai_kind *kind = find_kind(line, &line->error);
    json_t *body = json_object_get(line->root, "body"), *prompt = json_object_get(body, "prompt");
    if (!kind)
        return false;
    if (json_array_size(prompt) > 1 && !json_is_integer(json_array_get(prompt, 0)))
        return error_set(&line->error, ERROR_ARGUMENT, "prompt", "prompt: a line has one");
    if (!json_in_string(json_object_get(body, "model"), "model", &line->model, &line->error) ||
        !openai_read(&line->openai, model, kind, json_incref(body), &line->request, &line->error))
        return false;
    if (line->openai.is_stream)
        error_set(&line->error, ERROR_ARGUMENT, "stream", "stream: a line has one answer");
    return !line->openai.is_stream;
}

int batch_read(struct request_line *line, const struct openai_model *model, const char **field) {
    const json_t *custom_id = json_object_get(line->root, "custom_id");
    line->form = &batch_form;
    line->id = json_is_string(custom_id) ? custom_id : NULL;
    if (!read_body(line, model)) {
        *field = *line->error.param ? line->error.param : NULL;
        return status_fail(line->error.which == ERROR_OVERLOADED ? STATUS_MEMORY : STATUS_INVALID, "%s",
                           line->error.text);
    }
    return STATUS_OK;
}

/* ---- writing ---- */

/* Begins the line, up to the body. */
static void begin(const struct request_line *line, struct strbuf *out) {
    strbuf_format(out, "{\"id\":\"batch_req_%s\",\"custom_id\":", line->number);
    if (line->id)
        json_out_string(out, json_string_value(line->id), json_string_length(line->id));
    else
        strbuf_add_text(out, "null");
    strbuf_format(out, ",\"response\":{\"status_code\":%d,\"request_id\":\"req_%s\",\"body\":",
                  error_row(line->error.which)->http, line->number);
}

static void write_answer(struct answer *answer, struct strbuf *out) {
    begin(&answer->line, out);
    openai_build(&answer->line.openai, out);
    strbuf_add_text(out, "},\"error\":null}\n");
}

static void write_error(struct answer *answer, enum error_case which, const char *field, struct strbuf *out) {
    struct error *error = &answer->line.error;
    if (!error->which && which == ERROR_ARGUMENT)
        json_in_fail(STATUS_INVALID, field, error);
    else if (!error->which)
        error_of_status(error, which, field);
    begin(&answer->line, out);
    (answer->line.openai.kind == &openai_messages_kind ? error_add_message : error_add_json)(error, out);
    strbuf_add_text(out, "},\"error\":null}\n");
}

const struct answer_form batch_form = {write_answer, write_error};
