/* HTTP/1.1 of a client: one request at a time on a connection, which is kept for the next. Answers are whole or in
 * chunks, and among these the events of a stream of completions. */
#include "client-internal.h"

#include "base/json.h"

#include <errno.h>
#include <event2/buffer.h>
#include <strings.h>
#include <sys/socket.h>

enum { MOST_ERROR_BODY = 1 << 16 };

enum http_state { AT_STATUS, AT_FIELDS, AT_SIZE, IN_CHUNK, BEHIND_CHUNK, AT_TRAILERS, IN_LENGTH, UNTIL_CLOSE };

struct http_connection {
    struct client *client;
    LIST_ENTRY(http_connection) place;
    bool has_place; /* in the client's list of busy or of idle ones */
    struct bufferevent *stream;
    struct client_text *text; /* NULL: idle */
    enum http_state state;
    int code;
    bool is_reused, is_chunked, has_length, closes, has_ended; /* has_ended: [DONE], or an error in the stream */
    uint64_t remaining;                                        /* bytes of the chunk, or of the body */
    struct evbuffer *body;                                     /* the body so far */
};

/* ---- connections ---- */

static void put(struct http_connection *connection, struct http_connections *list) {
    if (connection->has_place)
        LIST_REMOVE(connection, place);
    if (list)
        LIST_INSERT_HEAD(list, connection, place);
    connection->has_place = list != NULL;
}

static void connection_free(struct http_connection *connection) {
    put(connection, NULL);
    if (connection->stream)
        bufferevent_free(connection->stream);
    if (connection->body)
        evbuffer_free(connection->body);
    free(connection);
}

static void free_all(struct http_connections *list) {
    while (!LIST_EMPTY(list))
        connection_free(LIST_FIRST(list));
}

static void end(struct http_connection *connection, const char *error) {
    struct client_text *text = connection->text;
    connection->text = NULL;
    if (error || connection->closes)
        connection_free(connection);
    else
        put(connection, &connection->client->idle);
    client_text_end(text, error);
}

/* ---- events ---- */

/* A last choice without content is not a token: it brings only its reason. */
static bool is_token(const json_t *choice) {
    size_t length = json_string_length(json_object_get(choice, "text"));
    return choice && (length || !json_is_string(json_object_get(choice, "finish_reason")));
}

/* Recognises the usual event without parsing it: quotes inside a JSON string would have a backslash. */
static bool is_plain_token(const char *event) {
    return strstr(event, "\"finish_reason\":null") && !strstr(event, "\"error\":") && !strstr(event, "\"usage\":{");
}

/* Returns NULL, or the reason why the stream is invalid. The text is in `root`. */
static const char *take_event(struct http_connection *connection, const json_t *root) {
    struct client_text *text = connection->text;
    const json_t *error = json_object_get(root, "error"), *usage = json_object_get(root, "usage");
    if (error) {
        const char *message = json_string_value(json_object_get(error, "message"));
        return message ? message : "an error without a message";
    }
    if (is_token(json_array_get(json_object_get(root, "choices"), 0)))
        client_text_token(text);
    if (json_is_object(usage))
        text->tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
    return NULL;
}

/* Reads the lines of the stream so far. Returns false when the connection is gone. */
static bool read_events(struct http_connection *connection) {
    char *line;
    size_t length;
    while ((line = evbuffer_readln(connection->body, &length, EVBUFFER_EOL_LF))) {
        static const char mark[] = "data: ";
        char failure[CLIENT_ERROR_BYTES] = "";
        if (!strncmp(line, "data: [DONE]", 12)) {
            connection->has_ended = true;
        } else if (!strncmp(line, mark, sizeof mark - 1) && is_plain_token(line)) {
            client_text_token(connection->text);
        } else if (!strncmp(line, mark, sizeof mark - 1)) {
            json_t *root = json_loadb(line + sizeof mark - 1, length - (sizeof mark - 1), JSON_ALLOW_NUL, NULL);
            const char *error = root ? take_event(connection, root) : "an event that is no JSON";
            snprintf(failure, sizeof failure, "%s", error ? error : "");
            json_decref(root);
        }
        free(line);
        if (*failure) {
            end(connection, failure);
            return false;
        }
    }
    return true;
}

