/* A request's life: read, passed to the model, answered. */
#include "openai.h"

#include "log.h"
#include "registry.h"

#include "base/base.h"
#include "openai/json_in.h"

#include <math.h>

/* ---- names ---- */

static bool openai_find_model(const struct server *server, const json_t *value, const char **adapter,
                              struct error *error) {
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
static bool take_model(struct openai_exchange *self, struct error *error) {
    const char *adapter;
    struct ask *settings = &self->call->request.ask;
    self->request.model_name = self->server->model.name;
    if (!openai_find_model(self->server, json_object_get(self->request.root, "model"), &adapter, error))
        return false;
    if (!adapter)
        return true;
    if (settings->adapter_count)
        return error_set(error, ERROR_ARGUMENT, "adapters", "adapters: the model \"%s\" is an adapter already",
                         adapter);
    self->request.model_name = adapter;
    settings->adapters[settings->adapter_count++] = adapter;
    return true;
}

/* ---- its life ---- */

static void on_close(struct exchange *exchange) {
    struct openai_exchange *self = exchange->context;
    log_take_call(exchange, self->call);
    self->exchange = NULL;
    if (!self->is_building) /* else it is freed when the answer is built */
        openai_exchange_free(self, request_error(exchange));
}

static void on_room(struct exchange *exchange) {
    struct openai_exchange *self = exchange->context;
    openai_answer_room(self);
    if (!self->is_paused)
        return;
    self->is_paused = false;
    call_pause(self->call, false);
}

static const struct exchange_handler answering = {.on_room = on_room, .on_close = on_close};

static void on_update(struct call *call, const struct call_update *update) {
    struct openai_exchange *self = call->context;
    if (self->has_answered)
        return;
    log_take_update(self->exchange, update);
    for (int64_t i = 0; i < update->end_count; i++)
        self->request.completion_tokens += update->ends[i].completion_tokens;
    self->exchange->request->is_accepted |= update->is_accepted;
    if (update->is_accepted)
        openai_add_ignored(&self->request, call->ignored);
    openai_take_prompts(&self->request, update);
    if (update->is_done && update->error.which) {
        /* Each kind has its own name for the prompt. */
        self->error = update->error;
        if (self->request.is_chat &&
            (!strcmp(update->error.param, "prompt") || !strcmp(update->error.param, "messages")))
            snprintf(self->error.param, sizeof self->error.param, "%s", self->request.kind->required);
    }
    if (self->request.is_stream)
        openai_stream_update(self, update);
    else
        openai_answer_update(self, update);
}

/* ---- read: any thread ---- */

/* Makes the call of a request that was read. */
static bool make_call(struct openai_exchange *self, struct call_request *asked, struct error *error) {
    if (!ask_draw_seed(&asked->ask))
        self->call = call_new(self->server, asked);
    if (!self->call)
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    self->request.asked = &self->call->request;
    self->request.generations = self->call->generations;
    self->request.cached = self->call->cached;
    return true;
}

static void *read_body(const struct route_reader *reader, const char *bytes, size_t length, struct error *error) {
    struct openai_exchange *self = calloc(1, sizeof *self);
    struct call_request asked = {0};
    json_t *root;
    if (!self) {
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
        return NULL;
    }
    self->server = (struct server *)reader->server; /* for the loop's thread, which gets it back */
    self->is_long = length > ROUTE_SHORT_BYTES;
    if (json_in_read(bytes, length, false, &root, error) &&
        openai_read(&self->request, &reader->server->model, reader->body->kind, root, &asked, error) &&
        make_call(self, &asked, error))
        return self;
    call_request_free(&asked);
    openai_exchange_drop(self);
    return NULL;
}

/* ---- asked: the loop ---- */

static bool read_timeout(struct openai_exchange *self, struct error *error) {
    static const char decimal[] = "0123456789.eE+-"; /* strtod would also accept 0x10, and leading blanks */
    const char *given = exchange_field(self->exchange, "x-request-timeout");
    char *end = NULL;
    double seconds = given ? strtod(given, &end) : 0;
    if (!given)
        return true;
    if (end == given || given[strspn(given, decimal)] || *end || !isfinite(seconds) || seconds <= 0 || seconds > 1e7)
        return error_set(error, ERROR_ARGUMENT, "x-request-timeout",
                         "x-request-timeout: expected seconds, more than 0");
    self->call->deadline = self->exchange->start + seconds;
    return true;
}

static void fill_call(struct openai_exchange *self) {
    struct exchange *exchange = self->exchange;
    struct call *call = self->call;
    call->is_chat = self->request.is_chat;
    call->only_counts = self->request.kind->only_counts;
    call->id = exchange->request->id;
    call->client = exchange->request->client;
    call->turn_owner = request_owner(exchange);
    call->texts = json_incref(self->request.root);
    call->on_update = on_update;
    call->context = self;
    snprintf(self->request.id, sizeof self->request.id, "%s", exchange->request->id);
    self->request.created = (int64_t)clock_wall_seconds();
}

static void ask(struct exchange *exchange, void *made) {
    struct openai_exchange *self = made;
    struct error error;
    self->exchange = exchange;
    if (!take_model(self, &error) || !read_timeout(self, &error)) {
        openai_exchange_free(self, request_error(exchange));
        route_fail(exchange, &error);
        return;
    }
    fill_call(self);
    if (self->request.ignored.length && log_may(exchange)) {
        struct log_line line;
        log_line_begin(&line, self->server, LOG_WARNING, "ignored");
        log_line_text(&line, "id", exchange->request->id);
        log_line_text(&line, "fields", strbuf_text(&self->request.ignored));
        log_line_end(&line);
    }
    route_continue(exchange, &answering, self);
    call_submit(self->call);
}

/* ---- its routes ---- */

#define BODY_OF(which)                                                                                                 \
    { .read = read_body, .on_made = ask, .drop = openai_exchange_drop, .kind = &(which) }
static const struct route_body completions = BODY_OF(openai_completion_kind), chats = BODY_OF(openai_chat_kind),
                               responses = BODY_OF(openai_responses_kind), messages = BODY_OF(openai_messages_kind),
                               counts = BODY_OF(openai_count_kind);

void openai_completions(struct exchange *exchange) {
    route_collect(exchange, &completions);
}

void openai_chat(struct exchange *exchange) {
    route_collect(exchange, &chats);
}

void openai_responses(struct exchange *exchange) {
    route_collect(exchange, &responses);
}

void openai_messages(struct exchange *exchange) {
    route_collect(exchange, &messages);
}

void openai_count_tokens(struct exchange *exchange) {
    route_collect(exchange, &counts);
}
