/* HTTP/1.1 on a connection: one request after the other, answers with a length or in chunks. The parser is separate
 * (http1_parser.h); this file has connections and answers. */
#include "connection-internal.h"
#include "http1_parser.h"

#include "base/base.h"

enum { MAX_LINE_BYTES = 8192 };
static const double keep_alive_seconds = 75;
static const double probe_seconds = 1;
static const char version[] = "HTTP/1.1 "; /* the start of every answer */
static const char continue_line[] = "HTTP/1.1 100 Continue\r\n\r\n";

struct http1 {
    struct connection *connection;
    struct http1_parser parser;
    struct evbuffer *waiting; /* requests that arrived before their turn; NULL: none so far */
    struct exchange exchange;
    bool has_exchange;
    bool is_whole;             /* the request */
    bool is_begun, is_ended;   /* the answer */
    bool is_aborted;           /* the answer was broken off */
    bool is_chunked, is_empty; /* empty: for HEAD, 204 and 304 */
    bool closes;               /* the connection closes after the answer */
    bool was_over;             /* its output exceeded the limit */
    int64_t remaining;         /* bytes that the answer still needs; -1: its length was not given */
    int64_t requests;
    uint64_t body_bytes; /* of the request, so far */
    double since;        /* start of the wait for a request, or for the rest of a header */
    double probed;       /* time of the last probe of a client that shut its sending side; 0: it may still send */
    size_t early;        /* bytes of `version` that were sent before the answer */
    struct pace body;
    _Alignas(
        max_align_t) unsigned char request[]; /* [transport_options.request_bytes] the router's data of `exchange` */
};

static struct http1 *of(const struct exchange *exchange) {
    return (struct http1 *)((char *)exchange - offsetof(struct http1, exchange));
}

static const struct transport_limits *limits_of(const struct http1 *http) {
    return &http->connection->transport->options.limits;
}

static const char *reason_of(int status) {
    static const struct {
        int status;
        const char *reason;
    } rows[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == status)
            return rows[i].reason;
    return "";
}

/* Appends to the output. Without memory the connection is killed: STATUS_MEMORY. */
static int put(struct http1 *http, const void *bytes, size_t length) {
    if (!evbuffer_add(http->connection->out, bytes, length))
        return 0;
    connection_kill(http->connection);
    return status_fail(STATUS_MEMORY, "an answer: out of memory");
}

/* Writes the first line of an answer, without the bytes that a probe has already sent. */
static void add_first_line(struct http1 *http, struct strbuf *head, int status) {
    strbuf_format(head, "%s%d %s\r\ndate: %s\r\n", version + http->early, status, reason_of(status),
                  transport_date(http->connection->transport));
    http->early = 0;
}

static bool is_writable(const struct http1 *http) {
    return http->has_exchange && http->connection->stage == CONNECTION_OPEN && !http->is_ended && !http->is_aborted;
}

static int answer_begin(struct exchange *exchange, int status, const struct field *fields, size_t count,
                        int64_t length) {
    struct http1 *http = of(exchange);
    struct strbuf head = STRBUF_INIT;
    if (!is_writable(http) || http->is_begun)
        return 0;
    bool has_body = status >= 200 && status != 204 && status != 304;
    http->is_begun = true;
    http->is_empty = !has_body || !strcmp(exchange->head.method, "HEAD");
    http->is_chunked = has_body && length < 0 && !http->parser.request.is_http10;
    http->remaining = has_body ? length : 0;
    if (!http->is_whole || http->connection->is_draining || (length < 0 && !http->is_chunked))
        http->closes = true;
    add_first_line(http, &head, status);
    for (size_t i = 0; i < count; i++)
        if (field_is_clean(&fields[i])) {
            strbuf_add(&head, fields[i].name, fields[i].name_length);
            strbuf_add_text(&head, ": ");
            strbuf_add(&head, fields[i].value, fields[i].value_length);
            strbuf_add_text(&head, "\r\n");
        }
    if (http->is_chunked)
        strbuf_add_text(&head, "transfer-encoding: chunked\r\n");
    else if (has_body && length >= 0)
        strbuf_format(&head, "content-length: %lld\r\n", (long long)length);
    strbuf_add_text(&head, http->closes ? "connection: close\r\n\r\n" : "\r\n");
    int result = strbuf_status(&head);
    if (result)
        connection_kill(http->connection);
    else
        result = put(http, head.data, head.length);
    strbuf_free(&head);
    connection_schedule(http->connection);
    return result;
}

