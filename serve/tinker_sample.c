/* Samplers, and the samples that they draw. A sample is a call like any other (call.h). What a target of a prompt has
 * as its log-probability is a draw, too: of one token after the tokens before it, with a bias that leaves no choice.
 * The log-probabilities of draws are those of the plain logits, and the prompt's keys and values are cached. */
#include "tinker-internal.h"

#include "call.h"

#include "openai/json_in.h"

#include "base/base.h"

#include <math.h>

enum { TARGETS_MOST = 4096 /* of a request */, TARGETS_AT_ONCE = 32 };
static const float forcing = 1e9f, no_logprob = -99999;

/* Tokens with their log-probabilities, and the likeliest k at each place. */
struct drawn {
    struct strbuf tokens, logprobs, top_tokens, top_logprobs;
    bool is_stop;
};

struct target {
    int64_t place; /* of the token in the prompt */
    int32_t id;
};

struct tinker_sample {
    struct server *server;
    struct exchange *exchange; /* waits for the answer to the request; NULL: it was answered */
    struct tinker_future *future;
    struct call *call;
    char id[TINKER_PATH_BYTES];
    char adapter[ADAPTER_NAME_BYTES]; /* "": the base */
    struct key_holder client;
    uint64_t owner;
    int64_t choices, top, prompt_top; /* top, prompt_top: how many of the likeliest tokens are wanted */
    bool wants_prompt;
    int64_t last;        /* of the prompt's tokens, how many are wanted */
    struct drawn prompt; /* of the prompt */
    struct drawn *drawn; /* [choices] */
    int64_t cached;
    struct token_buffer ids; /* the prompt */
    bool has_targets, is_sparse;
    struct target *targets;               /* [target_count] in the order of the request; id -1: nothing is wanted */
    int64_t target_count, columns, begun; /* begun: their draws that were asked for */
    int64_t *order;                       /* [target_count] by id */
    float *target_logprobs;               /* [target_count] */
    struct strbuf crow, column;           /* of a sparse tensor */
};

/* ---- the end ---- */

static void free_drawn(struct drawn *drawn) {
    strbuf_free(&drawn->tokens);
    strbuf_free(&drawn->logprobs);
    strbuf_free(&drawn->top_tokens);
    strbuf_free(&drawn->top_logprobs);
}

static void free_sample(struct tinker_sample *sample) {
    free_drawn(&sample->prompt);
    for (int64_t i = 0; i < sample->choices && sample->drawn; i++)
        free_drawn(&sample->drawn[i]);
    free(sample->drawn);
    token_buffer_free(&sample->ids);
    free(sample->targets);
    free(sample->order);
    free(sample->target_logprobs);
    strbuf_free(&sample->crow);
    strbuf_free(&sample->column);
    free(sample);
}

/* Ends a sample that nobody waits for. */
static void cancel(struct tinker_sample *sample) {
    if (sample->exchange) {
        struct exchange *exchange = sample->exchange;
        exchange->context = NULL;
        route_fail(exchange, AN_ERROR(ERROR_CANCELLED, NULL, "the session has ended"));
    }
    call_free(sample->call, ERROR_CANCELLED);
    free_sample(sample);
}

static void on_close(struct exchange *exchange) {
    struct tinker_sample *sample = exchange->context;
    if (sample)
        sample->exchange = NULL;
}

/* Answers the request. */
static void answer(struct exchange *exchange, const struct tinker_future *future, int64_t choices) {
    char id[TINKER_PATH_BYTES + 24];
    json_t *ids = json_array();
    for (int64_t i = 0; i < choices; i++) {
        snprintf(id, sizeof id, "%s:%lld", future->id, (long long)i);
        json_array_append_new(ids, json_string(id));
    }
    route_answer_object(exchange, json_pack("{s:s, s:o}", "request_id", future->id, "sample_sequence_ids", ids));
}

