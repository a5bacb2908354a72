/* Texts and messages as tokens, and the ends of an answer. */
#include "prompt.h"

const char *const special_tokens_names[] = {"parse", "text", NULL};

int prompt_encode_text(const struct tokenizer *tokenizer, struct tokenizer_encoder *encoder, const char *text,
                       size_t length, unsigned flag, struct token_buffer *ids) {
    size_t before = ids->count;
    int status = tokenizer_encode(encoder, text, length, TOKENIZER_ADD_SPECIAL | flag, ids);
    int32_t eos = tokenizer_eos_id(tokenizer);
    THEN_IF(status, ids->count == before && eos >= 0, token_buffer_add(ids, eos));
    return status;
}

struct prompt_room prompt_room_of(const struct tokenizer *tokenizer, int64_t tokens) {
    struct prompt_room room = {tokens, 1};
    size_t length;
    for (int32_t id = 0; tokenizer && id < tokenizer_vocab_size(tokenizer); id++)
        if (tokenizer_token_bytes(tokenizer, id, &length) && length > room.longest_token)
            room.longest_token = length;
    return room;
}

int prompt_check_bytes(const struct prompt_room *room, size_t bytes) {
    size_t least = bytes / room->longest_token;
    if (least <= (size_t)room->tokens)
        return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "this model's maximum context length is %lld tokens, and the request has more than %zu: its "
                       "text has %zu bytes",
                       (long long)room->tokens, least, bytes);
}

int prompt_check_template(const struct chat_template *template) {
    return template ? STATUS_OK
                    : status_fail(STATUS_UNSUPPORTED,
                                  "messages need a chat template, and neither an adapter nor the tokenizer has one: "
                                  "name " CHAT_TEMPLATE_CHOICES " by --chat-template");
}

int prompt_encode_messages(const struct chat_request *request, struct tokenizer_encoder *encoder,
                           struct chat_template *template, const struct prompt_room *room, struct strbuf *text,
                           struct token_buffer *ids) {
    struct chat_request asking = *request;
    struct chat_pieces pieces = {0};
    size_t count = json_array_size(request->messages);
    if (chat_is_assistants(json_array_get(request->messages, count - 1)))
        return status_fail(STATUS_INVALID, "the last message is the assistant's: there is nothing to answer");
    asking.asks = true;
    int status = prompt_check_template(template);
    THEN(status, chat_render(template, &asking, &pieces));
    THEN(status, prompt_check_bytes(room, pieces.text.length));
    if (!status && text) {
        strbuf_add(text, strbuf_text(&pieces.text), pieces.text.length);
        status = strbuf_status(text);
    }
    THEN(status, chat_pieces_encode(&pieces, encoder, request->eos, ids, NULL));
    chat_pieces_free(&pieces);
    return status;
}

int prompt_ends_find(const struct tokenizer *tokenizer, const int32_t *eos, int eos_count,
                     struct chat_template *template, double seconds, struct prompt_ends *ends) {
    *ends = (struct prompt_ends){.count = 0};
    int32_t first = eos_count ? eos[0] : -1;
    int status = template ? chat_find_turn_end(template, tokenizer, first, seconds, ends->turn_end) : STATUS_OK;
    int32_t id = *ends->turn_end ? tokenizer_find(tokenizer, ends->turn_end, strlen(ends->turn_end)) : -1;
    bool is_there = id < 0;
    for (int i = 0; i < eos_count; i++) {
        ends->ids[ends->count++] = eos[i];
        is_there |= eos[i] == id;
    }
    if (!is_there)
        ends->ids[ends->count++] = id;
    if (id >= 0 && tokenizer_is_special(tokenizer, id))
        *ends->turn_end = 0;
    return status;
}