static int answer_write(struct exchange *exchange, const void *bytes, size_t length) {
    struct http1 *http = of(exchange);
    char size[24];
    if (!is_writable(http) || !http->is_begun || http->is_empty || !length)
        return 0;
    if (http->remaining >= 0 && !http->is_chunked) {
        length = (int64_t)length < http->remaining ? length : (size_t)http->remaining;
        http->remaining -= (int64_t)length;
    }
    int n = http->is_chunked ? snprintf(size, sizeof size, "%zx\r\n", length) : 0;
    if ((n && put(http, size, (size_t)n)) || put(http, bytes, length) || (n && put(http, "\r\n", 2)))
        return STATUS_MEMORY;
    if (evbuffer_get_length(http->connection->out) > (size_t)limits_of(http)->stream_output_bytes)
        http->was_over = true;
    connection_schedule(http->connection);
    return 0;
}

static int answer_end(struct exchange *exchange, const struct field *trailers, size_t count) {
    struct http1 *http = of(exchange);
    if (!is_writable(http) || !http->is_begun)
        return 0;
    connection_schedule(http->connection);
    http->is_ended = true;
    if (http->is_chunked && !http->is_empty)
        return put(http, "0\r\n\r\n", 5);
    if (http->remaining > 0 && !http->is_empty) /* the client waits for bytes that will never come */
        http->is_aborted = true;
    return 0;
}

static void answer_abort(struct exchange *exchange) {
    struct http1 *http = of(exchange);
    if (!is_writable(http))
        return;
    http->is_aborted = true;
    connection_schedule(http->connection);
}

static size_t answer_pending(const struct exchange *exchange) {
    return evbuffer_get_length(of(exchange)->connection->out);
}

static const struct exchange_transport answers = {answer_begin, answer_write, answer_end, answer_abort, answer_pending};

static void close_exchange(struct http1 *http, bool is_whole) {
    if (!http->has_exchange)
        return;
    http->has_exchange = false;
    exchange_close(&http->exchange, is_whole, http->connection->fault);
}

/* Answers for the transport itself, when no exchange was made or the exchange cannot continue; then ends the
 * connection. */
static void refuse(struct http1 *http, int status, const char *problem) {
    struct strbuf text = STRBUF_INIT, body = STRBUF_INIT;
    bool is_late = http->is_begun;
    close_exchange(http, false);
    if (http->connection->stage != CONNECTION_OPEN)
        return;
    http->connection->transport->options.refuse(&body, status, problem);
    add_first_line(http, &text, status);
    strbuf_format(&text, "content-type: application/json\r\ncontent-length: %zu\r\nconnection: close\r\n\r\n",
                  body.length);
    strbuf_add(&text, strbuf_text(&body), body.length);
    if (!is_late && !text.failed && !body.failed && status)
        put(http, text.data, text.length);
    strbuf_free(&text);
    strbuf_free(&body);
    connection_end(http->connection);
}

static void exchange_start(struct http1 *http) {
    struct transport *transport = http->connection->transport;
    const struct http1_request *request = &http->parser.request;
    bool has_body = request->is_chunked || request->content_length;
    http->exchange = (struct exchange){
        .head = {.method = request->method,
                 .path = request->path,
                 .query = request->query,
                 .fields = request->fields,
                 .field_count = request->field_count,
                 .listener = http->connection->kind,
                 .is_tls = http->connection->tls != NULL,
                 .peer = http->connection->peer,
                 .address = http->connection->address},
        .transport = &answers,
        .request = (struct request *)http->request,
        .start = clock_seconds(),
    };
    memset(http->request, 0, transport->options.request_bytes);
    http->has_exchange = true;
    http->is_whole = !has_body;
    http->is_begun = http->is_ended = http->is_aborted = http->was_over = false;
    http->body_bytes = 0;
    http->body = (struct pace){0};
    http->since = 0;
    http->closes = (transport->is_leaving && http->connection->kind == LISTENER_DATA) || request->is_http10 ||
                   request->wants_close || ++http->requests >= limits_of(http)->requests_per_connection;
    transport->options.route(transport->options.router, &http->exchange);
    if (is_writable(http) && !http->is_begun && has_body && request->expects_continue && !request->is_http10)
        put(http, continue_line, sizeof continue_line - 1);
    connection_schedule(http->connection);
}

