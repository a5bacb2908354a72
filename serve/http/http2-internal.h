/* The inside of HTTP/2, shared by http2.c (the connection) and http2_stream.c (its streams). Functions of an exchange
 * never call the library. They change the stream and mark it as touched; the flush of the connection passes the changes
 * to the library (http2_streams_submit). Nothing is therefore sent inside a callback of the library. */
#ifndef CAMBIUM_HTTP_HTTP2_INTERNAL_H
#define CAMBIUM_HTTP_HTTP2_INTERNAL_H

#include "connection-internal.h"

#include <nghttp2/nghttp2.h>

struct http2_stream;
TAILQ_HEAD(http2_stream_list, http2_stream);

/* Shared by all connections on the loop's thread. */
struct http2_shared {
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    struct http2_stream_list spare; /* ended streams, for reuse */
    int spare_count;
    nghttp2_nv *list; /* of the answer passed to the library, until the next one */
    size_t list_capacity;
};

/* A budget: a burst at once, and a rate per second. */
struct bucket {
    double tokens, time;
};
void bucket_fill(struct bucket *bucket, double burst, double per_second, double now);

enum drain_stage { DRAIN_NONE, DRAIN_WANTED, DRAIN_NOTICED, DRAIN_ACKNOWLEDGED, DRAIN_LAST };

struct http2 {
    struct connection *connection;
    nghttp2_session *session;
    struct http2_stream_list streams, touched;
    /* The walk over frame headers. */
    uint8_t frame_head[9];
    size_t frame_head_bytes, payload_left, preface_left;
    uint32_t last_stream; /* opened by a header */
    bool has_grpc;        /* a call of gRPC came on this connection */
    bool is_dropping;     /* the current frame is not passed to the library */
    /* Rates. */
    struct bucket glitches, resets;
    int64_t useful; /* useless frames that are excused, because we sent data */
    double last_ping;
    int strikes;
    bool has_sent_data; /* since the last ping */
    /* Times. */
    double idle_since, head_since, drain_since;
    enum drain_stage drain;
    bool has_pinged, needs_telling;
    /* Bytes of incomplete bodies. Above a limit, some streams get no more window. */
    uint64_t gathered;
    bool has_withheld;
    const struct http2_stream *foremost; /* it continues to its end meanwhile; or NULL */
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
/* Takes `cost` from the client's budget; sends GOAWAY when it is spent. */
void http2_spend(struct http2 *http, struct bucket *bucket, double cost);

void http2_stream_callbacks(nghttp2_session_callbacks *callbacks);
/* A complete HEADERS or DATA frame of a stream, received or sent. Returns 0, or an error of the library. */
int http2_stream_frame(struct http2 *http, const nghttp2_frame *frame);
int http2_stream_sent(struct http2 *http, const nghttp2_frame *frame);
/* Passes the changes of touched streams to the library. Returns whether there were any. */
bool http2_streams_submit(struct http2 *http);
/* http2_streams_tell calls on_room for streams whose output fell below half of its limit. */
void http2_streams_tell(struct http2 *http);
void http2_streams_tick(struct http2 *http, double now);
void http2_streams_close(struct http2 *http);
/* Frees the streams kept for reuse. */
void http2_streams_forget(struct http2_shared *shared);

#endif
