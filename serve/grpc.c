/* The common part of all gRPC methods. A call is freed when its exchange closes. Its method is notified of the end
 * then, or earlier when the deadline passes. */
#include "grpc.h"

#include "grpc_details.h"
#include "grpc_frames.h"
#include "grpc_reading.h"
#include "metrics.h"
#include "proto_check.h"
#include "route.h"

#include "base/utf8.h"

struct grpc_call {
    struct exchange *exchange;
    const struct grpc_method *method;
    struct grpc_frames frames;
    size_t counted;               /* bytes of frames.message that count in the server's limit */
    struct grpc_reading *reading; /* in progress */
    ProtobufCMessage *message;    /* for a method that takes one message */
    struct strbuf answer;         /* for a method that needs only the model */
    bool has_message;             /* it has arrived, and is read or being read */
    bool is_whole;                /* the request */
    bool has_begun, is_finished;
    bool is_given; /* the method got a message and was not closed */
    void *context; /* the method's */
    struct event *timer;
    double deadline;
};

struct exchange *grpc_exchange(const struct grpc_call *call) {
    return call->exchange;
}

void grpc_set_context(struct grpc_call *call, void *context) {
    call->context = context;
}

void *grpc_context(const struct grpc_call *call) {
    return call->context;
}

double grpc_deadline(const struct grpc_call *call) {
    return call->deadline;
}

bool grpc_is_finished(const struct grpc_call *call) {
    return call->is_finished;
}

bool grpc_is_full(const struct grpc_call *call) {
    return exchange_pending(call->exchange) >
           (size_t)call->exchange->request->server->options->limits.stream_output_bytes;
}

/* ---- answers ---- */

static const struct field content_type = {
    .name = "content-type", .value = "application/grpc", .name_length = 12, .value_length = 16};

/* Clients accept 8 KiB of header and trailers. A message may take half of that; details get what the other fields
 * leave. */
enum { SHORT_MESSAGE = 512 /* with its prefix: needs no allocation */ };
enum { MAX_FIELD_BYTES = 8192, MAX_MESSAGE_FIELD = 4096, MAX_OTHER_FIELDS = 1536, MAX_TRAILERS = 16 };

static bool is_plain(unsigned char c) {
    return c >= 0x20 && c <= 0x7e && c != '%';
}

/* Appends the readable form of a text: invalid characters are repaired, and a long text is cut. */
static void add_readable(struct strbuf *out, const char *text) {
    struct strbuf repaired = STRBUF_INIT;
    size_t encoded = 0;
    utf8_add_repaired(&repaired, text, strlen(text));
    const unsigned char *at = (const unsigned char *)strbuf_text(&repaired), *end = at + repaired.length;
    for (size_t length; at < end; at += length) {
        length = utf8_length(at, end);
        encoded += is_plain(*at) ? 1 : 3 * length;
        if (encoded > MAX_MESSAGE_FIELD)
            break;
        strbuf_add(out, at, length);
    }
    out->failed |= repaired.failed;
    strbuf_free(&repaired);
}

void grpc_add_message(struct strbuf *out, const char *text) {
    struct strbuf readable = STRBUF_INIT;
    add_readable(&readable, text);
    for (size_t i = 0; i < readable.length; i++)
        if (is_plain((unsigned char)readable.data[i]))
            strbuf_add_char(out, readable.data[i]);
        else
            strbuf_format(out, "%%%02X", (unsigned char)readable.data[i]);
    out->failed |= readable.failed;
    strbuf_free(&readable);
}