/* Counts also a body that its handler ignores: no client may send for ever. When the answer comes before the end of the
 * body, the rest is dropped and the connection ends. */
static void body_take(struct http1 *http, const struct http1_bytes *body) {
    const struct exchange_handler *handler = http->exchange.handler;
    http->body_bytes += body->length;
    http->body.bytes += body->length;
    if (is_writable(http) && handler && handler->on_body)
        handler->on_body(&http->exchange, body->at, body->length);
    int64_t own = http->exchange.body_bytes;
    if (http->body_bytes > (uint64_t)(own ? own : limits_of(http)->body_bytes) && is_writable(http))
        refuse(http, 413, "the body is too large");
}

static void request_end(struct http1 *http) {
    const struct exchange_handler *handler = http->exchange.handler;
    http->is_whole = true;
    if (is_writable(http) && handler && handler->on_end)
        handler->on_end(&http->exchange);
    connection_schedule(http->connection);
}

/* Parses until a request is complete; returns how many bytes were consumed. */
static size_t parse(struct http1 *http, const unsigned char *bytes, size_t length) {
    struct http1_bytes rest = {bytes, length}, body;
    while (http->connection->stage == CONNECTION_OPEN) {
        switch (http1_parse(&http->parser, &rest, &body)) {
        case HTTP1_HEAD:
            exchange_start(http);
            break;
        case HTTP1_BODY:
            body_take(http, &body);
            break;
        case HTTP1_END:
            request_end(http);
            return length - rest.length;
        case HTTP1_BAD:
            refuse(http, http->parser.status, http->parser.problem);
            return length;
        default:
            if (!http->has_exchange && !http->since && http1_parser_is_within(&http->parser))
                http->since = clock_seconds();
            return length;
        }
    }
    return length;
}

static bool has_turn(const struct http1 *http) {
    return http->connection->stage == CONNECTION_OPEN && !(http->has_exchange && http->is_whole);
}

/* Counts waiting bytes toward the limit of all bodies. Returns false when there is no room. */
static bool count_waiting(struct http1 *http, size_t before, size_t now) {
    struct connection *connection = http->connection;
    struct gathered *gathered = connection->transport->options.gathered;
    if (!gathered || now == before)
        return true;
    if (now > before)
        return gathered_take(gathered, before, now - before, connection->kind == LISTENER_CONTROL);
    gathered_give(gathered, before - now);
    return true;
}

/* Bytes of later requests must be read from the socket: otherwise the end of a client that disconnects would queue
 * after them, unseen. */
static void keep_waiting(struct http1 *http, const unsigned char *bytes, size_t length) {
    if (!http->waiting)
        http->waiting = evbuffer_new();
    size_t had = http->waiting ? evbuffer_get_length(http->waiting) : 0;
    if (!http->waiting || had + length > (size_t)limits_of(http)->body_bytes ||
        !count_waiting(http, had, had + length)) {
        connection_kill(http->connection);
    } else if (evbuffer_add(http->waiting, bytes, length)) {
        count_waiting(http, had + length, had);
        connection_kill(http->connection);
    }
}

static void http1_receive(struct connection *connection, const unsigned char *bytes, size_t length) {
    struct http1 *http = connection->state;
    connection->was_busy = true;
    if (has_turn(http) && !(http->waiting && evbuffer_get_length(http->waiting))) {
        size_t taken = parse(http, bytes, length);
        bytes += taken;
        length -= taken;
    }
    if (length && connection->stage == CONNECTION_OPEN)
        keep_waiting(http, bytes, length);
}

static void http1_produce(struct connection *connection) {
}

/* The answer was sent: the next request gets its turn, or the connection ends. */
static void exchange_finish(struct http1 *http) {
    struct connection *connection = http->connection;
    bool is_over = http->closes || !http->is_whole || http->is_aborted || connection->is_draining;
    close_exchange(http, !http->is_aborted);
    if (connection->stage != CONNECTION_OPEN)
        return;
    if (is_over) {
        connection_end(connection);
        return;
    }
    http1_parser_next(&http->parser);
    http->since = 0;
    struct evbuffer_iovec piece;
    while (http->waiting && has_turn(http) && evbuffer_peek(http->waiting, -1, NULL, &piece, 1) > 0) {
        size_t had = evbuffer_get_length(http->waiting), taken = parse(http, piece.iov_base, piece.iov_len);
        evbuffer_drain(http->waiting, taken);
        count_waiting(http, had, had - taken);
    }
}

