/* A server without an engine, a registry of two adapters, and calls whose updates a test makes up. A test program has
 * it once: the functions here stand for those of call.c, registry.c, text_job.c and server.c. */
#pragma once

#include "serve/fake_exchange.h"

#include "serve/call.h"
#include "serve/registry.h"
#include "serve/text_job.h"

/* The last event. */
static struct call *fake_call;
static int fake_freed, fake_paused;
static double fake_delay, fake_drained;

struct call *call_new(struct server *server, struct call_request *request) {
    FAKE_OUTSIDE(true);
    struct call *call = calloc(1, sizeof *call);
    call->server = server;
    call->request = *request;
    call->cached = calloc((size_t)request->prompt_count, sizeof *call->cached);
    FAKE_OUTSIDE(false);
    *request = (struct call_request){0};
    return call;
}

void call_submit(struct call *call) {
    fake_call = call;
}

void call_pause(struct call *call, bool is_paused) {
    (void)call;
    fake_paused = is_paused;
}

void call_free(struct call *call, enum error_case why) {
    (void)why;
    call_request_free(&call->request);
    json_decref(call->texts);
    free(call->cached);
    free(call);
    fake_call = NULL;
    fake_freed++;
}

static const char *const fake_adapters[] = {"ia3", "lora"};

bool registry_at(const struct server *server, int number, struct registry_adapter *adapter) {
    (void)server;
    if (number >= 2)
        return false;
    *adapter = (struct registry_adapter){.name = fake_adapters[number],
                                         .methods = number ? "lora" : "ia3,lora",
                                         .digest = "ab",
                                         .state = "resident",
                                         .receipt = "exact",
                                         .generation = (uint64_t)number + 3};
    return true;
}

bool registry_find(const struct server *server, const char *name, struct registry_adapter *adapter) {
    for (int i = 0; registry_at(server, i, adapter); i++)
        if (!strcmp(adapter->name, name))
            return true;
    return false;
}

bool registry_seek(const struct server *server, const char *name, struct registry_adapter *adapter) {
    return registry_find(server, name, adapter);
}

bool registry_name_is_valid(const char *name) {
    size_t length = strlen(name);
    return length && length <= 255 && *name != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == length;
}

static struct registry_change fake_change;
static char fake_change_name[80];

static void (*fake_on_change)(const struct registry_change *change); /* NULL: a change is only noted */

int registry_know(struct server *server, const char *name, const char *directory) {
    (void)server;
    (void)name;
    (void)directory;
    return STATUS_OK;
}

void registry_start(struct server *server, const struct registry_change *change) {
    (void)server;
    if (fake_on_change)
        fake_on_change(change);
    fake_change = *change;
    snprintf(fake_change_name, sizeof fake_change_name, "%s %s", change->name, change->path ? change->path : "-");
}

bool text_job_may_encode(const struct server *server, struct error *error) {
    return server->model.tokenizer || error_set(error, ERROR_ARGUMENT, NULL, "the model has no tokenizer");
}

size_t text_job_short_bytes(const struct server *server) {
    (void)server;
    return 4096;
}

int text_job_encode(const struct server *server, struct tokenizer_encoder *encoder, const char *text, size_t length,
                    unsigned flags, struct token_buffer *ids) {
    (void)server;
    (void)encoder;
    (void)text;
    (void)length;
    (void)flags;
    (void)ids;
    return STATUS_MEMORY;
}

bool server_is_ready(const struct server *server) {
    return server->is_ready && !server->is_draining;
}

void server_drain(struct server *server, double delay, double timeout) {
    server->is_draining = true;
    fake_delay = delay;
    fake_drained = timeout;
}

void server_count(struct server *server); /* of an internal header */
void server_count(struct server *server) {
    (void)server;
}

static const char *const fake_names[] = {"tiny", "org/tiny"};
static const struct serve_options fake_options = {
    .max_queued_requests = 16, .limits = {.body_bytes = 4096, .stream_output_bytes = 1000}, .logs_json = true};

static inline struct server fake_server(void) {
    return (struct server){.options = &fake_options,
                           .is_ready = true,
                           .model = {.name = "tiny",
                                     .names = fake_names,
                                     .name_count = 2,
                                     .fingerprint = "b0123456789ab",
                                     .created = 1700000000,
                                     .max_model_len = 32,
                                     .most_texts = 16,
                                     .vocab = 100,
                                     .precision = "fp32"}};
}
