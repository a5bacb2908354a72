/* gRPC of a client: calls of Generate as streams of HTTP/2 connections, some dozens on each. */
#include "client-internal.h"

#include "cambium.pb-c.h"
#include "serve/grpc_frames.h"

#include <event2/buffer.h>
#include <nghttp2/nghttp2.h>

enum { MOST_CALLS = 64 /* of a connection */, WINDOW = 1 << 20, MOST_MESSAGE = 4 << 20 };

struct grpc_connection {
    struct client *client;
    struct grpc_connection *next;
    struct bufferevent *stream;
    nghttp2_session *session;
    int calls;
    bool has_failed;
};

struct call {
    struct grpc_connection *connection;
    struct client_text *text; /* NULL: dropped */
    int32_t id;
    unsigned char *request; /* [length] with its prefix */
    size_t length, sent;
    struct grpc_frames frames;
    char message[CLIENT_ERROR_BYTES]; /* of the trailers */
    int status;                       /* of gRPC; -1: none came */
};

/* ---- answers ---- */

static void call_free(struct call *call) {
    grpc_frames_free(&call->frames);
    free(call->request);
    free(call);
}

/* One event of a text. */
static bool take_message(struct call *call) {
    const struct strbuf *message = &call->frames.message;
    Cambium__V1__GenerateResponse *event =
        cambium__v1__generate_response__unpack(NULL, message->length, (const uint8_t *)strbuf_text(message));
    if (!event)
        return false;
    if (event->event_case == CAMBIUM__V1__GENERATE_RESPONSE__EVENT_OUTPUT && call->text)
        client_text_token(call->text);
    if (event->event_case == CAMBIUM__V1__GENERATE_RESPONSE__EVENT_FINISHED && call->text)
        call->text->tokens = event->finished->completion_tokens;
    cambium__v1__generate_response__free_unpacked(event, NULL);
    return true;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes, size_t length,
                   void *context) {
    struct call *call = nghttp2_session_get_stream_user_data(session, id);
    enum grpc_frame frame = GRPC_FRAME_WHOLE;
    while (call && frame == GRPC_FRAME_WHOLE) {
        frame = grpc_frames_take(&call->frames, &bytes, &length);
        if (frame == GRPC_FRAME_WHOLE && !take_message(call))
            frame = GRPC_FRAME_BAD_FLAG;
        if (frame == GRPC_FRAME_WHOLE)
            grpc_frames_next(&call->frames);
    }
    if (call && frame != GRPC_FRAME_MORE)
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_PROTOCOL_ERROR);
    return 0;
}

static int on_field(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_length,
                    const uint8_t *value, size_t value_length, uint8_t flags, void *context) {
    struct call *call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (call && !strcmp((const char *)name, "grpc-status"))
        call->status = atoi((const char *)value);
    else if (call && !strcmp((const char *)name, "grpc-message"))
        snprintf(call->message, sizeof call->message, "%.*s", (int)value_length, (const char *)value);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *context) {
    struct call *call = nghttp2_session_get_stream_user_data(session, id);
    char error[CLIENT_ERROR_BYTES + 64];
    if (!call)
        return 0;
    nghttp2_session_set_stream_user_data(session, id, NULL);
    call->connection->calls--;
    if (call->status)
        snprintf(error, sizeof error, "gRPC status %d (HTTP/2 error %u): %s", call->status, code, call->message);
    if (call->text)
        client_text_end(call->text, call->status ? error : NULL);
    call_free(call);
    return 0;
}

/* ---- connections ---- */

static ssize_t on_send(nghttp2_session *session, const uint8_t *bytes, size_t length, int flags, void *context) {
    struct grpc_connection *connection = context;
    return bufferevent_write(connection->stream, bytes, length) ? NGHTTP2_ERR_CALLBACK_FAILURE : (ssize_t)length;
}

