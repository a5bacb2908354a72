/* The transport: listeners, connections, and the exchanges on them.
 *
 * A listener accepts HTTP/1.1 and HTTP/2 on one port. It recognises HTTP/2 by its preface (prior knowledge). A listener
 * with TLS accepts TLS only, and ALPN selects the protocol. The transport enforces every limit: connections, streams,
 * header lists, rates, times, pending bytes.
 *
 * In a turn of the loop, all connections together are read up to 256 KiB, and written to up to about as much. They
 * take turns, in reading by slices of 16 KiB. So a turn does not grow with the number of clients, and a short request
 * waits for a slice of each other client at most.
 *
 * The files: listen.c accepts connections, connection.c owns a socket and detects its protocol, http1.c and http2.c
 * implement the protocols, tls.c reads certificates. Everything runs on the loop's thread. */
#pragma once

#include "exchange.h"
#include "gathered.h"

#include "base/strbuf.h"

#include <event2/event.h>

/* Connections of a listener beside those of transport_limits: they have had their last answer, and only wait for their
 * clients to read it. */
enum { LISTEN_LINGERING = 128 };

/* The head of a libevent callback that only its context matters to. */
#define ON_EVENT(name) void name(evutil_socket_t fd, short what, void *context)

struct transport_limits {
    int64_t connections, streams;              /* places of a listener; per connection */
    int64_t header_bytes, headers;             /* names, values and 32 per field; fields */
    int64_t body_bytes;                        /* of a request's body, and of a gRPC message */
    int64_t gathered_bytes;                    /* of all bodies that handlers have not read yet; 0: no limit */
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
    /* Finds the handler of an exchange, or answers at once. Sets handler, context and the router's fields. */
    void (*route)(void *router, struct exchange *exchange);
    /* Appends the body (application/json) when the transport itself answers: 400, 408, 413 or 431. */
    void (*refuse)(struct strbuf *body, int status, const char *problem);
    void *router;
};

struct transport;

/* Raises the soft limit of descriptors to what this number of listeners needs. When the hard limit is lower, fewer
 * connections remain, so that each listener keeps its own, and a warning says so. */
void transport_fit_descriptors(struct transport_limits *limits, int listeners);
/* Makes a transport. It copies the options; `base`, `gathered` and `router` must outlive it. STATUS_MEMORY;
 * STATUS_INVALID for certificate or key. */
int transport_open(const struct transport_options *options, struct transport **transport);
/* Binds `where`: "HOST:PORT", "[V6]:PORT" or "unix:PATH". Connections are not accepted yet. An existing path is removed
 * only if it is a socket without a listener. STATUS_USAGE, STATUS_IO. */
int transport_bind(struct transport *transport, enum listener_kind kind, const char *where);
/* Begins to accept; until then clients are refused. STATUS_IO, STATUS_MEMORY. */
int transport_accept(struct transport *transport);
/* Returns the address in the form in which clients use it: "127.0.0.1:8000", "unix:PATH"; NULL: not bound. */
const char *transport_address(const struct transport *transport, enum listener_kind kind);
/* Reads certificate and key again. A damaged file changes nothing. STATUS_INVALID, STATUS_MEMORY. */
int transport_reload(struct transport *transport);
/* Announces that the data listener will close. From now on each answer over HTTP/1.1 closes its connection, so that the
 * client's next one may reach another server. */
void transport_leave(struct transport *transport);
/* Accepts no new connections on the data listener, except those already waiting, and no new requests: GOAWAY twice,
 * Connection: close. */
void transport_drain(struct transport *transport);
/* Returns the number of connections that have a place: those that have had their last answer have none. */
int64_t transport_connections(const struct transport *transport, enum listener_kind kind);
/* After transport_drain: returns how many clients of the data listener may still send or read something. A client that
 * got the goodbye and has sent no request since is not counted, even if it stays connected. */
int64_t transport_awaited(const struct transport *transport);
/* Aborts the remaining exchanges, closes all sockets, removes unix sockets and frees the transport. */
void transport_close(struct transport *transport);
