/* Internals of the transport, shared by listen.c, connection.c, tls.c, http1.c and http2.c.
 *
 * A connection owns its socket and its pending output. A protocol (a const table) interprets the bytes. Readable
 * connections stand in a line. The first is read, a slice, and goes to the end, until the bytes of the loop's turn are
 * used up. The others keep their places for the next turn: their sockets stay readable.
 *
 * Code that wants to write marks the connection with connection_schedule. After all other events of the loop's turn it
 * is flushed: the protocol fills `out`, which goes to the socket in one write. This has its bytes of a turn too.
 * Sockets are read and written directly: libevent's buffers would need a second turn of the loop, and two calls of
 * epoll_ctl, for every write.
 *
 * A connection is freed only at the end of a flush, so no callback loses its connection while it runs. */
#pragma once

#include "listen.h"

#include <event2/buffer.h>
#include <event2/event_struct.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/types.h>

struct connection;
struct http2_shared;
struct tls;
struct tls_socket;

/* Checks that waiting bytes move at an acceptable rate. */
struct pace {
    double since; /* 0: nothing waits */
    size_t bytes; /* moved since then */
};
enum { PACE_BYTES_PER_SECOND = 256 };
/* Returns false when fewer than PACE_BYTES_PER_SECOND moved in an interval (seconds) in which bytes waited. */
bool pace_holds(struct pace *pace, double now, double interval, size_t waiting);

/* True when the field may be sent: a line end in its value would begin another field. */
bool field_is_clean(const struct field *field);

struct connection_protocol {
    int (*open)(struct connection *connection);
    /* Takes all bytes. */
    void (*receive)(struct connection *connection, const unsigned char *bytes, size_t length);
    /* Fills `out`. */
    void (*produce)(struct connection *connection);
    /* Called after each flush, whether all bytes went out, some, or none were there. */
    void (*settle)(struct connection *connection);
    void (*tick)(struct connection *connection, double now);
    /* Stops taking new requests. Sets was_busy when a request is in progress. */
    void (*drain)(struct connection *connection);
    /* True while a request that has arrived whole waits for its answer. */
    bool (*is_busy)(const struct connection *connection);
    /* Closes the remaining exchanges, and frees the protocol's state. */
    void (*close)(struct connection *connection);
};
extern const struct connection_protocol http1_protocol, http2_protocol;

enum connection_stage {
    CONNECTION_HANDSHAKE, /* TLS */
    CONNECTION_UNKNOWN,   /* the protocol is not known yet */
    CONNECTION_OPEN,
    CONNECTION_ENDING,    /* pending output is written, input is discarded */
    CONNECTION_LINGERING, /* shut for sending; closing now could destroy data that the client has not read yet */
    CONNECTION_DEAD
};

struct connection {
    TAILQ_ENTRY(connection) all, scheduled, reading;
    struct transport *transport;
    enum listener_kind kind;
    enum connection_stage stage;
    int fd;
    struct tls_socket *tls; /* NULL: cleartext */
    struct event readable, writable;
    struct evbuffer *out;
    const struct connection_protocol *protocol;
    void *state;               /* the protocol's state */
    size_t matched;            /* bytes of HTTP/2's preface so far */
    double opened, received;   /* time of opening, and of the client's last bytes */
    double ending;             /* time when the stage became ENDING or LINGERING */
    enum exchange_fault fault; /* why it was given up, for its open exchanges */
    uint64_t sent, arrived;    /* bytes given to the socket; bytes the client's side had read at the last tick */
    struct pace writing;
    bool is_scheduled, is_reading, is_eof, is_draining;
    bool has_place; /* counts among its listener's connections */
    bool was_busy;  /* a request was in progress when the drain began, or came later */
    char peer[64];
    uint64_t address; /* see exchange.h */
};
TAILQ_HEAD(connection_list, connection);

struct listener {
    struct transport *transport;
    enum listener_kind kind;
    int fd; /* -1: not bound */
    struct event *acceptable, *resume;
    char *address, *path; /* path: of a unix socket */
    bool is_tls;
    int64_t count; /* of connections that have a place */
};

/* Bytes that are read from one connection, then from another; and bytes that a turn of the loop reads in total, and
 * writes. */
