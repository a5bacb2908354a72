/* The router: finds an exchange's handler and checks that the request is allowed.
 *
 * Paths are a table of rows: method, path, listener, whether a key is required, handler. gRPC is recognised by its
 * content type and has its own table (grpc.h). Keys, x-request-id, CORS, counting and logging are handled here
 * once for all requests. */
#pragma once

#include "request.h"
#include "server.h"

#include "base/strbuf.h"

/* Begins a handler: called after the header and before the body. It sets exchange->handler and ->context, or
 * answers. */
typedef void route_begin(struct exchange *exchange);

/* For transport_options.route: `router` is a struct server. */
void route_exchange(void *router, struct exchange *exchange);

/* Answers with an error: HTTP status and body, or gRPC's status for a request of gRPC. */
void route_fail(struct exchange *exchange, const struct error *error);
/* Answers 200 with a JSON text and frees it. Answers with an error when memory for the text was lacking. */
void route_answer_json(struct exchange *exchange, struct strbuf *json);
/* The same with an object, whose reference is taken; NULL: memory was lacking. */
void route_answer_object(struct exchange *exchange, json_t *object);

/* Marks an exchange that ends only when its client does; a stopping server does not wait for it. */
void route_forget(struct exchange *exchange);

/* A request whose body is one text, gathered whole: at most limits.body_bytes, unpacked if it is gzip. Errors are 413
 * beyond the limit, 415 for other encodings, 429 when limits.gathered_bytes has no room. */
struct route_reader {
    const struct server *server;       /* only its model and options */
    struct tokenizer_encoder *encoder; /* the thread's; NULL: there is no tokenizer */
    const struct route_body *body;     /* of a body over HTTP */
};
enum { ROUTE_SHORT_BYTES = 16 << 10 };
struct route_body {
    /* Bytes that the loop reads itself; NULL: ROUTE_SHORT_BYTES. */
    size_t (*short_bytes)(const struct server *server);
    /* Makes something of the bytes, which end with a zero byte and live until it returns; NULL with *error. Any thread;
     * the exchange may have closed. */
    void *(*read)(const struct route_reader *reader, const char *bytes, size_t length, struct error *error);
    /* Takes over what was made, and answers at once or continues by route_continue. The loop's thread. */
    void (*on_made)(struct exchange *exchange, void *made);
    /* Frees what was made, when nobody needs it any more. Any thread. */
    void (*drop)(void *made);
    bool may_be_empty;              /* for route_read_json: an empty body is an empty object */
    const struct openai_kind *kind; /* for the OpenAI API's bodies */
};
/* Gathers the request's body and passes it to `body`. Errors are answered. */
void route_collect(struct exchange *exchange, const struct route_body *body);
/* `read` and `drop` for bodies that are JSON of at most ROUTE_SHORT_BYTES; they make a json_t. */
void *route_read_json(const struct route_reader *reader, const char *bytes, size_t length, struct error *error);
void route_drop_json(void *made);
/* For on_made: gives the exchange to another handler. */
void route_continue(struct exchange *exchange, const struct exchange_handler *handler, void *context);
/* Copies the part of the path after `prefix`, with or without /v1 before it, percent-decoded. Returns false when that
 * is not valid text, or too long. */
bool route_rest(const struct exchange *exchange, const char *prefix, char *rest, size_t bytes);

/* Handlers of the OpenAI API (openai_*.c), of control (control.c), of metrics and of the page (page.c). */
route_begin openai_completions, openai_chat, openai_responses, openai_messages, openai_count_tokens, openai_models,
    openai_model, openai_tokenize, openai_detokenize, openai_tokenizer_info, route_version, route_health, route_ready,
    page_get, metrics_get;
route_begin control_adapters, control_change, control_drain;
/* Handlers of tuning (files_route.c, jobs_route.c). */
route_begin files_create, files_list, files_get, files_delete, jobs_create, jobs_list, jobs_get, jobs_act,
    openai_model_delete;
/* Handlers of Tinker's API (tinker.c, tinker_sampler.c, tinker_rest.c). */
route_begin tinker_post, tinker_forward_backward, tinker_capabilities, tinker_sampler, tinker_training_runs,
    tinker_training_run, tinker_checkpoints;
route_begin grpc_begin;
/* Ends an unanswered request of gRPC with this error (grpc.c). */
void grpc_fail(struct exchange *exchange, const struct error *error);