static void answer_waiting(struct tinker_sample *sample) {
    struct exchange *exchange = sample->exchange;
    sample->exchange = NULL;
    if (!exchange)
        return;
    exchange->context = NULL;
    answer(exchange, sample->future, sample->choices);
}

/* Its call has ended. A client whose request was not taken yet sends it again; another one gets a future that fails. */
static void fail_sample(struct tinker_sample *sample, const struct error *error) {
    struct tinker_future *future = sample->future;
    bool is_refused = sample->exchange && error->which == ERROR_OVERLOADED;
    future->sample = NULL;
    if (is_refused) {
        sample->exchange->context = NULL;
        route_fail(sample->exchange, error);
        tinker_future_free(future);
    } else {
        answer_waiting(sample);
        tinker_future_fail(future, error);
    }
    free_sample(sample);
}

/* ---- results ---- */

static ProtobufCBinaryData bytes_of(const struct strbuf *buffer) {
    return (ProtobufCBinaryData){.len = buffer->length, .data = (uint8_t *)buffer->data};
}

static TinkerPublic__TopkLogprobs top_of(const struct drawn *drawn, int64_t k) {
    TinkerPublic__TopkLogprobs top = TINKER_PUBLIC__TOPK_LOGPROBS__INIT;
    top.token_ids = bytes_of(&drawn->top_tokens);
    top.logprobs = bytes_of(&drawn->top_logprobs);
    top.k = (uint32_t)k;
    top.length = (uint32_t)(drawn->logprobs.length / sizeof(float));
    return top;
}

static void add_sequence(const struct tinker_sample *sample, int64_t choice, struct strbuf *out) {
    TinkerPublic__SampledSequence sequence = TINKER_PUBLIC__SAMPLED_SEQUENCE__INIT, *sequences[] = {&sequence};
    TinkerPublic__SampleResponse message = TINKER_PUBLIC__SAMPLE_RESPONSE__INIT;
    const struct drawn *drawn = &sample->drawn[choice];
    TinkerPublic__TopkLogprobs top = top_of(drawn, sample->top);
    sequence.stop_reason =
        drawn->is_stop ? TINKER_PUBLIC__STOP_REASON__STOP_REASON_STOP : TINKER_PUBLIC__STOP_REASON__STOP_REASON_LENGTH;
    sequence.tokens = bytes_of(&drawn->tokens);
    sequence.logprobs = bytes_of(&drawn->logprobs);
    sequence.topk_sampled_logprobs = sample->top ? &top : NULL;
    message.n_sequences = 1;
    message.sequences = sequences;
    tinker_pack(&message.base, out);
}

/* Makes the answer's target_prompt_logprobs, in the layout of the request. */
static void set_targets(const struct tinker_sample *sample, TinkerPublic__Tensor *tensor,
                        TinkerPublic__SparseCsr *sparse, int64_t shape[2]) {
    ProtobufCBinaryData values = {.len = (size_t)sample->target_count * sizeof(float),
                                  .data = (uint8_t *)sample->target_logprobs};
    shape[0] = (int64_t)sample->ids.count - 1;
    shape[1] = sample->columns;
    tensor->dtype = TINKER_PUBLIC__DTYPE__DTYPE_FLOAT32;
    tensor->n_shape = 2;
    tensor->shape = shape;
    if (sample->is_sparse) {
        tensor->layout_case = TINKER_PUBLIC__TENSOR__LAYOUT_SPARSE_CSR;
        tensor->sparse_csr = sparse;
        sparse->values = values;
        sparse->crow_indices = bytes_of(&sample->crow);
        sparse->col_indices = bytes_of(&sample->column);
    } else {
        tensor->layout_case = TINKER_PUBLIC__TENSOR__LAYOUT_DENSE;
        tensor->dense = values;
    }
}

