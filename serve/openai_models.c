/* Information about the server and its models; texts to ids and back. */
#include "server.h"

#include "openai/json_in.h"
#include "openai/json_out.h"
#include "registry.h"
#include "route.h"
#include "text_job.h"

#include "base/base.h"
#include "infer/ask.h"
#include "text/text.h"

/* ---- models ---- */

/* Adds a model. An adapter is a model whose parent is the base. `template`: its own; NULL: the base's. */
static void add_model(const struct server *server, const char *name, const char *parent,
                      const struct chat_template *template, struct strbuf *out) {
    const struct openai_model *model = &server->model;
    const struct tool_format *format =
        model->tool_format ? model->tool_format : tool_format_of(template ? template : model->chat_template);
    strbuf_add_text(out, "{\"id\":");
    json_out_text(out, name);
    strbuf_format(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"cambium\",\"root\":",
                  (long long)server->model.created);
    json_out_text(out, name);
    strbuf_add_text(out, ",\"parent\":");
    if (parent)
        json_out_text(out, parent);
    else
        strbuf_add_text(out, "null");
    strbuf_format(out, ",\"max_model_len\":%lld,\"tool_format\":\"%s\"", (long long)model->max_model_len, format->name);
    if (model->quantization && *model->quantization) {
        strbuf_add_text(out, ",\"quantization\":");
        json_out_text(out, model->quantization);
    }
    strbuf_add_char(out, '}');
}

void openai_models(struct exchange *exchange) {
    const struct server *server = exchange->request->server;
    struct registry_adapter adapter;
    struct strbuf out = STRBUF_INIT;
    strbuf_add_text(&out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < server->model.name_count; i++) {
        if (i)
            strbuf_add_char(&out, ',');
        add_model(server, server->model.names[i], NULL, NULL, &out);
    }
    for (int i = 0; registry_at(server, i, &adapter); i++) {
        if (adapter.is_retiring || adapter.is_refused)
            continue;
        strbuf_add_char(&out, ',');
        add_model(server, adapter.name, server->model.name, adapter.chat_template, &out);
    }
    strbuf_add_text(&out, "]}");
    route_answer_json(exchange, &out);
}

void openai_model(struct exchange *exchange) {
    const struct server *server = exchange->request->server;
    struct registry_adapter adapter;
    struct strbuf out = STRBUF_INIT;
    char name[512];
    bool is_name = route_rest(exchange, "/models/", name, sizeof name), is_found = false;
    for (size_t i = 0; is_name && i < server->model.name_count; i++)
        is_found |= !strcmp(server->model.names[i], name);
    if (is_found)
        add_model(server, name, NULL, NULL, &out);
    else if (is_name && registry_find(server, name, &adapter) && !adapter.is_refused) {
        add_model(server, adapter.name, server->model.name, adapter.chat_template, &out);
        is_found = true;
    }
    if (is_found) {
        route_answer_json(exchange, &out);
        return;
    }
    route_fail(exchange, AN_ERROR(ERROR_MODEL_NOT_FOUND, "model", "there is no model \"%.200s\"", is_name ? name : ""));
}

/* ---- texts to ids ---- */

/* Answers with the text that was made. */
static void answer_made(struct exchange *exchange, void *made) {
    struct strbuf *out = made;
    route_answer_json(exchange, out);
    free(out);
}

static void drop_answer(void *made) {
    struct strbuf *out = made;
    strbuf_free(out);
    free(out);
}

static struct strbuf *new_answer(struct error *error) {
    struct strbuf *out = calloc(1, sizeof *out);
    if (!out)
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    return out;
}

