/* Texts and messages as tokens, and what ends an answer. */
#include "prompt.h"

#include <string.h>

int prompt_encode_text(const struct tokenizer *tokenizer, struct tokenizer_encoder *encoder, const char *text,
                       size_t length, struct token_buffer *ids) {
    size_t before = ids->count;
    int status = tokenizer_encode(encoder, text, length, TOKENIZER_ADD_SPECIAL, ids);
    int32_t eos = tokenizer_eos_id(tokenizer);
    if (!status && ids->count == before && eos >= 0)
        status = token_buffer_add(ids, eos);
    return status;
}

int prompt_encode_messages(const struct tokenizer *tokenizer, struct tokenizer_encoder *encoder, int32_t eos,
                           enum chat_template which, const struct chat_message *messages, size_t count,
                           struct strbuf *text, struct token_buffer *ids) {
    struct chat_pieces pieces = {0};
    size_t length = 0;
    const unsigned char *eos_text = tokenizer_token_bytes(tokenizer, eos, &length);
    if (messages[count - 1].role == CHAT_ASSISTANT)
        return status_fail(STATUS_INVALID, "the last message is the assistant's: there is nothing to answer");
    if (which == CHAT_TEMPLATE_AUTO)
        return status_fail(STATUS_UNSUPPORTED, "messages need a chat template, and neither an adapter nor the "
                                               "tokenizer has one: name chatml, alpaca or plain by --chat-template");
    int status = chat_render(which, messages, count, true, &pieces);
    if (!status && text)
        status = chat_pieces_text(&pieces, eos_text ? (const char *)eos_text : "", length, text);
    if (!status)
        status = chat_pieces_encode(&pieces, encoder, eos, ids);
    chat_pieces_free(&pieces);
    return status;
}

void prompt_ends_find(const struct tokenizer *tokenizer, const int32_t *eos, int eos_count, enum chat_template which,
                      struct prompt_ends *ends) {
    const char *turn_end = chat_turn_end(which);
    int32_t id = turn_end ? tokenizer_find(tokenizer, turn_end, strlen(turn_end)) : -1;
    *ends = (struct prompt_ends){.count = 0};
    bool is_there = id < 0;
    for (int i = 0; i < eos_count; i++) {
        ends->ids[ends->count++] = eos[i];
        is_there |= eos[i] == id;
    }
    if (!is_there)
        ends->ids[ends->count++] = id;
    if (turn_end && (id < 0 || !tokenizer_is_special(tokenizer, id)))
        ends->turn_end = turn_end;
}
