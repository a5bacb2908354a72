/* Streams of HTTP/2: gathering requests and submitting answers to nghttp2. See http2-internal.h. */
#include "http2-internal.h"

#include "base/base.h"

#include <strings.h>

/* Limits for ended streams that are kept for reuse: their number, and the memory that each keeps. */
enum { SPARE_STREAMS = 64, SPARE_BYTES = 2048, SPARE_FIELDS = 32 };

/* Stored fields: all text in one string. */
struct kept {
    struct strbuf text; /* name, zero byte, value, zero byte, ... */
    struct span {
        size_t name, name_length, value, value_length; /* name and value: offsets in the text */
    } * spans;
    size_t count, capacity;
};

struct http2_stream {
    struct exchange exchange;
    struct http2 *http;
    int32_t id;
    TAILQ_ENTRY(http2_stream) all, touches;
    bool is_touched;
    /* The request. */
    struct kept request;
    struct field *fields;
    size_t field_capacity;
    size_t header_bytes; /* names, values and 32 each */
    bool is_too_long;    /* the header or the trailer exceeds its limits: the rest is dropped */
    bool is_routed;      /* a handler has it */
    bool is_whole;       /* the request */
    bool is_closed;      /* on_close was called, or is not needed */
    uint64_t body_bytes;
    uint64_t gathered; /* counted for the connection */
    size_t withheld;   /* bytes whose window was withheld */
    struct pace body;
    double discarding; /* time since which the answer is complete and the rest of the body is dropped; 0: not yet */
    /* The answer. */
    struct kept answer, trailers;
    struct evbuffer *out;
    bool is_begun, is_ended, is_submitted, is_deferred;
    bool is_aborted, is_reset; /* is_reset: submitted to nghttp2 */
    bool is_empty;             /* for HEAD, 204, 304 */
    bool was_over;             /* its output exceeded the limit */
    uint32_t abort_code;
    enum exchange_fault fault; /* the reason for giving up */
    struct pace writing;
    _Alignas(max_align_t) unsigned char router_part[]; /* [transport_options.request_bytes] */
};

static struct http2_stream *of(const struct exchange *exchange) {
    return (struct http2_stream *)((char *)exchange - offsetof(struct http2_stream, exchange));
}

static int kept_add(struct kept *kept, const void *name, size_t name_length, const void *value, size_t value_length) {
    if (kept->count == kept->capacity) {
        size_t capacity = kept->capacity ? 2 * kept->capacity : 16;
        struct span *spans = reallocarray(kept->spans, capacity, sizeof *spans);
        if (!spans)
            return status_fail(STATUS_MEMORY, "a stream: out of memory");
        kept->spans = spans;
        kept->capacity = capacity;
    }
    struct strbuf *text = &kept->text;
    if (strbuf_reserve(text, name_length + value_length + 2))
        return STATUS_MEMORY;
    struct span span = {text->length, name_length, text->length + name_length + 1, value_length};
    memcpy(text->data + span.name, name, name_length);
    text->data[span.name + name_length] = 0;
    memcpy(text->data + span.value, value, value_length);
    text->data[span.value + value_length] = 0;
    text->length = span.value + value_length + 1;
    kept->spans[kept->count++] = span;
    return 0;
}

static int kept_add_field(struct kept *kept, const struct field *field) {
    return kept_add(kept, field->name, field->name_length, field->value, field->value_length);
}

static void kept_free(struct kept *kept) {
    strbuf_free(&kept->text);
    free(kept->spans);
    *kept = (struct kept){0};
}

/* Forgets the fields; keeps a small memory for the next ones. */
static void kept_clear(struct kept *kept) {
    if (kept->text.failed || kept->text.capacity > SPARE_BYTES || kept->capacity > SPARE_FIELDS)
        kept_free(kept);
    strbuf_clear(&kept->text);
    kept->count = 0;
}

static bool span_is(const struct kept *kept, const struct span *span, const char *name, size_t length) {
    return span->name_length == length && !memcmp(kept->text.data + span->name, name, length);
}

