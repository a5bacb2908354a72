/* A strict parser of HTTP/1.1 requests, separate from any socket.
 *
 * Bytes go in as they arrive. The header, pieces of the body and the end of the request come out, or the status with
 * which to refuse it. The result does not depend on how the bytes were split.
 *
 * The parser refuses a lone CR or LF, a NUL, folded lines, spaces around names, two hosts and two lengths. It refuses a
 * length with a coding, any coding except "chunked", and chunk extensions. Two servers that read one of these
 * differently have let requests be smuggled between them. */
#pragma once

#include "exchange.h"

#include "base/strbuf.h"

struct http1_limits {
    size_t line_bytes;   /* of the request line */
    size_t header_bytes; /* of all fields, counted as names, values and 32 per field, and also as sent */
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
    uint64_t content_length; /* 0: no body, unless is_chunked */
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
    /* internal: */
    int stage;
    struct strbuf head; /* the complete header, split in place; the request points into it */
    struct strbuf text; /* the header, or the trailer, so far */
    size_t line;        /* start of the current line */
    size_t fields_begin, field_count;
    uint64_t remaining; /* bytes of the body, or of the current chunk, that are still to come */
    int digits;         /* of a chunk's size */
    bool after_cr, had_empty_line;
};

/* Initialises a parser, which allocates nothing yet. Free it with http1_parser_free. */
void http1_parser_init(struct http1_parser *parser, const struct http1_limits *limits);
void http1_parser_free(struct http1_parser *parser);
/* Consumes `bytes` up to the next event. HTTP1_BODY sets `body` to a piece of `bytes`. Call again until HTTP1_MORE,
 * HTTP1_END or HTTP1_BAD. */
enum http1_event http1_parse(struct http1_parser *parser, struct http1_bytes *bytes, struct http1_bytes *body);
/* After HTTP1_END: forgets the request and prepares for the next. */
void http1_parser_next(struct http1_parser *parser);
/* True when a request has begun and is not complete. */
bool http1_parser_is_within(const struct http1_parser *parser);
