/* The strict parser of HTTP/1.1 requests (RFC 9112). The header is gathered up to its empty line and then split in
 * place. Bytes that cannot be part of a header are refused at once. */
#include "http1_parser.h"

#include "base/base.h"

#include <strings.h>

enum stage {
    STAGE_HEAD,
    STAGE_HEAD_DONE, /* the kind of body is not decided yet */
    STAGE_LENGTH,
    STAGE_CHUNK_SIZE,
    STAGE_CHUNK_SIZE_LF,
    STAGE_CHUNK,
    STAGE_CHUNK_CR,
    STAGE_CHUNK_LF,
    STAGE_TRAILER,
    STAGE_WHOLE,
    STAGE_ENDED,
    STAGE_BAD
};
enum { MAX_CHUNK_DIGITS = 8, MAX_LENGTH_DIGITS = 18, MAX_METHOD_BYTES = 32, NOT_HTTP = -1 };

void http1_parser_init(struct http1_parser *parser, const struct http1_limits *limits) {
    *parser = (struct http1_parser){.limits = *limits};
}

void http1_parser_free(struct http1_parser *parser) {
    free(parser->request.fields);
    strbuf_free(&parser->head);
    strbuf_free(&parser->text);
}

/* An idle connection keeps no memory: allocating a small header is cheap compared with a request. */
void http1_parser_next(struct http1_parser *parser) {
    http1_parser_free(parser);
    http1_parser_init(
        parser, &(struct http1_limits){parser->limits.line_bytes, parser->limits.header_bytes, parser->limits.headers});
}

bool http1_parser_is_within(const struct http1_parser *parser) {
    return parser->stage != STAGE_ENDED && (parser->stage != STAGE_HEAD || parser->text.length);
}

static enum http1_event refuse(struct http1_parser *parser, int status, const char *problem) {
    parser->stage = STAGE_BAD;
    parser->status = status;
    parser->problem = problem;
    return HTTP1_BAD;
}

static bool is_token_char(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!is_token_char((unsigned char)text[i]))
            return false;
    return length > 0;
}

static bool is_equal(const struct field *field, const char *value) {
    return field->value_length == strlen(value) && !strcasecmp(field->value, value);
}

/* Splits the terminated target into path and query. An absolute target ("http://HOST/PATH") is reduced to these, and
 * its authority is returned. */
static bool target_is_split(struct http1_request *request, char *target, char **authority) {
    *authority = NULL;
    for (const char *c = target; *c; c++)
        if (*c <= ' ' || *c > '~' || *c == '#')
            return false;
    if (!strncasecmp(target, "http://", 7) || !strncasecmp(target, "https://", 8)) {
        char *host = strchr(target, ':') + 3, *end = host + strcspn(host, "/?");
        if (end == host)
            return false;
        /* The authority moves to the place of the scheme, which leaves a byte for its terminating zero. */
        memmove(target, host, (size_t)(end - host));
        target[end - host] = 0;
        *authority = target;
        target = end;
    } else if (*target != '/' && (strcmp(target, "*") != 0 || strcmp(request->method, "OPTIONS") != 0)) {
        return false;
    }
    char *query = strchr(target, '?');
    request->query = query ? query + 1 : "";
    if (query)
        *query = 0;
    request->path = *target ? target : "/";
    return true;
}

/* Splits METHOD SP TARGET SP HTTP/1.x, without its CR LF. Returns 0, or the status for a refusal. NOT_HTTP: the version
 * is another word, as in a wrong HTTP/2 preface. Such a client would read an answer as frames, so it gets none. */
static int line_take(struct http1_parser *parser, char *line, size_t length, char **authority, const char **problem) {
    struct http1_request *request = &parser->request;
    line[length] = 0;
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;
    *problem = "the request line is not METHOD TARGET HTTP/1.1";
    if (version && version[1] && !strcasestr(version, "HTTP/"))
        return NOT_HTTP;
    if (!version || !is_token(line, (size_t)(target - line)) || target - line > MAX_METHOD_BYTES)
        return 400;
    *target++ = 0;
    *version++ = 0;
    request->method = line;
    if (!strcmp(version, "HTTP/1.0"))
        request->is_http10 = true;
    else if (strlen(version) == 8 && !strncmp(version, "HTTP/", 5) && strcmp(version, "HTTP/1.1") != 0 &&
             strcmp(line, "PRI") != 0) {
        *problem = "the version is not HTTP/1.1";
        return 505;
    } else if (strcmp(version, "HTTP/1.1") != 0) {
        return 400;
    }
    *problem = "the target of the request is not a path";
    return target_is_split(request, target, authority) ? 0 : 400;
}

