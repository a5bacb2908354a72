/* Copies of tokens in arrays that grow by doubling. */
#include "kept_tokens.h"

static int grow(void *list, int64_t count, int64_t more, int64_t *capacity, size_t size) {
    void *items;
    memcpy(&items, list, sizeof items);
    if (count + more <= *capacity)
        return STATUS_OK;
    int64_t wanted = *capacity * 2 > count + more ? *capacity * 2 : count + more;
    void *larger = realloc(items, (size_t)wanted * size);
    TRY(status_allocated(larger));
    memcpy(list, &larger, sizeof larger);
    *capacity = wanted;
    return STATUS_OK;
}

int kept_tokens_add(struct kept_tokens *kept, const struct call_update *update, const struct call_piece *piece) {
    int status = grow(&kept->tokens, kept->count, piece->token_count, &kept->capacity, sizeof *kept->tokens);
    for (int64_t i = 0; i < piece->token_count && !status; i++) {
        struct call_token *token = &kept->tokens[kept->count];
        *token = update->tokens[piece->first_token + i];
        status = grow(&kept->tops, kept->top_count, token->top_count, &kept->top_capacity, sizeof *kept->tops);
        if (status)
            break;
        if (token->top_count)
            memcpy(kept->tops + kept->top_count, update->tops + token->first_top,
                   (size_t)token->top_count * sizeof *kept->tops);
        token->first_top = kept->top_count;
        kept->top_count += token->top_count;
        kept->count++;
    }
    return status;
}

void kept_tokens_free(struct kept_tokens *kept) {
    free(kept->tokens);
    free(kept->tops);
    *kept = (struct kept_tokens){0};
}
