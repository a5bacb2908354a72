/* The transport: listeners, connections, and the exchanges on them.
 *
 * A listener takes HTTP/1.1 and HTTP/2 (prior knowledge, by its preface) on one port; with TLS it takes nothing else,
 * and ALPN decides. Every limit is counted here: connections, streams, header lists, rates, times, bytes that wait.
 * listen.c accepts, connection.c tells protocols apart and owns a socket's bufferevent, http1.c and http2.c speak,
 * tls.c has certificates. The loop's thread. */
#ifndef CAMBIUM_HTTP_LISTEN_H
#define CAMBIUM_HTTP_LISTEN_H

#include "exchange.h"
#include "gathered.h"

#include "base/strbuf.h"

#include <event2/event.h>

struct transport_limits {
    int64_t connections, streams;              /* per listener; per connection */
    int64_t header_bytes, headers;             /* names, values and 32 a field; fields */
    int64_t body_bytes;                        /* of a request's body, and of a gRPC message */
    int64_t gathered_bytes;                    /* of all bodies that have not been read yet; 0: any */
    int64_t stream_window, connection_window;  /* HTTP/2, bytes */
    int64_t output_bytes, stream_output_bytes; /* that wait: of a connection, of an answer */
    double header_timeout, idle_timeout, write_timeout;
    int64_t glitches, glitches_per_s; /* useless frames: burst, rate */
    int64_t resets, resets_per_s;     /* RST_STREAM of the client: burst, rate */
    int64_t requests_per_connection;  /* HTTP/1.1 */
};

struct transport_options {
    struct event_base *base;
    struct transport_limits limits;
    struct gathered *gathered;      /* bytes of requests that wait for their turn count here; NULL: nowhere */
    const char *tls_cert, *tls_key; /* of the data listener and of a control listener on TCP; NULL: cleartext */
    size_t request_bytes;           /* of the router's part of an exchange */
    /* Finds the exchange's handler, and may answer at once; it sets handler, context and what is the router's. */
    void (*route)(void *router, struct exchange *exchange);
    /* Appends the body (application/json) of an answer that the transport gives itself: 400, 408, 413 or 431. */
    void (*refuse)(struct strbuf *body, int status, const char *problem);
    void *router;
};

struct transport;

/* The options are copied. STATUS_USAGE, STATUS_INVALID or STATUS_IO for certificate and key; STATUS_MEMORY. */
int transport_open(const struct transport_options *options, struct transport **transport);
/* Binds `where`, "HOST:PORT", "[V6]:PORT" or "unix:PATH"; nobody is accepted yet. A path that stands there is removed
 * only where it is a socket on which nobody listens. STATUS_USAGE, STATUS_IO. */
int transport_bind(struct transport *transport, enum listener_kind kind, const char *where);
/* Begins to accept; until then clients are refused. */
int transport_accept(struct transport *transport);
/* The address as it can be asked: "127.0.0.1:8000", "unix:PATH"; NULL: not bound. */
const char *transport_address(const struct transport *transport, enum listener_kind kind);
/* Reads certificate and key again; a damaged file changes nothing, and its status says what is wrong. */
int transport_reload(struct transport *transport);
/* The data listener is about to close: its clients are told by HTTP/1.1 to come on a new connection each time, which
 * may lead them elsewhere. */
void transport_leave(struct transport *transport);
/* Accepts nobody any more on the data listener, but for those who wait to be accepted, and nobody's new requests:
 * GOAWAY twice, Connection: close. */
void transport_drain(struct transport *transport);
/* Connections of the data listener that are open. */
int64_t transport_connections(const struct transport *transport, enum listener_kind kind);
/* Behind transport_drain: connections of the data listener whose clients may still have something to send or to read. A
 * client that has had no request since, and was told to go, is none, even if it does not go. */
int64_t transport_awaited(const struct transport *transport);
/* Aborts what is left, closes everything and removes its unix socket. */
void transport_close(struct transport *transport);

#endif
