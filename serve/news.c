/* Lists of news. They grow, are emptied, and never shrink while a call lives. */
#include "call_own.h"

#include <stdlib.h>
#include <string.h>

static int grow(void *items, int64_t count, int64_t *capacity, size_t size) {
    void *old, *grown;
    if (count < *capacity)
        return STATUS_OK;
    int64_t wanted = *capacity ? 2 * *capacity : 16;
    memcpy(&old, items, sizeof old);
    grown = realloc(old, (size_t)wanted * size);
    if (!grown)
        return status_fail(STATUS_MEMORY, "out of memory");
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return STATUS_OK;
}

int news_add_start(struct call_news *news, const struct call_start *start) {
    int status = grow(&news->starts, news->start_count, &news->start_capacity, sizeof *news->starts);
    if (!status)
        news->starts[news->start_count++] = *start;
    return status;
}

int news_add_draw(struct call_news *news, const struct call_draw *draw) {
    int status = grow(&news->draws, news->draw_count, &news->draw_capacity, sizeof *news->draws);
    if (!status)
        news->draws[news->draw_count++] = *draw;
    return status;
}

int news_add_piece(struct call_news *news, int64_t prompt, int64_t choice, size_t begin) {
    int status = grow(&news->pieces, news->piece_count, &news->piece_capacity, sizeof *news->pieces);
    if (!status)
        news->pieces[news->piece_count++] = (struct call_piece){.prompt = prompt,
                                                                .choice = choice,
                                                                .begin = begin,
                                                                .length = news->text.length - begin,
                                                                .first_token = news->token_count};
    return status;
}

static int add_tops(struct call_news *news, struct call_token *token, const struct call_top *tops) {
    int status = STATUS_OK;
    token->first_top = news->top_count;
    for (int64_t i = 0; i < token->top_count && !status; i++) {
        status = grow(&news->tops, news->top_count, &news->top_capacity, sizeof *news->tops);
        if (!status)
            news->tops[news->top_count++] = tops[i];
    }
    return status;
}

int news_add_token(struct call_news *news, const struct call_token *token, const struct call_top *tops) {
    int status = grow(&news->tokens, news->token_count, &news->token_capacity, sizeof *news->tokens);
    if (status)
        return status;
    struct call_token *added = &news->tokens[news->token_count];
    *added = *token;
    status = add_tops(news, added, tops);
    if (status)
        return status;
    news->token_count++;
    news->pieces[news->piece_count - 1].token_count++;
    return STATUS_OK;
}

int news_add_end(struct call_news *news, const struct call_end *end, const struct call_top *tops) {
    int status = grow(&news->ends, news->end_count, &news->end_capacity, sizeof *news->ends);
    if (status)
        return status;
    struct call_end *added = &news->ends[news->end_count++];
    *added = *end;
    return end->has_token ? add_tops(news, &added->token, tops) : STATUS_OK;
}

void news_clear(struct call_news *news) {
    news->is_accepted = news->is_done = false;
    news->start_count = news->draw_count = news->piece_count = news->token_count = news->top_count = news->end_count =
        0;
    strbuf_clear(&news->text);
}

void news_free(struct call_news *news) {
    if (!news)
        return;
    strbuf_free(&news->text);
    free(news->starts);
    free(news->draws);
    free(news->pieces);
    free(news->tokens);
    free(news->tops);
    free(news->ends);
    free(news);
}
