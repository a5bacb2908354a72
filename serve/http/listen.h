/* The transport: listeners, connections, and the exchanges on them.
 *
 * A listener accepts HTTP/1.1 and HTTP/2 (prior knowledge, by its preface) on one port. With TLS it accepts nothing
 * else, and ALPN decides. Every limit is enforced here: connections, streams, header lists, rates, times, pending
 * bytes. listen.c accepts, connection.c detects the protocol and owns a socket, http1.c and http2.c speak, tls.c has
 * certificates. The loop's thread. */
#ifndef CAMBIUM_HTTP_LISTEN_H
#define CAMBIUM_HTTP_LISTEN_H

#include "exchange.h"
#include "gathered.h"

#include "base/strbuf.h"

#include <event2/event.h>

struct transport_limits {
    int64_t connections, streams;              /* per listener; per connection */
    int64_t header_bytes, headers;             /* names, values and 32 per field; fields */
    int64_t body_bytes;                        /* of a request's body, and of a gRPC message */
    int64_t gathered_bytes;                    /* of all bodies that were not read yet; 0: no limit */
    int64_t stream_window, connection_window;  /* HTTP/2, bytes */
    int64_t output_bytes, stream_output_bytes; /* pending: of a connection, of an answer */
    double header_timeout, idle_timeout, write_timeout;
    int64_t glitches, glitches_per_s; /* useless frames: burst, rate */
    int64_t resets, resets_per_s;     /* RST_STREAM of the client: burst, rate */
    int64_t requests_per_connection;  /* HTTP/1.1 */
};

struct transport_options {
    struct event_base *base;
    struct transport_limits limits;
    struct gathered *gathered;      /* counts bytes of requests that wait for their turn; NULL: not counted */
    const char *tls_cert, *tls_key; /* for the data listener and for a control listener on TCP; NULL: cleartext */
    size_t request_bytes;           /* of the router's part of an exchange */
    /* Finds the exchange's handler, and may answer at once. Sets handler, context and the router's fields. */
    void (*route)(void *router, struct exchange *exchange);
    /* Appends the body (application/json) of an answer that the transport gives itself: 400, 408, 413 or 431. */
    void (*refuse)(struct strbuf *body, int status, const char *problem);
    void *router;
};

struct transport;

/* The options are copied. STATUS_USAGE, STATUS_INVALID or STATUS_IO for certificate and key; STATUS_MEMORY. */
/* Makes a transport with these options, which outlive it. STATUS_MEMORY, STATUS_IO, STATUS_INVALID. */
int transport_open(const struct transport_options *options, struct transport **transport);
/* Binds `where`: "HOST:PORT", "[V6]:PORT" or "unix:PATH". Nobody is accepted yet. An existing path is removed only if
 * it is a socket without a listener. STATUS_USAGE, STATUS_IO. */
int transport_bind(struct transport *transport, enum listener_kind kind, const char *where);
/* Begins to accept; until then clients are refused. STATUS_IO, STATUS_MEMORY. */
int transport_accept(struct transport *transport);
/* Returns the address in the form in which clients use it: "127.0.0.1:8000", "unix:PATH"; NULL: not bound. */
const char *transport_address(const struct transport *transport, enum listener_kind kind);
/* Reads certificate and key again. A damaged file changes nothing. STATUS_IO, STATUS_INVALID. */
int transport_reload(struct transport *transport);
/* Announces that the data listener will close. Clients of HTTP/1.1 are told to use a new connection each time, which
 * may lead them to another server. */
void transport_leave(struct transport *transport);
/* Accepts no new connections on the data listener, except those already waiting, and no new requests: GOAWAY twice,
 * Connection: close. */
void transport_drain(struct transport *transport);
/* Returns the number of open connections. */
int64_t transport_connections(const struct transport *transport, enum listener_kind kind);
/* After transport_drain: returns the connections of the data listener whose clients may still have something to send or
 * to read. A client that was told to go and has sent no request since does not count, even if it stays. */
int64_t transport_awaited(const struct transport *transport);
/* Aborts the remaining exchanges, closes everything, and removes its unix socket. */
void transport_close(struct transport *transport);

#endif
