/* A client of a server that completes texts: over OpenAI's HTTP, as any such server accepts it, or over our gRPC.
 *
 * It sends token ids, streams the answers, and records when tokens come. Everything runs on the caller's thread:
 * client_turn waits for the next event. client.c has the common part of both protocols; client_http.c and client_grpc.c
 * speak them. A chunk with content counts as a token, as in vLLM's benchmark; the server reports the number of tokens
 * at the end. */
#pragma once

#include "base/base.h"

#include <event2/event.h>

enum client_protocol { CLIENT_HTTP, CLIENT_GRPC };
enum { CLIENT_ERROR_BYTES = 256, CLIENT_HOST_BYTES = 256 };

/* A request. It must not move until it is done. */
struct client_text {
    const char *adapter; /* NULL: the base */
    const int32_t *prompt;
    int64_t in, out; /* tokens; nothing ends the text earlier, not even an end-of-text */
    /* Instead of a text: a request over HTTP whose answer is dropped: "PUT", "/v1/adapters/NAME", "{}". */
    const char *method, *path, *body;
    /* Called after each chunk; `gap` is the seconds since the one before, negative for the first. May be NULL. */
    void (*on_token)(struct client_text *text, double gap);
    void *context;

    double asked, first, last; /* seconds; of chunks */
    int64_t chunks, tokens;    /* tokens: as reported by the server */
    bool is_done, has_failed;
    char error[CLIENT_ERROR_BYTES];
    void *wire; /* for the protocol, while the request runs */
};

struct client;

/* Makes a client. `url` is http://HOST:PORT or HOST:PORT. Connections are made on demand, in `base`. STATUS_USAGE,
 * STATUS_MEMORY. */
int client_open(struct event_base *base, const char *url, enum client_protocol protocol, struct client **client);
/* Nothing may be running. NULL is allowed. */
void client_close(struct client *client);
/* Sends a request. A request that fails later is done, with has_failed and a text. STATUS_IO, STATUS_MEMORY. */
int client_ask(struct client *client, struct client_text *text);
/* Drops a request: the server sees that nobody listens any more, and the text is done. Not inside on_token. */
void client_leave(struct client *client, struct client_text *text);
/* Waits for the next event, and handles it. */
int client_turn(struct client *client);
/* Handles events until the text is done; STATUS_IO with its error when it has failed. */
int client_await(struct client *client, const struct client_text *text);
/* Writes http://HOST:PORT and a path, for other clients. */
void client_url(const struct client *client, const char *path, char *out, size_t bytes);
/* Returns the processor time of sending and reading so far. */
double client_seconds(const struct client *client);