static void finish(struct tinker_sample *sample) {
    TinkerPublic__SampleResponse message = TINKER_PUBLIC__SAMPLE_RESPONSE__INIT;
    TinkerPublic__TopkLogprobs top = top_of(&sample->prompt, sample->prompt_top);
    TinkerPublic__Tensor targets = TINKER_PUBLIC__TENSOR__INIT;
    TinkerPublic__SparseCsr sparse = TINKER_PUBLIC__SPARSE_CSR__INIT;
    struct tinker_future *future = sample->future;
    struct strbuf out = STRBUF_INIT;
    int64_t shape[2];
    message.prompt_cache_hit_tokens = (int32_t)sample->cached;
    if (sample->wants_prompt)
        message.prompt_logprobs = bytes_of(&sample->prompt.logprobs);
    if (sample->prompt_top)
        message.topk_prompt_logprobs = &top;
    if (sample->has_targets) {
        set_targets(sample, &targets, &sparse, shape);
        message.target_prompt_logprobs = &targets;
    }
    out.failed = sample->prompt.logprobs.failed || sample->prompt.top_logprobs.failed;
    for (int64_t i = 0; i < sample->choices; i++) {
        out.failed |= sample->drawn[i].tokens.failed || sample->drawn[i].top_logprobs.failed;
        add_sequence(sample, i, &out);
    }
    tinker_pack(&message.base, &out);
    future->sample = NULL;
    answer_waiting(sample);
    free_sample(sample);
    tinker_future_message(future, &out);
}

/* ---- updates ---- */

static void add_token(struct drawn *drawn, const struct call_token *token, const struct call_top *tops, int64_t k) {
    float logprob = token->has_logprob ? token->logprob : NAN;
    strbuf_add(&drawn->tokens, &token->id, sizeof token->id);
    strbuf_add(&drawn->logprobs, &logprob, sizeof logprob);
    for (int64_t i = 0; i < k; i++) {
        bool is_there = i < token->top_count;
        int32_t id = is_there ? tops[token->first_top + i].id : 0;
        float value = is_there ? tops[token->first_top + i].logprob : no_logprob;
        strbuf_add(&drawn->top_tokens, &id, sizeof id);
        strbuf_add(&drawn->top_logprobs, &value, sizeof value);
    }
}

/* A place of the prompt that is not wanted has no numbers. */
static void add_prompt_token(struct tinker_sample *sample, const struct call_token *token,
                             const struct call_top *tops) {
    struct call_token shown = *token;
    int64_t place = (int64_t)(sample->prompt.logprobs.length / sizeof(float));
    if (place < (int64_t)sample->ids.count - sample->last) {
        shown.has_logprob = false;
        shown.top_count = 0;
    }
    add_token(&sample->prompt, &shown, tops, sample->prompt_top);
}

static void next_targets(struct tinker_sample *sample);

/* Frees a call that is done, and takes the next step. */
static void end_call(struct tinker_sample *sample, struct error error) {
    call_free(sample->call, error.which);
    sample->call = NULL;
    if (error.which)
        fail_sample(sample, &error);
    else
        next_targets(sample);
}

static void on_update(struct call *call, const struct call_update *update) {
    struct tinker_sample *sample = call->context;
    struct error error = update->error;
    for (int64_t p = 0; p < update->piece_count; p++) {
        const struct call_piece *piece = &update->pieces[p];
        for (int64_t t = piece->first_token; t < piece->first_token + piece->token_count; t++)
            if (piece->choice < 0)
                add_prompt_token(sample, &update->tokens[t], update->tops);
            else
                add_token(&sample->drawn[piece->choice], &update->tokens[t], update->tops, sample->top);
    }
    for (int64_t i = 0; i < update->end_count; i++) {
        const struct call_end *end = &update->ends[i];
        struct drawn *drawn = &sample->drawn[end->choice];
        drawn->is_stop = end->is_stop;
        if (end->has_token)
            add_token(drawn, &end->token, update->tops, sample->top);
    }
    for (int64_t i = 0; i < update->start_count; i++)
        sample->cached = update->starts[i].cached;
    if (update->is_accepted)
        answer_waiting(sample);
    if (update->is_done)
        end_call(sample, error);
}

/* ---- asking ---- */