/* Returns a value that is valid until the text grows; NULL: there is no such field. */
static char *kept_value(const struct kept *kept, const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < kept->count; i++)
        if (span_is(kept, &kept->spans[i], name, length))
            return kept->text.data + kept->spans[i].value;
    return NULL;
}

/* Makes a list for nghttp2, valid until the next list; NULL: no memory. Request ids are not indexed: they all differ,
 * and would displace entries of the table that both sides keep. */
static nghttp2_nv *kept_list(struct http2_shared *shared, const struct kept *first, const struct kept *second,
                             size_t *count) {
    size_t most = first->count + (second ? second->count : 0) + 1;
    if (most > shared->list_capacity) {
        nghttp2_nv *grown = reallocarray(shared->list, most, sizeof *grown);
        if (!grown)
            return NULL;
        shared->list = grown;
        shared->list_capacity = most;
    }
    nghttp2_nv *list = shared->list;
    *count = 0;
    for (const struct kept *kept = first; kept; kept = kept == first ? second : NULL)
        for (size_t i = 0; i < kept->count; i++) {
            const struct span *span = &kept->spans[i];
            list[(*count)++] =
                (nghttp2_nv){(uint8_t *)kept->text.data + span->name, (uint8_t *)kept->text.data + span->value,
                             span->name_length, span->value_length,
                             span_is(kept, span, "x-request-id", 12) ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE};
        }
    return list;
}

static struct http2_shared *shared_of(const struct http2_stream *stream) {
    return stream->http->connection->transport->http2;
}

static void touch(struct http2_stream *stream) {
    if (!stream->is_touched) {
        stream->is_touched = true;
        TAILQ_INSERT_TAIL(&stream->http->touched, stream, touches);
    }
    connection_schedule(stream->http->connection);
}

/* Answers. */

static bool is_writable(const struct http2_stream *stream) {
    return !stream->is_closed && !stream->is_ended && !stream->is_aborted;
}

static void abort_stream(struct http2_stream *stream, uint32_t code) {
    if (stream->is_aborted)
        return;
    stream->is_aborted = true;
    stream->abort_code = code;
    touch(stream);
}

/* Aborts an answer for which there is no memory. Returns STATUS_MEMORY. */
static int lose(struct http2_stream *stream) {
    evbuffer_drain(stream->out, evbuffer_get_length(stream->out));
    abort_stream(stream, NGHTTP2_INTERNAL_ERROR);
    return STATUS_MEMORY;
}

static int answer_begin(struct exchange *exchange, int status, const struct field *fields, size_t count,
                        int64_t length) {
    struct http2_stream *stream = of(exchange);
    char number[24];
    int result;
    if (!is_writable(stream) || stream->is_begun)
        return 0;
    stream->is_begun = true;
    stream->is_empty = status == 204 || status == 304 || !strcmp(exchange->head.method, "HEAD");
    const char digits[3] = {(char)('0' + status / 100), (char)('0' + status / 10 % 10), (char)('0' + status % 10)};
    result = kept_add(&stream->answer, ":status", 7, digits, sizeof digits);
    for (size_t i = 0; i < count && !result; i++)
        if (field_is_clean(&fields[i]))
            result = kept_add_field(&stream->answer, &fields[i]);
    if (!result && length >= 0 && status != 204 && !exchange->resets_early) {
        snprintf(number, sizeof number, "%lld", (long long)length);
        result = kept_add(&stream->answer, "content-length", 14, number, strlen(number));
    }
    const char *date = transport_date(stream->http->connection->transport);
    if (!result && !exchange->resets_early)
        result = kept_add(&stream->answer, "date", 4, date, strlen(date));
    touch(stream);
    return result ? lose(stream) : 0;
}

static int answer_write(struct exchange *exchange, const void *bytes, size_t length) {
    struct http2_stream *stream = of(exchange);
    if (!is_writable(stream) || !stream->is_begun || stream->is_empty || !length)
        return 0;
    if (evbuffer_add(stream->out, bytes, length)) {
        status_fail(STATUS_MEMORY, "an answer: out of memory");
        return lose(stream);
    }
    if (evbuffer_get_length(stream->out) > (size_t)http2_limits(stream->http)->stream_output_bytes)
        stream->was_over = true;
    touch(stream);
    return 0;
}

