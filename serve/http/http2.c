/* HTTP/2 on a connection, by nghttp2: its session, its rates, and its end. http2_stream.c has the streams.
 *
 * nghttp2 answers, acknowledges and refuses by itself, so this file counts the work that a hostile client can cause.
 * nghttp2 does not report all useless frames. Therefore this file reads each frame header first and charges useless
 * frames to a budget. */
#include "http2-internal.h"

#include "base/base.h"

enum {
    OUTBOUND_FRAMES = 1000, /* frames that nghttp2 may queue in addition to pending output */
    FRAME_HEAD_BYTES = 9,
    PREFACE_BYTES = 24,
    PING_STRIKES = 2,
    USEFUL_PER_DATA = 4, /* frames that a frame of data may cause: window updates, the ping of an estimate */
    MOST_USEFUL = 1000,
};
static const double ping_seconds = 300, busy_ping_seconds = 5, ping_timeout = 20, drain_ping_seconds = 10;
static const unsigned char drain_ping[8] = "draining";

static uint32_t frame_stream(const struct http2 *http) {
    const uint8_t *head = http->frame_head;
    return ((uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8]) & INT32_MAX;
}

/* Decides by its header whether a frame is useful. DATA is judged when its padding is known, PING when it is read. */
static void frame_judge(struct http2 *http) {
    uint8_t type = http->frame_head[3];
    uint64_t client;
    switch (type) {
    case NGHTTP2_DATA:
    case NGHTTP2_HEADERS:
        return;
    case NGHTTP2_RST_STREAM:
        if (http2_stream_client(http, (int32_t)frame_stream(http), &client)) {
            http2_spend_reset(http, client);
            return;
        }
        __attribute__((fallthrough)); /* it ended before */
    case NGHTTP2_WINDOW_UPDATE:
    case NGHTTP2_PING:
        if (http->useful > 0) {
            http->useful--;
            return;
        }
    }
    http2_spend(http, 1);
}

/* A list of fields may take many frames, with no other frame between them. */
static void frame_end(struct http2 *http) {
    uint8_t type = http->frame_head[3], flags = http->frame_head[4];
    if ((type == NGHTTP2_HEADERS || type == NGHTTP2_CONTINUATION) && (flags & NGHTTP2_FLAG_END_HEADERS))
        http->head_since = 0;
}

static void frame_begin(struct http2 *http, double now) {
    const uint8_t *head = http->frame_head;
    http->frame_head_bytes = 0;
    http->payload_remaining = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    if (head[3] == NGHTTP2_HEADERS)
        http->head_since = now;
    frame_judge(http);
    if (!http->payload_remaining)
        frame_end(http);
}

/* A gRPC client that gives up a call before its header was sent may send only the reset (grpc core writes resets before
 * headers). For nghttp2 that is rightly a connection error, which would end the client's other calls too. On a gRPC
 * connection such a frame is therefore dropped. */
static bool is_early_reset(struct http2 *http) {
    const uint8_t *head = http->frame_head;
    uint32_t stream = frame_stream(http);
    if (head[3] == NGHTTP2_HEADERS && stream > http->last_stream)
        http->last_stream = stream;
    return http->has_grpc && head[3] == NGHTTP2_RST_STREAM && stream % 2 && stream > http->last_stream &&
           http->payload_remaining == 4;
}

static ssize_t feed(struct http2 *http, const unsigned char *bytes, size_t length) {
    return length && !http->is_over ? nghttp2_session_mem_recv(http->session, bytes, length) : 0;
}

/* Reads the bytes frame by frame and gives them to nghttp2, except for dropped frames. An incomplete frame header waits
 * in frame_head. Returns the number of bytes consumed, or an error of nghttp2. */