/* The message of an answer that is an error. */
static void end_with_error(struct http_connection *connection) {
    char text[CLIENT_ERROR_BYTES];
    size_t length = evbuffer_get_length(connection->body);
    const char *bytes = (const char *)evbuffer_pullup(connection->body, -1);
    json_t *root = bytes ? json_loadb(bytes, length, 0, NULL) : NULL;
    const json_t *error = json_object_get(root, "error");
    const char *message = json_string_value(json_is_string(error) ? error : json_object_get(error, "message"));
    snprintf(text, sizeof text, "status %d: %s", connection->code, message ? message : "no message");
    json_decref(root);
    end(connection, text);
}

static void end_answer(struct http_connection *connection) {
    struct client_text *text = connection->text;
    if (connection->code >= 300)
        end_with_error(connection);
    else if (!text->method && (!text->chunks || !connection->has_ended))
        end(connection, "the stream ended before its end");
    else
        end(connection, NULL);
}

/* ---- answers ---- */

static void read_field(struct http_connection *connection, const char *line) {
    const char *value = strchr(line, ':');
    size_t name = value ? (size_t)(value - line) : 0;
    value = value ? value + 1 + strspn(value + 1, " \t") : "";
    if (name == 17 && !strncasecmp(line, "transfer-encoding", name)) {
        connection->is_chunked = !strcasecmp(value, "chunked");
    } else if (name == 14 && !strncasecmp(line, "content-length", name)) {
        connection->has_length = true;
        connection->remaining = strtoull(value, NULL, 10);
    } else if (name == 10 && !strncasecmp(line, "connection", name)) {
        connection->closes = !strcasecmp(value, "close");
    }
}

/* A line of the head or around chunks. */
static void take_line(struct http_connection *connection, const char *line) {
    switch (connection->state) {
    case AT_STATUS:
        connection->code = strncmp(line, "HTTP/1.", 7) || strlen(line) < 12 ? 0 : atoi(line + 9);
        connection->state = AT_FIELDS;
        break;
    case AT_FIELDS:
        if (*line)
            read_field(connection, line);
        else if (connection->code >= 100 && connection->code < 200)
            connection->state = AT_STATUS;
        else
            connection->state = connection->is_chunked ? AT_SIZE : connection->has_length ? IN_LENGTH : UNTIL_CLOSE;
        break;
    case AT_SIZE:
        connection->remaining = strtoull(line, NULL, 16);
        connection->state = connection->remaining ? IN_CHUNK : AT_TRAILERS;
        break;
    default:
        connection->state = AT_SIZE; /* after a chunk */
    }
}

/* Moves the available part of a chunk or body. */
static void take_body(struct http_connection *connection, struct evbuffer *input) {
    size_t length = evbuffer_get_length(input);
    if (connection->state == UNTIL_CLOSE || length < connection->remaining) {
        evbuffer_add_buffer(connection->body, input);
        connection->remaining -= connection->state == UNTIL_CLOSE ? 0 : length;
        return;
    }
    evbuffer_remove_buffer(input, connection->body, (size_t)connection->remaining);
    connection->remaining = 0;
    if (connection->state == IN_CHUNK)
        connection->state = BEHIND_CHUNK;
}

/* *is_whole: the answer is. */
static bool take_more(struct http_connection *connection, struct evbuffer *input, bool *is_whole) {
    if (connection->state == IN_CHUNK || connection->state == IN_LENGTH || connection->state == UNTIL_CLOSE) {
        take_body(connection, input);
        *is_whole = connection->state == IN_LENGTH && !connection->remaining;
        return *is_whole || connection->state == BEHIND_CHUNK;
    }
    size_t length;
    char *line = evbuffer_readln(input, &length, EVBUFFER_EOL_CRLF);
    if (!line)
        return false;
    if (connection->state == AT_TRAILERS)
        *is_whole = !*line;
    else
        take_line(connection, line);
    free(line);
    return true;
}

static void on_read(struct bufferevent *stream, void *context) {
    struct http_connection *connection = context;
    struct evbuffer *input = bufferevent_get_input(stream);
    bool is_whole = false;
    while (connection->text && !is_whole && take_more(connection, input, &is_whole))
        ;
    if (!connection->text)
        return;
    bool is_stream = !connection->text->method && connection->code == 200;
    if (is_stream && !read_events(connection))
        return;
    if (!is_stream && evbuffer_get_length(connection->body) > MOST_ERROR_BODY)
        evbuffer_drain(connection->body, evbuffer_get_length(connection->body));
    if (is_whole)
        end_answer(connection);
}