static int answer_end(struct exchange *exchange, const struct field *trailers, size_t count) {
    struct http2_stream *stream = of(exchange);
    int result = 0;
    if (!is_writable(stream) || !stream->is_begun)
        return 0;
    for (size_t i = 0; i < count && !result; i++)
        if (field_is_clean(&trailers[i]))
            result = kept_add_field(&stream->trailers, &trailers[i]);
    if (result)
        return lose(stream);
    stream->is_ended = true;
    touch(stream);
    return 0;
}

static void answer_abort(struct exchange *exchange) {
    struct http2_stream *stream = of(exchange);
    if (is_writable(stream))
        abort_stream(stream, NGHTTP2_INTERNAL_ERROR);
}

static size_t answer_pending(const struct exchange *exchange) {
    return evbuffer_get_length(of(exchange)->out);
}

static const struct exchange_transport answers = {answer_begin, answer_write, answer_end, answer_abort, answer_pending};

/* nghttp2's callback for bytes of the answer, its end and its trailers. */
static ssize_t on_read(nghttp2_session *session, int32_t id, uint8_t *bytes, size_t length, uint32_t *flags,
                       nghttp2_data_source *source, void *user) {
    struct http2_stream *stream = source->ptr;
    size_t waiting = evbuffer_get_length(stream->out), n = waiting < length ? waiting : length;
    if (!n && !stream->is_ended) {
        stream->is_deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    evbuffer_remove(stream->out, bytes, n);
    stream->writing.bytes += n;
    stream->http->needs_telling |= stream->was_over;
    if (stream->is_aborted && n == waiting)
        touch(stream);
    if (n < waiting || !stream->is_ended)
        return (ssize_t)n;
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (stream->trailers.count) {
        size_t count;
        nghttp2_nv *list = kept_list(shared_of(stream), &stream->trailers, NULL, &count);
        int error = list ? nghttp2_submit_trailer(session, id, list, count) : NGHTTP2_ERR_NOMEM;
        if (error)
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    }
    return (ssize_t)n;
}

static int response_submit(struct http2_stream *stream) {
    nghttp2_session *session = stream->http->session;
    const nghttp2_data_provider provider = {{.ptr = stream}, on_read};
    bool is_alone = stream->is_empty || (stream->is_ended && !evbuffer_get_length(stream->out));
    size_t count;
    nghttp2_nv *list = kept_list(shared_of(stream), &stream->answer, is_alone ? &stream->trailers : NULL, &count);
    stream->is_submitted = true;
    int error = list ? nghttp2_submit_response(session, stream->id, list, count, is_alone ? NULL : &provider)
                     : NGHTTP2_ERR_NOMEM;
    kept_clear(&stream->answer);
    return error;
}

/* Submits a stream's changes. An aborted stream is reset only after its earlier bytes were sent. */
static void stream_submit(struct http2_stream *stream) {
    nghttp2_session *session = stream->http->session;
    bool has_bytes = evbuffer_get_length(stream->out) > 0;
    int error = 0;
    if (stream->is_reset)
        return;
    if (stream->is_aborted && !has_bytes) {
        stream->is_reset = true;
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream->id, stream->abort_code);
        return;
    }
    if (stream->is_begun && !stream->is_submitted) {
        error = response_submit(stream);
    } else if (stream->is_deferred && (has_bytes || stream->is_ended)) {
        stream->is_deferred = false;
        error = nghttp2_session_resume_data(session, stream->id);
    }
    if (error)
        lose(stream);
}

/* Handlers gather bodies until they are complete. All bodies of a connection together may be as long as one body may
 * be. Beyond that, only the stream with the maximum number of bytes gets new window; the others wait until it ends. It
 * is chosen once: otherwise streams that overtake each other by a byte would all continue. */
