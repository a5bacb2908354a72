/* A request's life: read, passed to the model, answered, closed. */
#include "openai.h"

#include "json_in.h"
#include "json_out.h"
#include "log.h"
#include "registry.h"
#include "route.h"

#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

bool openai_find_model(const struct server *server, const json_t *value, const char **adapter, struct error *error) {
    const char *name = NULL;
    struct registry_adapter found;
    *adapter = NULL;
    if (!json_in_string(value, "model", &name, error))
        return false;
    if (!name || !*name)
        return true;
    for (size_t i = 0; i < server->model.name_count; i++)
        if (!strcmp(server->model.names[i], name))
            return true;
    if (!registry_name_is_valid(name))
        error_set(error, ERROR_ARGUMENT, "model", "model: \"%.200s\" cannot be the name of a model", name);
    else if (!registry_seek(server, name, &found))
        error_set(error, ERROR_MODEL_NOT_FOUND, "model", "there is no model \"%s\"", name);
    else {
        *adapter = name;
        return true;
    }
    return false;
}

/* If the model is an adapter, it becomes the request's adapter; a list of adapters too would be ambiguous. */
static bool take_model(struct openai *request, struct error *error) {
    const char *adapter;
    struct ask *ask = &request->call->ask;
    request->model = request->server->model.name;
    if (!openai_find_model(request->server, json_object_get(request->root, "model"), &adapter, error))
        return false;
    if (!adapter)
        return true;
    if (ask->adapter_count) {
        error_set(error, ERROR_ARGUMENT, "adapters", "adapters: the model \"%s\" is an adapter already", adapter);
        return false;
    }
    request->model = adapter;
    ask->adapters[ask->adapter_count++] = adapter;
    return true;
}

/* ---- its life ---- */

static void on_close(struct exchange *exchange, bool is_whole) {
    struct openai *request = exchange->context;
    (void)is_whole;
    log_take_call(exchange, request->call);
    request->exchange = NULL;
    if (!request->is_building) /* else it is freed when the answer is built */
        openai_free(request, request_error(exchange));
}

static void on_room(struct exchange *exchange) {
    struct openai *request = exchange->context;
    openai_answer_room(request);
    if (!request->is_paused)
        return;
    request->is_paused = false;
    call_pause(request->call, false);
}

static const struct exchange_handler answering = {.on_room = on_room, .on_close = on_close};

/* Keeps a prompt's tokens until the answer is built. Only the place after them is needed before. */
static void keep_prompt_tokens(struct openai *request, const struct call_update *update,
                               const struct call_piece *piece) {
    struct openai_prompt *prompt = &request->prompts[piece->prompt];
    if (kept_tokens_add(&prompt->kept, update, piece))
        prompt->logprobs.failed = true;
    for (int64_t i = 0; request->echoes && request->tells_logprobs && i < piece->token_count; i++) {
        struct openai_token token = {.tokenizer = request->server->model.tokenizer,
                                     .token = &update->tokens[piece->first_token + i]};
        openai_move_place(&prompt->place, &token);
    }
}

/* Takes a prompt's tokens, for echoes and for prompt_logprobs. */
static void take_prompt_tokens(struct openai *request, const struct call_update *update,
                               const struct call_piece *piece) {
    if (request->is_stream)
        openai_add_prompt_tokens(request, &request->prompts[piece->prompt], update->tokens + piece->first_token,
                                 piece->token_count, update->tops);
    else
        keep_prompt_tokens(request, update, piece);
}

/* A chat's field for the prompt is called messages. */
static void take_error(struct openai *request, const struct error *error) {
    request->error = *error;
    if (request->is_chat && !strcmp(error->param, "prompt"))
        snprintf(request->error.param, sizeof request->error.param, "messages");
}

static void on_update(struct call *call, const struct call_update *update) {
    struct openai *request = call->context;
    if (request->has_answered)
        return;
    log_take_update(request->exchange, update);
    for (int64_t i = 0; i < update->end_count; i++)
        request->completion_tokens += update->ends[i].completion_tokens;
    request->exchange->request->is_accepted |= update->is_accepted;
    for (int64_t i = 0; i < update->piece_count; i++)
        if (update->pieces[i].choice < 0)
            take_prompt_tokens(request, update, &update->pieces[i]);
    if (update->is_done && update->error.which)
        take_error(request, &update->error);
    if (request->is_stream)
        openai_stream_update(request, update);
    else
        openai_answer_update(request, update);
}

