/* Requests of HTTP/1.1, parsed strictly and apart from any socket.
 *
 * Bytes go in as they come; out come a head, pieces of a body, and the end, or the status with which the connection is
 * refused. How the bytes were split makes no difference. What is refused, and why: a lone CR or LF, a NUL, folded
 * lines, spaces around names, two hosts, two lengths, a length beside a coding, any coding but "chunked", extensions of
 * chunks. Each of these has been read in two ways by two servers, and a request was smuggled between. */
#ifndef CAMBIUM_HTTP_HTTP1_PARSER_H
#define CAMBIUM_HTTP_HTTP1_PARSER_H

#include "exchange.h"

#include "base/strbuf.h"

struct http1_limits {
    size_t line_bytes;   /* of the request line */
    size_t header_bytes; /* of all fields: names, values and 32 each; and as they stand */
    size_t headers;      /* fields */
};

struct http1_request {
    const char *method, *path, *query;
    struct field *fields; /* [field_count] names in lower case; all ends with zero bytes */
    size_t field_count;
    bool is_http10;
    bool wants_close; /* Connection: close */
    bool expects_continue;
    bool is_chunked;
    uint64_t content_length; /* 0: no body, where it is not chunked */
};

enum http1_event {
    HTTP1_MORE, /* all bytes are taken */
    HTTP1_HEAD, /* parser->request is there, and stays until http1_parser_next */
    HTTP1_BODY, /* a piece of the body */
    HTTP1_END,  /* the request is whole; what follows is the next one's */
    HTTP1_BAD   /* parser->status and ->problem; nothing comes any more */
};

/* Bytes that are being taken, from the front. */
struct http1_bytes {
    const unsigned char *at;
    size_t length;
};

struct http1_parser {
    struct http1_limits limits;
    struct http1_request request;
    int status; /* of HTTP1_BAD; 0: no answer, as it is not HTTP or there is no memory */
    const char *problem;
    /* its own: */
    int stage;
    struct strbuf head; /* whole, taken apart: the request points into it */
    struct strbuf text; /* the head, or the trailer, as it comes */
    size_t line;        /* where the current line begins */
    size_t fields_begin, field_count;
    uint64_t left; /* bytes of the body, or of its chunk */
    int digits;    /* of a chunk's size */
    bool after_cr, had_empty_line;
};

void http1_parser_init(struct http1_parser *parser, const struct http1_limits *limits);
void http1_parser_free(struct http1_parser *parser);
/* Takes bytes up to the next event. `body` is set with HTTP1_BODY. Call again until HTTP1_MORE, HTTP1_END or HTTP1_BAD.
 */
enum http1_event http1_parse(struct http1_parser *parser, struct http1_bytes *bytes, struct http1_bytes *body);
/* Behind HTTP1_END: forgets the request, and is ready for another. */
void http1_parser_next(struct http1_parser *parser);
/* Whether a request has begun that is not whole. */
bool http1_parser_is_within(const struct http1_parser *parser);

#endif
