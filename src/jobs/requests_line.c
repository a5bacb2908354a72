/* Reads the fields of a line that ask.h does not know: id, model and prompt. A null field counts as absent. Writes the
 * answers to such lines. */
#include "requests_line.h"
#include "requests.h"
#include "requests_batch.h"

#include "data/json_line.h"
#include "openai/json_out.h"

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
    static const char *const others[] = {"id",
                                         "prompt",
                                         "messages",
                                         "model",
                                         "tools",
                                         "tool_choice",
                                         "parallel_tool_calls",
                                         "documents",
                                         "chat_template_kwargs"};
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
    if (!strcmp(name, "tool_choice") || !strcmp(name, "parallel_tool_calls"))
        return STATUS_OK; /* read_tools */
    if (!strcmp(name, "tools") || !strcmp(name, "documents") || !strcmp(name, "chat_template_kwargs"))
        return chat_take_fields(line->root, &line->request.prompts[0].chat);
    if (!strcmp(name, "suffix") && (is_null || (json_is_string(value) && !json_string_length(value))))
        return STATUS_OK; /* OpenAI's, for no text after the completion */
    return fail_unknown(name);
}

/* Reads the tools and the choice among them. */
static int read_tools(struct request_line *line, const char **field) {
    const json_t *choice = json_object_get(line->root, "tool_choice");
    const json_t *parallel = json_object_get(line->root, "parallel_tool_calls");
    line->request.tools = &line->openai.calls;
    if (openai_tools_read(&line->openai.calls, line->request.prompts[0].chat.tools, choice, parallel, &line->error))
        return STATUS_OK;
    *field = line->error.param;
    return status_fail(line->error.which == ERROR_OVERLOADED ? STATUS_MEMORY : STATUS_INVALID, "%s", line->error.text);
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

/* ---- answers ---- */

static void add_id(struct strbuf *out, const struct request_line *line) {
    strbuf_add_text(out, "{\"id\":");
    if (json_is_string(line->id))
        json_out_string(out, json_string_value(line->id), json_string_length(line->id));
    else if (line->id)
        strbuf_format(out, "%lld", (long long)json_integer_value(line->id));
    else
        strbuf_add_text(out, "null");
}

/* Adds a list, or null unless it was asked for. */
static void add_list(struct strbuf *out, const struct strbuf *list, bool is_asked) {
    if (is_asked)
        strbuf_format(out, "[%s]", strbuf_text(list));
    else
        strbuf_add_text(out, "null");
    out->failed |= list->failed;
}

static void add_choice(struct strbuf *out, const struct openai *request, int64_t index) {
    const struct openai_choice *choice = &request->choices[index];
    strbuf_format(out, "%s{\"index\":%lld,\"text\":", index ? "," : "", (long long)index);
    if (request->model->tokenizer)
        json_out_string(out, strbuf_text(&choice->part.text), choice->part.text.length);
    else
        strbuf_add_text(out, "null");
    openai_add_message_parts(choice, "reasoning", out);
    strbuf_add_text(out, ",\"tokens\":");
    add_list(out, &choice->part.ids, true);
    strbuf_add_text(out, ",\"logprobs\":");
    add_list(out, &choice->part.content, request->tells_logprobs);
    strbuf_format(out, ",\"finish_reason\":%s}", openai_finish_reason(choice));
    out->failed |= choice->part.text.failed;
}

static void write_answer(struct answer *answer, struct strbuf *out) {
    struct openai *request = &answer->line.openai;
    const struct call_request *asked = request->asked;
    openai_write_prompts(request);
    add_id(out, &answer->line);
    strbuf_add_text(out, ",\"choices\":[");
    for (int64_t i = 0; i < asked->ask.choices; i++)
        add_choice(out, request, i);
    strbuf_add_text(out, "],\"prompt_logprobs\":");
    add_list(out, &request->prompts[0].logprobs, asked->ask.prompt_logprobs >= 0);
    strbuf_add_text(out, ",\"adapters\":[");
    for (int64_t i = 0; i < asked->ask.adapter_count; i++) {
        strbuf_add_text(out, i ? ",{\"name\":" : "{\"name\":");
        json_out_string(out, asked->ask.adapters[i], strlen(asked->ask.adapters[i]));
        strbuf_format(out, ",\"digest\":\"%s\"}", answer->digests[i]);
    }
    if (request->ignored_count)
        strbuf_format(out, "],\"ignored\":[%s", strbuf_text(&request->ignored_names));
    out->failed |= request->ignored_names.failed;
    strbuf_format(out, "],\"seed\":%lld,\"prompt_tokens\":%zu,\"completion_tokens\":%lld}\n",
                  (long long)asked->ask.sampling.seed, asked->prompts[0].ids.count,
                  (long long)request->completion_tokens);
}

static void write_error(struct answer *answer, enum error_case which, const char *field, struct strbuf *out) {
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", status_text());
    add_id(out, &answer->line);
    strbuf_format(out, ",\"line\":%s,\"field\":", answer->line.number);
    if (field)
        json_out_string(out, field, strlen(field));
    else
        strbuf_add_text(out, "null");
    strbuf_add_text(out, ",\"error\":");
    json_out_string(out, reason, strlen(reason));
    strbuf_add_text(out, "}\n");
}

static const struct answer_form form = {write_answer, write_error};

/* ---- the line ---- */

int request_line_read(struct request_line *line, const char *text, size_t length, int64_t number,
                      const struct openai_model *model, const char **field) {
    json_error_t error;
    *line = (struct request_line){.form = &form};
    *field = NULL;
    snprintf(line->number, sizeof line->number, "%lld", (long long)number);
    int status = json_read(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &line->root, &error);
    if (status == STATUS_INVALID)
        return status_fail(status, "column %d: bad JSON: %s", error.column, error.text);
    if (!status && batch_is(line->root)) {
        TRY(batch_read(line, model, field));
    } else {
        THEN(status, call_request_begin(&line->request, 1));
        THEN(status, read_fields(line, model->vocab, field));
        THEN(status, openai_open_plain(&line->openai, model, &line->request));
        TRY(status ? status : read_tools(line, field));
    }
    snprintf(line->openai.id, sizeof line->openai.id, "%s", line->number);
    line->openai.model_name = model->name;
    line->openai.created = model->created;
    return STATUS_OK;
}

void request_line_free(struct request_line *line) {
    openai_free(&line->openai);
    call_request_free(&line->request);
    json_decref(line->root);
    *line = (struct request_line){0};
}
