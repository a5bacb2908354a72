/* HTTP/2 from within: what http2.c (the connection) and http2_stream.c (its streams) share. Functions of an exchange
 * never call the library: they leave their mark on the stream and touch it, and when the connection is flushed, the
 * library is told (http2_streams_submit). So nothing is sent inside a callback of the library's. */
#ifndef CAMBIUM_HTTP_HTTP2_INTERNAL_H
#define CAMBIUM_HTTP_HTTP2_INTERNAL_H

#include "connection-internal.h"

#include <nghttp2/nghttp2.h>

struct http2_stream;
TAILQ_HEAD(http2_stream_list, http2_stream);

/* What all connections share, on the loop's thread. */
struct http2_shared {
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    struct http2_stream_list spare; /* streams that have ended, for the next ones */
    int spare_count;
    nghttp2_nv *list; /* of the answer that the library is told, until the next one */
    size_t list_capacity;
};

/* What may be spent: so much at once, and so much a second. */
struct bucket {
    double tokens, time;
};
void bucket_fill(struct bucket *bucket, double burst, double per_second, double now);

enum drain_stage { DRAIN_NONE, DRAIN_WANTED, DRAIN_NOTICED, DRAIN_ACKNOWLEDGED, DRAIN_LAST };

struct http2 {
    struct connection *connection;
    nghttp2_session *session;
    struct http2_stream_list streams, touched;
    /* The walk over frames' heads. */
    uint8_t frame_head[9];
    size_t frame_head_bytes, payload_left, preface_left;
    uint32_t last_stream; /* that a head has opened */
    bool has_grpc;        /* a call of gRPC came here */
    bool is_dropping;     /* the frame that is under way stays outside */
    /* Rates. */
    struct bucket glitches, resets;
    int64_t useful; /* frames that may come for nothing, because we sent data */
    double last_ping;
    int strikes;
    bool has_sent_data; /* since the last ping */
    /* Times. */
    double idle_since, head_since, drain_since;
    enum drain_stage drain;
    bool has_pinged, needs_telling;
    /* Bytes of bodies that are not whole yet; of some streams the window is not given back until there are fewer. */
    uint64_t gathered;
    bool has_withheld;
    const struct http2_stream *foremost; /* it goes on meanwhile, to its end; or NULL */
    /* The end. */
    bool is_over, has_said_goodbye;
    uint32_t goaway_code;
    const char *goaway_text;
};

static inline const struct transport_limits *http2_limits(const struct http2 *http) {
    return &http->connection->transport->options.limits;
}

/* Takes from what the client may spend; GOAWAY when nothing is left. */
void http2_spend(struct http2 *http, struct bucket *bucket, double cost);

void http2_stream_callbacks(nghttp2_session_callbacks *callbacks);
/* A frame of a stream that is whole; HEADERS or DATA. For the library: 0 or an error of its own. */
int http2_stream_frame(struct http2 *http, const nghttp2_frame *frame);
int http2_stream_sent(struct http2 *http, const nghttp2_frame *frame);
/* Tells the library what became of touched streams; whether there was anything. */
bool http2_streams_submit(struct http2 *http);
/* on_room, for those whose output has gone below the half of its limit. */
void http2_streams_tell(struct http2 *http);
void http2_streams_tick(struct http2 *http, double now);
void http2_streams_close(struct http2 *http);
/* Frees the spare ones. */
void http2_streams_forget(struct http2_shared *shared);

#endif
