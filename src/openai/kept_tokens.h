/* Tokens that an answer keeps until it is sent whole, with their log-probabilities and likeliest alternatives.
 *
 * Keeping copies only numbers, so the loop can do it as updates arrive. The answer is written from them later, on a
 * worker when it is long. Starts zeroed. One thread at a time. */
#pragma once

#include "update.h"

struct kept_tokens {
    struct call_token *tokens; /* [count]; first_top counts in `tops` */
    int64_t count, capacity;
    struct call_top *tops; /* [top_count] */
    int64_t top_count, top_capacity;
};

/* Adds copies of a piece's tokens. STATUS_MEMORY. */
int kept_tokens_add(struct kept_tokens *kept, const struct call_update *update, const struct call_piece *piece);
/* Frees the memory and leaves zeros. */
void kept_tokens_free(struct kept_tokens *kept);
