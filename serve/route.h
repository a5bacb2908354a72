/* The router: which handler an exchange gets, and whether it may have it.
 *
 * Paths are a table of rows: method, path, listener, whether a key is wanted, handler. gRPC is told by its content type
 * and has a table of its own (grpc.h). Keys, x-request-id, CORS, the counting and the logging of requests are done
 * here, once for all of them. */
#ifndef CAMBIUM_SERVE_ROUTE_H
#define CAMBIUM_SERVE_ROUTE_H

#include "exchange.h"
#include "server.h"

#include "base/strbuf.h"

/* A handler's beginning: called with the head, before the body. It sets exchange->handler and ->context, or answers. */
typedef void route_begin(struct exchange *exchange);

/* For transport_options.route. */
void route_exchange(struct server *server, struct exchange *exchange);

/* Answers with an error: status and body of HTTP, or gRPC's status where the request is one of gRPC. */
void route_fail(struct exchange *exchange, const struct error *error);
/* Answers 200 with a text of JSON, which is freed; where memory lacked for it, with an error. */
void route_answer_json(struct exchange *exchange, struct strbuf *json);

/* Its end is its client's: the server does not wait for it when it stops. */
void route_forget(struct exchange *exchange);

/* A request whose body is one text, whole: `on_whole` gets it, at most limits.body_bytes (413 beyond), and answers at
 * once, or goes on by route_continue. The bytes end with a zero byte and live until on_whole returns. */
struct route_body {
    void (*on_whole)(struct exchange *exchange, const char *bytes, size_t length);
};
void route_collect(struct exchange *exchange, const struct route_body *body);
/* From on_whole: the exchange is another handler's from here on. */
void route_continue(struct exchange *exchange, const struct exchange_handler *handler, void *context);
/* What stands in the path behind `prefix`, with or without /v1 before that, percent-decoded: false where that is no
 * text, or too long. */
bool route_rest(const struct exchange *exchange, const char *prefix, char *rest, size_t bytes);

/* The routes of the OpenAI API (openai_*.c), of control (control.c) and the page (page.c). */
route_begin openai_completions, openai_chat, openai_models, openai_model, openai_tokenize, openai_detokenize,
    openai_tokenizer_info, route_version, route_health, route_ready, page_get, metrics_get;
route_begin control_adapters, control_adapter, control_drain, control_vllm_load, control_vllm_unload;
route_begin grpc_begin;
/* Ends a request of gRPC, of which nothing was answered yet, with this status (grpc.c). */
void grpc_fail(struct exchange *exchange, const struct error *error);

#endif
