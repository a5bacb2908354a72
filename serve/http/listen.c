/* The transport: opening and closing it, its addresses, and accepting connections, which connection.c then owns. */
#include "connection-internal.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    BACKLOG = 1024,
    ACCEPTS_PER_TURN = 64,
    FEW_ACCEPTS = 4,
    TICK_MICROSECONDS = 250000,
    PAUSE_MICROSECONDS = 100000
};

/* The answer for a client beyond the limit. Its protocol is not known yet, and only HTTP/1.1 clients can read this. */
static const char full[] = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
                           "content-length: 109\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
                           "{\"error\":{\"message\":\"too many connections\",\"type\":\"server_error\",\"param\":null,"
                           "\"code\":\"too_many_connections\"}}";

/* Runs after all events of the turn's sockets. Connections that it leaves are reported as readable again. */
static ON_EVENT(on_read) {
    struct transport *transport = context;
    for (size_t cost = 0; cost <= TURN_BYTES - SLICE_BYTES && !TAILQ_EMPTY(&transport->reading);)
        cost += connection_read(TAILQ_FIRST(&transport->reading));
}

/* Flushes scheduled connections in order. Those that it leaves, and those scheduled while it runs, have their turn in
 * the loop's next one. */
static ON_EVENT(on_flush) {
    struct transport *transport = context;
    struct connection_list list = TAILQ_HEAD_INITIALIZER(list);
    const struct timeval at_once = {0};
    TAILQ_CONCAT(&list, &transport->scheduled, scheduled);
    transport->has_flush = true;
    for (size_t cost = 0; cost < TURN_BYTES && !TAILQ_EMPTY(&list);) {
        struct connection *connection = TAILQ_FIRST(&list);
        TAILQ_REMOVE(&list, connection, scheduled);
        connection->is_scheduled = false;
        cost += connection_flush(connection);
        if (connection->stage == CONNECTION_DEAD)
            connection_free(connection);
    }
    TAILQ_CONCAT(&list, &transport->scheduled, scheduled);
    TAILQ_CONCAT(&transport->scheduled, &list, scheduled);
    transport->has_flush = !TAILQ_EMPTY(&transport->scheduled);
    if (transport->has_flush)
        event_add(transport->flush, &at_once);
}

static ON_EVENT(on_tick) {
    struct transport *transport = context;
    struct connection *connection;
    double now = clock_seconds();
    TAILQ_FOREACH(connection, &transport->connections, all)
    connection_tick(connection, now);
}

int transport_open(const struct transport_options *options, struct transport **made) {
    struct transport *transport = calloc(1, sizeof *transport);
    const struct timeval period = {.tv_usec = TICK_MICROSECONDS};
    int status = 0;
    if (!transport)
        return status_fail(STATUS_MEMORY, "the transport: out of memory");
    transport->options = *options;
    TAILQ_INIT(&transport->connections);
    TAILQ_INIT(&transport->scheduled);
    TAILQ_INIT(&transport->reading);
    for (int kind = 0; kind < LISTENER_COUNT; kind++)
        transport->listeners[kind] = (struct listener){.transport = transport, .kind = kind, .fd = -1};
    /* With SIGPIPE ignored, a write to a client that disconnected fails with EPIPE. OpenSSL's writes take no
     * MSG_NOSIGNAL. */
    signal(SIGPIPE, SIG_IGN);
    transport->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    transport->read = event_new(options->base, -1, 0, on_read, transport);
    transport->flush = event_new(options->base, -1, 0, on_flush, transport);
    transport->tick = event_new(options->base, -1, EV_PERSIST, on_tick, transport);
    transport->http2 = http2_shared_new(options);
    if (!transport->read || !transport->flush || !transport->tick || !transport->http2 ||
        event_add(transport->tick, &period))
        status = status_fail(STATUS_MEMORY, "the transport: out of memory");
    THEN(status, options->tls_cert ? tls_open(options->tls_cert, options->tls_key, &transport->tls) : STATUS_OK);
    if (status)
        transport_close(transport);
    else
        *made = transport;
    return status;
}

static void listener_close(struct listener *listener) {
    if (listener->acceptable)
        event_free(listener->acceptable);
    if (listener->resume)
        event_free(listener->resume);
    listener->acceptable = listener->resume = NULL;
    if (listener->fd >= 0)
        close(listener->fd);
    if (listener->path)
        unlink(listener->path);
    free(listener->path);
    listener->path = NULL;
    listener->fd = -1;
}

/* Refuses a client when no descriptor is free: closes the reserve for as long as the refusal takes. */
static void answer_from_reserve(struct listener *listener) {
    struct transport *transport = listener->transport;
    const struct timeval pause = {.tv_usec = PAUSE_MICROSECONDS};
    if (transport->reserve >= 0) {
        close(transport->reserve);
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            if (!listener->is_tls && send(fd, full, sizeof full - 1, MSG_NOSIGNAL) > 0)
                shutdown(fd, SHUT_WR);
            close(fd);
        }
        transport->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    event_del(listener->acceptable);
    evtimer_add(listener->resume, &pause);
}

