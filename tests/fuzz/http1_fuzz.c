/* Any bytes as requests of HTTP/1.1: however they are split, the parser makes the same of them, and what it gives out
 * keeps the rules that its users rely on. The first byte says how to split. */
#include "http/http1_transcript.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_CUTS = 4096 };

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "http1_fuzz: %s\n", what);
    abort();
}

static void check_request(const struct http1_request *request) {
    check(*request->method && (*request->path == '/' || !strcmp(request->path, "*")), "method or path");
    check(strlen(request->method) <= 32 && strlen(request->path) <= http1_usual.line_bytes, "long words");
    check(request->field_count <= http1_usual.headers, "too many fields");
    size_t bytes = 0;
    for (size_t i = 0; i < request->field_count; i++) {
        const struct field *field = &request->fields[i];
        check(strlen(field->name) == field->name_length && strlen(field->value) == field->value_length, "lengths");
        check(!strpbrk(field->value, "\r\n") && !strpbrk(field->name, "\r\n: ABCXYZ"), "characters");
        bytes += field->name_length + field->value_length + 32;
    }
    check(bytes <= http1_usual.header_bytes + http1_usual.line_bytes,
          "too many bytes"); /* an authority may be longer */
}

static void check_requests(const uint8_t *data, size_t size) {
    struct http1_parser parser;
    struct http1_bytes rest = {data, size}, body = {0};
    http1_parser_init(&parser, &http1_usual);
    for (enum http1_event event = HTTP1_END; event != HTTP1_MORE && event != HTTP1_BAD;) {
        event = http1_parse(&parser, &rest, &body);
        if (event == HTTP1_HEAD)
            check_request(&parser.request);
        if (event == HTTP1_BODY)
            check(body.at >= data && body.at + body.length <= data + size, "a body from elsewhere");
        if (event == HTTP1_END)
            http1_parser_next(&parser);
        if (event == HTTP1_BAD)
            check((!parser.status || (parser.status >= 400 && parser.status < 600)) && *parser.problem,
                  "refused without a reason");
    }
    http1_parser_free(&parser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t cuts[MOST_CUTS], count = 0;
    struct strbuf whole = STRBUF_INIT, split = STRBUF_INIT;
    if (!size || size > 65536)
        return 0;
    size_t step = 1 + data[0] % 61;
    data++;
    size--;
    for (size_t at = step % 7; at < size && count < MOST_CUTS; at += step)
        cuts[count++] = at;
    http1_transcript(data, size, NULL, 0, &whole);
    http1_transcript(data, size, cuts, count, &split);
    check(whole.length == split.length && !memcmp(strbuf_text(&whole), strbuf_text(&split), whole.length),
          "a split made a difference");
    check_requests(data, size);
    strbuf_free(&whole);
    strbuf_free(&split);
    return 0;
}
