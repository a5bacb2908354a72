/* A strict parser of HTTP/1.1 requests, separate from any socket.
 *
 * Bytes go in as they arrive. A header, pieces of a body, and the end come out, or the status with which the connection
 * is refused. The result does not depend on how the bytes were split.
 *
 * Refused are a lone CR or LF, a NUL, folded lines, spaces around names, two hosts, and two lengths. So are a length
 * with a coding, any coding except "chunked", and extensions of chunks. Each of these was once read in two ways by two
 * servers, and a request was smuggled between them. */
#ifndef CAMBIUM_HTTP_HTTP1_PARSER_H
#define CAMBIUM_HTTP_HTTP1_PARSER_H

#include "exchange.h"

#include "base/strbuf.h"

struct http1_limits {
    size_t line_bytes;   /* of the request line */
    size_t header_bytes; /* of all fields: names, values and 32 each; and as sent */
    size_t headers;      /* fields */
};

struct http1_request {
    const char *method, *path, *query;
    struct field *fields; /* [field_count] names in lower case; all strings end with zero bytes */
    size_t field_count;
    bool is_http10;
    bool wants_close; /* Connection: close */
    bool expects_continue;
    bool is_chunked;
    uint64_t content_length; /* 0: no body, unless it is chunked */
};

enum http1_event {
    HTTP1_MORE, /* all bytes are taken */
    HTTP1_HEAD, /* parser->request is set, until http1_parser_next */
    HTTP1_BODY, /* a piece of the body */
    HTTP1_END,  /* the request is complete; further bytes belong to the next one */
    HTTP1_BAD   /* parser->status and ->problem are set; no event follows */
};

/* Bytes that are consumed from the front. */
struct http1_bytes {
    const unsigned char *at;
    size_t length;
};

struct http1_parser {
    struct http1_limits limits;
    struct http1_request request;
    int status; /* for HTTP1_BAD; 0: send no answer, because it is not HTTP or memory ran out */
    const char *problem;
    /* the parser's own: */
    int stage;
    struct strbuf head; /* complete and split; the request points into it */
    struct strbuf text; /* the header, or the trailer, so far */
    size_t line;        /* start of the current line */
    size_t fields_begin, field_count;
    uint64_t left; /* bytes of the body, or of its chunk */
    int digits;    /* of a chunk's size */
    bool after_cr, had_empty_line;
};

/* Starts a parser, which needs no memory yet. http1_parser_free ends it. */
void http1_parser_init(struct http1_parser *parser, const struct http1_limits *limits);
void http1_parser_free(struct http1_parser *parser);
/* Takes bytes up to the next event. HTTP1_BODY sets `body`. Call again until HTTP1_MORE, HTTP1_END or HTTP1_BAD. */
enum http1_event http1_parse(struct http1_parser *parser, struct http1_bytes *bytes, struct http1_bytes *body);
/* After HTTP1_END: forgets the request and prepares for the next. */
void http1_parser_next(struct http1_parser *parser);
/* True when a request has begun and is not complete. */
bool http1_parser_is_within(const struct http1_parser *parser);

#endif