static ON_EVENT(on_resume) {
    struct listener *listener = context;
    if (listener->transport->reserve < 0)
        listener->transport->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    event_add(listener->acceptable, NULL);
}

/* Finds a place for a client. When the listener is full, the idle connection that was silent longest gives up its
 * place; one of an address with more than half of the places comes first. An address that has seven eighths of the
 * places gives up one of its own. */
static bool make_place(struct listener *listener, uint64_t address) {
    int64_t most = listener->transport->options.limits.connections, own = 0, votes = 0;
    uint64_t majority = 0; /* of more than half, if there is such an address (Boyer and Moore) */
    struct connection *connection, *idle = NULL;
    if (listener->count < most - most / 8)
        return true;
    TAILQ_FOREACH(connection, &listener->transport->connections, all) {
        if (connection->kind != listener->kind || !connection->has_place)
            continue;
        own += connection->address == address;
        majority = votes ? majority : connection->address;
        votes += connection->address == majority ? 1 : -1;
    }
    bool is_greedy = own >= most - most / 8 && !listener->path;
    if (listener->count < most && !is_greedy)
        return true;
    TAILQ_FOREACH(connection, &listener->transport->connections, all) {
        bool is_of_most = connection->address == majority, was_of_most = idle && idle->address == majority;
        if (connection->kind != listener->kind || (is_greedy && connection->address != address) ||
            !connection_is_idle(connection))
            continue;
        if (!idle || (is_of_most != was_of_most ? is_of_most : connection->received < idle->received))
            idle = connection;
    }
    if (idle)
        connection_kill(idle);
    return idle != NULL;
}

/* Accepts up to `most` clients. Returns false when no client waits any more. */
static bool accept_some(struct listener *listener, int most) {
    struct sockaddr_storage address;
    for (int accepts = 0; accepts < most; accepts++) {
        socklen_t length = sizeof address;
        int client = accept4(listener->fd, (struct sockaddr *)&address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            answer_from_reserve(listener);
        if (client < 0 && errno == ECONNABORTED)
            continue;
        if (client < 0)
            return false;
        bool has_place = make_place(listener, address_number(&address));
        if (!has_place && listener->is_tls)
            close(client);
        else if (connection_open(listener, client, &address, has_place ? NULL : full))
            log_warning("%s", status_text());
    }
    return true;
}

static ON_EVENT(on_acceptable) {
    struct listener *listener = context;
    /* Clients that come faster than they can be read wait in the socket's queue: in a long line of unread connections a
     * new one would be closed as idle. */
    bool is_behind = listener->kind == LISTENER_DATA && listener->transport->reading_count >= ACCEPTS_PER_TURN;
    accept_some(listener, is_behind ? FEW_ACCEPTS : ACCEPTS_PER_TURN);
}

static int bind_fd(struct listener *listener, const struct sockaddr *address, socklen_t length, const char *where) {
    int on = 1, fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return status_fail_errno("%s: cannot make a socket", where);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, address, length)) {
        int status = status_fail_errno("%s: cannot bind", where);
        close(fd);
        return status;
    }
    listener->fd = fd;
    return 0;
}

/* Removes a socket on which nobody listens: a killed server did not remove it. Anything else is refused: STATUS_USAGE,
 * STATUS_IO. */
static int path_is_free(const char *path, const struct sockaddr_un *address) {
    struct stat facts;
    if (lstat(path, &facts))
        return errno == ENOENT ? 0 : status_fail_errno("%s: cannot be looked at", path);
    if (!S_ISSOCK(facts.st_mode))
        return status_fail(STATUS_USAGE, "%s: there is something that is not a socket", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return status_fail_errno("%s: cannot make a socket", path);
    int result = connect(fd, (const struct sockaddr *)address, sizeof *address);
    int error = errno;
    close(fd);
    if (!result || error != ECONNREFUSED)
        return status_fail(STATUS_USAGE, "%s: another server listens there", path);
    return unlink(path) ? status_fail_errno("%s: cannot remove the socket of a server that has ended", path) : 0;
}

static int bind_unix(struct listener *listener, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof address.sun_path)
        return status_fail(STATUS_USAGE, "unix:%s: a path has 1 to %zu bytes", path, sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int status = path_is_free(path, &address);
    THEN_IF(status, !(listener->path = strdup(path)), status_fail(STATUS_MEMORY, "%s: out of memory", path));
    THEN(status, bind_fd(listener, (struct sockaddr *)&address, sizeof address, path));
    THEN(status, chmod(path, 0600) ? status_fail_errno("%s: cannot make it private", path) : STATUS_OK);
    if (status && listener->fd < 0) { /* nothing was bound there */
        free(listener->path);
        listener->path = NULL;
    }
    return status;
}

/* Splits "HOST:PORT" or "[V6]:PORT". */
static int address_split(const char *where, char *host, size_t bytes, const char **port) {
    const char *colon = strrchr(where, ':');
    size_t length = colon ? (size_t)(colon - where) : 0;
    bool is_bracketed = length >= 2 && where[0] == '[' && colon[-1] == ']';
    char *end;
    if (is_bracketed) {
        where++;
        length -= 2;
    }
    if (!length || length >= bytes || (!is_bracketed && memchr(where, ':', length)))
        return status_fail(STATUS_USAGE, "%s: an address is HOST:PORT, [V6]:PORT or unix:PATH", where);
    memcpy(host, where, length);
    host[length] = 0;
    *port = colon + 1;
    unsigned long number = strtoul(*port, &end, 10);
    if (**port < '0' || **port > '9' || *end || number > 65535)
        return status_fail(STATUS_USAGE, "%s: a port is a number up to 65535", where);
    return 0;
}

static int bind_tcp(struct listener *listener, const char *where) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    char host[256];
    const char *port = "";
    int status = address_split(where, host, sizeof host, &port);
    TRY(status);
    int error = getaddrinfo(host, port, &hints, &found);
    if (error)
        return status_fail(STATUS_USAGE, "%s: no such host (%s)", where, gai_strerror(error));
    for (struct addrinfo *one = found; one; one = one->ai_next) {
        status = bind_fd(listener, one->ai_addr, one->ai_addrlen, where);
        if (!status)
            break;
    }
    freeaddrinfo(found);
    return status;
}