static bool may_continue(struct http2_stream *stream) {
    struct http2 *http = stream->http;
    const struct http2_stream *other;
    if (http->gathered <= (uint64_t)http2_limits(http)->body_bytes)
        return true;
    if (!http->foremost)
        TAILQ_FOREACH(other, &http->streams, all)
    if (!http->foremost || other->gathered > http->foremost->gathered)
        http->foremost = other;
    return stream == http->foremost;
}

static int window_return(struct http2_stream *stream, size_t length) {
    stream->withheld += length;
    if (!may_continue(stream)) {
        stream->http->has_withheld = true;
        return 0;
    }
    length = stream->withheld;
    stream->withheld = 0;
    return nghttp2_session_consume_stream(stream->http->session, stream->id, length);
}

static void gathered_forget(struct http2_stream *stream) {
    stream->http->gathered -= stream->gathered;
    stream->gathered = 0;
    if (stream->http->foremost == stream)
        stream->http->foremost = NULL;
}

bool http2_streams_submit(struct http2 *http) {
    bool has_any = !TAILQ_EMPTY(&http->touched);
    struct http2_stream *stream;
    if (http->has_withheld) {
        http->has_withheld = false;
        TAILQ_FOREACH(stream, &http->streams, all)
        if (stream->withheld)
            window_return(stream, 0);
    }
    while ((stream = TAILQ_FIRST(&http->touched))) {
        TAILQ_REMOVE(&http->touched, stream, touches);
        stream->is_touched = false;
        stream_submit(stream);
    }
    return has_any;
}

/* Opening and closing streams. */

static void stream_close(struct http2_stream *stream, bool is_whole) {
    if (stream->is_closed)
        return;
    stream->is_closed = true;
    gathered_forget(stream);
    if (!stream->is_routed)
        return;
    if (stream->exchange.client && stream->exchange.status >= 400) /* a refusal takes others' time, too */
        rate_take(rates_find(&shared_of(stream)->resets, stream->exchange.client, clock_seconds()));
    exchange_close(&stream->exchange, is_whole, stream->fault ? stream->fault : stream->http->connection->fault);
}

static void stream_destroy(struct http2_stream *stream) {
    kept_free(&stream->request);
    kept_free(&stream->answer);
    kept_free(&stream->trailers);
    free(stream->fields);
    if (stream->out)
        evbuffer_free(stream->out);
    free(stream);
}

/* Reuses an ended stream with its memory, or makes a new one; NULL: no memory. */
static struct http2_stream *stream_new(const struct transport *transport) {
    struct http2_shared *shared = transport->http2;
    struct http2_stream *stream = TAILQ_FIRST(&shared->spare);
    if (stream) {
        TAILQ_REMOVE(&shared->spare, stream, all);
        shared->spare_count--;
        return stream;
    }
    stream = calloc(1, sizeof *stream + transport->options.request_bytes);
    if (stream)
        stream->out = evbuffer_new();
    if (!stream || stream->out)
        return stream;
    free(stream);
    return NULL;
}

static void stream_spare(struct http2_shared *shared, struct http2_stream *stream) {
    if (shared->spare_count == SPARE_STREAMS || stream->field_capacity > SPARE_FIELDS) {
        stream_destroy(stream);
        return;
    }
    kept_clear(&stream->request);
    kept_clear(&stream->answer);
    kept_clear(&stream->trailers);
    evbuffer_drain(stream->out, evbuffer_get_length(stream->out));
    *stream = (struct http2_stream){.request = stream->request,
                                    .answer = stream->answer,
                                    .trailers = stream->trailers,
                                    .fields = stream->fields,
                                    .field_capacity = stream->field_capacity,
                                    .out = stream->out};
    TAILQ_INSERT_HEAD(&shared->spare, stream, all);
    shared->spare_count++;
}

void http2_streams_forget(struct http2_shared *shared) {
    while (!TAILQ_EMPTY(&shared->spare)) {
        struct http2_stream *stream = TAILQ_FIRST(&shared->spare);
        TAILQ_REMOVE(&shared->spare, stream, all);
        stream_destroy(stream);
    }
    shared->spare_count = 0;
    free(shared->list);
    shared->list = NULL;
    shared->list_capacity = 0;
}