/* Splits NAME ":" VALUE, without its CR LF. */
static bool field_take(struct field *field, char *line, size_t length) {
    char *colon = memchr(line, ':', length);
    if (!colon || !is_token(line, (size_t)(colon - line)))
        return false;
    char *value = colon + 1, *end = line + length;
    for (const char *c = value; c < end; c++)
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f)
            return false;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *colon = 0;
    *end = 0;
    for (char *c = line; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    *field = (struct field){line, value, (size_t)(colon - line), (size_t)(end - value)};
    return true;
}

static bool length_read(const struct field *field, uint64_t *length) {
    *length = 0;
    if (!field->value_length || field->value_length > MAX_LENGTH_DIGITS)
        return false;
    for (size_t i = 0; i < field->value_length; i++) {
        if (field->value[i] < '0' || field->value[i] > '9')
            return false;
        *length = *length * 10 + (uint64_t)(field->value[i] - '0');
    }
    return true;
}

static bool list_has(const char *list, const char *word) {
    size_t length = strlen(word);
    while (*list) {
        list += strspn(list, ", \t");
        size_t n = strcspn(list, ", \t");
        if (n == length && !strncasecmp(list, word, n))
            return true;
        list += n;
    }
    return false;
}

static bool is_host(const struct field *field) {
    for (size_t i = 0; i < field->value_length; i++) {
        unsigned char c = (unsigned char)field->value[i];
        if (c <= ' ' || c > '~' || strchr("/?#@,\"<>\\^`{|}", c))
            return false;
    }
    return true;
}

struct counts {
    int hosts, lengths, codings, expects;
};

/* Applies a field's meaning for the connection; returns 0, or a status. */
static int field_mean(struct http1_request *request, const struct field *field, struct counts *counts,
                      const char **problem) {
    if (!strcmp(field->name, "host")) {
        *problem = "not one valid Host";
        return counts->hosts++ || !is_host(field) ? 400 : 0;
    }
    if (!strcmp(field->name, "content-length")) {
        *problem = "not one valid Content-Length";
        return counts->lengths++ || !length_read(field, &request->content_length) ? 400 : 0;
    }
    if (!strcmp(field->name, "transfer-encoding")) {
        *problem = "a Transfer-Encoding other than chunked";
        request->is_chunked = true;
        return counts->codings++ ? 400 : is_equal(field, "chunked") ? 0 : 501;
    }
    if (!strcmp(field->name, "expect")) {
        *problem = "an Expect other than 100-continue";
        request->expects_continue = true;
        return counts->expects++ || !is_equal(field, "100-continue") ? 417 : 0;
    }
    if (!strcmp(field->name, "connection") && list_has(field->value, "close"))
        request->wants_close = true;
    return 0;
}

static int fields_mean(struct http1_parser *parser, const char **problem) {
    struct http1_request *request = &parser->request;
    struct counts counts = {0};
    size_t bytes = 0;
    for (size_t i = 0; i < request->field_count; i++) {
        bytes += request->fields[i].name_length + request->fields[i].value_length + 32;
        TRY(field_mean(request, &request->fields[i], &counts, problem));
    }
    *problem = "the fields are too long together";
    if (bytes > parser->limits.header_bytes)
        return 431;
    *problem = "no Host";
    if (!counts.hosts && !request->is_http10)
        return 400;
    *problem = "Transfer-Encoding beside Content-Length, or in HTTP/1.0";
    if (counts.codings && (counts.lengths || request->is_http10))
        return 400;
    return 0;
}

