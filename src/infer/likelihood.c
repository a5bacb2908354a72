/* Makes requests for log-probabilities of continuations: encoding, truncation and windows. */
#include "infer/likelihood.h"

#include "unicode/python.h"

struct likelihood_encoder {
    struct tokenizer_encoder *encoder;
    int64_t max_length;
    unsigned flag;             /* TOKENIZER_ALLOW_SPECIAL or TOKENIZER_PLAIN */
    int32_t prefix;            /* stands for an empty context */
    struct strbuf prefix_text; /* a text that begins with it gets no added tokens */
    struct strbuf text;
    struct token_buffer whole, context;
};

int likelihood_list_reserve(struct likelihood_list *list, int64_t count) {
    if ((size_t)count <= list->capacity)
        return STATUS_OK;
    TRY(array_reserve(&list->items, &list->capacity, (size_t)count, sizeof *list->items));
    return STATUS_OK;
}

void likelihood_list_free(struct likelihood_list *list) {
    token_buffer_free(&list->ids);
    free(list->items);
    *list = (struct likelihood_list){0};
}

int likelihood_encoder_open(const struct tokenizer *tokenizer, int64_t max_length, unsigned flag,
                            struct likelihood_encoder **encoder) {
    int32_t bos = tokenizer_bos_id(tokenizer), prefix = bos >= 0 ? bos : tokenizer_eos_id(tokenizer);
    struct likelihood_encoder *made = NULL;
    if (prefix < 0)
        return status_fail(STATUS_INVALID, "the tokenizer has no token for the beginning of a text, nor for its end");
    made = calloc(1, sizeof *made);
    TRY(status_allocated(made));
    made->prefix = prefix;
    made->max_length = max_length;
    made->flag = flag;
    int status = tokenizer_encoder_new(tokenizer, &made->encoder);
    THEN(status, tokenizer_decode(tokenizer, &prefix, 1, &made->prefix_text));
    if (status)
        likelihood_encoder_close(made);
    else
        *encoder = made;
    return status;
}

void likelihood_encoder_close(struct likelihood_encoder *encoder) {
    if (!encoder)
        return;
    tokenizer_encoder_free(encoder->encoder);
    strbuf_free(&encoder->prefix_text);
    strbuf_free(&encoder->text);
    token_buffer_free(&encoder->whole);
    token_buffer_free(&encoder->context);
    free(encoder);
}

/* ---- tokens ---- */

/* Encodes a text. One that begins with the name of the prefix token has it already. */
static int encode(struct likelihood_encoder *e, const char *text, size_t length, struct token_buffer *out) {
    size_t prefix = e->prefix_text.length;
    bool has_prefix = e->flag && length >= prefix && !memcmp(text, strbuf_text(&e->prefix_text), prefix);
    out->count = 0;
    return tokenizer_encode(e->encoder, text, length, e->flag | (has_prefix ? 0 : TOKENIZER_ADD_SPECIAL), out);
}

/* Adds a request of the last tokens of tokens[total], of which the last `wanted` are the continuation. `before`: a
 * token before them, or -1. */
static int add_request(const struct likelihood_encoder *e, int32_t before, const int32_t *tokens, int64_t total,
                       int64_t wanted, struct likelihood_list *list) {
    int64_t first = total > e->max_length + 1 ? total - e->max_length - 1 : 0;
    struct likelihood request = {.start = (int64_t)list->ids.count};
    if (wanted < 1)
        return status_fail(STATUS_INVALID, "a continuation that adds no token");
    if (wanted > e->max_length)
        return status_fail(STATUS_INVALID, "a continuation of %lld tokens: the model sees %lld", (long long)wanted,
                           (long long)e->max_length);
    int status = likelihood_list_reserve(list, list->count + 1);
    THEN_IF(status, before >= 0 && total <= e->max_length, token_buffer_add(&list->ids, before));
    for (int64_t i = first; i < total && !status; i++)
        status = token_buffer_add(&list->ids, tokens[i]);
    request.count = (int64_t)list->ids.count - request.start;
    request.first = request.count - wanted;
    if (!status)
        list->items[list->count++] = request;
    return status;
}

/* A continuation by itself. When it begins with the prefix token, that one is its context. */
static int add_alone(struct likelihood_encoder *e, struct likelihood_text text, struct likelihood_list *list) {
    e->whole.count = 0;
    int status = tokenizer_encode(e->encoder, text.bytes, text.length, e->flag, &e->whole);
    int64_t total = (int64_t)e->whole.count;
    bool has_prefix = total > 0 && e->whole.ids[0] == e->prefix;
    return status       ? status
           : has_prefix ? add_request(e, -1, e->whole.ids, total, total - 1, list)
                        : add_request(e, e->prefix, e->whole.ids, total, total, list);
}

int likelihood_add(struct likelihood_encoder *e, struct likelihood_text context, struct likelihood_text continuation,
                   struct likelihood_list *list) {
    if (!context.length)
        return add_alone(e, continuation, list);
    size_t kept = context.length - python_space_after(context.bytes, context.length);
    strbuf_clear(&e->text);
    strbuf_add(&e->text, context.bytes, context.length);
    strbuf_add(&e->text, continuation.bytes, continuation.length);
    int status = strbuf_status(&e->text);
    THEN(status, encode(e, context.bytes, kept, &e->context));
    THEN(status, encode(e, strbuf_text(&e->text), e->text.length, &e->whole));
    int64_t total = (int64_t)e->whole.count, before = (int64_t)e->context.count;
    return status ? status : add_request(e, before ? -1 : e->prefix, e->whole.ids, total, total - before, list);
}

int likelihood_add_prompt(struct likelihood_encoder *e, struct likelihood_text context, int64_t room,
                          struct likelihood_list *list) {
    struct likelihood request = {.start = (int64_t)list->ids.count};
    int status = encode(e, context.bytes, context.length, &e->whole);
    THEN_IF(status, !e->whole.count, token_buffer_add(&e->whole, e->prefix));
    int64_t total = (int64_t)e->whole.count, first = total > e->max_length - room ? total - (e->max_length - room) : 0;
    for (int64_t i = first; i < total && !status; i++)
        status = token_buffer_add(&list->ids, e->whole.ids[i]);
    THEN(status, likelihood_list_reserve(list, list->count + 1));
    request.count = request.first = (int64_t)list->ids.count - request.start;
    if (!status)
        list->items[list->count++] = request;
    return status;
}

int likelihood_add_rolling(struct likelihood_encoder *e, struct likelihood_text text, struct likelihood_list *list) {
    int status = encode(e, text.bytes, text.length, &e->whole);
    int64_t total = (int64_t)e->whole.count;
    for (int64_t done = 0, wanted; done < total && !status; done += wanted) {
        wanted = total - done < e->max_length ? total - done : e->max_length;
        status = add_request(e, done ? -1 : e->prefix, e->whole.ids, done + wanted, wanted, list);
    }
    return status;
}
