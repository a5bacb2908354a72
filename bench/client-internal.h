/* Shared by the protocols of a client. */
#pragma once

#include "client.h"

#include <event2/bufferevent.h>
#include <sys/queue.h>

/* One protocol. */
struct client_wire {
    int (*ask)(struct client *client, struct client_text *text);
    void (*leave)(struct client *client, struct client_text *text);
    void (*close)(struct client *client);
};
extern const struct client_wire client_http, client_grpc;

LIST_HEAD(http_connections, http_connection);
struct grpc_connection;
struct client {
    struct event_base *base;
    const struct client_wire *wire; /* for texts; other requests use HTTP */
    char host[CLIENT_HOST_BYTES];
    int port;
    double seconds;                     /* of processor time */
    struct http_connections idle, busy; /* HTTP: connections that can be reused; those with a request */
    struct grpc_connection *grpc;       /* the newest first */
};

/* Starts a connection; the caller sets its callbacks. NULL: STATUS_IO or STATUS_MEMORY, with the text set. */
struct bufferevent *client_connect(struct client *client);
/* Reports that a chunk has come. */
void client_text_token(struct client_text *text);
/* Reports the end of a text; `error` NULL: success. */
void client_text_end(struct client_text *text, const char *error);
