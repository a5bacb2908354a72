/* The router: which handler an exchange gets, and whether it may have it.
 *
 * Paths are a table of rows: method, path, listener, whether a key is wanted, handler. gRPC is told by its content type
 * and has a table of its own (grpc.h). Keys, x-request-id, CORS, the counting and the logging of requests are done
 * here, once for all of them. */
#ifndef CAMBIUM_SERVE_ROUTE_H
#define CAMBIUM_SERVE_ROUTE_H

#include "request.h"
#include "server.h"

#include "base/strbuf.h"

/* A handler's beginning: called with the head, before the body. It sets exchange->handler and ->context, or answers. */
typedef void route_begin(struct exchange *exchange);

/* For transport_options.route: `router` is a struct server. */
void route_exchange(void *router, struct exchange *exchange);

/* Answers with an error: status and body of HTTP, or gRPC's status where the request is one of gRPC. */
void route_fail(struct exchange *exchange, const struct error *error);
/* Answers 200 with a text of JSON, which is freed; where memory lacked for it, with an error. */
void route_answer_json(struct exchange *exchange, struct strbuf *json);

/* Its end is its client's: the server does not wait for it when it stops. */
void route_forget(struct exchange *exchange);

/* A request whose body is one text, gathered whole: at most limits.body_bytes, unpacked where it is gzip (413 beyond;
 * 415 for other encodings; 429 where limits.gathered_bytes has no room). */
struct route_reader {
    const struct server *server;       /* its model and options alone */
    struct tokenizer_encoder *encoder; /* of the thread; NULL: there is no tokenizer */
};
enum { ROUTE_SHORT_BYTES = 16 << 10 };
struct route_body {
    /* Bytes that the loop reads itself; NULL: ROUTE_SHORT_BYTES. */
    size_t (*short_bytes)(const struct server *server);
    /* Any thread, and the exchange may be gone: makes something of the bytes, which end with a zero byte and live until
     * it returns; NULL with *error. */
    void *(*read)(const struct route_reader *reader, const char *bytes, size_t length, struct error *error);
    /* The loop's thread: takes over what was made, and answers at once, or goes on by route_continue. */
    void (*on_made)(struct exchange *exchange, void *made);
    /* Any thread: nobody wants it any more. */
    void (*drop)(void *made);
};
void route_collect(struct exchange *exchange, const struct route_body *body);
/* `read` and `drop` of bodies that are JSON of at most ROUTE_SHORT_BYTES: what is made is a json_t. */
void *route_read_json(const struct route_reader *reader, const char *bytes, size_t length, struct error *error);
/* The same; no body is an empty object. */
void *route_read_json_or_nothing(const struct route_reader *reader, const char *bytes, size_t length,
                                 struct error *error);
void route_drop_json(void *made);
/* From on_made: the exchange is another handler's from here on. */
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