/* Splits the lines of fields, whose number is known. Returns NULL, or the problem. */
static const char *fields_take(char *line, struct field *fields, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char *end = strstr(line, "\r\n");
        if (*line == ' ' || *line == '\t')
            return "a folded line";
        if (!field_take(&fields[i], line, (size_t)(end - line)))
            return "a line that is no field";
        line = end + 2;
    }
    return NULL;
}

static enum http1_event head_take(struct http1_parser *parser) {
    struct http1_request *request = &parser->request;
    const char *problem;
    char *authority;
    parser->head = parser->text;
    parser->text = STRBUF_INIT;
    int status = line_take(parser, parser->head.data, parser->fields_begin - 2, &authority, &problem);
    if (status)
        return refuse(parser, status == NOT_HTTP ? 0 : status, problem);
    request->fields = calloc(parser->field_count + 1, sizeof *request->fields);
    if (!request->fields)
        return refuse(parser, 0, "out of memory");
    request->field_count = parser->field_count;
    problem = fields_take(parser->head.data + parser->fields_begin, request->fields, request->field_count);
    if (problem)
        return refuse(parser, 400, problem);
    status = fields_mean(parser, &problem);
    if (status)
        return refuse(parser, status, problem);
    for (size_t i = 0; authority && i < request->field_count; i++) /* RFC 9112, 3.2.2: it replaces the Host */
        if (!strcmp(request->fields[i].name, "host")) {
            request->fields[i].value = authority;
            request->fields[i].value_length = strlen(authority);
        }
    parser->stage = STAGE_HEAD_DONE;
    return HTTP1_HEAD;
}

/* Handles the end of a line; sets *is_last when the line was the empty one. */
static enum http1_event line_end(struct http1_parser *parser, bool *is_last) {
    size_t length = parser->text.length - parser->line;
    bool is_empty = length == 2;
    *is_last = false;
    if (parser->stage == STAGE_HEAD && !parser->fields_begin) {
        if (is_empty) { /* one empty line before a request is tolerated, as after the body of an old client */
            if (parser->had_empty_line)
                return refuse(parser, 400, "no request line");
            parser->had_empty_line = true;
            strbuf_clear(&parser->text);
            return HTTP1_MORE;
        }
        parser->fields_begin = parser->text.length;
    } else if (is_empty) {
        *is_last = true;
    } else if (++parser->field_count > parser->limits.headers) {
        return refuse(parser, 431, "too many fields");
    }
    parser->line = parser->text.length;
    return HTTP1_MORE;
}

/* Takes bytes up to the end of a line. */
static enum http1_event line_gather(struct http1_parser *parser, struct http1_bytes *bytes, bool *is_last) {
    const unsigned char *at = bytes->at;
    size_t begin = parser->stage == STAGE_TRAILER ? 0 : parser->fields_begin;
    size_t limit = parser->stage == STAGE_HEAD && !begin ? parser->limits.line_bytes : parser->limits.header_bytes;
    size_t used = parser->text.length - begin;
    size_t n = 0, room = used < limit + 2 ? limit + 2 - used : 0; /* that the current section has */
    *is_last = false;
    while (n < bytes->length) {
        unsigned char c = at[n];
        bool is_line_feed = c == '\n';
        if (is_line_feed != parser->after_cr || !c)
            return refuse(parser, 400, is_line_feed || parser->after_cr ? "a lone CR or LF" : "a zero byte");
        if (n == room)
            return parser->stage == STAGE_HEAD && !parser->fields_begin
                       ? refuse(parser, 414, "the request line is too long")
                       : refuse(parser, 431, "the fields are too long together");
        parser->after_cr = c == '\r';
        n++;
        if (is_line_feed)
            break;
    }
    strbuf_add(&parser->text, at, n);
    bytes->at += n;
    bytes->length -= n;
    if (parser->text.failed)
        return refuse(parser, 0, "out of memory");
    if (!n || at[n - 1] != '\n')
        return HTTP1_MORE;
    return line_end(parser, is_last);
}