static ssize_t frames_take(struct http2 *http, const unsigned char *bytes, size_t length, double now) {
    size_t from = 0, at = http->preface_remaining < length ? http->preface_remaining : length, head = 0;
    size_t kept = http->frame_head_bytes; /* of a header that began before these bytes */
    ssize_t status = 0;
    http->preface_remaining -= at;
    while (at < length && status >= 0) {
        if (http->payload_remaining) {
            size_t n = length - at < http->payload_remaining ? length - at : http->payload_remaining;
            http->payload_remaining -= n;
            at += n;
            from = http->is_dropping ? at : from;
            if (!http->payload_remaining)
                frame_end(http);
            continue;
        }
        if (!http->frame_head_bytes)
            head = at;
        http->frame_head[http->frame_head_bytes++] = bytes[at++];
        if (http->frame_head_bytes < FRAME_HEAD_BYTES)
            continue;
        if (http->frame_head[3] == NGHTTP2_RST_STREAM && !kept) { /* nghttp2 must know the stream that it resets */
            status = feed(http, bytes + from, head - from);
            from = head;
        }
        if (status < 0)
            break;
        frame_begin(http, now);
        http->is_dropping = is_early_reset(http);
        if (http->is_dropping) {
            from = at;
        } else if (kept) {
            status = feed(http, http->frame_head, kept);
        }
        kept = 0;
    }
    size_t to = http->frame_head_bytes && !kept ? head : http->frame_head_bytes ? from : length;
    return status < 0 ? status : feed(http, bytes + from, to - from);
}

static void http2_receive(struct connection *connection, const unsigned char *bytes, size_t length) {
    struct http2 *http = connection->state;
    const struct transport_limits *limits = http2_limits(http);
    double now = clock_seconds();
    if (http->is_over)
        return;
    bucket_fill(&http->glitches, (double)limits->glitches, (double)limits->glitches_per_s, now);
    ssize_t n = frames_take(http, bytes, length, now);
    if (n == NGHTTP2_ERR_NOMEM || n == NGHTTP2_ERR_CALLBACK_FAILURE)
        connection_kill(connection);
    else if (n < 0) { /* flooded, or no preface: nghttp2 may have queued a GOAWAY */
        http->is_over = true;
        http->goaway_code = n == NGHTTP2_ERR_FLOODED ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_PROTOCOL_ERROR;
        http->goaway_text = nghttp2_strerror((int)n);
    }
    if (!TAILQ_EMPTY(&http->streams))
        connection->was_busy = true;
    if (nghttp2_session_get_outbound_queue_size(http->session) > OUTBOUND_FRAMES)
        http2_calm_down(http, "answers are not read");
    connection_schedule(connection);
}

static ssize_t on_send(nghttp2_session *session, const uint8_t *bytes, size_t length, int flags, void *user) {
    struct http2 *http = user;
    struct evbuffer *out = http->connection->out;
    if (evbuffer_get_length(out) >= (size_t)http2_limits(http)->output_bytes)
        return NGHTTP2_ERR_WOULDBLOCK;
    return evbuffer_add(out, bytes, length) ? NGHTTP2_ERR_CALLBACK_FAILURE : (ssize_t)length;
}

/* gRPC's rule: a ping every 5 minutes, every 5 seconds while a call runs, and any number after data was sent. */
static void ping_judge(struct http2 *http, const nghttp2_ping *ping) {
    double now = clock_seconds();
    if (ping->hd.flags & NGHTTP2_FLAG_ACK) {
        if (http->drain == DRAIN_NOTICED && !memcmp(ping->opaque_data, drain_ping, sizeof drain_ping))
            http->drain = DRAIN_ACKNOWLEDGED;
        return;
    }
    double least = TAILQ_EMPTY(&http->streams) ? ping_seconds : busy_ping_seconds;
    if (http->has_sent_data || http->last_ping <= 0)
        http->strikes = 0;
    else if (now - http->last_ping < least && ++http->strikes > PING_STRIKES)
        http2_calm_down(http, "too_many_pings");
    http->has_sent_data = false;
    http->last_ping = now;
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    struct http2 *http = user;
    switch (frame->hd.type) {
    case NGHTTP2_PING:
        ping_judge(http, &frame->ping);
        return 0;
    case NGHTTP2_DATA:
        if (frame->hd.length <= frame->data.padlen && !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
            http2_spend(http, 1);
        return http2_stream_frame(http, frame);
    case NGHTTP2_HEADERS:
        return http2_stream_frame(http, frame);
    default:
        return 0;
    }
}

static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    struct http2 *http = user;
    switch (frame->hd.type) {
    case NGHTTP2_RST_STREAM: /* sent by nghttp2 for a client's mistake; handlers' resets are no client's fault */
        if (frame->rst_stream.error_code != NGHTTP2_NO_ERROR && frame->rst_stream.error_code != NGHTTP2_CANCEL)
            http2_spend(http, 1);
        return 0;
    case NGHTTP2_DATA:
    case NGHTTP2_HEADERS:
        http->has_sent_data = true;
        if (http->useful < MOST_USEFUL)
            http->useful += USEFUL_PER_DATA;
        return http2_stream_sent(http, frame);
    case NGHTTP2_GOAWAY: /* nghttp2 would send a ping before it, and the answer would prove nothing */
        if (http->drain == DRAIN_NOTICED && nghttp2_submit_ping(session, NGHTTP2_FLAG_NONE, drain_ping))
            return NGHTTP2_ERR_CALLBACK_FAILURE;
        return 0;
    default:
        return 0;
    }
}