static struct strbuf *tell_ids(const struct server *server, const struct token_buffer *ids, struct error *error) {
    struct strbuf *out = new_answer(error);
    if (!out)
        return NULL;
    strbuf_format(out, "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":[", ids->count,
                  (long long)server->model.max_model_len);
    for (size_t i = 0; i < ids->count; i++) {
        if (i)
            strbuf_add_char(out, ',');
        json_out_integer(out, ids->ids[i]);
    }
    strbuf_add_text(out, "]}");
    return out;
}

/* A text that is exactly the name of the end-of-text means that token here: lm-evaluation-harness finds its id in this
 * way. */
static bool is_end_of_text(const struct openai_model *model, const json_t *prompt) {
    size_t length = 0;
    const unsigned char *name = tokenizer_token_bytes(model->tokenizer, model_first_eos(&model->ends), &length);
    return name && length == json_string_length(prompt) && !memcmp(name, json_string_value(prompt), length);
}

static struct strbuf *answer_prompt(const struct route_reader *reader, const json_t *prompt, unsigned flags,
                                    struct error *error) {
    const struct server *server = reader->server;
    int32_t eos = model_first_eos(&server->model.ends);
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct strbuf *out = NULL;
    if (flags & TOKENIZER_ALLOW_SPECIAL && is_end_of_text(&server->model, prompt))
        return tell_ids(server, &(struct token_buffer){.ids = &eos, .count = 1}, error);
    int status =
        text_job_encode(server, reader->encoder, json_string_value(prompt), json_string_length(prompt), flags, &ids);
    if (status)
        json_in_fail(status, "prompt", error);
    else
        out = tell_ids(server, &ids, error);
    token_buffer_free(&ids);
    return out;
}

static bool read_prompt(const json_t *root, const json_t **prompt, unsigned *flags, struct error *error) {
    bool adds = true, parses = true;
    *prompt = json_object_get(root, "prompt");
    if (!json_in_bool(json_object_get(root, "add_special_tokens"), "add_special_tokens", &adds, error) ||
        !json_in_bool(json_object_get(root, "parse_special"), "parse_special", &parses, error))
        return false;
    *flags = (adds ? TOKENIZER_ADD_SPECIAL : TOKENIZER_PLAIN) | (parses ? TOKENIZER_ALLOW_SPECIAL : TOKENIZER_PLAIN);
    if (json_is_string(*prompt))
        return true;
    return error_set(error, ERROR_ARGUMENT, "prompt", "prompt: expected a text");
}

static void *tokenize(const struct route_reader *reader, const char *bytes, size_t length, struct error *error) {
    const json_t *prompt;
    unsigned flags;
    json_t *root;
    void *made = NULL;
    if (json_in_read(bytes, length, false, &root, error) && read_prompt(root, &prompt, &flags, error) &&
        text_job_may_encode(reader->server, error))
        made = answer_prompt(reader, prompt, flags, error);
    json_decref(root);
    return made;
}

void openai_tokenize(struct exchange *exchange) {
    static const struct route_body body = {
        .short_bytes = text_job_short_bytes, .read = tokenize, .on_made = answer_made, .drop = drop_answer};
    route_collect(exchange, &body);
}

/* ---- and back ---- */

static bool read_ids(const struct server *server, const json_t *list, struct token_buffer *ids, struct error *error) {
    if (!json_is_array(list))
        return error_set(error, ERROR_ARGUMENT, "tokens", "tokens: expected a list of token ids");
    int64_t vocab = tokenizer_vocab_size(server->model.tokenizer);
    int status = STATUS_OK;
    for (size_t i = 0; i < json_array_size(list) && !status; i++) {
        int32_t id = 0;
        status = ask_read_id(json_array_get(list, i), i, vocab, &id);
        THEN(status, token_buffer_add(ids, id));
    }
    if (status)
        json_in_fail(status, "tokens", error);
    return status == STATUS_OK;
}

static struct strbuf *tell_text(const struct server *server, const struct token_buffer *ids, struct error *error) {
    struct strbuf *out = new_answer(error), text = STRBUF_INIT;
    if (!out)
        return NULL;
    int status = tokenizer_decode(server->model.tokenizer, ids->ids, ids->count, &text);
    strbuf_add_text(out, "{\"prompt\":");
    json_out_string(out, strbuf_text(&text), text.length);
    strbuf_add_char(out, '}');
    out->failed |= status || text.failed; /* the ids are in the vocabulary, so memory was lacking */
    strbuf_free(&text);
    return out;
}

static void *detokenize(const struct route_reader *reader, const char *bytes, size_t length, struct error *error) {
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    json_t *root;
    void *made = NULL;
    if (json_in_read(bytes, length, false, &root, error) && text_job_may_encode(reader->server, error) &&
        read_ids(reader->server, json_object_get(root, "tokens"), &ids, error))
        made = tell_text(reader->server, &ids, error);
    token_buffer_free(&ids);
    json_decref(root);
    return made;
}

static size_t short_ids(const struct server *server) {
    return 4096; /* a token can be many bytes of text */
}

void openai_detokenize(struct exchange *exchange) {
    static const struct route_body body = {
        .short_bytes = short_ids, .read = detokenize, .on_made = answer_made, .drop = drop_answer};
    route_collect(exchange, &body);
}

/* For lm-evaluation-harness: the text of the end-of-text token, and the chat template. */
void openai_tokenizer_info(struct exchange *exchange) {
    const struct openai_model *model = &exchange->request->server->model;
    struct strbuf out = STRBUF_INIT;
    struct error error;
    size_t length = 0;
    if (!text_job_may_encode(exchange->request->server, &error)) {
        route_fail(exchange, &error);
        return;
    }
    const unsigned char *eos = tokenizer_token_bytes(model->tokenizer, model_first_eos(&model->ends), &length);
    strbuf_add_text(&out, "{\"eos_token\":");
    if (eos)
        json_out_string(&out, eos, length);
    else
        strbuf_add_text(&out, "null");
    strbuf_add_text(&out, ",\"bos_token\":null,\"pad_token\":null,\"chat_template\":");
    const struct strbuf *text = model->chat_template ? chat_template_text(model->chat_template) : NULL;
    if (text)
        json_out_string(&out, strbuf_text(text), text->length);
    else
        strbuf_add_text(&out, "null");
    strbuf_add_char(&out, '}');
    route_answer_json(exchange, &out);
}

/* ---- the server ---- */

void route_version(struct exchange *exchange) {
    static const char body[] = "{\"version\":\"" CAMBIUM_VERSION "\"}";
    exchange_answer(exchange, 200, "application/json", body, sizeof body - 1);
}

/* If the loop answers, the process lives. */
void route_health(struct exchange *exchange) {
    static const char body[] = "{\"status\":\"ok\"}";
    exchange_answer(exchange, 200, "application/json", body, sizeof body - 1);
}

void route_ready(struct exchange *exchange) {
    static const char body[] = "{\"status\":\"ready\"}";
    const struct server *server = exchange->request->server;
    struct strbuf out = STRBUF_INIT;
    struct error error;
    if (server_is_ready(server)) {
        exchange_answer(exchange, 200, "application/json", body, sizeof body - 1);
        return;
    }
    if (server->is_draining)
        error_set(&error, ERROR_DRAINING, NULL, "the server is about to stop");
    else
        error_set(&error, ERROR_ENGINE_FAILED, NULL, "%s",
                  server->has_failed ? "the engine has failed" : "the engine is not ready");
    error_add_json(&error, &out); /* a request about readiness is not refused */
    exchange_answer(exchange, error_row(error.which)->http, "application/json", strbuf_text(&out), out.length);
    strbuf_free(&out);
}