/* Submits a call. Returns false without memory. */
static bool start(struct tinker_sample *sample, struct call_request *request,
                  void (*of)(struct call *call, const struct call_update *update)) {
    struct ask *ask = &request->ask;
    if (*sample->adapter)
        ask->adapters[ask->adapter_count++] = sample->adapter;
    if (!ask_draw_seed(ask))
        sample->call = call_new(sample->server, request);
    if (!sample->call) {
        call_request_free(request);
        return false;
    }
    sample->call->id = sample->id;
    sample->call->client = sample->client;
    sample->call->turn_owner = sample->owner;
    sample->call->on_update = of;
    sample->call->context = sample;
    return true;
}

/* Takes the log-probabilities of forced draws: that of prompt p is of the p-th of them. */
static void on_target_update(struct call *call, const struct call_update *update) {
    struct tinker_sample *sample = call->context;
    struct error error = update->error;
    int64_t first = sample->begun - call->request.prompt_count;
    for (int64_t p = 0; p < update->piece_count; p++)
        if (update->pieces[p].token_count)
            sample->target_logprobs[sample->order[first + update->pieces[p].prompt]] =
                update->tokens[update->pieces[p].first_token].logprob;
    for (int64_t i = 0; i < update->end_count; i++)
        if (update->ends[i].has_token)
            sample->target_logprobs[sample->order[first + update->ends[i].prompt]] = update->ends[i].token.logprob;
    if (update->is_done)
        end_call(sample, error);
}

static int fill_targets(const struct tinker_sample *sample, struct call_request *request, int64_t count) {
    struct ask *ask = &request->ask;
    ask->max_tokens = 1;
    ask->logprobs = 0;
    ask->sampling.temperature = 0;
    TRY(ask_reserve_bias(ask, 1));
    ask->bias[0] = (struct logit_bias){.id = sample->targets[sample->order[sample->begun]].id, .bias = forcing};
    for (int64_t p = 0; p < count; p++) {
        const struct target *target = &sample->targets[sample->order[sample->begun + p]];
        for (int64_t i = 0; i < target->place; i++)
            TRY(token_buffer_add(&request->prompts[p].ids, sample->ids.ids[i]));
    }
    return STATUS_OK;
}

/* Draws the next targets that have one id; at the end the sample is done. */
static void next_targets(struct tinker_sample *sample) {
    struct call_request request = {0};
    int64_t count = 0, most = sample->server->model.most_texts;
    most = most < TARGETS_AT_ONCE ? most : TARGETS_AT_ONCE;
    while (sample->begun < sample->target_count && sample->targets[sample->order[sample->begun]].id < 0)
        sample->target_logprobs[sample->order[sample->begun++]] = NAN;
    while (sample->begun + count < sample->target_count && count < most &&
           sample->targets[sample->order[sample->begun + count]].id == sample->targets[sample->order[sample->begun]].id)
        count++;
    if (!count) {
        finish(sample);
        return;
    }
    int status = call_request_begin(&request, count);
    THEN(status, fill_targets(sample, &request, count));
    sample->begun += count;
    if (status)
        call_request_free(&request);
    if (status || !start(sample, &request, on_target_update)) {
        fail_sample(sample, AN_ERROR(ERROR_INTERNAL, NULL, "out of memory"));
        return;
    }
    call_submit(sample->call);
}

/* ---- reading a request: refusals are futures that fail ---- */

static bool read_prompt(struct tinker_sample *sample, const json_t *prompt, int64_t vocab, struct error *error) {
    const json_t *chunks = json_object_get(prompt, "chunks");
    for (size_t c = 0; c < json_array_size(chunks); c++) {
        const json_t *chunk = json_array_get(chunks, c), *tokens = json_object_get(chunk, "tokens");
        const json_t *type = json_object_get(chunk, "type");
        if (!json_is_array(tokens) || (type && !json_in_is(type, "encoded_text")))
            return error_set(error, ERROR_ARGUMENT, "prompt", "prompt.chunks[%zu]: expected encoded_text", c);
        for (size_t i = 0; i < json_array_size(tokens); i++) {
            int32_t id = 0;
            int status = ask_read_id(json_array_get(tokens, i), i, vocab, &id);
            THEN(status, token_buffer_add(&sample->ids, id));
            if (status) {
                json_in_fail(status, "prompt", error);
                return false;
            }
        }
    }
    return sample->ids.count || error_set(error, ERROR_ARGUMENT, "prompt", "prompt: expected at least one token");
}