static void http1_settle(struct connection *connection) {
    struct http1 *http = connection->state;
    size_t pending = evbuffer_get_length(connection->out);
    if (http->has_exchange && http->was_over && pending <= (size_t)limits_of(http)->stream_output_bytes / 2) {
        http->was_over = false;
        if (is_writable(http) && http->exchange.handler && http->exchange.handler->on_room)
            http->exchange.handler->on_room(&http->exchange);
        pending = evbuffer_get_length(connection->out);
    }
    if (http->has_exchange && (http->is_ended || http->is_aborted) && !pending)
        exchange_finish(http);
    if (connection->stage == CONNECTION_OPEN && connection->is_eof) {
        /* The client's bytes end. Complete requests are answered. The client counts as gone when nothing
         * can be sent to it, or when a request is incomplete. */
        if (!http->has_exchange)
            connection_end(http->connection);
        else if (!http->is_ended && !http->is_aborted && (!http->is_whole || connection_has_left(http->connection)))
            connection_kill(http->connection);
        else if (!http->probed)
            http->probed = clock_seconds();
    }
}

/* Probes whether a client that shut its sending side still reads. Only sent bytes reveal it: the system of a closed
 * client answers them with a reset. HTTP/1.1 allows 100 Continue for this. HTTP/1.0 has no such line, so the answer's
 * few first bytes are sent early, one at a time and ever more rarely. */
static void probe(struct http1 *http, double now) {
    bool is_http10 = http->parser.request.is_http10;
    double interval = is_http10 ? probe_seconds * (double)(1 << http->early) : probe_seconds;
    if (connection_has_left(http->connection)) {
        connection_kill(http->connection);
        return;
    }
    if (http->is_begun || now - http->probed <= interval || (is_http10 && !version[http->early]))
        return;
    http->probed = now;
    if (!is_http10)
        put(http, continue_line, sizeof continue_line - 1);
    else if (!put(http, version + http->early, 1))
        http->early++;
    connection_schedule(http->connection);
}

static void http1_tick(struct connection *connection, double now) {
    struct http1 *http = connection->state;
    const struct transport_limits *limits = limits_of(http);
    double keep_alive = limits->idle_timeout < keep_alive_seconds ? limits->idle_timeout : keep_alive_seconds;
    if (http->has_exchange) {
        if (!http->is_whole && !pace_holds(&http->body, now, limits->header_timeout, 1))
            refuse(http, 408, "request body arrived too slowly");
        else if (connection->is_eof)
            probe(http, now);
    } else if (http->since ? now - http->since > limits->header_timeout : false) {
        refuse(http, 408, "request head arrived too slowly");
    } else if (!http->since && now - connection->received > (http->requests ? keep_alive : limits->header_timeout)) {
        connection_end(connection);
    }
}

static void http1_drain(struct connection *connection) {
    struct http1 *http = connection->state;
    bool is_new = !http->requests && connection_is_new(connection);
    connection->is_draining = true;
    connection->was_busy = http->has_exchange || http->since;
    if (!connection->was_busy && !is_new) /* the first request of a new connection is on its way */
        connection_end(connection);
}

static void http1_close(struct connection *connection) {
    struct http1 *http = connection->state;
    close_exchange(http, false);
    http1_parser_free(&http->parser);
    if (http->waiting) {
        count_waiting(http, evbuffer_get_length(http->waiting), 0);
        evbuffer_free(http->waiting);
    }
    free(http);
}

static int http1_open(struct connection *connection) {
    const struct transport_limits *limits = &connection->transport->options.limits;
    const struct http1_limits heads = {MAX_LINE_BYTES, (size_t)limits->header_bytes, (size_t)limits->headers};
    struct http1 *http = calloc(1, sizeof *http + connection->transport->options.request_bytes);
    if (!http)
        return status_fail(STATUS_MEMORY, "a connection: out of memory");
    http->connection = connection;
    http1_parser_init(&http->parser, &heads);
    connection->state = http;
    return 0;
}

static bool http1_is_busy(const struct connection *connection) {
    const struct http1 *http = connection->state;
    return http->has_exchange && http->is_whole;
}

const struct connection_protocol http1_protocol = {http1_open, http1_receive, http1_produce, http1_settle,
                                                   http1_tick, http1_drain,   http1_is_busy, http1_close};
