/* What the protocols of a client share. */
#ifndef CAMBIUM_BENCH_CLIENT_INTERNAL_H
#define CAMBIUM_BENCH_CLIENT_INTERNAL_H

#include "client.h"

#include <event2/bufferevent.h>

/* One protocol. */
struct client_wire {
    int (*ask)(struct client *client, struct client_text *text);
    void (*leave)(struct client *client, struct client_text *text);
    void (*close)(struct client *client);
};
extern const struct client_wire client_http, client_grpc;

struct http_connection;
struct grpc_connection;
struct client {
    struct event_base *base;
    const struct client_wire *wire; /* of texts; other requests go over HTTP */
    char host[CLIENT_HOST_BYTES];
    int port;
    double seconds;               /* of the processor */
    struct http_connection *idle; /* HTTP: that can be used again, and */
    struct http_connection *busy; /* that have a request */
    struct grpc_connection *grpc; /* the newest first */
};

/* A connection that is being made; `callbacks` are the caller's to set. NULL: STATUS_IO or STATUS_MEMORY is told. */
struct bufferevent *client_connect(struct client *client);
/* A chunk has come. */
void client_text_token(struct client_text *text);
/* It is done; `error` NULL: as it should. */
void client_text_end(struct client_text *text, const char *error);

#endif