static bool read_field(struct ask *ask, const char *field, const char *name, const json_t *value, int64_t vocab,
                       struct error *error) {
    bool is_known;
    int status = value ? ask_read_field(ask, field, value, vocab, &is_known) : STATUS_OK;
    if (status)
        json_in_fail(status, name, error);
    return !status;
}

/* `stop`: null leaves the end-of-text, an empty list has no end, and texts or ids end a sample, too. */
static bool read_stop(struct ask *ask, const json_t *stop, int64_t vocab, struct error *error) {
    ask->ignore_eos = json_is_array(stop) && !json_array_size(stop);
    if (!stop || json_is_null(stop) || ask->ignore_eos)
        return true;
    return read_field(ask, json_is_integer(json_array_get(stop, 0)) ? "stop_token_ids" : "stop", "stop", stop, vocab,
                      error);
}

static bool read_parameters(struct ask *ask, const json_t *parameters, int64_t vocab, struct error *error) {
    static const char *const names[] = {"max_tokens", "seed", "temperature", "top_k", "top_p"};
    bool is_right = true;
    for (size_t i = 0; i < sizeof names / sizeof *names && is_right; i++)
        is_right = read_field(ask, names[i], names[i], json_object_get(parameters, names[i]), vocab, error);
    return is_right && read_stop(ask, json_object_get(parameters, "stop"), vocab, error);
}

static bool read_lists(const json_t *list, const char *name, struct strbuf *out, struct error *error) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!json_is_integer(json_array_get(list, i)))
            return error_set(error, ERROR_ARGUMENT, "target_prompt_logprobs",
                             "target_prompt_logprobs.%s: expected integers", name);
        int64_t value = json_integer_value(json_array_get(list, i));
        strbuf_add(out, &value, sizeof value);
    }
    return true;
}

static int64_t index_at(const struct strbuf *list, size_t i) {
    int64_t value;
    memcpy(&value, list->data + i * sizeof value, sizeof value);
    return value;
}

/* Gives each cell its place in the prompt: row i scores token i + 1. */
static bool place_targets(struct tinker_sample *sample, int64_t rows, struct error *error) {
    int64_t count = sample->target_count;
    size_t crows = sample->crow.length / sizeof(int64_t), columns = sample->column.length / sizeof(int64_t);
    for (int64_t i = 0; i < count && !sample->is_sparse; i++)
        sample->targets[i].place = i / sample->columns + 1;
    if (!sample->is_sparse)
        return true;
    bool is_right = crows == (size_t)rows + 1 && columns == (size_t)count;
    for (size_t row = 0; row <= (size_t)rows && is_right; row++) {
        int64_t at = index_at(&sample->crow, row), before = row ? index_at(&sample->crow, row - 1) : 0;
        is_right = at >= before && at <= count && (row || !at) && (row < (size_t)rows || at == count);
        for (int64_t i = before; i < at && is_right; i++)
            sample->targets[i].place = (int64_t)row;
    }
    for (size_t i = 0; i < columns && is_right; i++)
        is_right = index_at(&sample->column, i) >= 0 && index_at(&sample->column, i) < sample->columns;
    return is_right || error_set(error, ERROR_ARGUMENT, "target_prompt_logprobs",
                                 "target_prompt_logprobs: its indices are none of %lld rows of %lld columns",
                                 (long long)rows, (long long)sample->columns);
}

static int compare_targets(const void *a, const void *b, void *context) {
    const struct target *targets = context;
    int32_t x = targets[*(const int64_t *)a].id, y = targets[*(const int64_t *)b].id;
    return (x > y) - (x < y);
}