/* Sets the fields of an end. Without memory the text is omitted. */
static size_t set_end(struct field *fields, struct strbuf *message, int status, const char *text) {
    static const char *const numbers[] = {"0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                                          "9", "10", "11", "12", "13", "14", "15", "16"};
    size_t count = 0;
    bool is_known = status >= 0 && (size_t)status < sizeof numbers / sizeof *numbers;
    fields[count++] = field_of("grpc-status", numbers[is_known ? status : 2 /* unknown */]);
    if (*text)
        grpc_add_message(message, text);
    if (message->length && !message->failed)
        fields[count++] = field_of("grpc-message", strbuf_text(message));
    return count;
}

/* Sends an answer that consists only of its end: one HEADERS frame. */
static void answer_end_alone(struct exchange *exchange, const struct field *trailers, size_t count) {
    struct field fields[MAX_TRAILERS + 1] = {content_type};
    memcpy(fields + 1, trailers, count * sizeof *trailers);
    if (!exchange_begin(exchange, 200, fields, count + 1, 0))
        exchange_end(exchange, NULL, 0);
}

/* The fields of a failed call's end, and the memory they point to. */
struct end {
    struct field fields[MAX_TRAILERS];
    size_t count;
    char pushback[16];
    struct strbuf message, details;
};

/* Without memory the details are omitted. */
static void set_details(struct end *end, const struct error *error, const char *text) {
    struct strbuf readable = STRBUF_INIT;
    add_readable(&readable, text);
    if (!readable.failed && !end->message.failed)
        grpc_add_details(&end->details, error, strbuf_text(&readable),
                         MAX_FIELD_BYTES - MAX_OTHER_FIELDS - end->message.length);
    if (end->details.length && !end->details.failed)
        end->fields[end->count++] = field_of("grpc-status-details-bin", strbuf_text(&end->details));
    strbuf_free(&readable);
}

static void set_error(struct end *end, const struct error *error) {
    struct strbuf text = STRBUF_INIT;
    *end = (struct end){.count = 0};
    if (*error->param)
        strbuf_format(&text, "%s: ", error->param);
    strbuf_add_text(&text, error->text);
    end->count = set_end(end->fields, &end->message, error_row(error->which)->grpc, strbuf_text(&text));
    if (error->retry_after_ms > 0) {
        snprintf(end->pushback, sizeof end->pushback, "%d", error->retry_after_ms);
        end->fields[end->count++] = field_of("grpc-retry-pushback-ms", end->pushback);
    }
    set_details(end, error, strbuf_text(&text));
    strbuf_free(&text);
}

static void end_free(struct end *end) {
    strbuf_free(&end->message);
    strbuf_free(&end->details);
}

static void fail_with(struct exchange *exchange, const struct error *error, const struct field *more) {
    struct end end;
    set_error(&end, error);
    if (more)
        end.fields[end.count++] = *more;
    exchange->request->error = error->which;
    exchange->resets_early = true;
    answer_end_alone(exchange, end.fields, end.count);
    end_free(&end);
}

void grpc_fail(struct exchange *exchange, const struct error *error) {
    fail_with(exchange, error, NULL);
}

/* Does grpc_fail for a request that the router let through. */
static void refuse(struct exchange *exchange, const struct error *error, const struct field *more) {
    metrics_rejected(exchange->request->server->metrics, error->which);
    fail_with(exchange, error, more);
}

void grpc_begin_answer(struct grpc_call *call, const struct field *fields, size_t count) {
    struct field all[MAX_TRAILERS] = {content_type};
    if (call->has_begun || call->is_finished || count >= MAX_TRAILERS)
        return;
    call->has_begun = true;
    if (count)
        memcpy(all + 1, fields, count * sizeof *fields);
    exchange_begin(call->exchange, 200, all, count + 1, -1);
}

/* From here on the deadline no longer applies. */
static void set_finished(struct grpc_call *call) {
    call->is_finished = true;
    if (call->timer)
        event_free(call->timer);
    call->timer = NULL;
}

static void end_call(struct grpc_call *call, const struct field *trailers, size_t count) {
    set_finished(call);
    if (call->has_begun)
        exchange_end(call->exchange, trailers, count);
    else
        answer_end_alone(call->exchange, trailers, count);
}

void grpc_finish_with(struct grpc_call *call, int status, const char *text, const struct field *trailers,
                      size_t count) {
    struct field fields[MAX_TRAILERS];
    struct strbuf message = STRBUF_INIT;
    if (call->is_finished)
        return;
    size_t all = set_end(fields, &message, status, text);
    for (size_t i = 0; i < count && all < MAX_TRAILERS; i++)
        fields[all++] = trailers[i];
    end_call(call, fields, all);
    strbuf_free(&message);
}

void grpc_finish(struct grpc_call *call, const struct error *error) {
    struct end end;
    if (call->is_finished)
        return;
    if (!error) {
        grpc_finish_with(call, 0, "", NULL, 0);
        return;
    }
    call->exchange->request->error = error->which;
    if (!call->has_begun && error->which != ERROR_DEADLINE)
        metrics_rejected(call->exchange->request->server->metrics, error->which);
    set_error(&end, error);
    end_call(call, end.fields, end.count);
    end_free(&end);
}

void grpc_finish_memory(struct grpc_call *call) {
    grpc_finish(call, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"));
}

static bool check_size(size_t length, struct error *error) {
    if (length > GRPC_MAX_MESSAGE)
        error_set(error, ERROR_BODY_SIZE, NULL, "the answer's message would have %zu bytes, and may have %d", length,
                  GRPC_MAX_MESSAGE);
    return length <= GRPC_MAX_MESSAGE;
}

bool grpc_pack(const ProtobufCMessage *message, struct strbuf *packed, struct error *error) {
    size_t length = protobuf_c_message_get_packed_size(message);
    if (!check_size(length, error))
        return false;
    if (strbuf_reserve(packed, GRPC_PREFIX_BYTES + length))
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    unsigned char *at = (unsigned char *)packed->data + packed->length;
    grpc_prefix_write(at, (uint32_t)length);
    protobuf_c_message_pack(message, at + GRPC_PREFIX_BYTES);
    packed->length += GRPC_PREFIX_BYTES + length;
    packed->data[packed->length] = 0;
    return true;
}

void grpc_send(struct grpc_call *call, const ProtobufCMessage *message) {
    size_t length = protobuf_c_message_get_packed_size(message);
    struct error error;
    if (call->is_finished)
        return;
    if (!check_size(length, &error)) {
        grpc_finish(call, &error);
        return;
    }
    unsigned char few[SHORT_MESSAGE], *bytes = GRPC_PREFIX_BYTES + length <= sizeof few ? few : NULL;
    if (!bytes && !(bytes = malloc(GRPC_PREFIX_BYTES + length))) {
        grpc_finish_memory(call);
        return;
    }
    grpc_prefix_write(bytes, (uint32_t)length);
    protobuf_c_message_pack(message, bytes + GRPC_PREFIX_BYTES);
    grpc_begin_answer(call, NULL, 0);
    exchange_write(call->exchange, bytes, GRPC_PREFIX_BYTES + length);
    if (bytes != few)
        free(bytes);
}

void grpc_answer(struct grpc_call *call, const ProtobufCMessage *message) {
    grpc_send(call, message);
    grpc_finish(call, NULL);
}

void grpc_answer_packed(struct grpc_call *call, const struct strbuf *packed) {
    if (call->is_finished)
        return;
    grpc_begin_answer(call, NULL, 0);
    exchange_write(call->exchange, strbuf_text(packed), packed->length);
    grpc_finish(call, NULL);
}

/* ---- requests ---- */

static void close_method(struct grpc_call *call) {
    if (call->is_given && call->context && call->method->on_close)
        call->method->on_close(call);
    call->is_given = false;
}

static void fail_frame(struct grpc_call *call, enum grpc_frame frame) {
    struct error error;
    switch (frame) {
    case GRPC_FRAME_BAD_FLAG:
        error_set(&error, ERROR_INTERNAL, NULL, "a message has flags that it cannot have with its encoding");
        break;
    case GRPC_FRAME_TOO_LARGE:
        error_set(&error, ERROR_BODY_SIZE, NULL, "a message may have %llu bytes",
                  (unsigned long long)call->frames.limit);
        break;
    default:
        grpc_finish_memory(call);
        return;
    }
    grpc_finish(call, &error);
}

/* Counts the gathered part of a message in the limit of all bodies. */
static bool count_bytes(struct grpc_call *call) {
    struct exchange *exchange = call->exchange;
    struct gathered *gathered = &exchange->request->server->gathered;
    size_t now = call->frames.message.length;
    if (now > call->counted &&
        !gathered_take(gathered, call->counted, now - call->counted, exchange->head.listener == LISTENER_CONTROL))
        return false;
    if (now < call->counted)
        gathered_give(gathered, call->counted - now);
    call->counted = now;
    return true;
}

static void fail_count(struct grpc_call *call, const char *text) {
    grpc_finish(call, AN_ERROR(ERROR_ROUTE_NOT_FOUND, NULL, "%s", text));
}

/* Passes the message to the method, or sends the answer that was made. */
static void give(struct grpc_call *call) {
    call->is_given = true;
    if (!call->method->answer) {
        call->method->on_message(call, call->message);
        return;
    }
    grpc_answer_packed(call, &call->answer);
}

static void give_back(struct server *server, struct grpc_call *call) {
    gathered_give(&server->gathered, call->counted);
    call->counted = 0;
}

/* The message of a method that takes one was read. */
static void on_read(void *context, struct grpc_reading *reading) {
    struct grpc_call *call = context;
    if (!call)
        return;
    call->reading = NULL;
    give_back(reading->server, call);
    if (call->is_finished)
        return;
    if (reading->error.which) {
        grpc_finish(call, &reading->error);
        return;
    }
    call->message = reading->message;
    call->answer = reading->answer;
    reading->message = NULL;
    reading->answer = STRBUF_INIT;
    if (call->is_whole)
        give(call);
}

static struct grpc_reading *new_reading(struct grpc_call *call) {
    struct exchange *exchange = call->exchange;
    struct grpc_reading asked = {.server = exchange->request->server,
                                 .method = call->method,
                                 .bytes = call->frames.message,
                                 .is_packed = grpc_frames_is_packed(&call->frames),
                                 .limit = call->frames.limit,
                                 .owner = request_owner(exchange),
                                 .on_done = on_read,
                                 .context = call};
    call->frames.message = STRBUF_INIT; /* owned by the reading now */
    grpc_frames_next(&call->frames);
    struct grpc_reading *reading = grpc_reading_new(&asked);
    if (!reading)
        grpc_finish_memory(call);
    return reading;
}

/* One of many messages is read at once. */
static void on_read_one(void *context, struct grpc_reading *reading) {
    struct grpc_call *call = context;
    if (reading->error.which) {
        grpc_finish(call, &reading->error);
        return;
    }
    call->is_given = true;
    call->method->on_message(call, reading->message);
}

/* A client that sends without reading is refused after a while. */
static void give_one_of_many(struct grpc_call *call) {
    if (grpc_is_full(call)) {
        grpc_finish(call, AN_ERROR(ERROR_SLOW_READER, NULL, "the client does not read its answers"));
        return;
    }
    struct grpc_reading *reading = new_reading(call);
    give_back(call->exchange->request->server, call);
    if (!reading)
        return;
    reading->on_done = on_read_one;
    grpc_reading_now(reading);
}

static void on_body(struct exchange *exchange, const unsigned char *bytes, size_t length) {
    struct grpc_call *call = exchange->context;
    while (length && !call->is_finished) {
        if (call->has_message && !call->method->takes_many) {
            fail_count(call, "the method takes one message");
            return;
        }
        enum grpc_frame frame = grpc_frames_take(&call->frames, &bytes, &length);
        bool has_room = count_bytes(call);
        if (frame != GRPC_FRAME_MORE && frame != GRPC_FRAME_WHOLE)
            fail_frame(call, frame);
        else if (!has_room) {
            grpc_finish(call, AN_ERROR(ERROR_OVERLOADED, NULL,
                                       "too many messages are on their way: there is no room for this one"));
        } else if (frame == GRPC_FRAME_MORE)
            return;
        else if (call->method->takes_many)
            give_one_of_many(call);
        else {
            call->has_message = true;
            call->reading = new_reading(call);
            if (call->reading)
                grpc_reading_start(call->reading);
        }
    }
}

static void on_end(struct exchange *exchange) {
    struct grpc_call *call = exchange->context;
    call->is_whole = true;
    if (call->is_finished)
        return;
    if (!grpc_frames_are_whole(&call->frames)) {
        grpc_finish(call, AN_ERROR(ERROR_INTERNAL, NULL, "a message breaks off"));
    } else if (call->method->takes_many) {
        call->is_given = true;
        if (call->method->on_end)
            call->method->on_end(call);
    } else if (!call->has_message) {
        fail_count(call, "the method takes a message");
    } else if (!call->reading) {
        give(call);
    }
}

static void on_room(struct exchange *exchange) {
    struct grpc_call *call = exchange->context;
    if (call->is_given && call->method->on_room && !call->is_finished)
        call->method->on_room(call);
}

static void call_close(struct grpc_call *call) {
    set_finished(call);
    close_method(call);
    if (call->reading)
        call->reading->context = NULL;
    give_back(call->exchange->request->server, call);
    proto_free(call->message);
    strbuf_free(&call->answer);
    grpc_frames_free(&call->frames);
    free(call);
}

static void on_close(struct exchange *exchange) {
    struct grpc_call *call = exchange->context;
    exchange->context = NULL;
    call_close(call);
}

static const struct exchange_handler handler = {
    .on_body = on_body, .on_end = on_end, .on_room = on_room, .on_close = on_close};

/* ---- deadlines ---- */

bool grpc_read_timeout(const char *text, double *seconds) {
    static const struct {
        char letter;
        double seconds;
    } units[] = {{'H', 3600}, {'M', 60}, {'S', 1}, {'m', 1e-3}, {'u', 1e-6}, {'n', 1e-9}};
    int digits = 0;
    double number = 0;
    for (; text[digits] >= '0' && text[digits] <= '9'; digits++) {
        if (digits == GRPC_MAX_TIMEOUT_DIGITS)
            return false;
        number = number * 10 + (text[digits] - '0');
    }
    if (!digits || !text[digits] || text[digits + 1])
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (units[i].letter == text[digits]) {
            *seconds = number * units[i].seconds;
            return true;
        }
    return false;
}

/* The method releases everything at once, because the status may wait for a client that does not read. */
static ON_EVENT(on_deadline) {
    struct grpc_call *call = context;
    close_method(call);
    grpc_finish(call, AN_ERROR(ERROR_DEADLINE, NULL, "the deadline of the call has passed"));
}

/* Sets the deadline of the request's header. Returns false when the request was refused. */
static bool arm(struct grpc_call *call) {
    struct exchange *exchange = call->exchange;
    const char *text = exchange_field(exchange, "grpc-timeout");
    double seconds;
    if (!text)
        return true;
    if (!grpc_read_timeout(text, &seconds)) {
        refuse(exchange,
               AN_ERROR(ERROR_INTERNAL, "grpc-timeout", "expected up to %d digits and one of H, M, S, m, u, n",
                        GRPC_MAX_TIMEOUT_DIGITS),
               NULL);
        return false;
    }
    struct timeval after = {.tv_sec = (time_t)seconds,
                            .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    call->deadline = clock_seconds() + seconds;
    call->timer = evtimer_new(exchange->request->server->base, on_deadline, call);
    if (call->timer && !evtimer_add(call->timer, &after))
        return true;
    refuse(exchange, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"), NULL);
    return false;
}

/* ---- the beginning ---- */

static const struct grpc_method *find_method(const struct exchange *exchange,
                                             const struct grpc_service *const *services, size_t count) {
    const char *path = exchange->head.path + 1, *slash = *exchange->head.path == '/' ? strchr(path, '/') : NULL;
    for (size_t i = 0; slash && i < count; i++) {
        const struct grpc_service *service = services[i];
        size_t length = (size_t)(slash - path);
        if (strlen(service->name) != length || memcmp(service->name, path, length) ||
            (service->is_control && exchange->head.listener != LISTENER_CONTROL))
            continue;
        for (size_t k = 0; k < service->method_count; k++)
            if (!strcmp(service->methods[k].name, slash + 1))
                return &service->methods[k];
    }
    return NULL;
}

/* Answers faults of HTTP as HTTP, not as gRPC. Returns false when it has answered. */
static bool check_http(struct exchange *exchange) {
    const struct exchange_head *head = &exchange->head;
    const char *type = exchange_field(exchange, "content-type");
    const char *behind = type && !strncasecmp(type, "application/grpc", 16) ? type + 16 : NULL;
    static const char method[] = "gRPC is asked by POST\n", version[] = "gRPC needs HTTP/2\n",
                      kind[] = "expected application/grpc\n";
    bool is_grpc = behind && (!*behind || *behind == '+' || *behind == ';');
    if (strcmp(head->method, "POST"))
        exchange_answer(exchange, 405, "text/plain", method, sizeof method - 1);
    else if (!head->is_http2)
        exchange_answer(exchange, 415, "text/plain", version, sizeof version - 1);
    else if (!is_grpc)
        exchange_answer(exchange, 415, "text/plain", kind, sizeof kind - 1);
    else
        return true;
    return false;
}

/* Checks the encoding of messages. Returns false when the request was refused. */
static bool check_encoding(struct exchange *exchange, bool *may_be_packed) {
    static const struct field ours = {
        .name = "grpc-accept-encoding", .value = "identity,gzip", .name_length = 20, .value_length = 13};
    const char *type = exchange_field(exchange, "content-type") + 16;
    const char *encoding = exchange_field(exchange, "grpc-encoding");
    *may_be_packed = encoding && !strcmp(encoding, "gzip");
    if (*type == '+' && (strncasecmp(type, "+proto", 6) || (type[6] && type[6] != ';'))) {
        refuse(exchange, AN_ERROR(ERROR_ROUTE_NOT_FOUND, "content-type", "messages are only in protobuf"), NULL);
        return false;
    }
    if (!encoding || *may_be_packed || !strcmp(encoding, "identity"))
        return true;
    refuse(exchange, AN_ERROR(ERROR_ROUTE_NOT_FOUND, "grpc-encoding", "messages are packed by gzip, or not at all"),
           &ours);
    return false;
}

void grpc_start(struct exchange *exchange, const struct grpc_service *const *services, size_t count) {
    bool may_be_packed;
    if (!check_http(exchange))
        return;
    exchange->resets_early = true;
    const struct grpc_method *method = find_method(exchange, services, count);
    if (!method) {
        refuse(exchange, AN_ERROR(ERROR_ROUTE_NOT_FOUND, NULL, "there is no method %.128s", exchange->head.path), NULL);
        return;
    }
    if (!check_encoding(exchange, &may_be_packed))
        return;
    struct grpc_call *call = calloc(1, sizeof *call);
    if (!call) {
        refuse(exchange, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"), NULL);
        return;
    }
    *call = (struct grpc_call){.exchange = exchange, .method = method};
    /* One of many messages is read on the loop's thread; no method of that kind needs a long one. */
    enum { ONE_OF_MANY = 1 << 20 };
    uint64_t most = (uint64_t)exchange->request->server->options->limits.body_bytes;
    grpc_frames_begin(&call->frames, method->takes_many && most > ONE_OF_MANY ? ONE_OF_MANY : most, may_be_packed);
    if (!arm(call)) {
        call_close(call);
        return;
    }
    exchange->handler = &handler;
    exchange->context = call;
}