/* Ends every open call with the error. */
static void fail(struct grpc_connection *connection, const char *error) {
    connection->has_failed = true;
    int32_t end = (int32_t)nghttp2_session_get_next_stream_id(connection->session);
    for (int32_t id = 1; connection->calls > 0 && id < end; id += 2) {
        struct call *call = nghttp2_session_get_stream_user_data(connection->session, id);
        if (!call)
            continue;
        nghttp2_session_set_stream_user_data(connection->session, id, NULL);
        connection->calls--;
        if (call->text)
            client_text_end(call->text, error);
        call_free(call);
    }
}

static void on_read(struct bufferevent *stream, void *context) {
    struct grpc_connection *connection = context;
    struct evbuffer *input = bufferevent_get_input(stream);
    size_t length = evbuffer_get_length(input);
    const unsigned char *bytes = evbuffer_pullup(input, -1);
    ssize_t taken = bytes ? nghttp2_session_mem_recv(connection->session, bytes, length) : 0;
    evbuffer_drain(input, length);
    if (taken < 0 || nghttp2_session_send(connection->session))
        fail(connection, "the server does not speak HTTP/2");
}

static void on_event(struct bufferevent *stream, short what, void *context) {
    if (!(what & BEV_EVENT_CONNECTED))
        fail(context, "cannot connect, or the connection ended");
}

static void connection_free(struct grpc_connection *connection) {
    if (connection->session)
        fail(connection, "the client has ended");
    nghttp2_session_del(connection->session);
    if (connection->stream)
        bufferevent_free(connection->stream);
    free(connection);
}

static int start_session(struct grpc_connection *connection) {
    nghttp2_session_callbacks *callbacks;
    const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
                                               {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW}};
    if (nghttp2_session_callbacks_new(&callbacks))
        return status_no_memory();
    nghttp2_session_callbacks_set_send_callback(callbacks, on_send);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_field);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    int error = nghttp2_session_client_new(&connection->session, callbacks, connection);
    nghttp2_session_callbacks_del(callbacks);
    if (!error)
        error = nghttp2_submit_settings(connection->session, NGHTTP2_FLAG_NONE, settings, 2);
    if (!error)
        error = nghttp2_session_set_local_window_size(connection->session, NGHTTP2_FLAG_NONE, 0, 4 * WINDOW);
    return error ? status_no_memory() : STATUS_OK;
}

/* Finds a connection with room for a call. */
static int find_connection(struct client *client, struct grpc_connection **found) {
    struct grpc_connection *connection = client->grpc;
    while (connection && (connection->calls >= MOST_CALLS || connection->has_failed))
        connection = connection->next;
    *found = connection;
    if (connection)
        return STATUS_OK;
    connection = calloc(1, sizeof *connection);
    TRY(status_allocated(connection));
    connection->client = client;
    int status = start_session(connection);
    THEN_IF(status, !(connection->stream = client_connect(client)), STATUS_IO);
    if (status) {
        connection_free(connection);
        return status;
    }
    bufferevent_setcb(connection->stream, on_read, NULL, on_event, connection);
    bufferevent_enable(connection->stream, EV_READ | EV_WRITE);
    connection->next = client->grpc;
    *found = client->grpc = connection;
    return STATUS_OK;
}

/* ---- requests ---- */