static bool read_targets(struct tinker_sample *sample, const json_t *tensor, int64_t vocab, struct error *error) {
    const json_t *data = json_object_get(tensor, "data"), *shape = json_object_get(tensor, "shape");
    const json_t *crow = json_object_get(tensor, "sparse_crow_indices");
    int64_t rows = (int64_t)sample->ids.count - 1, count = (int64_t)json_array_size(data);
    if (!tensor || json_is_null(tensor))
        return true;
    sample->has_targets = true;
    sample->is_sparse = json_is_array(crow);
    sample->columns = json_integer_value(json_array_get(shape, 1));
    if (json_array_size(shape) != 2 || json_integer_value(json_array_get(shape, 0)) != rows || sample->columns < 1 ||
        sample->columns > INT32_MAX || count < 1 || (!sample->is_sparse && count != rows * sample->columns))
        return error_set(error, ERROR_ARGUMENT, "target_prompt_logprobs",
                         "target_prompt_logprobs: expected the shape [%lld, K], with at least one id", (long long)rows);
    if (count > TARGETS_MOST)
        return error_set(error, ERROR_ARGUMENT, "target_prompt_logprobs",
                         "target_prompt_logprobs: %lld ids, at most %d", (long long)count, TARGETS_MOST);
    sample->targets = calloc((size_t)count, sizeof *sample->targets);
    sample->order = calloc((size_t)count, sizeof *sample->order);
    sample->target_logprobs = calloc((size_t)count, sizeof *sample->target_logprobs);
    if (!sample->targets || !sample->order || !sample->target_logprobs)
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    sample->target_count = count;
    for (int64_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(data, (size_t)i);
        if (!json_is_integer(id) || json_integer_value(id) < -1 || json_integer_value(id) >= vocab)
            return error_set(error, ERROR_ARGUMENT, "target_prompt_logprobs",
                             "target_prompt_logprobs[%lld]: expected -1, or an id below %lld", (long long)i,
                             (long long)vocab);
        sample->targets[i].id = (int32_t)json_integer_value(id);
        sample->order[i] = i;
    }
    if (!read_lists(crow, "sparse_crow_indices", &sample->crow, error) ||
        !read_lists(json_object_get(tensor, "sparse_col_indices"), "sparse_col_indices", &sample->column, error) ||
        !place_targets(sample, rows, error))
        return false;
    qsort_r(sample->order, (size_t)count, sizeof *sample->order, compare_targets, sample->targets);
    return true;
}

static bool refuse_others(const json_t *root, struct error *error) {
    int64_t k = 0;
    bool records = false;
    if (!json_in_integer(json_object_get(root, "prompt_alt_tokens_k"), "prompt_alt_tokens_k", 0, INT32_MAX, &k,
                         error) ||
        !json_in_bool(json_object_get(root, "record_stability_info"), "record_stability_info", &records, error))
        return false;
    if (k)
        return error_set(error, ERROR_ARGUMENT, "prompt_alt_tokens_k", "prompt_alt_tokens_k: it is not supported");
    return !records ||
           error_set(error, ERROR_ARGUMENT, "record_stability_info", "record_stability_info: it is not supported");
}

