/* Texts and tokens in messages; the methods Tokenize, Detokenize and ServerInfo. */
#include "grpc-internal.h"

#include "route.h"
#include "text_job.h"

#include "base/utf8.h"

/* ---- parts of messages ---- */

int grpc_token_list_fill(struct grpc_token_list *list, const struct call_token *tokens, int64_t count,
                         const struct call_top *tops) {
    size_t top_count = 0, top = 0;
    for (int64_t i = 0; i < count; i++)
        top_count += (size_t)tokens[i].top_count;
    *list = (struct grpc_token_list){
        .tokens = calloc((size_t)count + 1, sizeof *list->tokens),
        .token_list = calloc((size_t)count + 1, sizeof *list->token_list),
        .tops = calloc(top_count + 1, sizeof *list->tops),
        .top_list = calloc(top_count + 1, sizeof *list->top_list),
        .count = (size_t)count,
    };
    if (!list->tokens || !list->token_list || !list->tops || !list->top_list) {
        grpc_token_list_free(list);
        return status_no_memory();
    }
    for (int64_t i = 0; i < count; i++) {
        Cambium__V1__TokenLogprob *token = &list->tokens[i];
        cambium__v1__token_logprob__init(token);
        token->id = (uint32_t)tokens[i].id;
        if (tokens[i].has_logprob) {
            token->_logprob_case = CAMBIUM__V1__TOKEN_LOGPROB___LOGPROB_LOGPROB;
            token->logprob = (double)tokens[i].logprob;
        }
        token->n_top = (size_t)tokens[i].top_count;
        token->top = &list->top_list[top];
        for (int64_t k = 0; k < tokens[i].top_count; k++, top++) {
            cambium__v1__top_logprob__init(&list->tops[top]);
            list->tops[top].id = (uint32_t)tops[tokens[i].first_top + k].id;
            list->tops[top].logprob = (double)tops[tokens[i].first_top + k].logprob;
            list->top_list[top] = &list->tops[top];
        }
        list->token_list[i] = token;
    }
    return STATUS_OK;
}

void grpc_token_list_free(struct grpc_token_list *list) {
    free(list->tokens);
    free(list->token_list);
    free(list->tops);
    free(list->top_list);
    *list = (struct grpc_token_list){0};
}

/* protobuf-c ends a string at its NUL, but writes unknown fields unchanged. A string with a NUL is therefore stored as
 * an unknown field, with its length before it. */
int grpc_text_set(struct grpc_text *text, ProtobufCMessage *message, char **member, uint32_t number, const void *bytes,
                  size_t length) {
    *text = (struct grpc_text){0};
    if (length && memchr(bytes, 0, length)) {
        struct strbuf repaired = STRBUF_INIT;
        utf8_add_repaired(&repaired, bytes, length);
        for (size_t remaining = repaired.length;; remaining >>= 7) {
            strbuf_add_char(&text->text, (char)(remaining < 128 ? remaining : (remaining & 127) | 128));
            if (remaining < 128)
                break;
        }
        strbuf_add(&text->text, strbuf_text(&repaired), repaired.length);
        text->text.failed |= repaired.failed;
        strbuf_free(&repaired);
        text->field = (ProtobufCMessageUnknownField){.tag = number,
                                                     .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
                                                     .len = text->text.length,
                                                     .data = (uint8_t *)text->text.data};
        message->n_unknown_fields = 1;
        message->unknown_fields = &text->field;
    } else {
        utf8_add_repaired(&text->text, bytes, length);
        if (text->text.length)
            *member = text->text.data;
    }
    return strbuf_status(&text->text);
}

void grpc_text_free(struct grpc_text *text) {
    strbuf_free(&text->text);
}

/* ---- Tokenize ---- */

static bool fail_status(int status, const char *field, struct error *error) {
    if (status == STATUS_MEMORY)
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    else
        error_of_status(error, ERROR_ARGUMENT, field);
    return false;
}

