/* The result of parsing bytes as HTTP/1.1, as a text. The test and the fuzz target use it to compare ways of splitting
 * the bytes. */
#pragma once

#include "http/http1_parser.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

static const struct http1_limits http1_usual = {8192, 16384, 100};

static inline void http1_tell_head(const struct http1_request *request, struct strbuf *out) {
    strbuf_format(out, "%s %s ?%s%s%s%s", request->method, request->path, request->query,
                  request->is_http10 ? " 1.0" : "", request->wants_close ? " close" : "",
                  request->expects_continue ? " continue" : "");
    if (request->is_chunked)
        strbuf_add_text(out, " chunked");
    else if (request->content_length)
        strbuf_format(out, " length=%llu", (unsigned long long)request->content_length);
    for (size_t i = 0; i < request->field_count; i++)
        strbuf_format(out, " [%s=%s]", request->fields[i].name, request->fields[i].value);
    strbuf_add_char(out, '\n');
}

/* One stretch of bytes; false when nothing more is taken. `body` gathers what belongs together. */
static inline bool http1_tell(struct http1_parser *parser, const void *bytes, size_t length, struct strbuf *body,
                              struct strbuf *out) {
    struct http1_bytes rest = {bytes, length}, piece;
    for (;;) {
        switch (http1_parse(parser, &rest, &piece)) {
        case HTTP1_MORE:
            return true;
        case HTTP1_HEAD:
            http1_tell_head(&parser->request, out);
            break;
        case HTTP1_BODY:
            strbuf_add(body, piece.at, piece.length);
            break;
        case HTTP1_END:
            strbuf_format(out, "body %zu: ", body->length);
            strbuf_add(out, strbuf_text(body), body->length);
            strbuf_add_text(out, "\nend\n");
            strbuf_clear(body);
            http1_parser_next(parser);
            break;
        default:
            strbuf_add(out, strbuf_text(body), body->length);
            strbuf_format(out, "bad %d: %s\n", parser->status, parser->problem);
            return false;
        }
    }
}

/* Parses all bytes, cut at `cuts`, which are ascending. After the last one it says whether a request is in progress. */
static inline void http1_transcript(const void *bytes, size_t length, const size_t *cuts, size_t cut_count,
                                    struct strbuf *out) {
    struct http1_parser parser;
    struct strbuf body = STRBUF_INIT;
    size_t at = 0;
    bool continues = true;
    http1_parser_init(&parser, &http1_usual);
    for (size_t i = 0; i <= cut_count && continues; i++) {
        size_t end = i < cut_count ? cuts[i] : length;
        /* A block of its own, so that a sanitizer sees a read past its end. */
        char *piece = malloc(end - at ? end - at : 1);
        memcpy(piece, (const char *)bytes + at, end - at);
        continues = http1_tell(&parser, piece, end - at, &body, out);
        free(piece);
        at = end;
    }
    if (continues) {
        strbuf_add(out, strbuf_text(&body), body.length);
        strbuf_add_text(out, http1_parser_is_within(&parser) ? "within\n" : "idle\n");
    }
    strbuf_free(&body);
    http1_parser_free(&parser);
}
