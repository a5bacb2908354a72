/* The lists of an update. They grow, are emptied, and never shrink while it lives. */
#include "update.h"

#include <math.h>

static int grow(void *items, int64_t count, int64_t *capacity, size_t size) {
    void *old, *grown;
    if (count < *capacity)
        return STATUS_OK;
    int64_t wanted = *capacity ? 2 * *capacity : 16;
    memcpy(&old, items, sizeof old);
    grown = realloc(old, (size_t)wanted * size);
    TRY(status_allocated(grown));
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return STATUS_OK;
}

int update_add_start(struct call_update *update, const struct call_start *start) {
    int status = grow(&update->starts, update->start_count, &update->start_capacity, sizeof *update->starts);
    if (!status)
        update->starts[update->start_count++] = *start;
    return status;
}

int update_add_draw(struct call_update *update, const struct call_draw *draw) {
    int status = grow(&update->draws, update->draw_count, &update->draw_capacity, sizeof *update->draws);
    if (!status)
        update->draws[update->draw_count++] = *draw;
    return status;
}

int update_add_piece(struct call_update *update, int64_t prompt, int64_t choice, size_t begin) {
    int status = grow(&update->pieces, update->piece_count, &update->piece_capacity, sizeof *update->pieces);
    if (!status)
        update->pieces[update->piece_count++] = (struct call_piece){.prompt = prompt,
                                                                    .choice = choice,
                                                                    .begin = begin,
                                                                    .length = update->text.length - begin,
                                                                    .first_token = update->token_count};
    return status;
}

static int add_tops(struct call_update *update, struct call_token *token, const struct call_top *tops) {
    int status = STATUS_OK;
    token->first_top = update->top_count;
    for (int64_t i = 0; i < token->top_count && !status; i++) {
        status = grow(&update->tops, update->top_count, &update->top_capacity, sizeof *update->tops);
        if (!status)
            update->tops[update->top_count++] = tops[i];
    }
    return status;
}

int update_add_token(struct call_update *update, const struct call_token *token, const struct call_top *tops) {
    TRY(grow(&update->tokens, update->token_count, &update->token_capacity, sizeof *update->tokens));
    struct call_token *added = &update->tokens[update->token_count];
    *added = *token;
    TRY(add_tops(update, added, tops));
    update->token_count++;
    update->pieces[update->piece_count - 1].token_count++;
    return STATUS_OK;
}

bool update_read_token(const struct scheduler_token *drawn, bool has_logprob, struct call_token *token,
                       struct call_top *tops) {
    bool is_finite = !has_logprob || isfinite(drawn->logprob);
    *token = (struct call_token){.id = drawn->token, .has_logprob = has_logprob, .logprob = drawn->logprob};
    for (int32_t i = 0; i < drawn->top_count && i < ASK_MAX_TOP; i++) {
        tops[i] = (struct call_top){.id = drawn->top_token[i], .logprob = drawn->top_logprob[i]};
        is_finite &= isfinite(drawn->top_logprob[i]) != 0;
        token->top_count = i + 1;
    }
    return is_finite;
}

int update_add_end(struct call_update *update, const struct call_end *end, const struct call_top *tops) {
    TRY(grow(&update->ends, update->end_count, &update->end_capacity, sizeof *update->ends));
    struct call_end *added = &update->ends[update->end_count++];
    *added = *end;
    return end->has_token ? add_tops(update, &added->token, tops) : STATUS_OK;
}

void update_clear(struct call_update *update) {
    update->is_accepted = update->is_done = update->is_outdated = false;
    update->start_count = update->draw_count = update->piece_count = update->token_count = update->top_count =
        update->end_count = 0;
    strbuf_clear(&update->text);
}

void update_free(struct call_update *update) {
    if (!update)
        return;
    strbuf_free(&update->text);
    free(update->starts);
    free(update->draws);
    free(update->pieces);
    free(update->tokens);
    free(update->tops);
    free(update->ends);
    free(update);
}
