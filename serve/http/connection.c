/* A connection: its socket, its pending bytes, and the detection of its protocol. See connection-internal.h. */
#include "connection-internal.h"

#include "base/base.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    PREFACE_BYTES = 24,
    LEAST_COST = 2048,   /* of a read, and of a round: a short request takes time too */
    ROUNDS_PER_TURN = 8, /* of filling and writing */
    TLS_RECORD_BYTES = 16384,
    SOCKET_BUFFER_BYTES = 256 << 10 /* for a client that does not read, the kernel would grow it to megabytes */
};
_Static_assert((int)SLICE_BYTES >= (int)TLS_RECORD_BYTES,
               "a record that is read in part would not keep its socket readable");
static const char preface[PREFACE_BYTES + 1] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static const double first_request_seconds = 2;
/* Time for the client to read its answer: without a byte from it, and in total. */
static const double linger_seconds = 5, longest_linger_seconds = 30;

bool field_is_clean(const struct field *field) {
    return !memchr(field->value, '\r', field->value_length) && !memchr(field->value, '\n', field->value_length) &&
           !memchr(field->value, 0, field->value_length);
}

bool pace_holds(struct pace *pace, double now, double interval, size_t waiting) {
    if (!waiting || pace->since <= 0) {
        *pace = (struct pace){waiting ? now : 0, 0};
        return true;
    }
    if (now - pace->since < interval)
        return true;
    if ((double)pace->bytes < PACE_BYTES_PER_SECOND * interval)
        return false;
    *pace = (struct pace){now, 0};
    return true;
}

void connection_schedule(struct connection *connection) {
    struct transport *transport = connection->transport;
    if (connection->is_scheduled)
        return;
    connection->is_scheduled = true;
    TAILQ_INSERT_TAIL(&transport->scheduled, connection, scheduled);
    if (!transport->has_flush)
        event_active(transport->flush, 0, 0);
}

static void protocol_close(struct connection *connection) {
    const struct connection_protocol *protocol = connection->protocol;
    connection->protocol = NULL;
    if (protocol)
        protocol->close(connection);
}

void connection_end(struct connection *connection) {
    if (connection->stage >= CONNECTION_ENDING)
        return;
    connection->stage = CONNECTION_ENDING;
    connection->ending = clock_seconds();
    connection_schedule(connection);
}

static void give_up_place(struct connection *connection) {
    connection->transport->listeners[connection->kind].count -= connection->has_place;
    connection->has_place = false;
}

bool connection_is_idle(const struct connection *connection) {
    return connection->has_place &&
           (connection->stage != CONNECTION_OPEN || !connection->protocol->is_busy(connection));
}

void connection_kill(struct connection *connection) {
    give_up_place(connection);
    connection->stage = CONNECTION_DEAD;
    connection_schedule(connection);
}

static void speak(struct connection *connection, const struct connection_protocol *protocol) {
    connection->stage = CONNECTION_OPEN;
    if (protocol->open(connection)) {
        connection_kill(connection);
        return;
    }
    connection->protocol = protocol;
    if (connection->transport->is_draining && connection->kind == LISTENER_DATA)
        protocol->drain(connection);
}

/* HTTP/2 begins with its preface; the first byte that differs means HTTP/1.1. The matched bytes equal the preface, so
 * they need not be stored. */
static void tell_apart(struct connection *connection, const unsigned char **bytes, size_t *length) {
    while (*length && connection->matched < PREFACE_BYTES && **bytes == (unsigned char)preface[connection->matched]) {
        connection->matched++;
        (*bytes)++;
        (*length)--;
    }
    if (connection->matched == PREFACE_BYTES)
        speak(connection, &http2_protocol);
    else if (*length)
        speak(connection, &http1_protocol);
    else
        return;
    if (connection->stage == CONNECTION_OPEN && connection->matched)
        connection->protocol->receive(connection, (const unsigned char *)preface, connection->matched);
}