static int pack(const struct client_text *text, struct call *call) {
    Cambium__V1__Tokens tokens = CAMBIUM__V1__TOKENS__INIT;
    Cambium__V1__Sampling sampling = CAMBIUM__V1__SAMPLING__INIT;
    Cambium__V1__GenerateRequest request = CAMBIUM__V1__GENERATE_REQUEST__INIT;
    tokens.n_ids = (size_t)text->in;
    tokens.ids = calloc((size_t)text->in + 1, sizeof *tokens.ids);
    sampling._temperature_case = CAMBIUM__V1__SAMPLING___TEMPERATURE_TEMPERATURE;
    sampling.temperature = 0;
    if (text->adapter)
        request.model = (char *)(uintptr_t)text->adapter;
    request.input_case = CAMBIUM__V1__GENERATE_REQUEST__INPUT_TOKENS;
    request.tokens = &tokens;
    request.sampling = &sampling;
    request._max_tokens_case = CAMBIUM__V1__GENERATE_REQUEST___MAX_TOKENS_MAX_TOKENS;
    request.max_tokens = (uint32_t)text->out;
    request.ignore_eos = true;
    for (int64_t i = 0; i < text->in && tokens.ids; i++)
        tokens.ids[i] = (uint32_t)text->prompt[i];
    size_t length = tokens.ids ? cambium__v1__generate_request__get_packed_size(&request) : 0;
    call->request = tokens.ids ? malloc(GRPC_PREFIX_BYTES + length) : NULL;
    if (call->request) {
        grpc_prefix_write(call->request, (uint32_t)length);
        cambium__v1__generate_request__pack(&request, call->request + GRPC_PREFIX_BYTES);
        call->length = GRPC_PREFIX_BYTES + length;
    }
    free(tokens.ids);
    return status_allocated(call->request);
}

static ssize_t read_request(nghttp2_session *session, int32_t id, uint8_t *bytes, size_t length, uint32_t *flags,
                            nghttp2_data_source *source, void *context) {
    struct call *call = source->ptr;
    size_t remaining = call->length - call->sent, count = remaining < length ? remaining : length;
    memcpy(bytes, call->request + call->sent, count);
    call->sent += count;
    if (call->sent == call->length)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)count;
}

#define FIELD(name_, value_)                                                                                           \
    { (uint8_t *)(uintptr_t)(name_), (uint8_t *)(uintptr_t)(value_), strlen(name_), strlen(value_), 0 }

static int submit(struct call *call) {
    char authority[CLIENT_HOST_BYTES + 16];
    const struct client *client = call->connection->client;
    snprintf(authority, sizeof authority, "%s:%d", client->host, client->port);
    const nghttp2_nv fields[] = {FIELD(":method", "POST"),
                                 FIELD(":scheme", "http"),
                                 FIELD(":path", "/cambium.v1.Cambium/Generate"),
                                 FIELD(":authority", authority),
                                 FIELD("content-type", "application/grpc"),
                                 FIELD("te", "trailers")};
    nghttp2_data_provider body = {.source.ptr = call, .read_callback = read_request};
    call->id =
        nghttp2_submit_request(call->connection->session, NULL, fields, sizeof fields / sizeof *fields, &body, call);
    if (call->id < 0)
        return status_fail(STATUS_IO, "cannot send a request");
    call->connection->calls++; /* the session owns it now */
    call->text->wire = call;
    if (nghttp2_session_send(call->connection->session))
        fail(call->connection, "cannot send a request");
    return STATUS_OK;
}

static int ask(struct client *client, struct client_text *text) {
    struct grpc_connection *connection;
    int status = find_connection(client, &connection);
    struct call *call = status ? NULL : calloc(1, sizeof *call);
    if (!call)
        return status ? status : status_no_memory();
    *call = (struct call){.connection = connection, .text = text, .status = -1};
    grpc_frames_begin(&call->frames, MOST_MESSAGE, false);
    status = pack(text, call);
    THEN(status, submit(call));
    if (status)
        call_free(call);
    return status;
}

static void leave(struct client *client, struct client_text *text) {
    struct call *call = text->wire;
    call->text = NULL;
    nghttp2_submit_rst_stream(call->connection->session, NGHTTP2_FLAG_NONE, call->id, NGHTTP2_CANCEL);
    nghttp2_session_send(call->connection->session);
}

static void close_all(struct client *client) {
    for (struct grpc_connection *connection = client->grpc, *next; connection; connection = next) {
        next = connection->next;
        connection_free(connection);
    }
    client->grpc = NULL;
}

const struct client_wire client_grpc = {.ask = ask, .leave = leave, .close = close_all};