static enum http1_event trailer_take(struct http1_parser *parser) {
    struct field *fields = calloc(parser->field_count + 1, sizeof *fields);
    if (!fields)
        return refuse(parser, 0, "out of memory");
    const char *problem = fields_take(parser->text.data, fields, parser->field_count);
    free(fields);
    if (problem)
        return refuse(parser, 400, problem);
    parser->stage = STAGE_WHOLE;
    return HTTP1_MORE;
}

static enum http1_event lines_take(struct http1_parser *parser, struct http1_bytes *bytes) {
    while (bytes->length) {
        bool is_last;
        enum http1_event event = line_gather(parser, bytes, &is_last);
        if (event == HTTP1_BAD)
            return event;
        if (is_last)
            return parser->stage == STAGE_HEAD ? head_take(parser) : trailer_take(parser);
    }
    return HTTP1_MORE;
}

/* Handles one byte of a chunk's framing. */
static enum http1_event frame_take(struct http1_parser *parser, unsigned char c) {
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    switch (parser->stage) {
    case STAGE_CHUNK_SIZE:
        if (digit >= 0 && parser->digits < MAX_CHUNK_DIGITS) {
            parser->digits++;
            parser->remaining = parser->remaining * 16 + (uint64_t)digit;
            return HTTP1_MORE;
        }
        if (c != '\r' || !parser->digits)
            return refuse(parser, 400, "a chunk's size is not up to 8 hexadecimal digits");
        parser->stage = STAGE_CHUNK_SIZE_LF;
        return HTTP1_MORE;
    case STAGE_CHUNK_CR:
        if (c != '\r')
            return refuse(parser, 400, "a chunk does not end with CR LF");
        parser->stage = STAGE_CHUNK_LF;
        return HTTP1_MORE;
    default:
        if (c != '\n')
            return refuse(parser, 400, "a lone CR or LF");
    }
    if (parser->stage == STAGE_CHUNK_SIZE_LF && !parser->remaining) {
        parser->stage = STAGE_TRAILER;
        parser->line = 0;
        parser->field_count = 0;
        parser->after_cr = false;
    } else if (parser->stage == STAGE_CHUNK_SIZE_LF) {
        parser->stage = STAGE_CHUNK;
    } else {
        parser->stage = STAGE_CHUNK_SIZE;
        parser->digits = 0;
    }
    return HTTP1_MORE;
}

static enum http1_event body_take(struct http1_parser *parser, struct http1_bytes *bytes, struct http1_bytes *body) {
    size_t n = bytes->length < parser->remaining ? bytes->length : (size_t)parser->remaining;
    *body = (struct http1_bytes){bytes->at, n};
    bytes->at += n;
    bytes->length -= n;
    parser->remaining -= n;
    if (!parser->remaining)
        parser->stage = parser->stage == STAGE_CHUNK ? STAGE_CHUNK_CR : STAGE_WHOLE;
    return HTTP1_BODY;
}

enum http1_event http1_parse(struct http1_parser *parser, struct http1_bytes *bytes, struct http1_bytes *body) {
    for (;;) {
        enum http1_event event = HTTP1_MORE;
        if (parser->stage == STAGE_BAD)
            return HTTP1_BAD;
        if (parser->stage == STAGE_ENDED)
            return HTTP1_END;
        if (parser->stage == STAGE_HEAD_DONE) {
            parser->remaining = parser->request.content_length;
            parser->stage = parser->request.is_chunked ? STAGE_CHUNK_SIZE
                            : parser->remaining        ? STAGE_LENGTH
                                                       : STAGE_WHOLE;
            if (parser->request.is_chunked)
                parser->remaining = 0;
        }
        if (parser->stage == STAGE_WHOLE) {
            parser->stage = STAGE_ENDED;
            return HTTP1_END;
        }
        if (!bytes->length)
            return HTTP1_MORE;
        if (parser->stage == STAGE_HEAD || parser->stage == STAGE_TRAILER) {
            event = lines_take(parser, bytes);
        } else if (parser->stage == STAGE_LENGTH || parser->stage == STAGE_CHUNK) {
            event = body_take(parser, bytes, body);
        } else {
            event = frame_take(parser, *bytes->at);
            bytes->at++;
            bytes->length--;
        }
        if (event != HTTP1_MORE)
            return event;
    }
}
