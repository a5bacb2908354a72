/* Turns a message of gRPC into a call. Ranges are the same for every protocol (infer/ask.h). */
#include "grpc-internal.h"

#include "openai/json_in.h"
#include "registry.h"

/* The common part of Generate and Score. */
struct input {
    const char *model;
    char *const *adapters;
    size_t adapter_count;
    const char *text; /* NULL: none */
    const Cambium__V1__Tokens *tokens;
};

static struct server *server_of(const struct grpc_call *call) {
    return grpc_exchange(call)->request->server;
}

static bool refuse(struct error *error, const char *field) {
    return error_of_status(error, ERROR_ARGUMENT, field);
}

/* ---- names ---- */

static bool is_base(const struct server *server, const char *name) {
    for (size_t i = 0; i < server->model.name_count; i++)
        if (!strcmp(server->model.names[i], name))
            return true;
    return !*name;
}

static bool read_names(const struct server *server, const struct input *input, struct ask *ask, struct error *error) {
    struct registry_adapter adapter;
    if (!is_base(server, input->model)) {
        if (!registry_seek(server, input->model, &adapter))
            return error_set(error, ERROR_MODEL_NOT_FOUND, "model", "there is no model '%.64s'", input->model);
        ask->adapters[ask->adapter_count++] = input->model;
    }
    if (input->adapter_count > (size_t)(ASK_MAX_ADAPTERS - ask->adapter_count))
        return error_set(error, ERROR_ARGUMENT, "adapters", "expected a list of names of adapters, at most %d",
                         ASK_MAX_ADAPTERS);
    for (size_t i = 0; i < input->adapter_count; i++) {
        if (!registry_seek(server, input->adapters[i], &adapter))
            return error_set(error, ERROR_ADAPTER_NOT_FOUND, "adapters", "there is no adapter '%.64s'",
                             input->adapters[i]);
        ask->adapters[ask->adapter_count++] = input->adapters[i];
    }
    return true;
}

/* ---- prompts ---- */

static bool read_ids(const struct server *server, const Cambium__V1__Tokens *tokens, struct token_buffer *ids,
                     struct error *error) {
    int status = tokens->n_ids ? STATUS_OK : status_fail(STATUS_INVALID, "expected at least one token id");
    for (size_t i = 0; i < tokens->n_ids && !status; i++)
        status = (int64_t)tokens->ids[i] < server->model.vocab
                     ? token_buffer_add(ids, (int32_t)tokens->ids[i])
                     : status_fail(STATUS_INVALID, "token %zu is not an id from 0 to %lld", i,
                                   (long long)server->model.vocab - 1);
    return status ? refuse(error, "tokens.ids") : true;
}

static bool read_prompt(const struct server *server, const struct input *input, struct call_prompt *prompt,
                        struct error *error) {
    if (input->tokens)
        return read_ids(server, input->tokens, &prompt->ids, error);
    if (!input->text)
        return error_set(error, ERROR_ARGUMENT, "input", "expected text or tokens");
    if (!server->model.tokenizer)
        return error_set(error, ERROR_ARGUMENT, "text", "the model has no tokenizer: only tokens can be given");
    prompt->text = input->text;
    prompt->length = strlen(input->text);
    return true;
}

/* ---- settings ---- */

/* Sets the numbers of a request from a message whose fields have the names of infer/ask.h. A number without presence
 * is not given when it is 0. */
static bool set_numbers(struct ask *ask, const ProtobufCMessage *message, struct error *error) {
    const char *bytes = (const char *)message;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const void *value = bytes + field->offset;
        bool has_presence = field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
        int status = STATUS_OK;
        if (field->label == PROTOBUF_C_LABEL_REPEATED ||
            (has_presence && *(const uint32_t *)(const void *)(bytes + field->quantifier_offset) != field->id))
            continue;
        if (field->type == PROTOBUF_C_TYPE_FLOAT && (has_presence || *(const float *)value != 0))
            status = ask_set_number(ask, field->name, (double)*(const float *)value);
        else if (field->type == PROTOBUF_C_TYPE_UINT32 && (has_presence || *(const uint32_t *)value))
            status = ask_set_integer(ask, field->name, *(const uint32_t *)value);
        else if (field->type == PROTOBUF_C_TYPE_INT32 && (has_presence || *(const int32_t *)value))
            status = ask_set_integer(ask, field->name, *(const int32_t *)value);
        if (status)
            return refuse(error, field->name);
    }
    return true;
}

/* An id outside every vocabulary stays outside. */
static int32_t id_of(uint32_t id) {
    return id > INT32_MAX ? INT32_MAX : (int32_t)id;
}