int transport_bind(struct transport *transport, enum listener_kind kind, const char *where) {
    struct listener *listener = &transport->listeners[kind];
    bool is_unix = !strncmp(where, "unix:", 5);
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    char text[80];
    int status = is_unix ? bind_unix(listener, where + 5) : bind_tcp(listener, where);
    listener->is_tls = transport->tls && !is_unix;
    if (!status && getsockname(listener->fd, (struct sockaddr *)&address, &length))
        status = status_fail_errno("%s: no address", where);
    if (!status) {
        address_text(&address, true, text, sizeof text);
        listener->address = strdup(is_unix ? where : text);
        listener->acceptable =
            event_new(transport->options.base, listener->fd, EV_READ | EV_PERSIST, on_acceptable, listener);
        listener->resume = evtimer_new(transport->options.base, on_resume, listener);
        if (!listener->address || !listener->acceptable || !listener->resume)
            status = status_fail(STATUS_MEMORY, "%s: out of memory", where);
    }
    if (status)
        listener_close(listener);
    return status;
}

int transport_accept(struct transport *transport) {
    for (int kind = 0; kind < LISTENER_COUNT; kind++) {
        struct listener *listener = &transport->listeners[kind];
        if (listener->fd < 0)
            continue;
        if (listen(listener->fd, BACKLOG))
            return status_fail_errno("%s: cannot listen", listener->address);
        if (event_add(listener->acceptable, NULL))
            return status_fail(STATUS_MEMORY, "%s: out of memory", listener->address);
    }
    return 0;
}

const char *transport_address(const struct transport *transport, enum listener_kind kind) {
    return transport->listeners[kind].address;
}

int transport_reload(struct transport *transport) {
    return transport->tls ? tls_reload(transport->tls) : 0;
}

void transport_leave(struct transport *transport) {
    transport->is_leaving = true;
}

void transport_drain(struct transport *transport) {
    struct connection *connection;
    transport->is_draining = true;
    /* Accepts clients that wait in the socket's queue first: closing the socket would reset them. */
    for (int rounds = 0; rounds < BACKLOG / ACCEPTS_PER_TURN && transport->listeners[LISTENER_DATA].fd >= 0 &&
                         accept_some(&transport->listeners[LISTENER_DATA], ACCEPTS_PER_TURN);
         rounds++)
        ;
    listener_close(&transport->listeners[LISTENER_DATA]);
    TAILQ_FOREACH(connection, &transport->connections, all) {
        if (connection->kind != LISTENER_DATA || connection->is_draining)
            continue;
        connection->is_draining = true;
        if (connection->stage == CONNECTION_OPEN)
            connection->protocol->drain(connection);
        else if (connection->stage < CONNECTION_OPEN && !connection->matched && !connection_is_new(connection))
            connection_kill(connection);
    }
}

int64_t transport_connections(const struct transport *transport, enum listener_kind kind) {
    return transport->listeners[kind].count;
}

int64_t transport_awaited(const struct transport *transport) {
    const struct connection *connection;
    int64_t count = 0;
    TAILQ_FOREACH(connection, &transport->connections, all)
    count += connection->kind == LISTENER_DATA && connection_is_awaited(connection);
    return count;
}

void transport_close(struct transport *transport) {
    if (!transport)
        return;
    for (int kind = 0; kind < LISTENER_COUNT; kind++) {
        listener_close(&transport->listeners[kind]);
        free(transport->listeners[kind].address);
    }
    while (!TAILQ_EMPTY(&transport->connections))
        connection_free(TAILQ_FIRST(&transport->connections));
    if (transport->read)
        event_free(transport->read);
    if (transport->flush)
        event_free(transport->flush);
    if (transport->tick)
        event_free(transport->tick);
    http2_shared_free(transport->http2);
    tls_close(transport->tls);
    if (transport->reserve >= 0)
        close(transport->reserve);
    free(transport);
}