/* Returns a number of bytes, 0 at the end, TLS_AGAIN or TLS_FAILED, as tls_read does. */
static ssize_t socket_read(struct connection *connection) {
    struct transport *transport = connection->transport;
    if (connection->tls && connection->stage < CONNECTION_LINGERING)
        return tls_read(connection->tls, transport->buffer, sizeof transport->buffer);
    ssize_t n = recv(connection->fd, transport->buffer, sizeof transport->buffer, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? TLS_AGAIN : TLS_FAILED;
    return n;
}

static bool is_handshaken(struct connection *connection) {
    bool is_http2 = false;
    ssize_t n = tls_handshake(connection->tls, &is_http2);
    if (n == TLS_FAILED)
        connection_kill(connection);
    if (n <= 0)
        return false;
    speak(connection, is_http2 ? &http2_protocol : &http1_protocol);
    return connection->stage == CONNECTION_OPEN;
}

static void line_up(struct connection *connection) {
    if (!connection->is_reading)
        TAILQ_INSERT_TAIL(&connection->transport->reading, connection, reading);
    connection->transport->reading_count += !connection->is_reading;
    connection->is_reading = true;
}

static void stop_reading(struct connection *connection) {
    if (connection->is_reading)
        TAILQ_REMOVE(&connection->transport->reading, connection, reading);
    connection->transport->reading_count -= connection->is_reading;
    connection->is_reading = false;
}

size_t connection_read(struct connection *connection) {
    stop_reading(connection);
    connection_schedule(connection);
    if (connection->stage == CONNECTION_DEAD || connection->is_eof)
        return 0;
    if (connection->stage == CONNECTION_HANDSHAKE) { /* it costs as much as a slice: it takes a signature */
        if (is_handshaken(connection))
            line_up(connection); /* the client's first bytes may have come with its end */
        return SLICE_BYTES;
    }
    ssize_t n = socket_read(connection);
    if (n == TLS_EOF) {
        event_del(&connection->readable);
        connection->is_eof = true;
    } else if (n == TLS_FAILED) {
        connection_kill(connection);
    }
    if (n <= 0)
        return 0;
    const unsigned char *bytes = connection->transport->buffer;
    size_t length = (size_t)n;
    connection->received = clock_seconds();
    if (connection->stage == CONNECTION_UNKNOWN)
        tell_apart(connection, &bytes, &length);
    if (connection->stage == CONNECTION_OPEN && length)
        connection->protocol->receive(connection, bytes, length);
    line_up(connection); /* there may be more */
    return n > LEAST_COST ? (size_t)n : LEAST_COST;
}

static void ask_to_read(struct connection *connection) {
    line_up(connection);
    event_active(connection->transport->read, 0, 0);
}

static ON_EVENT(on_readable) {
    struct connection *connection = context;
    ask_to_read(connection);
}

static ON_EVENT(on_writable) {
    struct connection *connection = context;
    if (connection->tls && tls_wants_write(connection->tls))
        ask_to_read(connection);
    connection_schedule(connection);
}

/* Returns true when all pending bytes were sent, so the socket may take more. */
static bool out_is_written(struct connection *connection) {
    size_t before = evbuffer_get_length(connection->out);
    while (before) {
        ssize_t n;
        if (connection->tls) {
            size_t length = before < TLS_RECORD_BYTES ? before : TLS_RECORD_BYTES;
            unsigned char *bytes = evbuffer_pullup(connection->out, (ev_ssize_t)length);
            n = bytes ? tls_write(connection->tls, bytes, length) : TLS_FAILED;
            if (n > 0)
                evbuffer_drain(connection->out, (size_t)n);
        } else {
            n = evbuffer_write(connection->out, connection->fd);
            if (n <= 0)
                n = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? TLS_AGAIN : TLS_FAILED;
        }
        if (n == TLS_FAILED) {
            connection_kill(connection);
            return false;
        }
        if (n == TLS_AGAIN)
            return false;
        connection->sent += (size_t)n;
        before = evbuffer_get_length(connection->out);
    }
    return true;
}

/* Connections without a place are few: closes the one that has lingered longest when there are too many. */
static void end_oldest(const struct connection *newest) {
    struct connection *connection, *oldest = NULL;
    int count = 0;
    TAILQ_FOREACH(connection, &newest->transport->connections, all) {
        if (connection->kind != newest->kind || connection->stage != CONNECTION_LINGERING)
            continue;
        count++;
        if (!oldest || connection->ending < oldest->ending)
            oldest = connection;
    }
    if (count > LISTEN_LINGERING)
        connection_kill(oldest);
}

/* Returns true when there may be more to send after the other connections had their turn. *cost grows by every round.
 */
static bool flush_rounds(struct connection *connection, size_t *cost) {
    for (int round = 0; round < ROUNDS_PER_TURN; round++) {
        *cost += LEAST_COST;
        if (connection->stage != CONNECTION_OPEN)
            return false;
        connection->protocol->produce(connection);
        if (!evbuffer_get_length(connection->out)) {
            connection->protocol->settle(connection);
            if (!evbuffer_get_length(connection->out))
                return false;
        }
        bool is_free = out_is_written(connection);
        if (connection->stage == CONNECTION_OPEN)
            connection->protocol->settle(connection);
        if (!is_free)
            return false;
    }
    return true;
}

size_t connection_flush(struct connection *connection) {
    uint64_t before = connection->sent;
    size_t cost = 0;
    bool has_more = flush_rounds(connection, &cost);
    if (connection->stage >= CONNECTION_ENDING)
        protocol_close(connection);
    if (connection->stage == CONNECTION_ENDING && out_is_written(connection)) {
        /* Shuts the sending side after the last byte; then the client's bytes are read and dropped for a while. Closing
         * with unread bytes would reset the connection, and the client might lose part of the answer. Some clients send
         * a whole body, of any length, before they read the answer that refuses it. */
        connection->stage = CONNECTION_LINGERING;
        connection->ending = clock_seconds();
        give_up_place(connection);
        end_oldest(connection);
        if (connection->tls)
            tls_shutdown(connection->tls);
        shutdown(connection->fd, SHUT_WR);
    }
    bool has_pending = has_more || evbuffer_get_length(connection->out) > 0;
    if (connection->is_eof && (connection->stage == CONNECTION_LINGERING || connection->stage < CONNECTION_OPEN))
        connection->stage = CONNECTION_DEAD;
    cost += (size_t)(connection->sent - before);
    if (connection->stage == CONNECTION_DEAD)
        return cost;
    bool waits = has_pending || (connection->tls && tls_wants_write(connection->tls));
    if (waits != (bool)event_pending(&connection->writable, EV_WRITE, NULL))
        waits ? event_add(&connection->writable, NULL) : event_del(&connection->writable);
    return cost;
}

/* The socket's buffer hides how much the client reads, so the kernel is asked. */
static bool is_read_by_client(struct connection *connection, double now) {
    int queued = 0;
    if (connection->arrived == connection->sent && !evbuffer_get_length(connection->out))
        return pace_holds(&connection->writing, now, 0, 0);
    if (ioctl(connection->fd, SIOCOUTQ, &queued))
        queued = 0;
    uint64_t arrived = connection->sent > (uint64_t)queued ? connection->sent - (uint64_t)queued : 0;
    if (arrived > connection->arrived)
        connection->writing.bytes += (size_t)(arrived - connection->arrived);
    connection->arrived = arrived;
    return pace_holds(&connection->writing, now, connection->transport->options.limits.write_timeout,
                      evbuffer_get_length(connection->out) + (size_t)queued);
}

static bool has_lingered(const struct connection *connection, double now) {
    double silent = now - (connection->received > connection->ending ? connection->received : connection->ending);
    return silent > linger_seconds || now - connection->ending > longest_linger_seconds;
}

bool connection_is_new(const struct connection *connection) {
    bool is_silent = connection->received <= connection->opened; /* nothing was received after the TLS handshake */
    return !is_silent || clock_seconds() - connection->opened <= first_request_seconds;
}

bool connection_has_left(const struct connection *connection) {
    struct pollfd socket = {.fd = connection->fd};
    char byte;
    if (connection->tls && !recv(connection->fd, &byte, 1, MSG_PEEK))
        return true;
    return poll(&socket, 1, 0) > 0 && socket.revents & (POLLERR | POLLHUP);
}

void connection_tick(struct connection *connection, double now) {
    const struct transport_limits *limits = &connection->transport->options.limits;
    if (!is_read_by_client(connection, now)) {
        connection->fault = EXCHANGE_SLOW_READER;
        connection_kill(connection);
    } else if (connection->stage < CONNECTION_OPEN && now - connection->opened > limits->header_timeout)
        connection_kill(connection);
    else if (connection->stage == CONNECTION_LINGERING && has_lingered(connection, now))
        connection_kill(connection);
    else if (connection->stage == CONNECTION_OPEN)
        connection->protocol->tick(connection, now);
}

/* A goodbye has arrived when the kernel has no more bytes to send, whatever the client does then. */
bool connection_is_awaited(const struct connection *connection) {
    int queued = 0;
    if (connection->was_busy || connection->stage < CONNECTION_LINGERING)
        return connection->stage != CONNECTION_DEAD;
    return connection->stage == CONNECTION_LINGERING && !ioctl(connection->fd, SIOCOUTQ, &queued) && queued;
}

void connection_free(struct connection *connection) {
    protocol_close(connection);
    if (connection->is_scheduled)
        TAILQ_REMOVE(&connection->transport->scheduled, connection, scheduled);
    TAILQ_REMOVE(&connection->transport->connections, connection, all);
    stop_reading(connection);
    give_up_place(connection);
    event_del(&connection->readable);
    event_del(&connection->writable);
    tls_socket_free(connection->tls);
    close(connection->fd);
    evbuffer_free(connection->out);
    free(connection);
}

int connection_open(struct listener *listener, int fd, const struct sockaddr_storage *address, const char *last_words) {
    struct transport *transport = listener->transport;
    struct connection *connection = calloc(1, sizeof *connection);
    int on = 1, bytes = SOCKET_BUFFER_BYTES;
    if (connection)
        connection->out = evbuffer_new();
    if (connection && listener->is_tls)
        connection->tls = tls_socket_new(transport->tls, fd);
    if (!connection || !connection->out || (listener->is_tls && !connection->tls)) {
        if (connection && connection->out)
            evbuffer_free(connection->out);
        free(connection);
        close(fd);
        return status_fail(STATUS_MEMORY, "a connection: out of memory");
    }
    connection->transport = transport;
    connection->kind = listener->kind;
    connection->stage = listener->is_tls ? CONNECTION_HANDSHAKE : CONNECTION_UNKNOWN;
    connection->fd = fd;
    connection->opened = connection->received = clock_seconds();
    address_text(address, false, connection->peer, sizeof connection->peer);
    connection->address = address_number(address);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    event_assign(&connection->readable, transport->options.base, fd, EV_READ | EV_PERSIST, on_readable, connection);
    event_assign(&connection->writable, transport->options.base, fd, EV_WRITE | EV_PERSIST, on_writable, connection);
    TAILQ_INSERT_TAIL(&transport->connections, connection, all);
    connection->has_place = !last_words;
    listener->count += connection->has_place;
    if (event_add(&connection->readable, NULL) ||
        (last_words && evbuffer_add(connection->out, last_words, strlen(last_words))))
        connection_kill(connection);
    else if (last_words)
        connection_end(connection);
    return 0;
}
