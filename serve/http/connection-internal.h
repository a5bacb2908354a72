/* The transport from within: what listen.c, connection.c, tls.c, http1.c and http2.c share.
 *
 * A connection owns its socket and what waits to be written; a protocol (a const table) makes sense of the bytes. Who
 * wants to write marks the connection with connection_schedule; behind all other events of the loop's turn it is
 * flushed: the protocol fills `out`, and that goes to the socket in one write. Sockets are read and written here and
 * not by libevent's buffers, which would need a second turn of the loop, and two calls of epoll_ctl, for every write.
 *
 * A connection is freed at the end of a flush and nowhere else, so that no callback finds it gone under its feet. */
#ifndef CAMBIUM_HTTP_CONNECTION_INTERNAL_H
#define CAMBIUM_HTTP_CONNECTION_INTERNAL_H

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

/* Whether bytes move at a bearable rate: in every interval some, as long as any wait. */
struct pace {
    double since; /* 0: nothing waits */
    size_t bytes; /* moved since then */
};
enum { PACE_BYTES_PER_SECOND = 256 };
/* False when an interval went by with too few bytes. */
bool pace_holds(struct pace *pace, double now, double interval, size_t waiting);

/* Whether it may go out: a line end in its value would begin another field. */
bool field_is_clean(const struct field *field);

struct connection_protocol {
    int (*open)(struct connection *connection);
    /* Takes all bytes. */
    void (*receive)(struct connection *connection, const unsigned char *bytes, size_t length);
    /* Fills `out`. */
    void (*produce)(struct connection *connection);
    /* Behind a write, whether all went out or not; also where there was nothing to write. */
    void (*settle)(struct connection *connection);
    void (*tick)(struct connection *connection, double now);
    /* New requests are not wanted any more. Says in was_busy whether one is under way. */
    void (*drain)(struct connection *connection);
    /* Tells handlers that are left, and frees its state. */
    void (*close)(struct connection *connection);
};
extern const struct connection_protocol http1_protocol, http2_protocol;

enum connection_stage {
    CONNECTION_HANDSHAKE, /* TLS */
    CONNECTION_UNKNOWN,   /* which protocol it speaks */
    CONNECTION_OPEN,
    CONNECTION_ENDING,    /* what waits in `out` is written, what comes is thrown away */
    CONNECTION_LINGERING, /* our side is shut: a close now could destroy what the client has not read yet */
    CONNECTION_DEAD
};

struct connection {
    TAILQ_ENTRY(connection) all, scheduled;
    struct transport *transport;
    enum listener_kind kind;
    enum connection_stage stage;
    int fd;
    struct tls_socket *tls; /* NULL: cleartext */
    struct event readable, writable;
    struct evbuffer *out;
    const struct connection_protocol *protocol;
    void *state;               /* the protocol's */
    size_t matched;            /* bytes of HTTP/2's preface */
    double opened, received;   /* when; the last bytes from the client */
    double ending;             /* since when */
    enum exchange_fault fault; /* why it was given up, for what it had under way */
    uint64_t sent, arrived;    /* bytes given to the socket; read by the client's side, by the last tick */
    struct pace writing;
    bool is_scheduled, is_eof, is_draining;
    bool was_busy; /* a request was under way when the drain began, or came later */
    char peer[64];
};
TAILQ_HEAD(connection_list, connection);

struct listener {
    struct transport *transport;
    enum listener_kind kind;
    int fd; /* -1: not bound */
    struct event *acceptable, *resume;
    char *address, *path; /* path: of a unix socket */
    bool is_tls;
    int64_t count; /* of connections */
};

struct transport {
    struct transport_options options;
    struct listener listeners[LISTENER_COUNT];
    struct connection_list connections, scheduled;
    struct event *flush, *tick;
    struct http2_shared *http2;
    struct tls *tls;
    int reserve;     /* a descriptor to give up when there are no others */
    bool is_leaving; /* answers of HTTP/1.1 end their connections, on the data listener */
    bool is_draining;
    time_t date_second;
    char date[40];
    unsigned char buffer[65536]; /* bytes that were just read; the loop's thread alone */
};

/* Takes the descriptor, also when it fails. `last_words`: all that the client is told, whatever it asks, before the
 * connection ends; NULL: it is served. */
int connection_open(struct listener *listener, int fd, const char *peer, const char *last_words);
/* It is flushed at the end of the loop's turn. */
void connection_schedule(struct connection *connection);
/* True when the first request may still be on its way. */
bool connection_is_new(const struct connection *connection);
/* Writes what is in `out`, and closes. The protocol is closed at once behind the present callback. */
void connection_end(struct connection *connection);
/* Closes without a word. */
void connection_kill(struct connection *connection);
/* True when the client has closed both ways, as far as its system has said so. A client of TCP that has only shut its
 * sending side looks like one that has closed until something is sent to it; one of TLS that waits keeps TCP open. For
 * a client that has sent its end. */
bool connection_has_left(const struct connection *connection);
/* Of the transport's event and timer. */
void connection_flush(struct connection *connection);
void connection_tick(struct connection *connection, double now);
void connection_free(struct connection *connection);
/* Of one that drains: whether there is something that its client may still send, or has perhaps not read yet. */
bool connection_is_awaited(const struct connection *connection);

/* "Sun, 06 Nov 1994 08:49:37 GMT", now. */
const char *transport_date(struct transport *transport);

struct http2_shared *http2_shared_new(const struct transport_options *options);
void http2_shared_free(struct http2_shared *shared);

/* Certificates and keys. */
int tls_open(const char *cert, const char *key, struct tls **tls);
int tls_reload(struct tls *tls);
void tls_close(struct tls *tls);
/* One connection. The calls return bytes, or TLS_ */
enum tls_result { TLS_AGAIN = -1, TLS_FAILED = -2, TLS_EOF = 0 };
struct tls_socket *tls_socket_new(struct tls *tls, int fd);
void tls_socket_free(struct tls_socket *socket);
/* Positive: done; then *is_http2 says what was agreed on. */
ssize_t tls_handshake(struct tls_socket *socket, bool *is_http2);
ssize_t tls_read(struct tls_socket *socket, void *bytes, size_t length);
ssize_t tls_write(struct tls_socket *socket, const void *bytes, size_t length);
/* Whether the handshake or a read waits until the socket can be written. */
bool tls_wants_write(const struct tls_socket *socket);
void tls_shutdown(struct tls_socket *socket);

#endif