enum { SLICE_BYTES = 16 << 10, TURN_BYTES = 256 << 10 };

struct transport {
    struct transport_options options;
    struct listener listeners[LISTENER_COUNT];
    struct connection_list connections, scheduled;
    struct connection_list reading; /* may have bytes to read; the first was read longest ago */
    int64_t reading_count;
    struct event *read, *flush, *tick;
    struct http2_shared *http2;
    struct tls *tls;
    int reserve;     /* a descriptor to close when none are left */
    bool is_leaving; /* on the data listener, answers of HTTP/1.1 end their connections */
    bool is_draining;
    bool has_flush; /* scheduled connections are flushed now, or in the next turn without being asked */
    time_t date_second;
    char date[40];
    /* Bytes that were just read. A record of TLS fits: one that is read in part would not keep its socket readable. */
    unsigned char buffer[SLICE_BYTES];
};

/* Opens a connection and takes over the descriptor, also on failure. `last_words`: send this answer, then end the
 * connection, which gets no place; NULL: serve the client. STATUS_MEMORY, STATUS_IO. */
int connection_open(struct listener *listener, int fd, const struct sockaddr_storage *address, const char *last_words);
/* Lets the connection be flushed at the end of the loop's turn. */
void connection_schedule(struct connection *connection);
/* True when it has a place without need: no whole request waits for its answer. */
bool connection_is_idle(const struct connection *connection);
/* True when the first request may still be on its way. */
bool connection_is_new(const struct connection *connection);
/* Writes the rest of `out`, then closes. The protocol is closed right after the current callback. */
void connection_end(struct connection *connection);
/* Closes without sending anything. It has no place any more. */
void connection_kill(struct connection *connection);
/* For a client that has shut its sending side: true when the client is known to have closed both directions. A TCP
 * client that closed looks the same as one that waits, until something is sent to it. A TLS client that waits keeps TCP
 * open. */
bool connection_has_left(const struct connection *connection);
/* Takes the connection off `reading` and reads a slice, or continues the handshake. The connection comes last on
 * `reading` when there may be more. Returns the cost in bytes of a turn; 0: nothing was there. */
size_t connection_read(struct connection *connection);
/* Writes what is pending, as far as the socket takes it. Returns the cost in bytes of a turn. */
size_t connection_flush(struct connection *connection);
/* Checks the connection's times, often. */
void connection_tick(struct connection *connection, double now);
void connection_free(struct connection *connection);
/* While the transport drains: true when the client may still send something, or may not have read everything. */
bool connection_is_awaited(const struct connection *connection);

/* Returns an address as a number (exchange.h); writes it as text: address.c. */
uint64_t address_number(const struct sockaddr_storage *address);
void address_text(const struct sockaddr_storage *address, bool has_port, char *text, size_t bytes);

/* Returns the current time as "Sun, 06 Nov 1994 08:49:37 GMT". */
const char *transport_date(struct transport *transport);

/* Makes what all HTTP/2 connections share; NULL: no memory. */
struct http2_shared *http2_shared_new(const struct transport_options *options);
void http2_shared_free(struct http2_shared *shared);

/* Reads certificate and key from files; a failed reload changes nothing. STATUS_INVALID, STATUS_MEMORY. */
int tls_open(const char *cert, const char *key, struct tls **tls);
int tls_reload(struct tls *tls);
void tls_close(struct tls *tls);
/* TLS on one connection. Reads and writes return a number of bytes, or a code of enum tls_result. */
enum tls_result { TLS_AGAIN = -1, TLS_FAILED = -2, TLS_EOF = 0 };
struct tls_socket *tls_socket_new(struct tls *tls, int fd);
void tls_socket_free(struct tls_socket *socket);
/* The handshake returns a positive number when done; *is_http2 then holds the agreed protocol. */
ssize_t tls_handshake(struct tls_socket *socket, bool *is_http2);
ssize_t tls_read(struct tls_socket *socket, void *bytes, size_t length);
ssize_t tls_write(struct tls_socket *socket, const void *bytes, size_t length);
/* True when the handshake or a read must write first, and the socket is full. */
bool tls_wants_write(const struct tls_socket *socket);
void tls_shutdown(struct tls_socket *socket);