static void stream_free(struct http2_stream *stream) {
    struct http2 *http = stream->http;
    TAILQ_REMOVE(&http->streams, stream, all);
    if (stream->is_touched)
        TAILQ_REMOVE(&http->touched, stream, touches);
    if (TAILQ_EMPTY(&http->streams))
        http->idle_since = clock_seconds();
    stream_spare(shared_of(stream), stream);
}

bool http2_streams_are_busy(const struct http2 *http) {
    const struct http2_stream *stream;
    bool is_busy = false;
    TAILQ_FOREACH(stream, &http->streams, all)
    is_busy |= stream->is_whole && !stream->is_closed;
    return is_busy;
}

void http2_streams_close(struct http2 *http) {
    bool is_left = !http->is_over && !http->connection->transport->is_draining;
    while (!TAILQ_EMPTY(&http->streams)) {
        struct http2_stream *stream = TAILQ_FIRST(&http->streams);
        if (is_left && stream->is_routed && !stream->is_closed)
            http2_spend_reset(http, stream->exchange.client);
        stream_close(stream, false);
        stream_free(stream);
    }
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    struct http2 *http = user;
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    struct http2_stream *stream = stream_new(http->connection->transport);
    if (!stream)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    stream->http = http;
    stream->id = frame->hd.stream_id;
    TAILQ_INSERT_TAIL(&http->streams, stream, all);
    nghttp2_session_set_stream_user_data(session, stream->id, stream);
    return 0;
}

/* nghttp2 announces header list limits but does not enforce them. Fields beyond a limit are decoded, as compression
 * requires, and dropped; the request is refused when the list is complete. Trailers of a request count with its header,
 * and are not stored. */
static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_length,
                     const uint8_t *value, size_t value_length, uint8_t flags, void *user) {
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (((struct http2 *)user)->is_over)
        return NGHTTP2_ERR_PAUSE; /* nothing more is read */
    if (!stream || stream->is_too_long)
        return 0;
    const struct transport_limits *limits = http2_limits(stream->http);
    stream->header_bytes += name_length + value_length + 32;
    if (stream->header_bytes > (size_t)limits->header_bytes || stream->request.count >= (size_t)limits->headers) {
        stream->is_too_long = true;
        http2_spend(stream->http, 1);
        return 0;
    }
    if (stream->is_routed)
        return 0;
    return kept_add(&stream->request, name, name_length, value, value_length) ? NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE
                                                                              : 0;
}

static bool fields_reserve(struct http2_stream *stream, size_t count) {
    if (count <= stream->field_capacity)
        return true;
    struct field *fields = reallocarray(stream->fields, count, sizeof *fields);
    if (!fields)
        return false;
    stream->fields = fields;
    stream->field_capacity = count;
    return true;
}

/* The router refuses a faulty header, because it can answer in the terms of HTTP and of gRPC. */
static void head_judge(struct http2_stream *stream) {
    struct exchange_head *head = &stream->exchange.head;
    const struct kept *kept = &stream->request;
    const char *host = kept_value(kept, "host"), *authority = kept_value(kept, ":authority");
    if (stream->is_too_long) {
        head->refusal = 431;
        head->problem = "the fields are too long together, or too many";
    } else if (!*head->path) {
        head->refusal = 400;
        head->problem = "the target of the request is not a path";
    } else if (host && authority && strcasecmp(host, authority) != 0) {
        head->refusal = 400;
        head->problem = "host differs from :authority";
    }
}

/* Makes the header from the stored fields. Pseudo-fields become members, and :authority becomes "host". If the list was
 * too long, method and path may be missing; they are then empty. */