static void on_event(struct bufferevent *stream, short what, void *context);

/* ---- requests ---- */

static struct http_connection *connection_new(struct client *client) {
    struct http_connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        status_no_memory();
        return NULL;
    }
    connection->client = client;
    connection->body = evbuffer_new();
    connection->stream = connection->body ? client_connect(client) : NULL;
    if (!connection->body)
        status_no_memory();
    if (!connection->stream) {
        connection_free(connection);
        return NULL;
    }
    bufferevent_setcb(connection->stream, on_read, NULL, on_event, connection);
    bufferevent_enable(connection->stream, EV_READ | EV_WRITE);
    return connection;
}

static void add_completion(const struct client_text *text, struct strbuf *out) {
    strbuf_add_text(out, "{\"prompt\":[");
    for (int64_t i = 0; i < text->in; i++)
        strbuf_format(out, i ? ",%d" : "%d", text->prompt[i]);
    strbuf_format(out, "],\"max_tokens\":%lld,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,",
                  (long long)text->out);
    if (text->adapter) {
        strbuf_add_text(out, "\"model\":");
        json_add_string(out, text->adapter, strlen(text->adapter));
        strbuf_add_char(out, ',');
    }
    strbuf_add_text(out, "\"stream_options\":{\"include_usage\":true}}");
}

static int write_request(struct http_connection *connection, const struct client_text *text) {
    const struct client *client = connection->client;
    bool is_v6 = strchr(client->host, ':') != NULL;
    struct strbuf body = STRBUF_INIT, head = STRBUF_INIT;
    if (text->method)
        strbuf_add_text(&body, text->body);
    else
        add_completion(text, &body);
    strbuf_format(&head, "%s %s HTTP/1.1\r\nHost: %s%s%s:%d\r\n", text->method ? text->method : "POST",
                  text->method ? text->path : "/v1/completions", is_v6 ? "[" : "", client->host, is_v6 ? "]" : "",
                  client->port);
    strbuf_format(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", body.length);
    strbuf_add(&head, strbuf_text(&body), body.length);
    int status = strbuf_status(&body) ? strbuf_status(&body) : strbuf_status(&head);
    THEN(status, bufferevent_write(connection->stream, head.data, head.length) ? status_no_memory() : STATUS_OK);
    strbuf_free(&body);
    strbuf_free(&head);
    return status;
}

static int ask(struct client *client, struct client_text *text) {
    /* The server may have closed a connection that was idle for long. */
    char byte;
    struct http_connection *connection;
    while ((connection = LIST_FIRST(&client->idle)) &&
           (recv(bufferevent_getfd(connection->stream), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN))
        connection_free(connection);
    bool is_reused = connection != NULL;
    if (!connection)
        connection = connection_new(client);
    TRY(connection ? write_request(connection, text) : STATUS_IO);
    put(connection, &client->busy);
    evbuffer_drain(connection->body, evbuffer_get_length(connection->body));
    connection->state = AT_STATUS;
    connection->is_reused = is_reused;
    connection->code = 0;
    connection->is_chunked = connection->has_length = connection->closes = connection->has_ended = false;
    connection->remaining = 0;
    connection->text = text;
    text->wire = connection;
    return STATUS_OK;
}

static void on_event(struct bufferevent *stream, short what, void *context) {
    struct http_connection *connection = context;
    bool has_none = connection->state == AT_STATUS && !connection->code;
    if (what & BEV_EVENT_CONNECTED)
        return;
    connection->closes = true;
    if (!connection->text)
        connection_free(connection);
    else if (has_none && connection->is_reused) {
        /* A server may close a waiting connection just when it is used again; then another one is made. */
        struct client *client = connection->client;
        struct client_text *text = connection->text;
        connection_free(connection);
        free_all(&client->idle);
        if (ask(client, text))
            client_text_end(text, status_text());
    } else if (connection->state == UNTIL_CLOSE)
        end_answer(connection);
    else
        end(connection, has_none ? "cannot connect, or no answer" : "the connection ended");
}

static void leave(struct client *client, struct client_text *text) {
    connection_free(text->wire);
}

static void close_all(struct client *client) {
    free_all(&client->busy);
    free_all(&client->idle);
}

const struct client_wire client_http = {.ask = ask, .leave = leave, .close = close_all};