/* ---- read: any thread ---- */

/* Prepares the echo: the text as it was sent, or the text of the ids. */
static bool take_echo(struct openai *request, struct error *error) {
    for (int64_t i = 0; request->echoes && i < request->call->prompt_count; i++) {
        const struct call_prompt *prompt = &request->call->prompts[i];
        struct strbuf *text = &request->prompts[i].part.text;
        const struct tokenizer *tokenizer = request->server->model.tokenizer;
        if (prompt->text)
            strbuf_add(text, prompt->text, prompt->length);
        for (size_t k = 0; !prompt->text && tokenizer && k < prompt->ids.count; k++) {
            size_t length = 0; /* a model's vocabulary may be larger than its tokenizer's */
            const unsigned char *bytes = tokenizer_token_bytes(tokenizer, prompt->ids.ids[k], &length);
            strbuf_add(text, bytes, length);
        }
        if (text->failed) {
            error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
            return false;
        }
    }
    return true;
}

static bool open_choices(struct openai *request, struct error *error) {
    struct call *call = request->call;
    request->prompt_count = call->prompt_count;
    request->choice_count = call->prompt_count * call->ask.choices;
    request->prompts = calloc((size_t)call->prompt_count, sizeof *request->prompts);
    request->choices = calloc((size_t)request->choice_count, sizeof *request->choices);
    if (request->prompts && request->choices && !ask_draw_seed(&call->ask))
        return take_echo(request, error);
    error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    return false;
}

void *openai_read(const struct route_reader *reader, const struct openai_kind *kind, const char *bytes, size_t length,
                  struct error *error) {
    struct openai *request = calloc(1, sizeof *request);
    if (!request) {
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
        return NULL;
    }
    request->server = (struct server *)reader->server; /* for the loop's thread, which gets it back */
    request->kind = kind;
    request->is_chat = kind->is_chat;
    request->is_long = length > ROUTE_SHORT_BYTES;
    request->tops = request->prompt_tops = request->longest = -1;
    request->asks_for_head = true;
    if (json_in_read(bytes, length, false, &request->root, error) && kind->open(request, error) &&
        openai_read_fields(request, kind, error) && open_choices(request, error))
        return request;
    openai_drop(request);
    return NULL;
}

/* ---- asked: the loop ---- */

static bool read_timeout(struct openai *request, struct error *error) {
    static const char decimal[] = "0123456789.eE+-"; /* strtod would also accept 0x10, and leading blanks */
    const char *given = exchange_field(request->exchange, "x-request-timeout");
    char *end = NULL;
    double seconds = given ? strtod(given, &end) : 0;
    if (!given)
        return true;
    if (end == given || given[strspn(given, decimal)] || *end || !isfinite(seconds) || seconds <= 0 || seconds > 1e7) {
        error_set(error, ERROR_ARGUMENT, "x-request-timeout", "x-request-timeout: expected seconds, more than 0");
        return false;
    }
    request->call->deadline = request->exchange->start + seconds;
    return true;
}

static void log_ignored(const struct openai *request) {
    struct log_line line;
    if (!request->ignored.length)
        return;
    log_line_begin(&line, request->server, LOG_WARNING, "ignored");
    log_line_text(&line, "id", request->exchange->request->id);
    log_line_text(&line, "fields", strbuf_text(&request->ignored));
    log_line_end(&line);
}

static void fill_call(struct openai *request) {
    struct exchange *exchange = request->exchange;
    struct call *call = request->call;
    call->is_chat = request->is_chat;
    call->id = exchange->request->id;
    call->client = exchange->request->client;
    call->turn_owner = request_owner(exchange);
    call->texts = json_incref(request->root);
    call->on_update = on_update;
    call->context = request;
    request->created = (int64_t)clock_wall_seconds();
}

void openai_ask(struct exchange *exchange, void *made) {
    struct openai *request = made;
    struct error error;
    request->exchange = exchange;
    if (!take_model(request, &error) || !read_timeout(request, &error)) {
        openai_free(request, request_error(exchange));
        route_fail(exchange, &error);
        return;
    }
    fill_call(request);
    log_ignored(request);
    route_continue(exchange, &answering, request);
    call_submit(request->call);
}