static bool read_sampling(struct ask *ask, const Cambium__V1__Sampling *sampling, struct error *error) {
    if (!set_numbers(ask, &sampling->base, error))
        return false;
    if (sampling->_seed_case) {
        ask->sampling.seed = sampling->seed;
        ask->has_seed = true;
    }
    if (ask_reserve_bias(ask, sampling->n_logit_bias))
        return refuse(error, "logit_bias");
    for (size_t i = 0; i < sampling->n_logit_bias; i++)
        ask->bias[i] =
            (struct logit_bias){.id = id_of(sampling->logit_bias[i]->id), .bias = sampling->logit_bias[i]->bias};
    return true;
}

static bool read_lists(struct ask *ask, const Cambium__V1__GenerateRequest *asked, struct error *error) {
    if (ask_reserve_stops(ask, asked->n_stop))
        return refuse(error, "stop");
    for (size_t i = 0; i < asked->n_stop; i++)
        ask->stop[i] = (struct writer_string){.bytes = asked->stop[i], .length = strlen(asked->stop[i])};
    if (ask_reserve_stop_ids(ask, asked->n_stop_token_ids))
        return refuse(error, "stop_token_ids");
    for (size_t i = 0; i < asked->n_stop_token_ids; i++)
        ask->stop_ids[i] = id_of(asked->stop_token_ids[i]);
    return true;
}

/* The texts of a choice as a list of JSON. */
static int take_choice(struct ask *ask, const Cambium__V1__Choice *choice) {
    char *text;
    json_begin();
    json_t *list = json_array();
    for (size_t i = 0; i < choice->n_texts; i++)
        json_array_append_new(list, json_string(choice->texts[i]));
    TRY(json_end(list, JSON_COMPACT, &text));
    int status = ask_constraint_take(&ask->constraint, "constraint", GRAMMAR_CHOICE, text, strlen(text));
    free(text);
    return status;
}

static int read_constraint(struct ask *ask, const Cambium__V1__Constraint *constraint) {
    static const enum grammar_kind kinds[] = {
        [CAMBIUM__V1__CONSTRAINT__KIND_JSON_SCHEMA] = GRAMMAR_JSON_SCHEMA,
        [CAMBIUM__V1__CONSTRAINT__KIND_REGEX] = GRAMMAR_REGEX,
        [CAMBIUM__V1__CONSTRAINT__KIND_GRAMMAR] = GRAMMAR_GBNF,
        [CAMBIUM__V1__CONSTRAINT__KIND_STRUCTURAL_TAG] = GRAMMAR_TAG,
    };
    int status = STATUS_OK;
    if (constraint->kind_case == CAMBIUM__V1__CONSTRAINT__KIND_CHOICE)
        status = take_choice(ask, constraint->choice);
    else if (constraint->kind_case == CAMBIUM__V1__CONSTRAINT__KIND_JSON_OBJECT && constraint->json_object)
        status = ask_constraint_take(&ask->constraint, "constraint", GRAMMAR_JSON_OBJECT, "", 0);
    else if (constraint->kind_case && constraint->kind_case != CAMBIUM__V1__CONSTRAINT__KIND_JSON_OBJECT)
        status = ask_constraint_take(&ask->constraint, "constraint", kinds[constraint->kind_case], constraint->regex,
                                     strlen(constraint->regex)); /* all texts have one place */
    ask->constraint.source.is_compact = constraint->compact;
    return status;
}

static bool read_settings(struct ask *ask, const Cambium__V1__GenerateRequest *asked, int64_t vocab,
                          struct error *error) {
    const char *field;
    ask->ignore_eos = asked->ignore_eos;
    ask->has_parse_special = asked->_parse_special_case;
    ask->parse_special = asked->parse_special;
    if (!set_numbers(ask, &asked->base, error) || (asked->sampling && !read_sampling(ask, asked->sampling, error)) ||
        !read_lists(ask, asked, error))
        return false;
    if (asked->constraint && read_constraint(ask, asked->constraint))
        return refuse(error, "constraint");
    return ask_check(ask, vocab, &field) ? refuse(error, field) : true;
}

/* ---- tools ---- */

/* Reads JSON; an empty text is none, and a word is a string. */
static bool read_json(const char *text, bool may_be_word, const char *field, json_t **value, struct error *error) {
    json_error_t bad;
    size_t length = strlen(text);
    bool is_word = may_be_word && length && !strpbrk(text, "{[\"");
    *value = NULL;
    if (!length)
        return true;
    if (!is_word && !json_in_is_bounded(text, length, error))
        return false;
    int status = is_word ? STATUS_OK : json_read(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, value, &bad);
    if (is_word && !(*value = json_string(text)))
        status = status_no_memory();
    if (status == STATUS_INVALID)
        status_fail(status, "column %d: bad JSON: %s", bad.column, bad.text);
    if (status)
        json_in_fail(status, field, error);
    return !status;
}