struct http2_shared *http2_shared_new(const struct transport_options *options) {
    const struct transport_limits *limits = &options->limits;
    struct http2_shared *shared = calloc(1, sizeof *shared);
    if (!shared || nghttp2_session_callbacks_new(&shared->callbacks) || nghttp2_option_new(&shared->option)) {
        http2_shared_free(shared);
        return NULL;
    }
    TAILQ_INIT(&shared->spare);
    shared->resets = (struct rates){.burst = (double)limits->resets, .per_second = (double)limits->resets_per_s};
    nghttp2_session_callbacks_set_send_callback(shared->callbacks, on_send);
    nghttp2_session_callbacks_set_on_frame_recv_callback(shared->callbacks, on_frame_recv);
    nghttp2_session_callbacks_set_on_frame_send_callback(shared->callbacks, on_frame_send);
    http2_stream_callbacks(shared->callbacks);
    nghttp2_option_set_no_auto_window_update(shared->option, 1);
    nghttp2_option_set_max_outbound_ack(shared->option, OUTBOUND_FRAMES);
    nghttp2_option_set_max_settings(shared->option, 32);
    nghttp2_option_set_max_continuations(shared->option, 8);
    /* Twice the limit of http2_spend_reset, which acts first and gives a reason. */
    nghttp2_option_set_stream_reset_rate_limit(shared->option, (uint64_t)limits->resets * 2 + 2,
                                               (uint64_t)limits->resets_per_s * 2 + 2);
    return shared;
}

void http2_shared_free(struct http2_shared *shared) {
    if (!shared)
        return;
    nghttp2_session_callbacks_del(shared->callbacks);
    nghttp2_option_del(shared->option);
    http2_streams_forget(shared);
    free(shared);
}

/* Priorities of RFC 7540 stay enabled. Without them nghttp2 would not check PRIORITY frames and would forget closed
 * streams. Frames on closed streams would then be ignored silently instead of refused. */
static int settings_submit(struct http2 *http) {
    const struct transport_limits *limits = http2_limits(http);
    const nghttp2_settings_entry entries[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, (uint32_t)limits->streams},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, (uint32_t)limits->stream_window},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)limits->header_bytes},
    };
    if (nghttp2_submit_settings(http->session, NGHTTP2_FLAG_NONE, entries, sizeof entries / sizeof *entries) ||
        nghttp2_session_set_local_window_size(http->session, NGHTTP2_FLAG_NONE, 0, (int32_t)limits->connection_window))
        return status_fail(STATUS_MEMORY, "a connection: out of memory");
    return 0;
}

static int http2_open(struct connection *connection) {
    const struct http2_shared *shared = connection->transport->http2;
    struct http2 *http = calloc(1, sizeof *http);
    if (!http)
        return status_fail(STATUS_MEMORY, "a connection: out of memory");
    http->connection = connection;
    http->preface_remaining = PREFACE_BYTES;
    http->idle_since = clock_seconds();
    TAILQ_INIT(&http->streams);
    TAILQ_INIT(&http->touched);
    if (nghttp2_session_server_new2(&http->session, shared->callbacks, http, shared->option) || settings_submit(http)) {
        nghttp2_session_del(http->session);
        free(http);
        return status_fail(STATUS_MEMORY, "a connection: out of memory");
    }
    connection->state = http;
    return 0;
}