static bool read_request(struct tinker_sample *sample, const json_t *root, struct call_request *request,
                         struct error *error) {
    int64_t vocab = sample->server->model.vocab;
    struct ask *ask = &request->ask;
    if (!read_prompt(sample, json_object_get(root, "prompt"), vocab, error))
        return false;
    sample->last = (int64_t)sample->ids.count;
    if (!json_in_bool(json_object_get(root, "prompt_logprobs"), "prompt_logprobs", &sample->wants_prompt, error) ||
        !json_in_integer(json_object_get(root, "topk_prompt_logprobs"), "topk_prompt_logprobs", 0, ASK_MAX_TOP,
                         &sample->prompt_top, error) ||
        !json_in_integer(json_object_get(root, "topk_sample_logprobs"), "topk_sample_logprobs", 0, ASK_MAX_TOP,
                         &sample->top, error) ||
        !json_in_integer(json_object_get(root, "prompt_logprobs_last_n"), "prompt_logprobs_last_n", 1, sample->last,
                         &sample->last, error) ||
        !read_parameters(ask, json_object_get(root, "sampling_params"), vocab, error) ||
        !read_targets(sample, json_object_get(root, "target_prompt_logprobs"), vocab, error) ||
        !refuse_others(root, error))
        return false;
    ask->choices = sample->choices;
    ask->logprobs = sample->top;
    if (sample->wants_prompt || sample->prompt_top)
        ask->prompt_logprobs = sample->prompt_top;
    for (size_t i = 0; i < sample->ids.count; i++)
        if (token_buffer_add(&request->prompts[0].ids, sample->ids.ids[i]))
            return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    return true;
}

/* Makes a sample of a future, and begins it. A request that is refused is a future that has failed. */
static bool begin(struct exchange *exchange, const struct tinker_sampler *sampler, struct tinker_future *future,
                  const json_t *root, int64_t choices) {
    static const struct exchange_handler waiting = {.on_close = on_close};
    struct tinker_sample *sample = calloc(1, sizeof *sample);
    struct call_request request = {0};
    struct error error;
    if (!sample)
        return false;
    *sample = (struct tinker_sample){.server = exchange->request->server,
                                     .future = future,
                                     .client = exchange->request->client,
                                     .owner = request_owner(exchange),
                                     .choices = choices,
                                     .drawn = calloc((size_t)choices, sizeof *sample->drawn)};
    snprintf(sample->id, sizeof sample->id, "%s", future->id);
    snprintf(sample->adapter, sizeof sample->adapter, "%s", sampler->adapter);
    bool has_memory = sample->drawn && !call_request_begin(&request, 1);
    bool is_right = has_memory && read_request(sample, root, &request, &error);
    if (!is_right)
        call_request_free(&request);
    if (is_right && !start(sample, &request, on_update))
        has_memory = false;
    if (!has_memory || !is_right) {
        free_sample(sample);
        if (has_memory) {
            tinker_future_fail(future, &error);
            answer(exchange, future, choices);
        }
        return has_memory;
    }
    future->sample = sample;
    future->cancel = cancel;
    sample->exchange = exchange;
    sample->call->texts = json_incref((json_t *)root); /* the stop strings are in it */
    route_continue(exchange, &waiting, sample);
    call_submit(sample->call);
    return true;
}

bool tinker_take_sample(struct exchange *exchange, const json_t *root, struct error *error) {
    const char *sampler_id = NULL;
    char id[TINKER_PATH_BYTES];
    int64_t seq = 0, choices = 1;
    if (!json_in_string(json_object_get(root, "sampling_session_id"), "sampling_session_id", &sampler_id, error) ||
        !json_in_integer(json_object_get(root, "seq_id"), "seq_id", 0, INT64_MAX, &seq, error) ||
        !json_in_integer(json_object_get(root, "num_samples"), "num_samples", 1, ASK_MAX_CHOICES, &choices, error))
        return false;
    const struct tinker_sampler *sampler = tinker_sampler_of(exchange, sampler_id ? sampler_id : "", error);
    if (!sampler)
        return false;
    snprintf(id, sizeof id, "%s:%lld", sampler->id, (long long)seq);
    struct tinker_future *future = tinker_future_find(exchange, id);
    if (future) { /* the same request again */
        answer(exchange, future, choices);
        return true;
    }
    char session_id[33];
    snprintf(session_id, sizeof session_id, "%.*s", (int)strcspn(sampler->id, ":"), sampler->id);
    struct tinker_session *session = tinker_session_of(exchange, session_id, error);
    future = session ? tinker_future_new(session, id, "") : NULL;
    if (future && begin(exchange, sampler, future, root, choices))
        return true;
    if (future)
        tinker_future_free(future);
    return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
}