static int head_make(struct http2_stream *stream) {
    struct exchange_head *head = &stream->exchange.head;
    const struct kept *kept = &stream->request;
    const char *text = strbuf_text(&kept->text), *method = kept_value(kept, ":method");
    char *path = kept_value(kept, ":path"), *query = path ? strchr(path, '?') : NULL;
    bool has_authority = kept_value(kept, ":authority") != NULL;
    if (!fields_reserve(stream, kept->count))
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    for (size_t i = 0; i < kept->count; i++) {
        const struct span *span = &kept->spans[i];
        struct field field = {text + span->name, text + span->value, span->name_length, span->value_length};
        if (span_is(kept, span, ":authority", 10))
            field.name = "host", field.name_length = 4;
        else if (*field.name == ':' || (has_authority && span_is(kept, span, "host", 4)))
            continue;
        stream->fields[head->field_count++] = field;
    }
    if (query)
        *query++ = 0;
    head->path = path ? path : "";
    head->query = query ? query : "";
    head->fields = stream->fields;
    head->method = method ? method : "";
    head_judge(stream);
    return 0;
}

static int stream_route(struct http2_stream *stream, bool is_whole) {
    const struct connection *connection = stream->http->connection;
    const struct transport_options *options = &connection->transport->options;
    stream->exchange = (struct exchange){
        .head = {.listener = connection->kind,
                 .is_http2 = true,
                 .is_tls = connection->tls != NULL,
                 .peer = connection->peer,
                 .address = connection->address},
        .transport = &answers,
        .request = (struct request *)stream->router_part,
        .start = clock_seconds(),
    };
    memset(stream->router_part, 0, options->request_bytes);
    if (head_make(stream))
        return nghttp2_submit_rst_stream(stream->http->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_INTERNAL_ERROR);
    stream->is_routed = true;
    stream->is_whole = is_whole;
    options->route(options->router, &stream->exchange);
    if (!http2_may_ask(stream->http, stream->exchange.client, stream->exchange.status == 401))
        http2_calm_down(stream->http, "too many resets");
    stream->http->has_grpc |= stream->exchange.resets_early;
    return 0;
}

/* Refuses a request that the router had accepted. If an answer has begun, it is aborted. */
static void stream_refuse(struct http2_stream *stream, int status, const char *problem) {
    struct strbuf body = STRBUF_INIT;
    if (stream->is_begun) {
        abort_stream(stream, NGHTTP2_CANCEL);
        return;
    }
    stream->http->connection->transport->options.refuse(&body, status, problem);
    exchange_answer(&stream->exchange, status, "application/json", strbuf_text(&body), body.length);
    strbuf_free(&body);
}

bool http2_stream_client(const struct http2 *http, int32_t id, uint64_t *client) {
    const struct http2_stream *stream = nghttp2_session_get_stream_user_data(http->session, id);
    *client = stream ? stream->exchange.client : 0;
    return stream != NULL;
}

int http2_stream_frame(struct http2 *http, const nghttp2_frame *frame) {
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(http->session, frame->hd.stream_id);
    bool is_end = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    int result = 0;
    if (!stream)
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST)
        result = stream_route(stream, is_end);
    else if (frame->hd.type == NGHTTP2_HEADERS && stream->is_too_long && is_writable(stream))
        stream_refuse(stream, 431, "the trailer fields are too long together");
    if (!result && is_end && stream->is_routed) {
        const struct exchange_handler *handler = stream->exchange.handler;
        stream->is_whole = true;
        gathered_forget(stream);
        if (is_writable(stream) && handler && handler->on_end)
            handler->on_end(&stream->exchange);
    }
    return result;
}

static int stream_stop(struct http2_stream *stream) {
    stream->is_reset = true;
    return nghttp2_submit_rst_stream(stream->http->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR);
}