/* Reads the tools. The base's template gives the format of calls. */
static bool read_tools(struct call *made, const Cambium__V1__GenerateRequest *asked, struct error *error) {
    const struct openai_model *model = &made->server->model;
    struct call_prompt *prompt = &made->request.prompts[0];
    json_t *tools = NULL, *choice = NULL;
    bool is_right = read_json(asked->tools, false, "tools", &tools, error) &&
                    read_json(asked->tool_choice, true, "tool_choice", &choice, error);
    made->texts = json_pack("[o?, o?]", tools, choice);
    if (is_right && !made->texts)
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    if (!is_right || !openai_tools_read(&made->tools, tools, choice, NULL, error))
        return false;
    if (made->tools.choice == TOOLS_NONE)
        return true;
    prompt->tool_format = model->tool_format ? model->tool_format : tool_format_of(model->chat_template);
    if (!model->has_no_reasoning && chat_may_think(model->chat_template))
        prompt->thought = chat_thought_of_text(prompt->text ? prompt->text : "", prompt->length);
    made->request.tools = &made->tools;
    return true;
}

/* ---- calls ---- */

static struct call *begin(struct grpc_call *call) {
    const struct exchange *exchange = grpc_exchange(call);
    struct call_request request;
    struct call *made = call_request_begin(&request, 1) ? NULL : call_new(exchange->request->server, &request);
    if (!made) {
        call_request_free(&request);
        grpc_finish_memory(call);
        return NULL;
    }
    made->id = exchange->request->id;
    made->client = exchange->request->client;
    made->turn_owner = request_owner(exchange);
    made->deadline = grpc_deadline(call);
    return made;
}

static struct call *give(struct grpc_call *call, struct call *made, bool is_right, const struct error *error) {
    if (is_right)
        return made;
    call_free(made, ERROR_NONE);
    grpc_finish(call, error);
    return NULL;
}

struct call *grpc_ask_generate(struct grpc_call *call, const Cambium__V1__GenerateRequest *asked) {
    const struct input input = {
        .model = asked->model,
        .adapters = asked->adapters,
        .adapter_count = asked->n_adapters,
        .text = asked->input_case == CAMBIUM__V1__GENERATE_REQUEST__INPUT_TEXT ? asked->text : NULL,
        .tokens = asked->input_case == CAMBIUM__V1__GENERATE_REQUEST__INPUT_TOKENS ? asked->tokens : NULL,
    };
    const struct server *server = server_of(call);
    struct call *made = begin(call);
    struct error error;
    if (!made)
        return NULL;
    if (*asked->cache_salt) {
        made->request.cache_salt = asked->cache_salt;
        made->request.cache_salt_length = strlen(asked->cache_salt);
    }
    bool is_right = read_names(server, &input, &made->request.ask, &error) &&
                    read_settings(&made->request.ask, asked, server->model.vocab, &error) &&
                    read_prompt(server, &input, &made->request.prompts[0], &error) && read_tools(made, asked, &error);
    return give(call, made, is_right, &error);
}

/* Only the prompt's tokens are needed: the request generates none. */
struct call *grpc_ask_score(struct grpc_call *call, const Cambium__V1__ScoreRequest *asked) {
    const struct input input = {
        .model = asked->model,
        .adapters = asked->adapters,
        .adapter_count = asked->n_adapters,
        .text = asked->input_case == CAMBIUM__V1__SCORE_REQUEST__INPUT_TEXT ? asked->text : NULL,
        .tokens = asked->input_case == CAMBIUM__V1__SCORE_REQUEST__INPUT_TOKENS ? asked->tokens : NULL,
    };
    const struct server *server = server_of(call);
    struct call *made = begin(call);
    struct error error;
    if (!made)
        return NULL;
    bool is_right = read_names(server, &input, &made->request.ask, &error) &&
                    read_prompt(server, &input, &made->request.prompts[0], &error);
    made->request.ask.max_tokens = 0;
    made->request.ask.has_parse_special = asked->_parse_special_case;
    made->request.ask.parse_special = asked->parse_special;
    if (is_right && ask_set_integer(&made->request.ask, "prompt_logprobs", asked->top))
        is_right = refuse(&error, "top");
    return give(call, made, is_right, &error);
}
