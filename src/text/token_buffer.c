/* A growing list of ids. */
#include "text-internal.h"

#include <stdlib.h>

void token_buffer_free(struct token_buffer *buffer) {
    free(buffer->ids);
    *buffer = TOKEN_BUFFER_INIT;
}

int token_buffer_add(struct token_buffer *buffer, int32_t id) {
    int status = token_buffer_reserve(buffer, 1);
    if (!status)
        buffer->ids[buffer->count++] = id;
    return status;
}
