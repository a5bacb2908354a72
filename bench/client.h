/* A client of a server that completes texts: over OpenAI's HTTP, as any such server takes it, or over our gRPC.
 *
 * It asks with token ids and streams the answers, and notes when tokens come. Everything is on the caller's thread:
 * client_turn waits for whatever comes next. client.c has what both protocols share, client_http.c and client_grpc.c
 * speak them. A chunk that brings something counts as a token, as in vLLM's benchmark; how many tokens there were in
 * all is what the server says at the end. */
#ifndef CAMBIUM_BENCH_CLIENT_H
#define CAMBIUM_BENCH_CLIENT_H

#include "base/base.h"

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

enum client_protocol { CLIENT_HTTP, CLIENT_GRPC };
enum { CLIENT_ERROR_BYTES = 256, CLIENT_HOST_BYTES = 256 };

/* A request, which stays in its place until it is done. */
struct client_text {
    const char *adapter; /* NULL: the base */
    const int32_t *prompt;
    int64_t in, out; /* tokens; neither an end-of-text nor anything else ends it before */
    /* Instead of a text, a request over HTTP whose answer is dropped: "PUT", "/v1/adapters/NAME", "{}". */
    const char *method, *path, *body;
    /* Behind each chunk; `gap`: seconds since the one before, below 0 for the first. May be NULL. */
    void (*on_token)(struct client_text *text, double gap);
    void *context;

    double asked, first, last; /* seconds; of chunks */
    int64_t chunks, tokens;    /* tokens: as the server says */
    bool is_done, has_failed;
    char error[CLIENT_ERROR_BYTES];
    void *wire; /* the protocol's, while it is under way */
};

struct client;

/* `url`: http://HOST:PORT, or HOST:PORT. Connections are made when they are needed, in `base`. */
int client_open(struct event_base *base, const char *url, enum client_protocol protocol, struct client **client);
/* Nothing may be under way. NULL is allowed. */
void client_close(struct client *client);
/* Asks. A request that fails later is done, with has_failed and a text. */
int client_ask(struct client *client, struct client_text *text);
/* Leaves: the server sees that nobody listens any more, and the text is done. Not inside on_token. */
void client_leave(struct client *client, struct client_text *text);
/* Waits until something comes, and takes it. */
int client_turn(struct client *client);
/* Turns until it is done; STATUS_IO with its text where it has failed. */
int client_await(struct client *client, const struct client_text *text);
/* http://HOST:PORT and a path, for other clients. */
void client_url(const struct client *client, const char *path, char *out, size_t bytes);
/* Processor time that asking and reading took so far. */
double client_seconds(const struct client *client);

#endif
