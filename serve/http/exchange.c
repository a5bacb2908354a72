/* The common part of all exchanges; their transports do the rest. */
#include "exchange.h"

#include <string.h>

const char *exchange_field(const struct exchange *exchange, const char *name) {
    const struct exchange_head *head = &exchange->head;
    size_t length = strlen(name);
    for (size_t i = 0; i < head->field_count; i++)
        if (head->fields[i].name_length == length && !memcmp(head->fields[i].name, name, length))
            return head->fields[i].value;
    return NULL;
}

int exchange_begin(struct exchange *exchange, int status, const struct field *fields, size_t count, int64_t length) {
    exchange->status = status;
    return (exchange->begin ? exchange->begin : exchange->transport->begin)(exchange, status, fields, count, length);
}

int exchange_write(struct exchange *exchange, const void *bytes, size_t length) {
    return exchange->transport->write(exchange, bytes, length);
}

int exchange_end(struct exchange *exchange, const struct field *trailers, size_t count) {
    return exchange->transport->end(exchange, trailers, count);
}

int exchange_answer(struct exchange *exchange, int status, const char *type, const void *body, size_t length) {
    struct field field = field_of("content-type", type);
    int result = exchange_begin(exchange, status, &field, 1, (int64_t)length);
    if (!result && length)
        result = exchange_write(exchange, body, length);
    return result ? result : exchange_end(exchange, NULL, 0);
}

void exchange_abort(struct exchange *exchange) {
    exchange->transport->abort(exchange);
}

void exchange_close(struct exchange *exchange, bool is_whole, enum exchange_fault fault) {
    exchange->fault = is_whole ? EXCHANGE_NO_FAULT : fault;
    if (exchange->handler && exchange->handler->on_close)
        exchange->handler->on_close(exchange);
    if (exchange->on_closed)
        exchange->on_closed(exchange, is_whole);
}

size_t exchange_pending(const struct exchange *exchange) {
    return exchange->transport->pending(exchange);
}
