/* The common part of all requests, beyond HTTP. */
#include "request.h"

#include <string.h>

enum { MAX_FIELDS = 32, OWN_FIELDS = 6 };

int request_begin_answer(struct exchange *exchange, int status, const struct field *fields, size_t count,
                         int64_t length) {
    const struct request *request = exchange->request;
    struct field all[MAX_FIELDS];
    size_t kept = count < MAX_FIELDS - OWN_FIELDS ? count : MAX_FIELDS - OWN_FIELDS;
    if (kept)
        memcpy(all, fields, kept * sizeof *all);
    char parent[TRACE_PARENT_TEXT], state[TRACE_STATE_TEXT];
    if (*request->id)
        all[kept++] = field_of("x-request-id", request->id);
    if (request->trace.is_there) {
        trace_parent_text(&request->trace, parent);
        all[kept++] = field_of("traceparent", parent);
        if (trace_state_text(&exchange->head, &request->trace, state))
            all[kept++] = field_of("tracestate", state);
    }
    if (request->cors_origin) {
        all[kept++] = field_of("access-control-allow-origin", request->cors_origin);
        all[kept++] = field_of("access-control-expose-headers", "x-request-id, retry-after, retry-after-ms");
        all[kept++] = field_of("vary", "origin");
    }
    return exchange->transport->begin(exchange, status, all, kept, length);
}

enum error_case request_error_of(int status) {
    return status == 413 ? ERROR_BODY_SIZE : status == 431 ? ERROR_HEADER_SIZE : ERROR_ARGUMENT;
}

void request_refuse(struct strbuf *body, int status, const char *problem) {
    struct error error;
    error_set(&error, request_error_of(status), NULL, "%s", problem);
    error_add_json(&error, body);
}

enum error_case request_error(const struct exchange *exchange) {
    if (exchange->request->error)
        return exchange->request->error;
    return exchange->fault == EXCHANGE_SLOW_READER ? ERROR_SLOW_READER : ERROR_NONE;
}

uint64_t request_owner(const struct exchange *exchange) {
    uint64_t client = exchange->request->client.client;
    return client ? client : (uint64_t)(uintptr_t)exchange->head.peer;
}