bool grpc_tokenize(const struct route_reader *reader, const ProtobufCMessage *message, struct strbuf *packed,
                   struct error *error) {
    const Cambium__V1__TokenizeRequest *asked = (const Cambium__V1__TokenizeRequest *)message;
    Cambium__V1__TokenizeResponse answer = CAMBIUM__V1__TOKENIZE_RESPONSE__INIT;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    if (!text_job_may_encode(reader->server, error))
        return false;
    unsigned flag = asked->_parse_special_case && !asked->parse_special ? TOKENIZER_PLAIN : TOKENIZER_ALLOW_SPECIAL;
    int status = text_job_encode(reader->server, reader->encoder, asked->text, strlen(asked->text),
                                 TOKENIZER_ADD_SPECIAL | flag, &ids);
    answer.n_ids = ids.count;
    answer.ids = (uint32_t *)ids.ids;
    bool is_made = status ? fail_status(status, "text", error) : grpc_pack(&answer.base, packed, error);
    token_buffer_free(&ids);
    return is_made;
}

/* ---- Detokenize ---- */

/* A short list of ids can be a long text: stop when no message could hold it. */
static int add_texts(const struct server *server, const Cambium__V1__DetokenizeRequest *asked, struct strbuf *out) {
    for (size_t i = 0; i < asked->n_ids && out->length <= GRPC_MAX_MESSAGE; i++) {
        size_t length = 0;
        const unsigned char *bytes =
            asked->ids[i] <= INT32_MAX ? tokenizer_token_bytes(server->model.tokenizer, (int32_t)asked->ids[i], &length)
                                       : NULL;
        if (!bytes)
            return status_fail(STATUS_INVALID, "token %zu is not an id from 0 to %d", i,
                               tokenizer_vocab_size(server->model.tokenizer) - 1);
        strbuf_add(out, bytes, length);
    }
    return strbuf_status(out);
}

bool grpc_detokenize(const struct route_reader *reader, const ProtobufCMessage *message, struct strbuf *packed,
                     struct error *error) {
    const Cambium__V1__DetokenizeRequest *asked = (const Cambium__V1__DetokenizeRequest *)message;
    Cambium__V1__DetokenizeResponse answer = CAMBIUM__V1__DETOKENIZE_RESPONSE__INIT;
    struct strbuf bytes = STRBUF_INIT;
    struct grpc_text text = {0};
    if (!text_job_may_encode(reader->server, error))
        return false;
    int status = add_texts(reader->server, asked, &bytes);
    THEN(status, grpc_text_set(&text, &answer.base, &answer.text, 1, strbuf_text(&bytes), bytes.length));
    bool is_made = status ? fail_status(status, "ids", error) : grpc_pack(&answer.base, packed, error);
    strbuf_free(&bytes);
    grpc_text_free(&text);
    return is_made;
}

/* ---- ServerInfo ---- */

void grpc_server_info(struct grpc_call *call, const ProtobufCMessage *message) {
    const struct server *server = grpc_exchange(call)->request->server;
    const struct openai_model *model = &server->model;
    Cambium__V1__ServerInfoResponse answer = CAMBIUM__V1__SERVER_INFO_RESPONSE__INIT;
    answer.version = (char *)CAMBIUM_VERSION;
    answer.n_models = model->name_count;
    answer.models = (char **)model->names;
    answer.max_model_len = (uint32_t)model->max_model_len;
    answer.vocab_size = (uint32_t)model->vocab;
    if (model->ends.count) {
        answer._eos_token_id_case = CAMBIUM__V1__SERVER_INFO_RESPONSE___EOS_TOKEN_ID_EOS_TOKEN_ID;
        answer.eos_token_id = (uint32_t)model_first_eos(&model->ends);
    }
    answer.precision = (char *)model->precision;
    answer.tensor_parallel = (uint32_t)server->options->tensor;
    answer.pipeline_parallel = (uint32_t)server->options->pipeline;
    grpc_answer(call, &answer.base);
}