/* The first GOAWAY names no last stream, so requests that are already on the way are served. The second, after the
 * answer to a ping, names the last stream. */
static void drain_continue(struct http2 *http, double now) {
    if (http->drain == DRAIN_WANTED) {
        nghttp2_submit_shutdown_notice(http->session);
        http->drain = DRAIN_NOTICED;
        http->drain_since = now;
    }
    if (http->drain == DRAIN_NOTICED && now - http->drain_since > drain_ping_seconds)
        http->drain = DRAIN_ACKNOWLEDGED;
    if (http->drain == DRAIN_ACKNOWLEDGED) {
        http->drain = DRAIN_LAST;
        nghttp2_submit_goaway(http->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(http->session),
                              NGHTTP2_NO_ERROR, NULL, 0);
    }
}

static void http2_produce(struct connection *connection) {
    struct http2 *http = connection->state;
    if (http->drain && http->drain != DRAIN_LAST)
        drain_continue(http, clock_seconds());
    if (http->is_over && !http->has_said_goodbye) { /* GOAWAY with its reason is the last message */
        http->has_said_goodbye = true;
        nghttp2_submit_goaway(http->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(http->session),
                              http->goaway_code, (const uint8_t *)http->goaway_text,
                              http->goaway_text ? strlen(http->goaway_text) : 0);
        nghttp2_session_terminate_session(http->session, http->goaway_code);
    } else if (!http->is_over)
        http2_streams_submit(http);
    int status = nghttp2_session_send(http->session);
    if (!status && !http->is_over &&
        http2_streams_submit(http)) /* streams whose bytes were all sent, and which can now be reset */
        status = nghttp2_session_send(http->session);
    if (status)
        connection_kill(connection);
}

static void http2_settle(struct connection *connection) {
    struct http2 *http = connection->state;
    http2_streams_tell(http);
    if (connection->stage != CONNECTION_OPEN)
        return;
    if (connection->is_eof) {
        connection_kill(connection);
        return;
    }
    bool is_silent = !nghttp2_session_want_write(http->session) && !evbuffer_get_length(connection->out);
    if (is_silent && (http->is_over || !nghttp2_session_want_read(http->session)) && http->drain != DRAIN_NOTICED)
        connection_end(connection);
}

static void http2_tick(struct connection *connection, double now) {
    struct http2 *http = connection->state;
    const struct transport_limits *limits = http2_limits(http);
    bool is_idle = TAILQ_EMPTY(&http->streams);
    if (http->drain && http->drain != DRAIN_LAST)
        connection_schedule(connection);
    http2_streams_tick(http, now);
    if (http->head_since > 0 && now - http->head_since > limits->header_timeout) {
        http2_calm_down(http, "request head arrived too slowly");
    } else if (is_idle && !http->is_over && now - http->idle_since > limits->idle_timeout) {
        http->is_over = true;
        http->goaway_code = NGHTTP2_NO_ERROR;
        connection_schedule(connection);
    } else if (!is_idle &&
               now - connection->received > limits->idle_timeout) { /* check whether the client still exists */
        if (!http->has_pinged) {
            nghttp2_submit_ping(http->session, NGHTTP2_FLAG_NONE, NULL);
            connection_schedule(connection);
        } else if (now - connection->received > limits->idle_timeout + ping_timeout) {
            connection_kill(connection);
        }
        http->has_pinged = true;
    } else {
        http->has_pinged = false;
    }
}

static void http2_drain(struct connection *connection) {
    struct http2 *http = connection->state;
    connection->is_draining = true;
    connection->was_busy = !TAILQ_EMPTY(&http->streams);
    if (!http->drain)
        http->drain = DRAIN_WANTED;
    connection_schedule(connection);
}

static void http2_close(struct connection *connection) {
    struct http2 *http = connection->state;
    http2_streams_close(http);
    nghttp2_session_del(http->session);
    free(http);
}

static bool http2_is_busy(const struct connection *connection) {
    return http2_streams_are_busy(connection->state);
}

const struct connection_protocol http2_protocol = {http2_open, http2_receive, http2_produce, http2_settle,
                                                   http2_tick, http2_drain,   http2_is_busy, http2_close};
