/* Internals of HTTP/2, shared by http2.c (connections) and http2_stream.c (streams). Functions of an exchange never
 * call nghttp2, so nothing is sent inside one of its callbacks. They change the stream and mark it as touched; the
 * connection's flush submits the changes to nghttp2 (http2_streams_submit). */
#pragma once

#include "connection-internal.h"
#include "rates.h"

#include <nghttp2/nghttp2.h>

struct http2_stream;
TAILQ_HEAD(http2_stream_list, http2_stream);

/* Shared by all connections on the loop's thread. */
struct http2_shared {
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    struct http2_stream_list spare; /* ended streams, for reuse */
    int spare_count;
    nghttp2_nv *list; /* the fields of the answer being submitted; reused for the next */
    size_t list_capacity;
    struct rates resets; /* requests that clients gave up: resets, and ends of connections */
};

enum drain_stage { DRAIN_NONE, DRAIN_WANTED, DRAIN_NOTICED, DRAIN_ACKNOWLEDGED, DRAIN_LAST };

struct http2 {
    struct connection *connection;
    nghttp2_session *session;
    struct http2_stream_list streams, touched;
    /* The frame header being read, ahead of nghttp2. */
    uint8_t frame_head[9];
    size_t frame_head_bytes, payload_remaining, preface_remaining;
    uint32_t last_stream; /* highest id that a HEADERS frame opened */
    bool has_grpc;        /* this connection had a gRPC call */
    bool is_dropping;     /* the current frame is withheld from nghttp2 */
    /* Rates. */
    struct bucket glitches; /* useless frames */
    int64_t useful;         /* useless frames that are free, because data was sent */
    double last_ping;
    int strikes;
    bool has_sent_data; /* since the last ping */
    /* Times. */
    double idle_since, head_since, drain_since;
    enum drain_stage drain;
    bool has_pinged, needs_telling;
    /* Bytes of incomplete bodies. Above body_bytes, only one stream gets more window. */
    uint64_t gathered;
    bool has_withheld;
    const struct http2_stream *foremost; /* the stream that still gets window; or NULL */
    /* The end. */
    bool is_over, has_said_goodbye;
    uint32_t goaway_code;
    const char *goaway_text;
};

static inline const struct transport_limits *http2_limits(const struct http2 *http) {
    return &http->connection->transport->options.limits;
}

/* Ends the connection with ENHANCE_YOUR_CALM. */
void http2_calm_down(struct http2 *http, const char *why);
/* Takes `cost` from the connection's budget for useless frames; sends GOAWAY when nothing is left. */
void http2_spend(struct http2 *http, double cost);
/* Counts a request that was given up, for its client on all connections, or without one (0) for its address; sends
 * GOAWAY when there were too many. */
void http2_spend_reset(struct http2 *http, uint64_t client);
/* False when this client gave up too many requests: the next one is not worth its work. A request that was refused for
 * want of a key counts like one that was given up, for its address. */
bool http2_may_ask(struct http2 *http, uint64_t client, bool is_refused);

/* Sets the callbacks that streams need. */
void http2_stream_callbacks(nghttp2_session_callbacks *callbacks);
/* Handles a complete HEADERS or DATA frame of a stream, received or sent. Returns 0, or an error of nghttp2. */
int http2_stream_frame(struct http2 *http, const nghttp2_frame *frame);
int http2_stream_sent(struct http2 *http, const nghttp2_frame *frame);
/* Returns the client of a stream's request, 0 without a key; false when there is no such stream. */
bool http2_stream_client(const struct http2 *http, int32_t id, uint64_t *client);
/* Submits the changes of touched streams to nghttp2. Returns whether there were any. */
bool http2_streams_submit(struct http2 *http);
/* Calls on_room for streams whose output fell below half of its limit. */
void http2_streams_tell(struct http2 *http);
/* Ends the streams that take too long. */
void http2_streams_tick(struct http2 *http, double now);
/* True while a request that has arrived whole waits for its answer. */
bool http2_streams_are_busy(const struct http2 *http);
/* Closes all streams of a connection. */
void http2_streams_close(struct http2 *http);
/* Frees the streams kept for reuse. */
void http2_streams_forget(struct http2_shared *shared);