static int on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes, size_t length,
                         void *user) {
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(session, id);
    if (((struct http2 *)user)->is_over)
        return NGHTTP2_ERR_PAUSE;
    if (nghttp2_session_consume_connection(session, length) || (stream && window_return(stream, length)))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (!stream)
        return 0;
    const struct exchange_handler *handler = stream->exchange.handler;
    stream->body.bytes += length;
    if (!is_writable(stream)) {
        /* When a JSON answer is sent before its request is complete, the rest of the request is dropped: a client whose
         * stream is reset may lose the answer. A reset that is submitted before the answer was sent would cancel it. */
        if (stream->discarding) {
            stream->body_bytes += length;
            if (stream->body_bytes > (uint64_t)http2_limits(stream->http)->body_bytes && !stream->is_reset)
                stream_stop(stream);
        }
        return 0;
    }
    int64_t own = stream->exchange.body_bytes;
    stream->body_bytes += length;
    if (!own) {
        stream->gathered += length;
        stream->http->gathered += length;
    }
    if (handler && handler->on_body)
        handler->on_body(&stream->exchange, bytes, length);
    if (!stream->exchange.resets_early && is_writable(stream) &&
        stream->body_bytes > (uint64_t)(own ? own : http2_limits(stream->http)->body_bytes))
        stream_refuse(stream, 413, "the body is too large");
    return 0;
}

/* Called when the answer's last frame was sent. If the request is incomplete, gRPC stops it with RST_STREAM(NO_ERROR);
 * an earlier reset would cancel the answer. */
int http2_stream_sent(struct http2 *http, const nghttp2_frame *frame) {
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(http->session, frame->hd.stream_id);
    if (!stream || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        return 0;
    if (!stream->is_whole && stream->exchange.resets_early && !stream->is_reset) {
        if (stream_stop(stream))
            return NGHTTP2_ERR_CALLBACK_FAILURE;
    } else if (!stream->is_whole) {
        stream->discarding = clock_seconds();
        stream->body_bytes = 0; /* the same amount again may be dropped */
    }
    stream_close(stream, true);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t error, void *user) {
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(session, id);
    if (!stream)
        return 0;
    nghttp2_session_set_stream_user_data(session, id, NULL);
    stream_close(stream, false);
    stream_free(stream);
    return 0;
}

void http2_stream_callbacks(nghttp2_session_callbacks *callbacks) {
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data_chunk);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
}

void http2_streams_tell(struct http2 *http) {
    if (!http->needs_telling)
        return;
    http->needs_telling = false;
    struct http2_stream *stream;
    TAILQ_FOREACH(stream, &http->streams, all) {
        size_t half = (size_t)http2_limits(http)->stream_output_bytes / 2;
        if (!stream->was_over || evbuffer_get_length(stream->out) > half)
            continue;
        stream->was_over = false;
        if (is_writable(stream) && stream->exchange.handler && stream->exchange.handler->on_room)
            stream->exchange.handler->on_room(&stream->exchange);
    }
}

/* Ends streams that take too long. A client that opens no window loses its answer. A client whose body does not arrive
 * gets status 408. A client that has its answer but does not end its request is reset. */
void http2_streams_tick(struct http2 *http, double now) {
    const struct transport_limits *limits = http2_limits(http);
    struct http2_stream *stream;
    TAILQ_FOREACH(stream, &http->streams, all) {
        size_t waiting = evbuffer_get_length(stream->out);
        bool is_shut = nghttp2_session_get_stream_remote_window_size(http->session, stream->id) <= 0 ||
                       nghttp2_session_get_remote_window_size(http->session) <= 0;
        bool wants_body = stream->is_routed && !stream->is_whole && !stream->is_ended && !stream->withheld &&
                          !stream->exchange.resets_early;
        if (!pace_holds(&stream->writing, now, limits->write_timeout, is_shut ? waiting : 0)) {
            stream->fault = EXCHANGE_SLOW_READER;
            evbuffer_drain(stream->out, waiting);
            abort_stream(stream, NGHTTP2_CANCEL);
            touch(stream); /* an aborted stream may still wait for its bytes to be sent */
        } else if (!pace_holds(&stream->body, now, limits->header_timeout, wants_body)) {
            stream_refuse(stream, 408, "request body arrived too slowly");
        } else if (stream->discarding > 0 && !stream->is_reset && now - stream->discarding > limits->header_timeout) {
            stream_stop(stream);
            connection_schedule(http->connection);
        }
    }
}
