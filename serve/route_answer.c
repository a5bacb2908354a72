/* Answers that all routes give: errors in the form of their protocol, and JSON; and the path of a request. */
#include "route-internal.h"

#include "metrics.h"

#include <strings.h>

const char *route_path(const struct exchange *exchange) {
    const char *path = exchange->head.path;
    return strncmp(path, "/v1/", 4) == 0 && path[4] ? path + 3 : path;
}

static int read_hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool route_rest(const struct exchange *exchange, const char *prefix, char *rest, size_t bytes) {
    const char *path = route_path(exchange);
    size_t length = 0, skipped = strlen(prefix);
    if (strncmp(path, prefix, skipped) != 0)
        return false;
    for (const char *at = path + skipped; *at; at++) {
        int c = (unsigned char)*at;
        if (c == '%') {
            int high = read_hex(at[1]), low = high < 0 ? -1 : read_hex(at[2]);
            if (low < 0)
                return false;
            c = high * 16 + low;
            at += 2;
        }
        if (c == 0 || length + 1 >= bytes)
            return false;
        rest[length++] = (char)c;
    }
    rest[length] = 0;
    return length > 0;
}

bool route_is_type(const char *type, const char *wanted) {
    size_t length = strlen(wanted);
    if (!type || strncasecmp(type, wanted, length) != 0)
        return false;
    return !type[length] || strchr("; \t", type[length]);
}

bool route_is_grpc(const struct exchange *exchange) {
    const char *type = exchange_field(exchange, "content-type");
    return route_is_type(type, "application/grpc") || (type && !strncasecmp(type, "application/grpc+", 17));
}

/* Anthropic's API has its own form of errors. */
static bool is_of_messages(const struct exchange *exchange) {
    static const char prefix[] = "/messages";
    const char *path = route_path(exchange);
    return !strncmp(path, prefix, sizeof prefix - 1) && (!path[sizeof prefix - 1] || path[sizeof prefix - 1] == '/');
}

static void fail_http(struct exchange *exchange, const struct error *error, const char *allowed) {
    const struct error_row *row = error_row(error->which);
    struct strbuf body = STRBUF_INIT;
    struct field fields[5] = {field_of("content-type", "application/json")};
    size_t count = 1;
    char seconds[24], milliseconds[24];
    (is_of_messages(exchange) ? error_add_message : error_add_json)(error, &body);
    if (error->retry_after_ms > 0) {
        snprintf(seconds, sizeof seconds, "%d", (error->retry_after_ms + 999) / 1000);
        snprintf(milliseconds, sizeof milliseconds, "%d", error->retry_after_ms);
        fields[count++] = field_of("retry-after", seconds);
        fields[count++] = field_of("retry-after-ms", milliseconds);
    }
    if (error->which == ERROR_DEADLINE)
        fields[count++] = field_of("x-should-retry", "false");
    if (error->which == ERROR_KEY)
        fields[count++] = field_of("www-authenticate", "Bearer");
    if (allowed)
        fields[count++] = field_of("allow", allowed);
    if (body.failed)
        exchange_answer(exchange, row->http, "application/json", "{}", 2);
    else if (!exchange_begin(exchange, row->http, fields, count, (int64_t)body.length) &&
             !exchange_write(exchange, body.data, body.length))
        exchange_end(exchange, NULL, 0);
    strbuf_free(&body);
}

void route_refuse(struct exchange *exchange, const struct error *error, const char *allowed) {
    exchange->request->error = error->which;
    if (!exchange->request->is_accepted)
        metrics_rejected(exchange->request->server->metrics, error->which);
    if (route_is_grpc(exchange))
        grpc_fail(exchange, error);
    else
        fail_http(exchange, error, allowed);
}

void route_fail(struct exchange *exchange, const struct error *error) {
    route_refuse(exchange, error, NULL);
}

void route_forget(struct exchange *exchange) {
    if (exchange->head.listener == LISTENER_DATA && !exchange->request->is_endless)
        exchange->request->server->exchanges--;
    exchange->request->is_endless = true;
}

void route_answer_json(struct exchange *exchange, struct strbuf *json) {
    if (!json->failed)
        exchange_answer(exchange, 200, "application/json", strbuf_text(json), json->length);
    else {
        route_fail(exchange, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"));
    }
    strbuf_free(json);
}

void route_answer_object(struct exchange *exchange, json_t *object) {
    struct strbuf text = STRBUF_INIT;
    json_add(&text, object);
    json_decref(object);
    route_answer_json(exchange, &text);
}
